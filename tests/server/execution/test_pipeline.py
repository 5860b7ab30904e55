from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest

from jaxd_protocol.errors import (
    ArgumentError,
    ConnectionLost,
    DeadlineExceeded,
    PlaceRefused,
    ProtocolError,
    ResultError,
    ServerDraining,
)
from jaxd_protocol.jit.options import Options
from jaxd_protocol.messages.calls import FAILED, OK
from jaxd_protocol.packages.distributions import Package
from jaxd_server.execution.call import Client
from jaxd_server.runtime.events import Emit
from jaxd_server.runtime.imported_packages import Change, Dependencies
from tests.server.in_process import PipelineHarness, Source
from tests.server.staging import PATIENCE_S, at_once, join, start

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


def test_a_client_that_leaves_while_it_is_asked_gets_an_answer_too(
    harness: PipelineHarness,
) -> None:
    """Somebody may still read it."""
    source = Source(double)

    def gone(key: bytes) -> Any:
        raise ConnectionLost("the client went away")

    source.describe = gone  # type: ignore[method-assign]
    assert failure(harness, source, 1.0)[1] == ConnectionLost.__name__
    assert harness.admission.running() == []


def test_garbage_in_place_of_arguments_is_an_answer_too(harness: PipelineHarness) -> None:
    """Whether the function is warm or not."""
    source = Source(double)
    for _ in range(2):
        cut, unread = source.call((1.0,)), source.call((1.0,))
        cut.blob, unread.skeleton = b"", b"garbage"
        for call in (cut, unread):
            (kind, failed), _ = harness.answer(call)
            assert (kind, failed[1]) == (FAILED, ProtocolError.__name__)
        harness.value(source, 1.0)
    assert counted(harness) == [6, 1, 4, 1, 1]


def test_a_draining_server_refuses_new_calls(harness: PipelineHarness) -> None:
    """Warm ones as well."""
    source = Source(double)
    harness.value(source, 1.0)
    harness.admission.drain()
    assert failure(harness, source, 1.0)[1] == ServerDraining.__name__
    assert failure(harness, Source(lambda x: x), 1.0)[1] == ServerDraining.__name__


def test_a_call_whose_deadline_passed_is_not_begun(harness: PipelineHarness) -> None:
    """Its function is not even asked for."""
    source = Source(double)
    late = time.monotonic() - 1
    assert failure(harness, source, 1.0, deadline=late)[1] == DeadlineExceeded.__name__
    assert source.asked == []
    harness.value(source, 1.0)
    assert failure(harness, source, 1.0, deadline=late)[1] == DeadlineExceeded.__name__


@pytest.mark.parametrize("result", ["text", b"bytes", {"a": object()}, [lambda: 0]])
def test_a_result_that_is_no_data_is_refused(harness: PipelineHarness, result: Any) -> None:
    """jax's own words, and what to do next."""
    with pytest.raises(ResultError, match="Return arrays and numbers"):
        harness.value(Source(lambda x: result), 1.0)


@dataclass(frozen=True)
class Setting:
    width: int


@pytest.mark.parametrize("argument", ["text", Setting(3), [Setting(3)], {1, 2}, range(3)])
def test_an_argument_that_is_no_data_is_refused(harness: PipelineHarness, argument: Any) -> None:
    """Before anything is traced, with what to do next."""
    with pytest.raises(ArgumentError, match=r"static_argnames"):
        harness.value(Source(lambda x: 1.0, Options(static="jax")), argument)
    assert harness.counts() == (0, 0)


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


def test_a_type_error_of_the_function_is_its_own(harness: PipelineHarness) -> None:
    """It is not taken for one of ours."""
    with pytest.raises(TypeError, match="unsupported operand") as raised:
        harness.value(Source(lambda x: x + {}), 1.0)
    assert type(raised.value) is TypeError


def test_options_are_obeyed(harness: PipelineHarness) -> None:
    """A static argument selects the program."""
    source = Source(lambda x, n: x * n, Options(static_argnames=("n",)))
    assert [float(harness.value(source, 2.0, n)) for n in (3, 4, 3)] == [6, 8, 6]
    assert harness.counts() == (2, 2)


def test_a_running_call_is_listed_under_its_name(harness: PipelineHarness) -> None:
    """While it is built and while it runs."""
    entered, release = threading.Event(), threading.Event()
    seen: list[Any] = []

    def deliver(leaves: Any, executable: Any) -> Any:
        entered.set()
        assert release.wait(PATIENCE_S)
        return (OK, b"", b""), ()

    for _ in range(2):
        thread = start(lambda: harness.answer(Source(double).call((1.0,), deliver=deliver)))
        assert entered.wait(PATIENCE_S)
        seen += [call["function"] for call in harness.admission.running()]
        release.set()
        join([thread])
        entered.clear()
        release.clear()
    assert seen == ["double", "double"]
    assert harness.admission.running() == []


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
