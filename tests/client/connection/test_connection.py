"""The client's end of a connection, against a server that the test plays by hand."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest

from jaxd.connection.connection import ClientConnection
from jaxd.connection.shared_reader import PendingReply
from jaxd_protocol.errors import ConnectionLost, DeadlineExceeded, LimitExceeded, ProtocolError
from jaxd_protocol.wire import BulkStream
from tests.client.played_server import ConnectedPair, RecordingHandler, ScriptedServer
from tests.end_to_end.gates import in_thread
from tests.server.staging import until


def test_replies_in_any_order_find_their_requests(ends: ConnectedPair) -> None:
    """Whoever of the waiting threads reads."""
    client, server, _ = ends
    waiting = [in_thread(client.request, "call", (i,)) for i in range(8)]
    asked = [server.take() for _ in waiting]
    for seq, _, (i,), _ in reversed(asked):
        server.send_reply(seq, i * 10)
    assert [each.result(10)[0] for each in waiting] == [i * 10 for i in range(8)]


def submit(client: ClientConnection, args: tuple[Any, ...], then: Any) -> None:
    """Sends a request for whose reply nobody waits."""
    client.launch("call", args, (), PendingReply(then, needs_reader=True), client.number())


def test_submitted_requests_are_read_without_anybody_waiting(ends: ConnectedPair) -> None:
    """Their replies go where they were told to."""
    client, server, _ = ends
    found: list[Any] = []
    for i in range(3):
        submit(client, (i,), lambda p: found.append(p.result()[0]))
    for _ in range(3):
        seq, _, (i,), _ = server.take()
        server.send_reply(seq, i * 10)
    until(lambda: len(found) == 3)
    assert found == [0, 10, 20]


def test_the_end_of_the_connection_reaches_everybody(ends: ConnectedPair) -> None:
    """Those who wait, those who submitted, and whoever comes later."""
    client, server, _ = ends
    found: list[Any] = []
    waiting = [in_thread(client.request, "call", ()) for _ in range(4)]
    submit(client, (), lambda pending: found.append(pending.error))
    for _ in range(5):
        server.take()
    server.shut()
    assert all(isinstance(each.exception(10), ConnectionLost) for each in waiting)
    until(lambda: len(found) == 1)
    assert isinstance(found[0], ConnectionLost)
    assert not client.alive
    with pytest.raises(ConnectionLost):
        client.request("call", ())


def test_a_deadline(ends: ConnectedPair) -> None:
    """Ends the wait; the late reply is taken out of the way of the next one."""
    client, server, _ = ends
    with pytest.raises(DeadlineExceeded):
        client.request("call", ("late",), (), time.monotonic() + 0.05)
    late, *_ = server.take()
    waiting = in_thread(client.request, "call", ("next",))
    following, *_ = server.take()
    server.send_reply(late, "too late")
    server.send_reply(following, "in time")
    assert waiting.result(10)[0] == "in time"


def test_a_deadline_while_another_thread_reads(ends: ConnectedPair) -> None:
    """It is kept by whoever does not read as well."""
    client, server, _ = ends
    reading = in_thread(client.request, "call", ())
    seq, *_ = server.take()
    with pytest.raises(DeadlineExceeded):
        client.request("call", (), (), time.monotonic() + 0.05)
    server.send_reply(seq, "read")
    assert reading.result(10)[0] == "read"


def test_a_message_over_the_limit_is_not_sent(ends: ConnectedPair) -> None:
    """The connection goes on."""
    client, server, _ = ends
    with pytest.raises(LimitExceeded):
        client.request("call", (), (memoryview(bytes((1 << 24) + 1)),))
    waiting = in_thread(client.request, "call", ("small",))
    seq, *_ = server.take()
    server.send_reply(seq, 1)
    assert waiting.result(10)[0] == 1


def test_nonsense_from_the_server_is_told_as_such(ends: ConnectedPair) -> None:
    """It is no lost connection: repeating the call would not help."""
    client, server, _ = ends
    waiting = in_thread(client.request, "call", ())
    server.take()
    server._channel.stream.sock.sendall(b"\0\0\0\x03\x80abc\n")
    assert isinstance(waiting.exception(10), ProtocolError)
    assert not client.alive


def test_large_messages_both_ways_at_once(ends: ConnectedPair) -> None:
    """While a thread is stuck in sending, replies are taken: neither end waits for the other."""
    client, server, _ = ends
    large = bytes(1 << 23)

    def serve() -> None:
        for _ in range(6):
            seq, *_ = server.take()
            server.send_reply(seq, "echo", [memoryview(large)])

    serving = in_thread(serve)
    waiting = [in_thread(client.request, "call", (), (memoryview(large),)) for _ in range(6)]
    assert all(len(each.result(30)[1].buffers[0]) == len(large) for each in waiting)
    serving.result(10)


def test_an_unused_connection_can_be_forgotten() -> None:
    """Its own thread does not keep it alive."""
    import gc
    import weakref

    before = set(threading.enumerate())
    ours, theirs = socket.socketpair()
    with theirs:
        client = ClientConnection(BulkStream(ours), 1 << 20, RecordingHandler())
        server = ScriptedServer(theirs)
        done: list[Any] = []
        submit(client, (), done.append)
        server.send_reply(server.take()[0], 1)
        until(lambda: bool(done))
        done.clear()
        gone = weakref.ref(client)
        readers = [one for one in threading.enumerate() if one.name == "jaxd-reader"]
        del client
        gc.collect()
        until(lambda: gone() is None or bool(gc.collect() and False))
        ours.close()
    for reader in set(readers) - before:
        reader.join(10)
        assert not reader.is_alive()
