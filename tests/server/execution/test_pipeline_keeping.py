"""Calls and what is kept: warming up, and what others are spared."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxd_protocol.errors import ConnectionLost, ProtocolError
from jaxd_protocol.messages.calls import FAILED, OK
from jaxd_protocol.messages.recipes import RecordedCall
from jaxd_server.jax_compat import programs
from jaxd_server.rpc.sessions import Session
from tests.server.execution.test_pipeline import FLOAT, counted, double
from tests.server.in_process import PipelineHarness, Source
from tests.server.staging import PATIENCE_S, join, start, until

HIT = {"verdict": "hit", "seconds": 0.0, "kept": True}


def answered(harness: PipelineHarness, call: Any) -> Any:
    """What is in the reply to a call that has no data to send home."""
    (kind, text, _), buffers = harness.answer(call)
    assert (kind, tuple(buffers)) == (OK, ())
    return json.loads(text)


def loud(x: Any) -> Any:
    """Says where it runs."""
    import builtins

    return jax.pure_callback(vars(builtins)["jaxd_test_heard"], FLOAT, x)


def warming(source: Source, *args: Any, **more: Any) -> Any:
    """A call to warm up: as `call`, without data."""
    call = source.call(args, warm_only=True, **more)
    call.blob, call.buffers = b"", []
    return call


def test_a_call_to_warm_up_builds_and_does_not_run(
    harness: PipelineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program is there for the first call with data."""
    heard: list[float] = []

    def hear(x: Any) -> Any:
        heard.append(float(x))
        return x

    monkeypatch.setattr("builtins.jaxd_test_heard", hear, raising=False)
    source = Source(loud)
    told = answered(harness, warming(source, np.float32(3)))
    assert told["verdict"] == "compile"
    assert told["seconds"] > 0
    assert heard == []
    assert counted(harness) == [0, 0, 0, 1, 1]
    assert float(harness.value(source, np.float32(3))) == 3
    assert heard == [3]
    assert counted(harness) == [1, 1, 0, 1, 1]


def test_a_call_to_warm_up_says_what_its_result_looks_like(harness: PipelineHarness) -> None:
    """As the reply to the call itself does."""
    source = Source(lambda x: {"b": x, "a": (x.sum(), None)})
    (_, _, told), _ = harness.answer(warming(source, np.ones((3, 2), np.float32)))
    reply, _ = harness.answer(source.call((np.ones((3, 2), np.float32),)))
    assert told == reply[1]


def test_a_call_to_warm_up_says_what_it_found(open_harness: Callable[..., PipelineHarness]) -> None:
    """Nothing, the program in memory, or the one on disk, which is there when it returns."""
    source, x = Source(double), np.ones((3, 2), np.float32)
    harness = open_harness()
    first, again = (answered(harness, warming(source, x)) for _ in range(2))
    assert (first["verdict"], again) == ("compile", HIT | {"program": first["program"]})
    assert harness.program_cache is not None
    folder = Path(harness.program_cache.store.folder)
    for kind in ("functions", "code", "calls", "programs", "environments"):
        assert len(list((folder / kind).iterdir())) == 1, kind
    harness = open_harness()
    assert answered(harness, warming(source, x))["verdict"] == "load"
    assert harness.value(source, x).tolist() == (2 * x).tolist()
    assert harness.counts() == (0, 0)


