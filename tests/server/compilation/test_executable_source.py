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
    """Fails while it is traced."""
    raise KeyError("no such layer")


def test_only_so_many_are_built_at_once(gate: Gate) -> None:
    """The others wait for a place, and all are built in the end."""
    harness = PipelineHarness(builds=2)
    source = Source(gated)
    sizes = range(1, 6)
    threads = [start(harness.value, source, np.ones(size, np.float32)) for size in sizes]
    room: Any = harness.compiler.room
    until(lambda: gate.inside == 2)
    until(lambda: len(room) == 3)
    gate.opened.set()
    join(threads)
    assert gate.peak == 2
    assert harness.counts() == (5, 5)
    harness.close()


@pytest.mark.slow
def test_a_load_waits_for_no_build(open_harness: Open, gate: Gate) -> None:
    """What is on disk is there at once, however long others take to compile."""
    open_harness().value(Source(double), X)
    harness = open_harness(builds=1)
    thread = start(harness.value, Source(gated), X)
    until(lambda: gate.inside == 1)
    assert harness.value(Source(double), X)[0] == 17
    assert counts(harness)["executable_loads"] == 1
    gate.opened.set()
    join([thread])


def test_a_failed_build_is_tried_again_and_not_kept(open_harness: Open) -> None:
    """Also where only one may be built at a time."""
    harness, source = open_harness(builds=1), Source(failing)
    for traces in (1, 2):
        with pytest.raises(KeyError, match="no such layer"):
            harness.value(source, X)
        assert counts(harness) == {**BUILT, "traces": traces, "lowers": 0, "compiles": 0}
    assert harness.program_cache is not None
    harness.program_cache.flush()
    assert harness.program_cache.calls() == {}


def test_many_who_load_the_same_load_once(open_harness: Open) -> None:
    """One program, one executable."""
    open_harness().value(Source(double), X)
    harness = open_harness()
    sources = [Source(double) for _ in range(8)]
    outcomes = at_once(8, lambda index: harness.value(sources[index], X).tolist())
    assert outcomes == [(X * 2 + 17).tolist()] * 8
    assert counts(harness) == LOADED


def test_each_stage_is_told(open_harness: Open) -> None:
    """Of a build all of them, of a load only that; each with the name of the function."""

    def stages(harness: PipelineHarness) -> list[str]:
        told: list[Any] = []
        call = Source(double).call((X,), emit=lambda kind, event: told.append(event))
        assert harness.answer(call)[0][0] == OK
        assert {event.get("function", "double") for event in told} == {"double"}
        return [event["stage"] for event in told]

    assert stages(open_harness()) == ["queued", "trace", "lower", "compile", "run"]
    assert stages(open_harness()) == ["queued", "load"]


def test_what_only_this_process_has_is_not_kept(open_harness: Open) -> None:
    """The result has a token for it, which later processes would not know."""
    harness = open_harness()
    harness.value(Source(lambda x: Marked(x + 3)), X)
    assert harness.program_cache is not None
    harness.program_cache.flush()
    (kept,) = harness.program_cache.calls().values()
    assert kept.obstacle == "tokens"
    assert harness.program_cache.store.names("programs") == []


def test_how_long_it_took_is_added_up(open_harness: Open) -> None:
    """Tracing, compiling and loading, each for itself."""
    harness = open_harness()
    harness.value(Source(double), X)
    first = harness.counters.snapshot()
    (built,) = harness.executables.all()
    assert (first["trace_s"], first["compile_s"]) == (built.costs.trace_s, built.costs.compile_s)
    assert built.costs.paid_s >= built.costs.build_s > 0
    assert first["load_s"] == 0
    harness = open_harness()
    harness.value(Source(double), X)
    second = harness.counters.snapshot()
    (loaded,) = harness.executables.all()
    assert (second["trace_s"], second["compile_s"]) == (0, 0)
    assert second["load_s"] == loaded.costs.paid_s > 0
    assert loaded.costs.build_s == built.costs.build_s
    assert loaded.program.load_s > 0
