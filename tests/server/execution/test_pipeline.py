from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxd_protocol.errors import (
    ConnectionLost,
    DeadlineExceeded,
    PlaceRefused,
    ProtocolError,
    ResultError,
    ServerDraining,
)
from jaxd_protocol.messages.calls import FAILED, OK
from jaxd_protocol.messages.recipes import RecordedCall
from jaxd_protocol.packages.distributions import Package
from jaxd_server.execution.call import Client
from jaxd_server.jax_compat import programs
from jaxd_server.rpc.sessions import Session
from jaxd_server.runtime.events import Emit
from jaxd_server.runtime.imported_packages import Change, Dependencies
from tests.server.in_process import PipelineHarness, Source
from tests.server.staging import at_once

FLOAT: Any = np.zeros((), np.float32)
"""The shape and dtype of what a callback returns."""


def double(x: Any) -> Any:
    return x * 2


def failure(harness: PipelineHarness, source: Source, *args: Any, **more: Any) -> Any:
    """The failure tuple of a call."""
    (kind, failure), buffers = harness.answer(source.call(args, **more))
    assert (kind, tuple(buffers)) == (FAILED, ())
    return failure


def counted(harness: PipelineHarness) -> list[float]:
    """Calls, hits, failed calls, traces, compiles."""
    snapshot = harness.counters.snapshot()
    names = ("calls", "executable_hits", "failed_calls", "traces", "compiles")
    return [snapshot[name] for name in names]


def test_a_call_is_answered_with_its_result(harness: PipelineHarness) -> None:
    """Small values in the reply, large ones beside it."""
    source = Source(double)
    (kind, _, blob), buffers = harness.answer(source.call((1.5,)))
    assert (kind, np.frombuffer(blob, np.float32).tolist(), buffers) == (OK, [3.0], [])
    large = np.ones(10_000, np.float32)
    (kind, _, blob), (buffer,) = harness.answer(source.call((large,)))
    assert (kind, blob, buffer.nbytes) == (OK, b"", 40_000)


def test_a_second_call_is_a_hit(harness: PipelineHarness) -> None:
    """It asks nobody, traces nothing and compiles nothing."""
    source = Source(double)
    assert [float(harness.value(source, value)) for value in (1.0, 2.0, 3.0)] == [2, 4, 6]
    assert counted(harness) == [3, 2, 0, 1, 1]
    assert source.asked == ["describe", "code"]


def test_calls_that_come_together_build_once(harness: PipelineHarness) -> None:
    """And only one of them counts as no hit."""
    sources = [Source(double) for _ in range(8)]
    outcomes = at_once(8, lambda index: float(harness.value(sources[index], float(index))))
    assert outcomes == [2.0 * index for index in range(8)]
    assert counted(harness) == [8, 7, 0, 1, 1]


def test_an_error_while_tracing_keeps_its_type(harness: PipelineHarness) -> None:
    """With its arguments, its message and the line that raised it."""

    def broken(x: Any) -> Any:
        raise KeyError("no such layer")

    module, name, message, _, _, text, *_ = failure(harness, Source(broken), 1.0)
    assert (module, name, message) == ("builtins", "KeyError", "'no such layer'")
    assert 'raise KeyError("no such layer")' in text
    assert counted(harness) == [1, 0, 1, 1, 0]


def test_an_error_while_running_says_what_was_raised(harness: PipelineHarness) -> None:
    """jax wraps what a host callback raises; the original is in the text. Later calls work."""

    def checked(x: Any) -> Any:
        def check(value: Any) -> Any:
            if float(value) < 0:
                raise ValueError("it is negative")
            return value

        return jax.pure_callback(check, FLOAT, x)

    source = Source(checked)
    x = np.float32(1)
    assert float(harness.value(source, x)) == 1.0
    _, name, message, _, _, text, *_ = failure(harness, source, -x)
    assert name.endswith("RuntimeError") or name == "ValueError"
    assert "it is negative" in message + text
    assert float(harness.value(source, x)) == 1.0
    assert counted(harness) == [3, 1, 1, 1, 1]


class Strange(Exception):
    """Cannot even be shown."""

    def __str__(self) -> str:
        raise ZeroDivisionError


def _exit(x: Any) -> Any:
    import sys

    sys.exit(3)


def _interrupt(x: Any) -> Any:
    raise KeyboardInterrupt


def _strange(x: Any) -> Any:
    raise Strange


def _deep(x: Any) -> Any:
    return _deep(x)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (_exit, "SystemExit"),
        (_interrupt, "KeyboardInterrupt"),
        (_strange, "Strange"),
        (_deep, "RecursionError"),
    ],
)
def test_whatever_is_raised_is_an_answer(
    harness: PipelineHarness, function: Any, name: str
) -> None:
    """Nothing that a function does ends a thread of the server."""
    assert failure(harness, Source(function), 1.0)[1].endswith(name)
    assert harness.admission.running() == []


def test_garbage_in_place_of_arguments_is_an_answer_too(harness: PipelineHarness) -> None:
    """Whether the function is warm or not; and so is a client that leaves while it is asked."""
    source = Source(double)
    for _ in range(2):
        cut, unread = source.call((1.0,)), source.call((1.0,))
        cut.blob, unread.skeleton = b"", b"garbage"
        for call in (cut, unread):
            (kind, failed), _ = harness.answer(call)
            assert (kind, failed[1]) == (FAILED, ProtocolError.__name__)
        harness.value(source, 1.0)
    assert counted(harness) == [6, 1, 4, 1, 1]

    def gone(key: bytes) -> Any:
        raise ConnectionLost("the client went away")

    leaving = Source(lambda x: x * 3)
    leaving.describe = gone  # type: ignore[method-assign]
    assert failure(harness, leaving, 1.0)[1] == ConnectionLost.__name__
    assert harness.admission.running() == []


