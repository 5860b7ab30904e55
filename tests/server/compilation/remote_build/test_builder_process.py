"""A builder as its worker sees it: orders go out, replies come in, and an end is noticed."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

from jaxd_protocol.jit.options import Options
from jaxd_server.compilation.functions.function import Described
from jaxd_server.compilation.remote_build import builder_process
from jaxd_server.compilation.remote_build.builder_process import BuilderProcess
from jaxd_server.compilation.remote_build.builder_start import ForkServer, new_interpreter
from jaxd_server.compilation.remote_build.messages import (
    BuildOrder,
    CompileOrder,
    Ended,
    Outdated,
    Reply,
)
from jaxd_server.runtime.events import SILENT
from tests.server.staging import is_running, until

FAKE = """
import contextlib, json, os, sys, threading, types
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
from jaxd_server.compilation.remote_build.messages import CompileOrder, Event, Outdated, Ready

def main(argument):
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
        if isinstance(order, CompileOrder):
            continue
        if order.described.name == "exit":
            os._exit(3)
        elif order.described.name in ("fork", "answer and fork"):
            if os.fork() == 0:  # and holds the socket until the worker closes it
                with contextlib.suppress(EOFError):
                    connection.recv()
                os._exit(0)
            if order.described.name != "fork":
                connection.send(Outdated(order.number, [order.described.name]))
            os.write(connection.fileno(), b"\\0\\0")  # the beginning of a message
            os._exit(4)
        elif order.described.name == "leave one":  # a process, when the order has been answered
            with open(os.devnull) as null:
                import subprocess
                one = subprocess.Popen(["sleep", "600"], stdin=null, stdout=null, stderr=null)
            connection.send(Outdated(order.number, [str(one.pid)]))
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
if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
"""

Start = Callable[..., BuilderProcess]


def order(name: str) -> BuildOrder:
    """One that the fake knows what to do with."""
    return BuildOrder(0, b"", Described(b"", name, Options()), None, b"", (), (), b"")


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts fakes that are ended with the test."""
    started: list[BuilderProcess] = []

    def run(
        before: str = "", *, understands: bool = True, how: Any = None, **more: Any
    ) -> BuilderProcess:
        fake = FAKE.format(before=indent(before, "    "))
        how = how or new_interpreter((sys.executable, "-c", fake))
        started.append(BuilderProcess("text", lambda *_: understands, how, **more))
        return started[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        yield run
    for builder in started:
        builder.close()


@pytest.fixture
def fork_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[ForkServer]:
    """Forks fakes."""
    (tmp_path / "forked_fake.py").write_text(FAKE.format(before=""))
    monkeypatch.syspath_prepend(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of jax, which this process has used
        server = ForkServer("forked_fake")
    yield server
    server.close()


class Asking(threading.Thread):
    """Asks in a thread of its own.

    Attributes:
        reply: what came back.
        told: set when there was an event.
    """

    def __init__(self, builder: BuilderProcess, name: str) -> None:
        super().__init__(daemon=True)
        self.reply: Reply | None = None
        self.told = threading.Event()
        self._builder = builder
        self._order = order(name)
        self.start()

    def run(self) -> None:
        self.reply = self._builder.ask(self._order, lambda *_: self.told.set())


def test_each_reply_finds_its_order(start: Start) -> None:
    """Once it is ready; in whatever order they come, events come before."""
    builder = start()
    assert builder.wait()
    assert (builder.state, builder.was_ready) == ("ready", True)
    held = [Asking(builder, "hold"), Asking(builder, "hold")]
    for one in held:
        assert one.told.wait(30)
    reply = builder.ask(order("now"), SILENT)
    for one in held:
        one.join(30)
    assert isinstance(reply, Outdated)
    assert reply.changes == ["now"]
    numbers = {one.reply.number for one in held if isinstance(one.reply, Outdated)}
    assert len(numbers | {reply.number}) == 3


def test_an_order_before_it_is_ready_is_not_taken(start: Start) -> None:
    """Nor one after its end."""
    builder = start("import sys; sys.stdin.read(); threading.Event().wait()")
    assert builder.ask(order("it"), SILENT) == Ended("it was not running", "away")
    builder.close()
    assert builder.state == "ended"
    assert not builder.wait()
    assert builder.ask(order("it"), SILENT) == Ended("it was not running", "away")


ENDS: dict[str, tuple[Callable[[BuilderProcess], object], Ended]] = {
    "exit": (lambda one: one.ask(order("exit"), SILENT), Ended("exit code 3", "died")),
    "killed": (lambda one: os.kill(one.pid or 0, signal.SIGKILL), Ended("signal 9", "died")),
    "closed": (BuilderProcess.close, Ended("signal 9", "away")),
    "stopped": (lambda one: one.stop(2), Ended("signal 9", "stopped")),
}


@pytest.mark.parametrize("is_forked", [False, True])
@pytest.mark.parametrize("how", ENDS)
def test_its_end_ends_all_orders_and_what_they_have_started(
    how: str, is_forked: bool, start: Start, fork_server: ForkServer
) -> None:
    """Each is told how; closing and stopping blame none. No process is left."""
    builder = start(how=fork_server.start if is_forked else None)
    assert builder.wait()
    reply = builder.ask(order("leave one"), SILENT)
    assert isinstance(reply, Outdated)
    left = int(reply.changes[0])
    os.kill(left, 0)
    held = [Asking(builder, "hold"), Asking(builder, "hold")]
    for one in held:
        assert one.told.wait(30)
    end, expected = ENDS[how]
    end(builder)
    for one in held:
        one.join(30)
    assert [one.reply for one in held] == [expected] * 2
    builder.close()
    builder.close()
    assert (builder.state, builder.was_ready) == ("ended", True)
    assert builder.pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(builder.pid, 0)
    until(lambda: not is_running(left))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fork", "answer and fork"])
def test_its_end_is_seen_although_a_process_that_it_forked_lives_on(
    name: str, start: Start
) -> None:
    """It holds the other end of the socket. What was sent before the end has arrived."""
    builder = start()
    assert builder.wait()
    asking = Asking(builder, name)
    asking.join(30)
    expected = Ended("exit code 4", "died") if name == "fork" else Outdated(1, [name])
    assert asking.reply == expected
    until(lambda: builder.state == "ended")


@pytest.mark.parametrize("name", ["close", "nonsense"])
def test_one_that_does_not_speak_any_more_is_ended(
    name: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process does not stay behind."""
    monkeypatch.setattr(builder_process, "_MAX_WAIT_S", 0.1)
    builder = start()
    assert builder.wait()
    assert isinstance(builder.ask(order(name), SILENT), Ended)
    assert builder.pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(builder.pid, 0)


def test_one_that_does_not_come_up_in_time_has_ended(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without ever having been ready, which counts against it; its process does not stay."""
    monkeypatch.setattr(builder_process, "_START_TIMEOUT_S", 0.1)
    builder = start("threading.Event().wait()")
    assert not builder.wait()
    assert builder.has_failed
    assert builder.pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(builder.pid, 0)


def test_only_a_request_that_is_worked_at_is_stopped(start: Start) -> None:
    """Its number is that of no other."""
    builder = start()
    assert builder.wait()
    assert isinstance(builder.ask(order("first"), SILENT), Outdated)
    builder.stop(1)
    assert builder.state == "ready"
    assert isinstance(builder.ask(order("second"), SILENT), Outdated)


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="the system has no such priority")
def test_what_goes_on_although_no_call_may_wait_for_it_comes_last(start: Start) -> None:
    """It computes where nothing else does; and is stopped when its time is over."""
    builder = start()
    assert builder.wait()
    hooks: list[Callable[[], None]] = []

    @contextmanager
    def cancel_hook(hook: Callable[[], None]) -> Iterator[None]:
        hooks.append(hook)
        yield

    request = CompileOrder(0, b"", b"", "hold", Options(), 0)
    args = (request, SILENT)
    more = {"cancel_hook": cancel_hook, "grace_s": lambda: 0.2}
    asking = threading.Thread(target=builder.ask, args=args, kwargs=more, daemon=True)
    asking.start()
    until(lambda: hooks)
    assert builder.pid is not None
    assert os.sched_getscheduler(builder.pid) == os.SCHED_OTHER
    hooks[0]()
    assert builder.yields
    asking.join(30)
    assert builder.state == "ended"


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="the system has no such priority")
def test_one_that_has_ended_gives_no_way(start: Start) -> None:
    """Its process id may be that of another process by now."""
    builder, other = start(), start()
    assert builder.wait()
    assert other.wait()
    builder.close()
    assert builder._process is not None
    assert other.pid is not None
    builder._process.pid = other.pid
    builder.give_way()
    assert os.sched_getscheduler(other.pid) == os.SCHED_OTHER
    other.give_way()
    assert os.sched_getscheduler(other.pid) == os.SCHED_IDLE


def test_one_that_is_ended_while_it_starts_has_not_failed(start: Start) -> None:
    """Whoever ended it may start another one."""
    builder = start("threading.Event().wait()")
    builder.close()
    assert not builder.wait()
    assert not builder.has_failed


@pytest.mark.parametrize(
    "what",
    [
        {"understands": False},
        {"target": "another"},
        {"how": new_interpreter(("/nonexistent/python",))},
    ],
)
def test_one_that_is_of_no_use_takes_no_order(what: Any, start: Start) -> None:
    """Such as one for another target: what it builds would stand for other settings."""
    builder = start(**what)
    assert not builder.wait()
    assert not builder.was_ready
    assert builder.ask(order("it"), SILENT) == Ended("it was not running", "away")
