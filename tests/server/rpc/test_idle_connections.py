from __future__ import annotations

import selectors
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np
import pytest

from jaxd_protocol.wire.connection import encode_request
from jaxd_server.rpc import connection, worker_context
from jaxd_server.rpc.worker_context import IdleConnections
from tests.server.in_process import InProcessServer, Source
from tests.server.rpc.test_connection import gated, make_gate
from tests.server.staging import PATIENCE_S, logged_by, until

Pair = tuple[socket.socket, socket.socket]


def pairs(count: int) -> list[Pair]:
    """Connections, both ends of each."""
    return [socket.socketpair() for _ in range(count)]


@pytest.fixture(params=["DefaultSelector", "PollSelector", "SelectSelector"])
def idle(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Nothing is in it; with what each system offers."""
    monkeypatch.setattr(selectors, "DefaultSelector", getattr(selectors, request.param))
    idle = IdleConnections()
    yield idle
    idle.close()


def test_each_is_taken_up_once_by_a_thread_of_its_own(idle: IdleConnections) -> None:
    """When something has come over it, and not before; all at once, too."""
    ends, taken = pairs(30), list[int]()
    threads = set[threading.Thread]()

    def take_up(index: int) -> None:
        threads.add(threading.current_thread())
        taken.append(index)

    for index, (ours, _) in enumerate(ends):
        idle.add(ours, lambda index=index: take_up(index))  # type: ignore[misc]
    ends[7][1].send(b"x")
    until(lambda: taken == [7])
    for _, theirs in ends:
        theirs.send(b"x")
    until(lambda: sorted(taken) == list(range(30)))
    assert len(threads) == 30
    for pair in ends:
        for end in pair:
            end.close()


@pytest.mark.parametrize("at", [0, 1], ids=["here", "by the peer"])
def test_an_end_is_something_that_has_come(idle: IdleConnections, at: int) -> None:
    """Whichever end it was, before and while it is waited for; and what is here may come again."""
    (pair,) = pairs(1)
    taken = threading.Semaphore(0)
    idle.add(pair[0], taken.release)
    pair[1].send(b"x")
    assert taken.acquire(timeout=PATIENCE_S)
    pair[0].recv(1)
    idle.add(pair[0], taken.release)
    pair[at].shutdown(socket.SHUT_RDWR)
    assert taken.acquire(timeout=PATIENCE_S)
    idle.add(pair[0], taken.release)
    assert taken.acquire(timeout=PATIENCE_S)
    for end in pair:
        end.close()


def test_what_cannot_be_waited_for_is_taken_up(idle: IdleConnections) -> None:
    """Its thread sees why."""
    (pair,) = pairs(1)
    taken = threading.Event()
    for end in pair:
        end.close()
    idle.add(pair[0], taken.set)
    assert taken.wait(PATIENCE_S)


def test_without_threads_they_stay(idle: IdleConnections, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until there are some again; that is logged."""
    log = logged_by(worker_context, monkeypatch)
    monkeypatch.setattr(worker_context, "_RETRY_S", 0.01)
    start, failures, (pair,) = threading.Thread.start, [1, 2, 3], pairs(1)

    def fail(thread: threading.Thread) -> None:
        if thread.name != "jaxd-client" or not failures:
            return start(thread)
        failures.pop()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    taken = threading.Event()
    idle.add(pair[0], taken.set)
    pair[1].send(b"x")
    assert taken.wait(PATIENCE_S)
    assert [event for event, _ in log] == ["cannot_serve"] * 3
    for end in pair:
        end.close()


# in a server --------------------------------------------------------------------------------------


def readers() -> int:
    """How many threads read connections of servers."""
    return sum(thread.name == "jaxd-client" for thread in threading.enumerate())


@pytest.fixture
def server(
    open_in_process_server: Callable[..., InProcessServer], monkeypatch: pytest.MonkeyPatch
) -> InProcessServer:
    """One that soon takes a client for idle."""
    monkeypatch.setattr(connection, "SILENCE_S", 0.01)
    until(lambda: not readers())  # of the test before
    return open_in_process_server()


def test_the_end_of_an_idle_client_is_noticed(server: InProcessServer) -> None:
    """Its connection is closed, and counted no more; those of others stay."""
    stays, goes = server.client(), server.client()
    for client in (stays, goes):
        client.info()
    until(lambda: not readers())
    goes.close()
    until(lambda: server.parts.status.now()["connections"] == 1)
    assert goes.info()["session"]  # it comes back
    assert server.parts.status.now()["connections"] == 2


@pytest.fixture
def silences(server: InProcessServer, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each silence of a client, when it was decided what becomes of its thread."""
    silences, leave = list[int](), connection.ServerConnection._leave_if_idle

    def noted(one: connection.ServerConnection) -> None:
        leave(one)
        silences.append(1)

    monkeypatch.setattr(connection.ServerConnection, "_leave_if_idle", noted)
    return silences


@pytest.mark.slow
def test_a_client_that_waits_for_its_call_is_not_idle(
    server: InProcessServer, silences: list[int]
) -> None:
    """It has its thread until the reply is sent, however long that takes."""
    wait = gated(server.client(), "idle")
    wait(np.float32(1))
    until(lambda: not readers())
    entered, release = make_gate("idle")
    future = wait.submit(np.float32(-1))
    assert entered.wait(PATIENCE_S)
    before = len(silences)
    until(lambda: len(silences) > before + 2)
    assert readers() == 1
    release.set()
    assert float(future.result(PATIENCE_S)) == -1.0
    until(lambda: not readers())


def test_half_a_message_is_not_forgotten(server: InProcessServer, silences: list[int]) -> None:
    """It keeps its thread until the rest has come."""
    peer = server.peer(Source(lambda x: x * 2))
    reply = peer.call(3.0)
    until(lambda: not readers())
    request = encode_request(next(peer.numbers), "info", ())
    message = struct.pack("!LB", len(request), 0) + request + b"\n"
    before = len(silences)
    peer._channel.stream.sock.sendall(message[:7])
    until(lambda: len(silences) > before + 2)
    assert readers() == 1
    peer._channel.stream.sock.sendall(message[7:])
    assert peer._channel.recv()
    until(lambda: not readers())
    assert peer.call(3.0) == reply


@pytest.mark.slow
def test_a_failure_while_it_is_idle_ends_a_connection(
    server: InProcessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be sent to a client wakes the connection: whoever reads it closes it."""
    found = list[connection.ServerConnection]()
    serve = connection.ServerConnection.serve

    def seen(one: connection.ServerConnection, end: ExitStack) -> None:
        found.append(one)
        serve(one, end)

    monkeypatch.setattr(connection.ServerConnection, "serve", seen)
    client = server.client()
    first = client.info()["session"]
    until(lambda: not readers())

    class Broken:
        def __init__(self, sock: socket.socket) -> None:
            self.sock = sock

        def send(self, *_: Any) -> int:
            raise BrokenPipeError

        def __getattr__(self, name: str) -> Any:
            return getattr(self.sock, name)

    (one,) = found
    one._channel.stream.sock = Broken(one._channel.stream.sock)
    one._send_queue.notify("event", 1, "printed", "{}")
    until(lambda: server.parts.status.now()["connections"] == 0)
    assert client.info()["session"] == first
    until(lambda: not readers())


def test_nonsense_after_a_rest_ends_its_connection_only(server: InProcessServer) -> None:
    """As before it."""
    other, peer = server.client(), server.peer()
    other.info()
    until(lambda: not readers())
    with suppress(OSError):
        peer._channel.stream.sock.sendall(struct.pack("!LB", 5, 9) + b"hello")
    until(lambda: server.parts.status.now()["connections"] == 1)
    assert other.info()["session"]
