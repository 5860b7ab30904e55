"""What it costs to make an executable: counted traces, lowerings, compilations and loads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from jaxd_protocol.messages.calls import OK
from tests.server.costs import BUILT, LOADED, counts, double
from tests.server.in_process import PipelineHarness, Source
from tests.server.restarted import Marked
from tests.server.staging import PATIENCE_S, at_once, join, start, until

Open = Callable[..., PipelineHarness]

X = np.arange(5, dtype=np.float32)


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
    kitchen = PipelineHarness(builds=2)
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

    def stages(kitchen: PipelineHarness) -> list[str]:
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
