"""A tracer as its worker sees it: orders go out, replies come in, and an end is noticed."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jaxd_protocol.jit.options import Options
from jaxd_server.compilation.functions.function import Described
from jaxd_server.compilation.remote_trace.messages import Ended, Outdated, Reply, TraceRequest
from jaxd_server.compilation.remote_trace.tracer_process import TracerProcess
from jaxd_server.runtime.events import SILENT

FAKE = """
import json, os, sys, threading, types
from collections import namedtuple
from multiprocessing.connection import Connection
for module, name, value in (  # which import jax, and all that is needed of them is this
    ("jaxd_server.codec.arguments", "empty_leaves", None),
    (
        "jaxd_server.compilation.functions.function",
        "Described",
        namedtuple("Described", "fingerprint name options manifest"),
    ),
):
    sys.modules[module] = types.ModuleType(module)
    setattr(sys.modules[module], name, value)
from jaxd_server.compilation.remote_trace.messages import Event, Outdated, Ready
argument = json.loads(sys.argv[1])
connection = Connection(argument["fd"])
assert os.getppid() == argument["parent"]
{before}
connection.send(Ready(b"program", b"name"))
held = []
while True:
    try:
        order = connection.recv()
    except EOFError:
        break
    if order.described.name == "exit":
        os._exit(3)
    elif order.described.name == "close":
        connection.close()
        threading.Event().wait()
    elif order.described.name == "nonsense":
        connection.send_bytes(b"nonsense")
    elif order.described.name == "hold":
        connection.send(Event(order.number, "stage", {{"stage": "held"}}))
        held.append(order.number)
    else:
        for number in [order.number, *held]:
            connection.send(Outdated(number, [order.described.name]))
        held.clear()
