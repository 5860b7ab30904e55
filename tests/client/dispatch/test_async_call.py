"""A submitted call: its place in the window, its deadline, its end."""

from __future__ import annotations

import gc
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jaxd import Client, connect
from jaxd.connection.shared_reader import PendingReply
from jaxd.dispatch.async_call import AsyncCall
from jaxd.remote_values.store import OpenSession
from jaxd.transfer.shared_memory import shared_pool
from jaxd_protocol.errors import LimitExceeded, NoServer, ProtocolError
from tests.end_to_end.gates import Gate, stop_at
from tests.live_server import LiveServer
from tests.server.in_process import InProcessServer
from tests.server.staging import until
from tests.shared.wire.interrupt import swallowed_interrupt


def places(client: Client) -> int:
    """How many more calls could be submitted without waiting; takes none."""
    window = client.caller.session.window
    assert window is not None
    taken = 0
    while window.acquire(blocking=False):
        taken += 1
    for _ in range(taken):
        window.release()
    return taken


def test_each_call_gives_its_place_back(client: Client) -> None:
    """When it has a result, and when it has an error."""
    good = client.persistent_call(lambda x: x + 1)
    bad = client.persistent_call(lambda x: x.no_such_attribute)
    client.caller.session.connection()
    before = places(client)
    assert float(good.submit(1.0).result()) == 2.0
    with pytest.raises(AttributeError):
        bad.submit(1.0).result()
    good.submit(1.0).result()
    until(lambda: places(client) == before)


def test_an_interrupt_that_no_system_call_hears_of_ends_the_wait_for_a_place(
    client: Client,
) -> None:
    """The window is full of calls of others."""
    double = client.persistent_call(lambda x: x * 2)
    double(1.0)
    before = places(client)
    window = client.caller.session.window
    assert window is not None
    for _ in range(before):
        window.acquire()
    with swallowed_interrupt(threading.Condition.wait), pytest.raises(KeyboardInterrupt):
        double.submit(1.0)
    for _ in range(before):
        window.release()
    assert float(double.submit(2.0).result()) == 4.0
    until(lambda: places(client) == before)


def test_a_call_that_cannot_be_sent_gives_its_place_back(client: Client) -> None:
    """It is over the limit, so nothing was sent."""
    good = client.persistent_call(lambda x: x.sum())
    good(1.0 * np.ones(2))
    before = places(client)
    client.caller.session.connection()._channel.writer.max_frame_bytes = 1 << 16
    with pytest.raises(LimitExceeded, match="max-frame-bytes"):
        good.submit(np.ones(1 << 14))
    assert places(client) == before
    assert float(good.submit(np.ones(3)).result()) == 3.0


def test_a_cancelled_future_stays_cancelled(client: Client, gate: Gate) -> None:
    """Its result comes and is dropped."""
    slow = client.persistent_call(stop_at(gate.path))
    future = slow.submit(1.0)
    with gate.reached():
        assert future.cancel()
    assert float(client.persistent_call(lambda x: x * 3)(2.0)) == 6.0
    assert future.cancelled()


def test_a_future_does_not_keep_the_arrays_of_its_call(client: Client) -> None:
    """Somebody may keep many of them."""
    total = client.persistent_call(lambda x: x.sum())
    array = np.ones(1 << 12, np.float32)
    alive = weakref.ref(array)
    future = total.submit(array)
    assert float(future.result()) == 1 << 12
    del array

    def gone() -> bool:
        gc.collect()
        return alive() is None

    until(gone)


@pytest.fixture
def small_in_process_server() -> Iterator[InProcessServer]:
    """A server that takes one call at a time."""
    in_process_server = InProcessServer(max_calls=2)
    yield in_process_server
    in_process_server.close()


