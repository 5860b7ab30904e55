"""What it costs to make an executable: counted traces, lowerings, compilations and loads."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from jaxd_protocol.calls import OK
from jaxd_server import jax_programs
from jaxd_server.jax_private import live_executables
from jaxd_server.programs import Program
from tests.server.costs import BUILT, LOADED, SHARED, counts, double
from tests.server.in_process import Kitchen, Source
from tests.server.restarted import Marked
from tests.server.staging import PATIENCE_S, at_once, join, start, until, waiting

Open = Callable[..., Kitchen]

X = np.arange(5, dtype=np.float32)


def twice(y: Any) -> Any:
    """The same program under another name."""
    doubled = y * 2
    return doubled + 17


def test_a_renamed_function_shares_the_program(kitchen: Kitchen) -> None:
    """It is traced and lowered, not compiled, and takes no memory of its own."""
    gc.collect()
    before = live_executables()
    first, second = Source(double), Source(twice)
    assert first.key != second.key
    expected = kitchen.value(first, X).tolist()
    assert counts(kitchen) == BUILT
    assert kitchen.value(second, X).tolist() == expected
    assert counts(kitchen) == {**BUILT, "traces": 2, "lowers": 2, "programs_shared": 1}
    assert live_executables() == before + 1
    assert (len(kitchen.executables), len(kitchen.maker.programs)) == (2, 1)


def test_a_renamed_function_finds_the_program_of_an_earlier_process(open_kitchen: Open) -> None:
    """Traced and lowered once; the process after that loads it under both names."""
    expected = open_kitchen().value(Source(double), X).tolist()
    kitchen = open_kitchen()
    assert kitchen.value(Source(twice), X).tolist() == expected
    assert counts(kitchen) == SHARED
    kitchen = open_kitchen()
    for function in (double, twice):
        source = Source(function)
        assert kitchen.value(source, X).tolist() == expected
        assert source.asked == []
    assert counts(kitchen) == {**LOADED, "executable_loads": 2}
    assert len(kitchen.maker.programs) == 1


def test_shared_programs_outlive_each_other(kitchen: Kitchen) -> None:
    """Dropping one executable leaves the other's program where it is."""
    first, second = Source(double), Source(twice)
    for source in (first, second):
        kitchen.value(source, X)
    assert kitchen.executables.forget(first.key) == 1
    gc.collect()
    assert kitchen.value(second, X)[1] == 19
    assert kitchen.executables.forget(second.key) == 1
    gc.collect()
    assert len(kitchen.maker.programs) == 0


def test_equal_functions_that_come_together_compile_once(open_kitchen: Open) -> None:
    """Also when all of them look on disk first."""
    kitchen = open_kitchen(builds=8)
    sources = []
    for index in range(8):
        scope: dict[str, Any] = {}
        exec(f"def step_{index}(x):\n    return x * 3 - 11", scope)
        sources.append(Source(scope[f"step_{index}"]))
    outcomes = at_once(8, lambda index: kitchen.value(sources[index], X).tolist())
    assert outcomes == [(X * 3 - 11).tolist()] * 8
    assert counts(kitchen) == {**BUILT, "traces": 8, "lowers": 8, "programs_shared": 7}