def test_a_call_that_is_late_or_comes_to_a_draining_server_is_not_begun(
    harness: PipelineHarness,
) -> None:
    """Its function is not even asked for; warm ones as well."""
    source, late = Source(double), time.monotonic() - 1
    assert failure(harness, source, 1.0, deadline=late)[1] == DeadlineExceeded.__name__
    assert source.asked == []
    harness.value(source, 1.0)
    assert failure(harness, source, 1.0, deadline=late)[1] == DeadlineExceeded.__name__
    harness.admission.drain()
    assert failure(harness, source, 1.0)[1] == ServerDraining.__name__
    assert failure(harness, Source(lambda x: x), 1.0)[1] == ServerDraining.__name__


def test_a_result_that_is_no_data_is_refused(harness: PipelineHarness) -> None:
    """jax's own words, and what to do next. A type error of the function is its own."""

    def giving(result: Any) -> Source:
        return Source(lambda x: result)

    for result in ("text", b"bytes", {"a": object()}, [lambda: 0]):
        with pytest.raises(ResultError, match="Return arrays and numbers"):
            harness.value(giving(result), 1.0)
    with pytest.raises(TypeError, match="unsupported operand") as raised:
        harness.value(Source(lambda x: x + {}), 1.0)
    assert type(raised.value) is TypeError


@dataclass(frozen=True)
class Setting:
    width: int


@pytest.mark.parametrize("argument", [["text"], Setting(4), {"deep": Setting(4)}, {1, 2, 3, 4}])
def test_an_argument_that_is_no_data_is_static(harness: PipelineHarness, argument: Any) -> None:
    """One program for each content; the function gets the thing itself."""

    def size(x: Any, y: float) -> Any:
        x = x["deep"] if isinstance(x, dict) else x[0] if isinstance(x, list) else x
        return y * (x.width if hasattr(x, "width") else len(x))

    source = Source(size)
    for y in (1.0, 2.0):
        assert float(harness.value(source, argument, y)) == 4 * y
    assert harness.counts() == (1, 1)


def test_the_call_decides_what_becomes_of_its_result(harness: PipelineHarness) -> None:
    """It gets the arrays; what it returns is the reply, and what it raises is the failure."""

    def refuse(leaves: Any, executable: Any) -> Any:
        raise ResultError("not this one")

    kept: list[Any] = []

    def keep(leaves: Any, executable: Any) -> Any:
        kept.extend(leaves)
        return (OK, b"kept"), ()

    source = Source(double)
    assert harness.answer(source.call((2.0,), deliver=keep)) == ((OK, b"kept"), ())
    assert [float(leaf) for leaf in kept] == [4.0]
    assert failure(harness, source, 2.0, deliver=refuse)[2] == "not this one"


def test_a_build_is_reported_to_its_caller(harness: PipelineHarness) -> None:
    """A warm call has nothing to report."""
    stages: list[str] = []
    source = Source(double)
    for _ in range(2):
        harness.answer(source.call((1.0,), emit=lambda kind, event: stages.append(event["stage"])))
    assert stages == ["queued", "trace", "lower", "compile", "run"]


class Watch:
    """Packages that change as a test says.

    Attributes:
        polled: how often they were looked at.
        changes: what has changed of all that executables depend on.
    """

    def __init__(self) -> None:
        self.polled = 0
        self.changes: list[Change] = []

    def poll(self, emit: Emit) -> None:
        self.polled += 1

    def record_imports(self) -> None:
        pass

    def changes_of(self, dependencies: Dependencies) -> list[Change]:
        return self.changes


def test_packages_are_looked_at_when_a_client_uses_a_program_first(
    harness: PipelineHarness,
) -> None:
    """And no more for its warm calls."""
    watch = harness.pipeline._packages = Watch()
    source = Source(double)
    one, other = Client("1", "p"), Client("2", "p")

    def call(client: Client) -> int:
        before = watch.polled
        assert harness.answer(source.call((1.5,), session=client))[0][0] == OK
        return watch.polled - before

    assert [call(client) for client in (one, one, one, other, other)] == [1, 0, 0, 1, 0]


def test_a_program_of_old_packages_is_said_to_be_one(harness: PipelineHarness) -> None:
    """At each call, as none of them is warm, and to who is strict by an error."""
    watch = harness.pipeline._packages = Watch()
    old = Package("lowlib", "1.0", b"")
    watch.changes = [Change(old, old._replace(version="1.1"))]
    source, events = Source(double), list[Any]()
    for _ in range(2):
        call = source.call((1.5,), emit=lambda *event: events.append(event))
        assert harness.answer(call)[0][0] == OK
    told = [content for kind, content in events if kind == "warning"]
    assert [content["package"] for content in told] == ["lowlib", "lowlib"]
    assert "dependency lowlib 1.0 → 1.1" in told[0]["text"]
    assert harness.counts() == (1, 1)
    assert failure(harness, source, 1.5, strict=True)[1] == "PackageMismatch"


def test_without_a_device_calls_are_only_warmed(harness: PipelineHarness) -> None:
    """Before anything is built for one, and also where its program is in memory."""
    source = Source(lambda x: x + 1)
    harness.pipeline.has_device = False
    for traced in (0, 1):
        with pytest.raises(PlaceRefused, match="no device"):
            harness.value(source, np.ones(2, np.float32))
        assert harness.counts()[0] == traced
        outcome, _ = harness.answer(source.call((np.ones(2, np.float32),), warm_only=True))
        assert outcome[0] == OK


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
    found = {name: first[name] for name in ("program", "inputs")}
    assert (first["verdict"], again) == ("compile", HIT | found)
    assert first["inputs"] == [["1", 1]]  # the result is computed from the one argument
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