@pytest.mark.parametrize("trouble", ["nothing", "callback", "no disk", "unwritten"])
def test_a_call_to_warm_up_says_whether_the_program_is_on_disk(
    open_harness: Callable[..., PipelineHarness], trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not there is lost with the worker."""

    def refuse(program: Any) -> bytes:
        raise programs.NotSerializable("not this one")

    monkeypatch.setattr("builtins.jaxd_test_heard", np.asarray, raising=False)
    if trouble == "unwritten":
        monkeypatch.setattr(programs, "serialize", refuse)
    harness = PipelineHarness() if trouble == "no disk" else open_harness()
    call = warming(Source(loud if trouble == "callback" else double), np.float32(1))
    told = [answered(harness, call) for _ in range(2)]
    assert [each["kept"] for each in told] == [trouble == "nothing"] * 2
    if trouble == "no disk":
        harness.close()


@pytest.mark.parametrize(
    "args",
    [
        (1.5, 2, True, 1j),
        (np.ones(10_000), [np.ones((), np.int8)]),
        (jax.random.key(0), {"b": np.ones(3), "a": None}),
        (jax.numpy.asarray(2.0),),
        ({frozenset({1}): np.float32(2)},),
    ],
    ids=["numbers", "arrays", "key", "weak", "pickled"],
)
def test_what_was_warmed_is_what_is_called(harness: PipelineHarness, args: tuple[Any, ...]) -> None:
    """Without data the arguments have the same signature."""
    source = Source(lambda *args: jax.tree.leaves(args))
    call = source.call(args)
    layout = harness.executables.layout(call.key, call.skeleton)
    warm = warming(source, *args)
    warm.buffers = RecordedCall.of(call.skeleton, layout.whole, call.buffers).buffers()
    assert answered(harness, warm)["verdict"] == "compile"
    assert harness.answer(call)[0][0] == OK
    assert counted(harness) == [1, 1, 0, 1, 1]


def test_an_error_while_warming_is_an_answer(harness: PipelineHarness) -> None:
    """As of any other call."""

    def broken(x: Any) -> Any:
        raise KeyError("no such layer")

    (kind, failed), _ = harness.answer(warming(Source(broken), 1.0))
    assert (kind, failed[1]) == (FAILED, "KeyError")
    wrong = warming(Source(double), {frozenset({1}): 2.0})
    (kind, failed), _ = harness.answer(wrong)
    assert (kind, failed[1]) == (FAILED, ProtocolError.__name__)


def saved(harness: PipelineHarness) -> float:
    """Seconds saved so far."""
    return harness.counters.snapshot()["saved_s"]


def test_a_client_that_uses_what_another_has_built_is_spared_that(harness: PipelineHarness) -> None:
    """Once; the one that had it built is spared nothing."""
    first, second = Session("1", "ann"), Session("2", "bob")
    source = Source(double)
    for _ in range(2):
        harness.answer(source.call((1.0,), session=first))
    assert saved(harness) == 0
    (built,) = harness.executables.all()
    assert built.principal == "ann"
    for _ in range(2):
        harness.answer(source.call((1.0,), session=second))
    assert saved(harness) == built.saved_s == built.costs.build_s > 0
    harness.answer(source.call((1.0,), session=Session("3", "bob")))
    assert saved(harness) == pytest.approx(2 * built.costs.build_s)


def test_what_is_found_without_a_plan_saves_as_much(harness: PipelineHarness) -> None:
    """A dict in another order is a call of its own on the wire."""
    source = Source(lambda d: d["a"] + d["b"])
    harness.answer(source.call(({"a": 1.0, "b": 2.0},), session=Session("1", "ann")))
    harness.answer(source.call(({"b": 1.0, "a": 2.0},), session=Session("2", "ann")))
    (built,) = harness.executables.all()
    assert saved(harness) == built.costs.build_s


def test_what_is_loaded_saves_what_is_left(open_harness: Callable[..., PipelineHarness]) -> None:
    """Loading costs something too."""
    harness = open_harness()
    harness.answer(Source(double).call((1.0,), session=Session("1", "ann")))
    (built,) = harness.executables.all()
    harness = open_harness()
    harness.answer(Source(double).call((1.0,), session=Session("2", "ann")))
    (loaded,) = harness.executables.all()
    assert saved(harness) == max(0.0, built.costs.build_s - loaded.costs.paid_s)
    harness.answer(Source(double).call((1.0,), session=Session("3", "ann")))
    assert saved(harness) == pytest.approx(loaded.saved_s)
    assert loaded.saved_s >= built.costs.build_s


@pytest.mark.slow
def test_a_client_that_leaves_while_it_is_asked_leaves_the_build_to_the_others(
    open_harness: Callable[..., PipelineHarness],
) -> None:
    """Those who wait for the same executable make it from their own code."""
    harness, source = open_harness(), Source(double)
    harness.value(source, np.float32(1))
    assert harness.program_cache is not None
    harness.program_cache.keep_code(
        source.fingerprint, b"no code"
    )  # so that somebody has to be asked
    harness = open_harness()
    leaving, staying = Source(double), Source(double)
    asked, gone = threading.Event(), threading.Event()

    def leave(fingerprint: bytes) -> Any:
        asked.set()
        assert gone.wait(PATIENCE_S)
        raise ConnectionLost("the client went away")

    leaving.code = leave  # type: ignore[method-assign]
    outcomes: dict[str, Any] = {}

    def call(name: str, source: Source) -> None:
        outcomes[name] = harness.answer(source.call((np.ones(3, np.float32),)))[0]

    threads = [start(call, "leaving", leaving)]
    assert asked.wait(PATIENCE_S)
    threads.append(start(call, "staying", staying))
    (build,) = harness.executables._builds._builds.values()
    until(lambda: len(build.waiting) == 2)
    gone.set()
    join(threads)
    assert (outcomes["leaving"][0], outcomes["staying"][0]) == (FAILED, OK)
    assert harness.counts() == (1, 1)