def test_whoever_waits_for_a_look_on_disk_compiles(
    open_kitchen: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That somebody else has found nothing there is no answer for a call."""
    kitchen = open_kitchen()
    shelf = kitchen.shelf
    assert shelf is not None
    monkeypatch.setattr(shelf, "program", _absent)
    programs = kitchen.maker.programs
    obtained: list[bytes] = []
    obtain = programs.obtain

    def disturbed(name: bytes, make: Callable[[], Program]) -> Program:
        """Begins a look on disk just before the first build asks; it ends while that waits."""
        obtained.append(name)
        if len(obtained) > 1:
            return obtain(name, make)
        looking, release = threading.Event(), threading.Event()

        def program(*_: Any) -> Program:
            looking.set()
            assert release.wait(PATIENCE_S)
            raise LookupError

        monkeypatch.setattr(shelf, "program", program)
        thread = start(kitchen.maker._stored_program, name, 0)
        assert looking.wait(PATIENCE_S)
        monkeypatch.setattr(shelf, "program", _absent)
        (flight,) = programs._flights._flights.values()

        def let_go() -> None:
            until(lambda: waiting(flight._condition) == 1)
            release.set()

        threads = [thread, start(let_go)]
        try:
            return obtain(name, make)
        finally:
            join(threads)

    monkeypatch.setattr(programs, "obtain", disturbed)
    assert kitchen.value(Source(double), X).tolist() == (X * 2 + 17).tolist()
    assert counts(kitchen) == BUILT


def _absent(*_: Any) -> Program:
    raise LookupError


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Where functions that are traced stop, until the test opens it."""
    gate = Gate()
    monkeypatch.setattr("builtins.jaxd_test_gate", gate, raising=False)
    yield gate
    gate.opened.set()


class Gate:
    """Counts who is in it."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.lock = threading.Lock()
        self.inside = 0
        self.peak = 0
        self.passed = 0

    def __call__(self) -> None:
        """Waits for the test."""
        with self.lock:
            self.inside += 1
            self.passed += 1
            self.peak = max(self.peak, self.inside)
        assert self.opened.wait(PATIENCE_S)
        with self.lock:
            self.inside -= 1


def gated(x: Any) -> Any:
    """Stops at the gate while it is traced."""
    import builtins

    vars(builtins)["jaxd_test_gate"]()
    return x + 1


def failing(x: Any) -> Any:
    """Fails behind the gate."""
    import builtins

    vars(builtins)["jaxd_test_gate"]()
    raise KeyError("no such layer")


def test_only_so_many_are_built_at_once(gate: Gate) -> None:
    """The others wait for a place, and all are built in the end."""
    kitchen = Kitchen(builds=2)
    source = Source(gated)
    sizes = range(1, 6)
    threads = [start(kitchen.value, source, np.ones(size, np.float32)) for size in sizes]
    room: Any = kitchen.compiler.room()
    until(lambda: gate.inside == 2)
    until(lambda: len(room) == 3)
    gate.opened.set()
    join(threads)
    assert gate.peak == 2
    assert kitchen.counts() == (5, 5)
    kitchen.close()


def test_a_load_waits_for_no_build(open_kitchen: Open, gate: Gate) -> None:
    """What is on disk is there at once, however long others take to compile."""
    open_kitchen().value(Source(double), X)
    kitchen = open_kitchen(builds=1)
    thread = start(kitchen.value, Source(gated), X)
    until(lambda: gate.inside == 1)
    assert kitchen.value(Source(double), X)[0] == 17
    assert counts(kitchen)["executable_loads"] == 1
    gate.opened.set()
    join([thread])


def test_a_failed_build_fails_all_its_waiters_and_is_tried_again(
    open_kitchen: Open, gate: Gate
) -> None:
    """All have the same error from one trace, and nothing of it is kept."""
    kitchen = open_kitchen(builds=1)
    source = Source(failing)
    kitchen.pipeline.functions.obtain(source.key, source)

    def release() -> None:
        until(lambda: gate.inside == 1)
        (build,) = kitchen.executables._builds._builds.values()
        until(lambda: len(build.waiting) == 4)
        gate.opened.set()

    thread = start(release)
    outcomes = at_once(4, lambda _: kitchen.value(source, X))
    join([thread])
    assert [(type(error), error.args) for error in outcomes] == [(KeyError, ("no such layer",))] * 4
    assert counts(kitchen)["traces"] == 1
    assert kitchen.shelf is not None
    kitchen.shelf.flush()
    assert kitchen.shelf.calls() == {}
    with pytest.raises(KeyError):  # also where only one may be built at a time
        kitchen.value(source, X)
    assert counts(kitchen) == {**BUILT, "traces": 2, "lowers": 0, "compiles": 0}


def test_many_who_load_the_same_load_once(open_kitchen: Open) -> None:
    """One program, one executable."""
    open_kitchen().value(Source(double), X)
    kitchen = open_kitchen()
    sources = [Source(double) for _ in range(8)]
    outcomes = at_once(8, lambda index: kitchen.value(sources[index], X).tolist())
    assert outcomes == [(X * 2 + 17).tolist()] * 8
    assert counts(kitchen) == LOADED


def test_each_stage_is_told(open_kitchen: Open) -> None:
    """Of a build all of them, of a load only that."""

    def stages(kitchen: Kitchen) -> list[str]:
        told: list[str] = []
        call = Source(double).call((X,), emit=lambda kind, event: told.append(event["stage"]))
        assert kitchen.answer(call)[0][0] == OK
        return told

    assert stages(open_kitchen()) == ["queued", "trace", "lower", "compile", "run"]
    assert stages(open_kitchen()) == ["queued", "load"]


def test_what_only_this_process_has_is_not_kept(open_kitchen: Open) -> None:
    """The result has a token for it, which later processes would not know."""
    kitchen = open_kitchen()
    kitchen.value(Source(lambda x: Marked(x + 3)), X)
    assert kitchen.shelf is not None
    kitchen.shelf.flush()
    (kept,) = kitchen.shelf.calls().values()
    assert kept.obstacle == "tokens"
    assert kitchen.shelf.store.names("programs") == []


def test_how_long_it_took_is_added_up(open_kitchen: Open) -> None:
    """Tracing, compiling and loading, each for itself."""
    kitchen = open_kitchen()
    kitchen.value(Source(double), X)
    first = kitchen.counters.snapshot()
    (built,) = kitchen.executables.all()
    assert (first["trace_s"], first["compile_s"]) == (built.costs.trace_s, built.costs.compile_s)
    assert built.costs.paid_s >= built.costs.build_s > 0
    assert first["load_s"] == 0
    kitchen = open_kitchen()
    kitchen.value(Source(double), X)
    second = kitchen.counters.snapshot()
    (loaded,) = kitchen.executables.all()
    assert (second["trace_s"], second["compile_s"]) == (0, 0)
    assert second["load_s"] == loaded.costs.paid_s > 0
    assert loaded.costs.build_s == built.costs.build_s
    assert loaded.program.load_s > 0


def test_a_program_that_jax_cannot_write_still_runs(
    open_kitchen: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process makes it again."""

    def refuse(program: Any) -> bytes:
        raise jax_programs.NotKept("not this one")

    monkeypatch.setattr(jax_programs, "serialize", refuse)
    for _ in range(2):
        kitchen = open_kitchen()
        assert kitchen.value(Source(double), X)[0] == 17
        assert counts(kitchen) == BUILT