def test_what_was_sent_before_an_interrupt_is_cancelled(
    client: Client, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has its future."""
    client.persistent_call(lambda x: x * 2)(1.0)
    before, connection = client.statistics().cancelled_calls, client.caller.session.connection()
    send = connection._send

    def interrupted(number: int, verb: str, *rest: Any, **more: Any) -> None:
        send(number, verb, *rest, **more)
        if verb == "call":
            raise KeyboardInterrupt

    monkeypatch.setattr(connection, "_send", interrupted)
    with pytest.raises(KeyboardInterrupt):
        client.persistent_call(stop_at(gate.path)).submit(1.0)
    monkeypatch.undo()
    until(lambda: client.statistics().cancelled_calls == before + 1)
    gate.let_leave(client)


def test_of_a_reply_is_told_once(live: LiveServer) -> None:
    """Two threads may both see that the connection has ended."""
    notified: list[PendingReply] = []
    with connect(live.unix) as client:
        connection = client.caller.session.connection()
        number, waiting = connection.number(), PendingReply(notified.append, needs_reader=True)
        connection.shared_reader.register(number, waiting)
        connection.shared_reader.finish(number, waiting)
        connection.shared_reader.finish(number, waiting)
        assert notified == [waiting]
        assert float(client.persistent_call(lambda x: x + 1)(1.0)) == 2.0


def test_a_reply_that_cannot_be_read_is_the_error_of_its_call(client: Client, gate: Gate) -> None:
    """Whoever reads goes on."""
    stopping = client.persistent_call(stop_at(gate.path))
    future = stopping.submit(1.0)
    connection = client.caller.session.connection()
    with gate.reached():
        (number, waiting) = next(iter(connection.shared_reader.pending.items()))
        waiting.value = ()
        connection.shared_reader.finish(number, waiting)
        with pytest.raises(ProtocolError, match="reply"):
            future.result(30)
    assert float(client.persistent_call(lambda x: x * 2).submit(4.0).result(30)) == 8.0
    gate.let_leave(client)


@contextmanager
def busy(
    in_process_server: InProcessServer, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> Iterator[queue.SimpleQueue[int]]:
    """Within it, the server is busy for others; how many blocks are held at each repetition.

    They are given back in the end.
    """
    held: queue.SimpleQueue[int] = queue.SimpleQueue()
    again, of_others = AsyncCall._schedule_retry, blocks_in_use()

    def noting(submission: AsyncCall, pause_s: float = 0.0) -> None:
        held.put(len(blocks_in_use() - of_others))
        again(submission, min(pause_s, 0.01))

    monkeypatch.setattr(AsyncCall, "_schedule_retry", noting)
    running = in_process_server.client().persistent_call(stop_at(gate.path)).submit(1.0)
    with gate.reached():
        yield held
    assert float(running.result(30)) == 2.0
    until(lambda: blocks_in_use() <= of_others)


def blocks_in_use() -> set[int]:
    """Numbers of the blocks of shared memory that somebody holds."""
    return {block.number for block in list(shared_pool()._blocks.values()) if block.shares}


@pytest.mark.slow
def test_a_call_with_arrays_comes_again_to_a_busy_server(
    small_in_process_server: InProcessServer, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was made, however often, with one copy of them."""
    total = small_in_process_server.client().persistent_call(lambda x: x.sum())
    array = np.ones(1 << 18, np.float32)
    assert float(total.submit(array).result(30)) == 1 << 18
    with busy(small_in_process_server, gate, monkeypatch) as held:
        future = total.submit(array)
        array[:] = 7
        assert [held.get(timeout=30) for _ in range(4)] == [1] * 4
    assert float(future.result(30)) == 1 << 18


def test_what_a_busy_server_has_not_kept_is_sent_again(
    small_in_process_server: InProcessServer, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An array of jax that it was to keep, when it had no time to look at it."""
    total = small_in_process_server.client().persistent_call(lambda x: x.sum())
    array = jnp.ones(1 << 15)
    assert float(total.submit(array).result(30)) == 1 << 15
    with busy(small_in_process_server, gate, monkeypatch) as held:
        future = total.submit(array)
        held.get(timeout=30)
    assert float(future.result(30)) == 1 << 15
    assert [float(total.submit(array).result(30)), float(total(array))] == [1 << 15] * 2


def test_who_cannot_come_again_learns_why(
    small_in_process_server: InProcessServer, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing is held for the call any more."""
    client = small_in_process_server.client()
    total = client.persistent_call(lambda x: x.sum())
    client.caller.session.connection()
    array, before = np.ones(1 << 18, np.float32), places(client)
    assert float(total.submit(array).result(30)) == 1 << 18
    with busy(small_in_process_server, gate, monkeypatch):
        monkeypatch.setattr(client.caller.session, "current", _refused_after(client, 1))
        future = total.submit(array)
        with pytest.raises(NoServer, match="nobody"):
            future.result(30)
    until(lambda: places(client) == before)


def _refused_after(client: Client, times: int) -> Callable[..., OpenSession]:
    """What gives the client its connection so many times."""
    left, current = [None] * times, client.caller.session.current

    def find(fresh: bool = False, deadline: float | None = None) -> OpenSession:
        if not left:
            raise NoServer("there is nobody.")
        left.pop()
        return current(fresh, deadline)

    return find


def test_an_interrupt_before_the_reading_is_handed_on_costs_nothing(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that was interrupted notices, and others can read."""
    double = client.persistent_call(lambda x: x * 2)
    double(1.0)
    reader = client.caller.session.connection().shared_reader
    hand_on = reader._pass_reading_on

    def interrupted(leading: bool) -> None:
        monkeypatch.setattr(reader, "_pass_reading_on", hand_on)
        raise KeyboardInterrupt

    monkeypatch.setattr(reader, "_pass_reading_on", interrupted)
    with pytest.raises(KeyboardInterrupt):
        double(2.0)
    with ThreadPoolExecutor(1) as other:
        assert float(other.submit(double, 3.0).result(20)) == 6.0
    assert float(double(4.0)) == 8.0
