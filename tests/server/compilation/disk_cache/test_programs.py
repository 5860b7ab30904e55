"""Functions and programs on disk, as the rest of the server knows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxd_protocol.jit.options import Options
from jaxd_protocol.messages.calls import OK
from jaxd_server.compilation.disk_cache.programs import ProgramCache
from jaxd_server.compilation.disk_cache.records import CallRecord
from jaxd_server.compilation.functions.function import Function
from jaxd_server.jax_compat import programs
from tests.server.compilation.disk_cache.test_records import CALL
from tests.server.in_process import PipelineHarness, Source, shelf_in

Open = Callable[..., PipelineHarness]

X = np.arange(3, dtype=np.float32)


def step(x: Any, n: int = 3, *, mode: str = "fast") -> Any:
    """Is called in these tests."""
    return x * n


OPTIONS = Options(static_argnames=("mode", "n"), keep_unused=True)


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[ProgramCache]:
    """One with nothing on it."""
    shelf = shelf_in(str(tmp_path / "cache"))
    yield shelf
    shelf.close()


def kept_one(kitchen: PipelineHarness) -> tuple[bytes, CallRecord]:
    """The only call that a kitchen has kept, with its name."""
    assert kitchen.shelf is not None
    kitchen.shelf.flush()
    ((name, kept),) = kitchen.shelf.calls().items()
    return name, kept


def function_in(kitchen: PipelineHarness, source: Source) -> Function:
    """What the server has of a function."""
    return kitchen.pipeline.functions.obtain(source.key, source)


# functions ----------------------------------------------------------------------------------------


def test_a_function_is_found_as_it_was(open_kitchen: Open) -> None:
    """All that a call needs of it, without its code having been looked at."""
    source = Source(step, OPTIONS)
    kitchen = open_kitchen()
    assert kitchen.answer(source.call((X,), {"mode": "slow"}))[0][0] == OK
    original = function_in(kitchen, source)
    kitchen = open_kitchen()
    assert kitchen.shelf is not None
    found = kitchen.shelf.function(source.key)
    assert found is not None
    for one in fields(Function):
        if one.name != "arrival":
            assert getattr(found, one.name) == getattr(original, one.name)
    assert found.unpacked is None
    assert found.parameters == ("x", "n")
    assert found.statics.names == {"n", "mode"}
    assert bytes(kitchen.shelf.code(source.fingerprint) or b"") == bytes(source.code_)


def test_a_function_without_its_code_is_unknown(open_kitchen: Open) -> None:
    """Its client is asked for both."""
    source = Source(step)
    kitchen = open_kitchen()
    kitchen.value(source, X)
    shelf = kitchen.shelf
    assert shelf is not None
    shelf.flush()
    assert shelf.function(source.key) is not None
    shelf.store.remove("code", source.fingerprint)
    assert shelf.function(source.key) is None
    assert shelf.code(source.fingerprint) is None
    assert shelf.function(b"another") is None


def test_a_forgotten_function_is_gone(open_kitchen: Open) -> None:
    """With its code."""
    source = Source(step)
    kitchen = open_kitchen()
    kitchen.value(source, X)
    shelf = kitchen.shelf
    assert shelf is not None
    shelf.flush()
    shelf.forget_function(function_in(kitchen, source))
    assert shelf.function(source.key) is None
    assert (shelf.store.names("functions"), shelf.store.names("code")) == ([], [])


# calls --------------------------------------------------------------------------------------------


def test_what_is_kept_of_a_call(open_kitchen: Open) -> None:
    """Whose it is, for which arguments it was made, what it cost, and what it leads to."""
    source = Source(step)
    kitchen = open_kitchen()
    call = source.call((X, 2))
    assert kitchen.answer(call)[0][0] == OK
    _, kept = kept_one(kitchen)
    (built,) = kitchen.executables.all()
    assert (kept.name, kept.key, kept.fingerprint) == ("step", source.key, source.fingerprint)
    assert kept.recorded == built.recorded == (call.skeleton, (), ())
    assert (kept.parameters, kept.obstacle) == (("x", "n"), None)
    assert kept.form == built.form
    assert (kept.trace_s, kept.compile_s) == (built.costs.trace_s, built.costs.compile_s)
    assert kept.program == built.program.id
    assert kitchen.shelf is not None
    assert kitchen.shelf.store.has("programs", kept.program)


def test_a_call_is_found_by_name_and_only_for_its_key(open_kitchen: Open) -> None:
    """Whatever stands in the file: a name that two keys share would mix them up."""
    source = Source(step)
    kitchen = open_kitchen()
    kitchen.value(source, X)
    name, kept = kept_one(kitchen)
    kitchen = open_kitchen()
    shelf = kitchen.shelf
    assert shelf is not None
    assert shelf.find(function_in(kitchen, source), name) == kept
    assert shelf.has(name)
    other = Source(step, OPTIONS)
    assert shelf.find(function_in(kitchen, other), name) is None
    assert shelf.find(function_in(kitchen, source), b"another") is None
    assert not shelf.has(b"another")


def test_an_obstacle_is_kept_and_no_program(open_kitchen: Open) -> None:
    """So that `why` can say it, also after a restart."""

    def talk(x: Any) -> Any:
        jax.debug.print("", ordered=False)
        return x

    source = Source(talk)
    kitchen = open_kitchen()
    kitchen.value(source, X)
    name, kept = kept_one(kitchen)
    assert kept.obstacle in ("callbacks", "effects")
    shelf = kitchen.shelf
    assert shelf is not None
    assert shelf.store.names("programs") == []
    assert shelf.find(function_in(kitchen, source), name) is None
    assert not shelf.has(name)


def test_a_program_that_is_gone_is_not_there(open_kitchen: Open) -> None:
    """Although the call that names it is."""
    source = Source(step)
    kitchen = open_kitchen()
    kitchen.value(source, X)
    name, kept = kept_one(kitchen)
    shelf = kitchen.shelf
    assert shelf is not None
    shelf.store.remove("programs", kept.program)
    assert not shelf.has(name)
    with pytest.raises(LookupError):
        shelf.program(kept.program)


def test_a_removed_call_is_gone_and_its_program_is_not(open_kitchen: Open) -> None:
    """Another function may have the same one."""
    kitchen = open_kitchen()
    kitchen.value(Source(step), X)
    name, kept = kept_one(kitchen)
    shelf = kitchen.shelf
    assert shelf is not None
    shelf.remove(name)
    assert shelf.calls() == {}
    assert not shelf.has(name)
    assert shelf.store.has("programs", kept.program)


def test_calls_are_listed_with_those_that_come_later(open_kitchen: Open) -> None:
    """And not those that another server has removed; nothing is held in between."""
    open_kitchen().value(Source(step), X)
    kitchen = open_kitchen()
    shelf = kitchen.shelf
    assert shelf is not None
    assert len(shelf.calls()) == 1
    kitchen.value(Source(step), X[:2])
    shelf.flush()
    assert len(shelf.calls()) == 2
    assert len({kept.recorded for kept in shelf.calls().values()}) == 2
    for file in Path(shelf.store.folder, "calls").iterdir():
        file.unlink()
    assert shelf.calls() == {}


BROKEN: list[Any] = [
    3,
    (),
    ("name", "step"),
    CALL.to_content()[:-1],
    (*CALL.to_content(), ("more", 1)),
    (*CALL.to_content(), ("form", (b"no skeleton", ()))),
    (*CALL.to_content(), ("form", 3)),
]


@pytest.mark.parametrize("content", BROKEN)
def test_a_record_with_other_content_is_removed(
    shelf: ProgramCache, warned: Callable[[], list[str]], content: Any
) -> None:
    """With one warning, however many there are."""
    names = [bytes([number]) * 16 for number in range(3)]
    for name in names:
        shelf.store.write("calls", name, content)
    assert shelf.calls() == {}
    assert shelf.store.names("calls") == []
    assert warned() == ["cache_spoilt"]


# programs -----------------------------------------------------------------------------------------


def test_a_program_is_loaded_with_what_it_cost(open_kitchen: Open) -> None:
    """It runs, and knows what it would cost to compile it again."""
    kitchen = open_kitchen()
    kitchen.value(Source(step), X, 2)
    _, kept = kept_one(kitchen)
    kitchen = open_kitchen()
    assert kitchen.shelf is not None
    program = kitchen.shelf.program(kept.program)
    assert (program.id, program.compile_s) == (kept.program, kept.compile_s)
    assert program.load_s > 0
    (result,) = program.call(X, 2)
    assert result.tolist() == [0, 2, 4]


@pytest.mark.parametrize(
    ("content", "payload"),
    [((), b""), (3, b""), ((1, 1, 0.5, (0,)), b"no program"), ((1, 1, 0.5, (99,)), b"")],
)
def test_what_is_no_program_is_removed(
    shelf: ProgramCache, warned: Callable[[], list[str]], content: Any, payload: bytes
) -> None:
    """It is as if it had never been there, but for one warning."""
    programs.prepare()
    for name in (b"p" * 16, b"q" * 16):
        shelf.store.write("programs", name, content, payload)
        with pytest.raises(LookupError):
            shelf.program(name)
    assert shelf.store.names("programs") == []
    assert warned() == ["program_not_loaded"]


def test_a_program_that_finds_no_room_stays_on_disk(
    open_kitchen: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once there is room it is loaded, in the same call, and nothing is compiled."""
    open_kitchen().value(Source(step), X)
    kitchen = open_kitchen()
    load, failures = programs.load, [jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: full")]

    def full_at_first(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return load(*args)

    monkeypatch.setattr(programs, "load", full_at_first)
    assert kitchen.value(Source(step), X).tolist() == (X * 3).tolist()
    assert kitchen.counts() == (0, 0)
    assert failures == []


def test_where_there_are_several_devices_a_program_says_whether_it_may_move(
    open_kitchen: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was written by who did not know of them is made anew."""
    kitchen = open_kitchen()
    kitchen.value(Source(step), X)
    _, kept = kept_one(kitchen)
    shelf = kitchen.shelf
    assert shelf is not None
    for module in ("compilation.disk_cache.programs", "jax_compat.placement"):
        monkeypatch.setattr(f"jaxd_server.{module}.are_several", lambda: True)
    with pytest.raises(LookupError):
        shelf.program(kept.program, 1)
    assert not shelf.store.has("programs", kept.program)
    (executable,) = kitchen.executables.all()
    shelf._keep_program(executable.program, 1)
    assert shelf.program(kept.program).is_bound is False
    executable.program.is_bound = True
    shelf.store.remove("programs", kept.program)
    shelf._keep_program(executable.program, 1)
    assert shelf.program(kept.program, 3).is_bound is True


def test_a_suspected_program_is_not_there_until_it_is_kept_again(open_kitchen: Open) -> None:
    """Its file stays meanwhile."""
    kitchen = open_kitchen()
    kitchen.value(Source(step), X)
    name, kept = kept_one(kitchen)
    shelf = kitchen.shelf
    assert shelf is not None
    shelf.distrust_program(kept.program)
    assert not shelf.has(name)
    with pytest.raises(LookupError):
        shelf.program(kept.program)
    assert shelf.store.has("programs", kept.program)
    (executable,) = kitchen.executables.all()
    shelf._keep_program(executable.program, 1)
    assert shelf.has(name)
    assert shelf.program(kept.program).id == kept.program