"""

Start = Callable[..., TracerProcess]


def order(name: str) -> TraceRequest:
    """One that the fake knows what to do with."""
    return TraceRequest(0, b"", Described(b"", name, Options()), None, b"", (), (), b"")


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts fakes that are ended with the test."""
    started: list[TracerProcess] = []

    def run(before: str = "", *, understands: bool = True, command: Any = None) -> TracerProcess:
        fake = (sys.executable, "-c", FAKE.format(before=before))
        started.append(TracerProcess("text", lambda *_: understands, command or fake))
        return started[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        yield run
    for tracer in started:
        tracer.close()


class Asking(threading.Thread):
    """Asks in a thread of its own.

    Attributes:
        reply: what came back.
        told: set when there was an event.
    """

    def __init__(self, tracer: TracerProcess, name: str) -> None:
        super().__init__()
        self.reply: Reply | None = None
        self.told = threading.Event()
        self._tracer = tracer
        self._order = order(name)
        self.start()

    def run(self) -> None:
        self.reply = self._tracer.ask(self._order, lambda *_: self.told.set())


def test_an_order_is_answered(start: Start) -> None:
    """Once it is ready."""
    tracer = start()
    assert tracer.wait()
    assert tracer.state == "ready"
    assert tracer.was_ready
    reply = tracer.ask(order("it"), SILENT)
    assert isinstance(reply, Outdated)
    assert reply.changes == ["it"]


def test_each_reply_finds_its_order(start: Start) -> None:
    """In whatever order they come; events come before."""
    tracer = start()
    assert tracer.wait()
    held = [Asking(tracer, "hold"), Asking(tracer, "hold")]
    for one in held:
        assert one.told.wait(30)
    reply = tracer.ask(order("now"), SILENT)
    for one in held:
        one.join(30)
    numbers = {one.reply.number for one in held if isinstance(one.reply, Outdated)}
    assert isinstance(reply, Outdated)
    assert len(numbers | {reply.number}) == 3


def test_an_order_before_it_is_ready_is_not_taken(start: Start) -> None:
    """Nor one after its end."""
    tracer = start("import sys; sys.stdin.read(); threading.Event().wait()")
    assert tracer.ask(order("it"), SILENT) == Ended("it was not running", 0)
    tracer.close()
    assert tracer.state == "ended"
    assert not tracer.wait()
    assert tracer.ask(order("it"), SILENT) == Ended("it was not running", 0)


def test_an_exit_ends_the_order_that_was_worked_at(start: Start) -> None:
    """Which says how, and that it was alone."""
    tracer = start()
    assert tracer.wait()
    assert tracer.ask(order("exit"), SILENT) == Ended("exit code 3", 1)
    assert tracer.state == "ended"
    assert tracer.was_ready


def test_a_signal_ends_all_orders(start: Start) -> None:
    """Each is told how many there were: any of them may be the reason."""
    tracer = start()
    assert tracer.wait()
    held = [Asking(tracer, "hold"), Asking(tracer, "hold")]
    for one in held:
        assert one.told.wait(30)
    assert tracer.pid is not None
    os.kill(tracer.pid, signal.SIGKILL)
    for one in held:
        one.join(30)
    assert [one.reply for one in held] == [Ended("signal 9", 2)] * 2


@pytest.mark.parametrize("name", ["close", "nonsense"])
def test_one_that_does_not_speak_any_more_is_ended(
    name: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process does not stay behind."""
    monkeypatch.setattr("jaxd_server.compilation.remote_trace.tracer_process._MAX_WAIT_S", 0.1)
    tracer = start()
    assert tracer.wait()
    assert isinstance(tracer.ask(order(name), SILENT), Ended)
    assert tracer.pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(tracer.pid, 0)


def test_one_that_does_not_come_up_in_time_has_ended(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without ever having been ready, which counts against it; its process does not stay."""
    monkeypatch.setattr("jaxd_server.compilation.remote_trace.tracer_process._START_TIMEOUT_S", 0.1)
    tracer = start("threading.Event().wait()")
    assert not tracer.wait()
    assert not tracer.was_ready
    assert tracer.pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(tracer.pid, 0)


def test_one_that_retires_answers_what_it_has_taken(start: Start) -> None:
    """Nothing that is under way is lost; nothing new is taken, and then it ends."""
    tracer = start()
    assert tracer.wait()
    held = Asking(tracer, "hold")
    assert held.told.wait(30)
    tracer.retire()
    assert tracer.ask(order("late"), SILENT) == Ended("it was not running", 0)
    assert tracer._connection is not None
    tracer._connection.send(order("now"))  # has the fake answer what it holds
    held.join(30)
    assert isinstance(held.reply, Outdated)
    tracer._thread.join(30)
    assert tracer.state == "ended"


def test_one_that_retires_with_nothing_to_do_ends_at_once(start: Start) -> None:
    """And leaves no process."""
    tracer = start()
    assert tracer.wait()
    tracer.retire()
    assert tracer.state == "ended"


def test_one_whose_sample_is_not_understood_is_not_used(start: Start) -> None:
    """It ends before any order."""
    tracer = start(understands=False)
    assert not tracer.wait()
    assert not tracer.was_ready


def test_one_that_cannot_be_started_has_ended(start: Start) -> None:
    """Nobody waits for it."""
    tracer = start(command=("/nonexistent/python",))
    assert not tracer.wait()
    assert tracer.pid is None
    assert tracer.ask(order("it"), SILENT).how == "it was not running"  # type: ignore[union-attr]


def test_closing_blames_no_order(start: Start) -> None:
    """Whoever waits may have it done elsewhere."""
    tracer = start()
    assert tracer.wait()
    held = Asking(tracer, "hold")
    assert held.told.wait(30)
    tracer.close()
    held.join(30)
    assert held.reply == Ended("signal 9", 0)


def test_closing_leaves_no_process(start: Start) -> None:
    """Whatever it is doing, also when it is asked for twice."""
    tracer = start()
    assert tracer.wait()
    tracer.close()
    tracer.close()
    assert tracer.pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(tracer.pid, 0)
