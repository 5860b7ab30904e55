"""Who reads a connection that many share; `test_transport` has the rest."""

from __future__ import annotations

import gc
import socket
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from jaxd.connection.connection import ClientConnection
from jaxd.connection.shared_reader import PendingReply, SharedReader
from jaxd_protocol.errors import ConnectionLost, DeadlineExceeded, ProtocolError
from jaxd_protocol.wire import BulkStream
from tests.client.played_server import ConnectedPair, RecordingHandler, ScriptedServer
from tests.end_to_end.gates import in_thread
from tests.server.staging import until
from tests.shared.wire.interrupt import swallowed_interrupt


def test_many_may_wait_for_one_reply(ends: ConnectedPair) -> None:
    """All of them see it, whoever reads."""
    client, server, _ = ends
    reading = in_thread(client.request, "call", ())
    seq, *_ = server.take()
    pending = PendingReply()
    client.launch("call", (), (), pending, client.number())
    other, *_ = server.take()
    waiting = [in_thread(client.shared_reader.wait, pending, None) for _ in range(6)]
    until(lambda: len(pending.waiter_locks) == 6)
    server.send_reply(seq, 1)  # the one who read has what it wanted: another one goes on
    assert reading.result(10)[0] == 1
    server.send_reply(other, 2)
    for each in waiting:
        each.result(10)
    assert pending.result()[0] == 2


def test_a_connection_that_was_lost_keeps_nothing_of_those_who_waited(ends: ConnectedPair) -> None:
    """Each raises an error of its own: in that of the connection their frames would stay."""
    client, server, _ = ends

    class Argument:
        """Something in a frame."""

    def wait() -> weakref.ref[Argument]:
        argument = Argument()
        with pytest.raises(ConnectionLost) as caught:
            client.request("call", ())
        assert isinstance(caught.value.__cause__, EOFError)
        return weakref.ref(argument)

    waiting = [in_thread(wait) for _ in range(2)]
    for _ in waiting:
        server.take()
    server.close()
    found = [each.result(10) for each in waiting]
    gc.collect()
    assert [each() for each in found] == [None, None]


def test_replies_are_taken_while_a_thread_is_stuck_in_sending(ends: ConnectedPair) -> None:
    """Also those that nobody waits for."""
    client, server, _ = ends
    arrived = threading.Event()
    client.launch("call", (), (), PendingReply(lambda _: arrived.set()), client.number())
    first, *_ = server.take()
    large = memoryview(bytes(1 << 23))
    sending = in_thread(lambda: client.launch("call", (), [large], PendingReply(), client.number()))
    server.send_reply(first, None, [memoryview(bytes(1 << 23))])  # nobody else reads this
    assert arrived.wait(10)
    server.take()
    sending.result(10)
    assert client.shared_reader._unawaited == 0


def test_a_late_reply_goes_where_it_was_told_to(ends: ConnectedPair) -> None:
    """Its caller has given up waiting."""
    client, server, _ = ends
    late: list[object] = []
    giving_up = in_thread(
        lambda: client.request("call", (), deadline=0.0, late=lambda p: late.append(p.value))
    )
    seq, *_ = server.take()
    assert giving_up.exception(10) is not None
    server.send_reply(seq, "late")
    until(lambda: late == ["late"])


def test_what_nobody_waits_for_any_more_is_read(ends: ConnectedPair) -> None:
    """By the connection's own thread, and counted once."""
    client, server, _ = ends
    arrived = threading.Event()
    pending, number = PendingReply(lambda _: arrived.set()), client.number()
    client.launch("call", (), (), pending, number)
    client.abandon_reply(number, pending)
    client.abandon_reply(number, pending)
    seq, *_ = server.take()
    server.send_reply(seq, 1)
    assert arrived.wait(10)
    until(lambda: client.shared_reader._unawaited == 0)


def test_at_exit_a_reply_is_decoded_to_its_end_and_no_other_begun(ends: ConnectedPair) -> None:
    """A thread that ends with the interpreter while it is inside of jax aborts the process."""
    client, server, _ = ends
    decoding, go_on, decoded = threading.Event(), threading.Event(), threading.Event()

    def decode(_: PendingReply) -> None:
        decoding.set()
        go_on.wait(10)
        decoded.set()

    client.launch("call", (), (), PendingReply(decode, needs_reader=True), client.number())
    first, *_ = server.take()
    readers: list[int] = []
    later = PendingReply(lambda _: readers.append(threading.get_ident()), needs_reader=True)
    client.launch("call", (), (), later, client.number())
    second, *_ = server.take()
    server.send_reply(first, 1)
    assert decoding.wait(10)
    server.send_reply(second, 2)
    exiting = in_thread(client.shared_reader.stop_at_exit)
    assert not exiting.done()
    go_on.set()
    exiting.result(10)
    assert decoded.is_set()
    client.shared_reader.wait(later, None)  # such as in a function that `atexit` calls
    assert readers == [threading.get_ident()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("others_read", "waits_in"),
    [
        (False, BulkStream.receive_into),
        (False, BulkStream.wait_readable),
        (True, SharedReader.wait),
    ],
)
def test_an_interrupt_that_no_system_call_hears_of_ends_a_call(
    ends: ConnectedPair, waits_in: Callable[..., object], *, others_read: bool
) -> None:
    """Whatever it waits for: bytes, bytes until a deadline, or what another thread reads."""
    client, server, _ = ends
    other = in_thread(client.request, "call", ()) if others_read else None
    if other is not None:
        until(lambda: client.shared_reader._is_reading)
    deadline = time.monotonic() + 3600 if waits_in is BulkStream.wait_readable else None
    with swallowed_interrupt(waits_in), pytest.raises(KeyboardInterrupt):
        client.request("call", (), deadline=deadline)
    for _ in range(1 + others_read):
        server.send_reply(server.take()[0], None)
    if other is not None:
        other.result(10)
    again = in_thread(client.request, "call", ())
    server.send_reply(server.take()[0], "again")
    assert again.result(10)[0] == "again"


def threads() -> set[threading.Thread]:
    """The reader threads that are alive."""
    return {thread for thread in threading.enumerate() if thread.name == "jaxd-reader"}


def test_a_connection_has_one_thread_that_reads_and_only_where_one_is_wanted(
    ends: ConnectedPair,
) -> None:
    """For replies that nobody waits for; it ends with the connection."""
    client, server, _ = ends
    before = threads()
    waiting = in_thread(client.request, "call", ())
    server.send_reply(server.take()[0], None)
    waiting.result(10)
    assert threads() <= before
    arrived = threading.Semaphore(0)
    for _ in range(3):
        pending = PendingReply(lambda _: arrived.release(), needs_reader=True)
        client.launch("call", (), (), pending, client.number())
        server.send_reply(server.take()[0], None)
        assert arrived.acquire(timeout=10)
    (mine,) = threads() - before
    client.shut()
    mine.join(10)
    assert not mine.is_alive()


def submit(client: ClientConnection, args: tuple[Any, ...], then: Any) -> None:
    """Sends a request for whose reply nobody waits."""
    client.launch("call", args, (), PendingReply(then, needs_reader=True), client.number())


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


def test_nonsense_from_the_server_is_told_as_such(ends: ConnectedPair) -> None:
    """It is no lost connection: repeating the call would not help."""
    client, server, _ = ends
    waiting = in_thread(client.request, "call", ())
    server.take()
    server._channel.stream.sock.sendall(b"\0\0\0\x03\x80abc\n")
    assert isinstance(waiting.exception(10), ProtocolError)
    assert not client.alive


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
