"""Functions and programs on disk, as the rest of the server knows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxd_protocol.jit.options import Options
from jaxd_protocol.messages.calls import OK
from jaxd_protocol.pytree import dump_literal
from jaxd_protocol.pytree.literals import load_literal
from jaxd_server.codec.results import ResultLayout
from jaxd_server.compilation.disk_cache.programs import ProgramCache
from jaxd_server.compilation.disk_cache.records import CallRecord, call_name
from jaxd_server.compilation.functions.function import Function
from jaxd_server.jax_compat import programs
from tests.server.in_process import PipelineHarness, Source, function_of, program_cache_in

X = np.arange(3, dtype=np.float32)

CALL = CallRecord(
    name="step",
    key=b"k" * 16,
    fingerprint=b"f" * 16,
    code=b"c" * 16,
    skeleton=b"N",
    sizes=(3, 4),
    pickles=(b"abc",),
    parameters=("x", "n"),
    program=b"p" * 16,
    obstacle=None,
    form=ResultLayout.of(b"N", (), (("3", 2), ("0", 1))),
    trace_s=0.5,
    compile_s=1.5,
    created=1e9,
    environment=b"e" * 16,
    principal="uid:1000",
)


def step(x: Any, n: int = 3, *, mode: str = "fast") -> Any:
    """Is called in these tests."""
    return x * n


class Shut:
    """Hashable, and nothing tells what is in it."""

    def __reduce__(self) -> Any:
        raise TypeError("it is shut")


OPTIONS = Options(static_argnames=("mode", "n"), keep_unused=True)


def test_a_kept_call_is_a_literal() -> None:
    """And the same again when it is read."""
    content, _ = load_literal(dump_literal(CALL.to_content()), 0)
    assert CallRecord.from_content(content) == CALL
    assert CALL.recorded == (b"N", (3, 4), (b"abc",))


def test_a_record_of_an_earlier_version_is_read() -> None:
    """It also held what the function printed while it was traced."""
    assert CallRecord.from_content((*CALL.to_content(), ("said", "[]"))) == CALL


def named(function: Function, *args: Any, **kwargs: Any) -> bytes | None:
    """The lasting name of a call."""
    return call_name(function, (args, kwargs))


def test_a_call_has_a_name_of_its_own() -> None:
    """By function, options and signature; values do not count unless they are static."""
    plain, other = function_of(step), function_of(step, OPTIONS)
    names = [
        named(plain, X),
        named(plain, X[:2]),
        named(plain, X, 1),
        named(plain, X, n=1),
        named(other, X),
        named(other, X, n=1),
        named(other, X, n=2),
        named(other, X, n=True),
    ]
    assert None not in names
    assert len(set(names)) == len(names)
    assert named(plain, X) == named(plain, X + 1)
    assert named(plain, {"a": 1.0, "b": X}) == named(plain, {"b": X, "a": 2.0})


def test_what_means_nothing_elsewhere_has_no_name() -> None:
    """A function in doubt, one of a client that says nothing of it, and objects without content."""
    private = function_of(step)
    assert private.unpacked is not None
    private.unpacked = replace(private.unpacked, doubt="it was changed")
    unknown = function_of(step)
    unknown.described = unknown.described._replace(manifest=None)
    static = function_of(step, OPTIONS)
    assert (named(private, X), named(unknown, X), named(static, X, mode=Shut())) == (None,) * 3
    assert named(static, X, mode="slow") is not None


Open = Callable[..., PipelineHarness]


@pytest.fixture
def program_cache(tmp_path: Path) -> Iterator[ProgramCache]:
    """One with nothing on it."""
    program_cache = program_cache_in(str(tmp_path / "cache"))
    yield program_cache
    program_cache.close()


def kept_one(harness: PipelineHarness) -> tuple[bytes, CallRecord]:
    """The only call that a harness has kept, with its name."""
    assert harness.program_cache is not None
    harness.program_cache.flush()
    ((name, kept),) = harness.program_cache.calls().items()
    return name, kept


def function_in(harness: PipelineHarness, source: Source) -> Function:
    """What the server has of a function."""
    return harness.pipeline.functions.obtain(source.key, source)


# functions ----------------------------------------------------------------------------------------


def test_a_function_is_found_as_it_was(open_harness: Open) -> None:
    """All that a call needs of it, without its code having been looked at."""
    source = Source(step, OPTIONS)
    harness = open_harness()
    assert harness.answer(source.call((X,), {"mode": "slow"}))[0][0] == OK
    original = function_in(harness, source)
    harness = open_harness()
    assert harness.program_cache is not None
    found = harness.program_cache.function(source.key)
    assert found is not None
    for one in fields(Function):
        if one.name != "unpacked":
            assert getattr(found, one.name) == getattr(original, one.name)
    assert found.unpacked is None
    assert found.parameters == ("x", "n")
    assert found.statics.names == {"n", "mode"}
    assert bytes(harness.program_cache.code(source.fingerprint) or b"") == bytes(source.code_)


def test_a_function_without_its_code_is_unknown(open_harness: Open) -> None:
    """Its client is asked for both; one that is forgotten is gone."""
    source = Source(step)
    harness = open_harness()
    harness.value(source, X)
    program_cache = harness.program_cache
    assert program_cache is not None
    program_cache.flush()
    assert program_cache.function(source.key) is not None
    program_cache.store.remove("code", source.fingerprint)
    assert program_cache.function(source.key) is None
    assert program_cache.code(source.fingerprint) is None
    assert program_cache.function(b"another") is None
    program_cache.forget_function(function_in(harness, source))
    assert (program_cache.store.names("functions"), program_cache.store.names("code")) == ([], [])


# calls --------------------------------------------------------------------------------------------


def test_what_is_kept_of_a_call(open_harness: Open) -> None:
    """Whose it is, for which arguments it was made, what it cost, and what it leads to."""
    source = Source(step)
    harness = open_harness()
    call = source.call((X, 2))
    assert harness.answer(call)[0][0] == OK
    _, kept = kept_one(harness)
    (built,) = harness.executables.all()
    assert (kept.name, kept.key, kept.fingerprint) == ("step", source.key, source.fingerprint)
    assert kept.recorded == built.recorded == (call.skeleton, (), ())
    assert (kept.parameters, kept.obstacle) == (("x", "n"), None)
    assert kept.form == built.form
    assert (kept.trace_s, kept.compile_s) == (built.costs.trace_s, built.costs.compile_s)
    assert kept.program == built.program.id
    assert harness.program_cache is not None
    assert harness.program_cache.store.has("programs", kept.program)


def test_a_call_is_found_by_name_and_only_for_its_key(open_harness: Open) -> None:
    """Whatever stands in the file: a name that two keys share would mix them up."""
    source = Source(step)
    harness = open_harness()
    harness.value(source, X)
    name, kept = kept_one(harness)
    harness = open_harness()
    program_cache = harness.program_cache
    assert program_cache is not None
    assert program_cache.find(function_in(harness, source), name) == kept
    assert program_cache.has(name)
    other = Source(step, OPTIONS)
    assert program_cache.find(function_in(harness, other), name) is None
    assert program_cache.find(function_in(harness, source), b"another") is None
    assert not program_cache.has(b"another")


@pytest.mark.slow
def test_calls_are_listed_with_those_that_come_later(open_harness: Open) -> None:
    """And not those that another server has removed; nothing is held in between."""
    open_harness().value(Source(step), X)
    harness = open_harness()
    program_cache = harness.program_cache
    assert program_cache is not None
    assert len(program_cache.calls()) == 1
    harness.value(Source(step), X[:2])
    program_cache.flush()
    assert len(program_cache.calls()) == 2
    assert len({kept.recorded for kept in program_cache.calls().values()}) == 2
    for file in Path(program_cache.store.folder, "calls").iterdir():
        file.unlink()
    assert program_cache.calls() == {}


BROKEN: list[Any] = [
    3,
    (),
    ("name", "step"),
    CALL.to_content()[:-2],
    (*CALL.to_content(), ("more", 1)),
    (*CALL.to_content(), ("form", (b"no skeleton", ()))),
    (*CALL.to_content(), ("form", 3)),
]


@pytest.mark.parametrize("content", BROKEN)
def test_a_record_with_other_content_is_removed(
    program_cache: ProgramCache, warned: Callable[[], list[str]], content: Any
) -> None:
    """With one warning, however many there are."""
    names = [bytes([number]) * 16 for number in range(3)]
    for name in names:
        program_cache.store.write("calls", name, content)
    assert program_cache.calls() == {}
    assert program_cache.store.names("calls") == []
    assert warned() == ["cache_spoilt"]


# programs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "payload"),
    [((), b""), (3, b""), ((1, 1, 0.5, (0,)), b"no program"), ((1, 1, 0.5, (99,)), b"")],
)
def test_what_is_no_program_is_removed(
    program_cache: ProgramCache, warned: Callable[[], list[str]], content: Any, payload: bytes
) -> None:
    """It is as if it had never been there, but for one warning."""
    programs.prepare()
    for name in (b"p" * 16, b"q" * 16):
        program_cache.store.write("programs", name, content, payload)
        with pytest.raises(LookupError):
            program_cache.program(name)
    assert program_cache.store.names("programs") == []
    assert warned() == ["program_not_loaded"]


def test_a_program_that_finds_no_room_stays_on_disk(
    open_harness: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once there is room it is loaded, in the same call, and nothing is compiled."""
    open_harness().value(Source(step), X)
    harness = open_harness()
    load, failures = programs.load, [jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: full")]

    def full_at_first(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return load(*args)

    monkeypatch.setattr(programs, "load", full_at_first)
    assert harness.value(Source(step), X).tolist() == (X * 3).tolist()
    assert harness.counts() == (0, 0)
    assert failures == []


def test_where_there_are_several_devices_a_program_says_whether_it_may_move(
    open_harness: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was written by who did not know of them is made anew."""
    harness = open_harness()
    harness.value(Source(step), X)
    _, kept = kept_one(harness)
    program_cache = harness.program_cache
    assert program_cache is not None
    for module in ("compilation.disk_cache.programs", "jax_compat.placement"):
        monkeypatch.setattr(f"jaxd_server.{module}.are_several", lambda: True)
    with pytest.raises(LookupError):
        program_cache.program(kept.program, 1)
    assert not program_cache.store.has("programs", kept.program)
    (executable,) = harness.executables.all()
    program_cache._keep_program(executable.program)
    assert program_cache.program(kept.program).is_bound is False
    executable.program.is_bound = True
    program_cache.store.remove("programs", kept.program)
    program_cache._keep_program(executable.program)
    assert program_cache.program(kept.program, 3).is_bound is True


def test_a_suspected_program_is_not_there_until_it_is_kept_again(open_harness: Open) -> None:
    """Its file stays meanwhile."""
    harness = open_harness()
    harness.value(Source(step), X)
    name, kept = kept_one(harness)
    program_cache = harness.program_cache
    assert program_cache is not None
    program_cache.distrust_program(kept.program)
    assert not program_cache.has(name)
    with pytest.raises(LookupError):
        program_cache.program(kept.program)
    assert program_cache.store.has("programs", kept.program)
    (executable,) = harness.executables.all()
    program_cache._keep_program(executable.program)
    assert program_cache.has(name)
    assert program_cache.program(kept.program).id == kept.program
