from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, as_completed, wait
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from jaxd import Client
from jaxd.connection import call_future
from jaxd.connection.call_future import CallFuture
from tests.end_to_end.gates import Gate, in_thread, stop_at
from tests.server.staging import until
from tests.shared.wire.interrupt import swallowed_interrupt


def test_a_callback_that_blocks_keeps_nobody_waiting(client: Client, tmp_path: Path) -> None:
    """Neither who calls nor who has submitted; it ran only when the reply was here."""
    double = client.persistent_call(lambda x: x * 2)
    double(1.0)
    gate = Gate(tmp_path / "gate")
    go_on, seen = threading.Event(), SimpleQueue[float]()

    def block(done: Future[Any]) -> None:
        seen.put(float(done.result()))
        assert go_on.wait(30)
        seen.put(-1.0)

    submitted = client.persistent_call(stop_at(gate.path)).submit(7.0)
    with gate.reached():  # so it is given before the call is done
        submitted.add_done_callback(block)
    assert seen.get(timeout=30) == 8.0
    assert float(double(21.0)) == 42.0
    assert float(double.submit(5.0).result(30)) == 10.0
    assert seen.empty()
    go_on.set()
    assert seen.get(timeout=30) == -1.0


def test_callbacks_run_in_their_order() -> None:
    """Of one future and of several."""
    seen: SimpleQueue[int] = SimpleQueue()
    first, second = CallFuture[int](), CallFuture[int]()

    def note(number: int, done: Future[int]) -> None:
        seen.put(10 * done.result() + number)

    for number, future in enumerate((first, second, first)):
        future.add_done_callback(partial(note, number))
    second.set_result(2)
    first.set_result(1)
    assert [seen.get(timeout=30) for _ in range(3)] == [21, 10, 12]


def test_a_callback_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """As with any future; the next one runs."""
    seen: SimpleQueue[str] = SimpleQueue()
    future = CallFuture[str]()

    def fail(_: object) -> None:
        raise ValueError("mine")

    future.add_done_callback(fail)
    future.add_done_callback(lambda done: seen.put(done.result()))
    with caplog.at_level(logging.ERROR, "concurrent.futures"):
        future.set_result("here")
        assert seen.get(timeout=30) == "here"
    assert "mine" in caplog.text


@pytest.mark.parametrize("how", [wait, lambda futures, timeout: [*as_completed(futures, timeout)]])
def test_who_waits_for_several_learns_of_a_cancellation(how: Callable[..., Any]) -> None:
    """Before and meanwhile; to cancel twice is no error."""
    before, meanwhile = CallFuture[int](), CallFuture[int]()
    assert [before.cancel(), before.cancel()] == [True, True]
    waiting = in_thread(how, [before, meanwhile], 30)
    until(lambda: bool(meanwhile._waiters))
    assert meanwhile.cancel()
    waiting.result(30)
    assert before.cancelled()
    assert meanwhile.cancelled()


def test_an_event_loop_is_woken_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    """By whoever settles the future: another thread would cost each `await` a switch."""
    monkeypatch.setattr(call_future, "_callback_thread", None)

    async def awaited() -> int:
        future = CallFuture[int]()
        threading.Timer(0.0, future.set_result, [7]).start()
        return await asyncio.wrap_future(future)

    assert asyncio.run(awaited()) == 7


FORKS = """
import os, sys, threading
from jaxd.connection.call_future import CallFuture

def calls_back():
    future, called = CallFuture(), threading.Event()
    future.add_done_callback(lambda _: called.set())
    future.set_result(None)
    return called.wait(30)

assert calls_back()
child = os.fork()
if not child:
    os._exit(0 if calls_back() else 1)
sys.exit(os.waitpid(child, 0)[1])
"""


def test_the_child_of_a_fork_has_a_thread_of_its_own() -> None:
    """That of its parent is not there."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKS]
    subprocess.run(command, check=True, timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize("method", [CallFuture.result, CallFuture.exception])
def test_an_interrupt_that_no_system_call_hears_of_ends_a_wait(
    method: Callable[[CallFuture[int]], object],
) -> None:
    """And changes nothing: whoever asks again has the result."""
    future = CallFuture[int]()
    with swallowed_interrupt(threading.Condition.wait), pytest.raises(KeyboardInterrupt):
        method(future)
    future.set_result(1)
    assert future.result() == 1
    assert future.exception() is None


@pytest.mark.parametrize("method", [CallFuture.result, CallFuture.exception])
def test_who_waits_without_a_limit_sees_how_it_ends(
    method: Callable[[CallFuture[int]], object],
) -> None:
    """Cancelled, or failed with what a limit would have raised."""
    cancelled, failed = CallFuture[int](), CallFuture[int]()
    waiting = in_thread(method, cancelled)
    cancelled.cancel()
    assert isinstance(waiting.exception(10), CancelledError)
    waiting = in_thread(method, failed)
    failed.set_exception(TimeoutError("of the function"))
    found = waiting.exception(10) or waiting.result()
    assert str(found) == "of the function"
