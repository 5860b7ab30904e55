from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from jaxd_protocol.wire import tls_socket as module
from jaxd_protocol.wire.tls_socket import TlsSocket
from tests.certificates import tls_pair
from tests.shared.wire.interrupt import HANDLES_SIGNALS, Interrupt

Pair = tuple[TlsSocket, TlsSocket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Both ends of a connection, past the handshake."""
    ends = tls_pair(*socket.socketpair())
    yield ends
    for end in ends:
        end.close()


def test_what_is_sent_arrives(pair: Pair) -> None:
    """Encrypted by TLS 1.3 and no older one, and no more at once than is asked for."""
    one, other = pair
    assert one._tls.version() == "TLSv1.3"
    one.sendall(b"some words")
    assert other.recv(4) == b"some"
    assert other.recv(99) == b" words"


def test_all_of_it_can_be_waited_for(pair: Pair) -> None:
    """Over several records; at the end of the peer there may be less."""
    one, other = pair
    one.sendall(b"a" * 3)
    one.sendall(b"b" * 40_000)
    assert other.recv(40_003, socket.MSG_WAITALL) == b"a" * 3 + b"b" * 40_000
    one.sendall(b"c")
    one.close()
    assert other.recv(2, socket.MSG_WAITALL) == b"c"
    assert other.recv(2) == b""


def test_nothing_of_it_is_readable_on_the_way() -> None:
    """Who listens in sees no word of it."""
    left, right = socket.socketpair()
    one, other = tls_pair(left, right)
    one.sendall(b"a word that nobody else may read")
    seen = right.recv(4096, socket.MSG_PEEK)
    assert len(seen) > 32
    assert b"word" not in seen
    assert other.recv(99) == b"a word that nobody else may read"
    one.close()
    other.close()


def test_what_was_changed_on_the_way_is_no_message() -> None:
    """One bit is enough to end the connection."""
    left, right = socket.socketpair()
    between, far = socket.socketpair()
    one, other = tls_pair(left, right)
    other.raw = far
    one.sendall(b"ten thousand")
    data = bytearray(right.recv(4096))
    data[-1] ^= 1
    between.sendall(data)
    with pytest.raises(ssl.SSLError):
        other.recv(99)
    for sock in (left, right, between, far):
        sock.close()


def test_a_peer_that_drips_is_given_up_in_time(pair: Pair) -> None:
    """The time is for all of it, not for each byte."""
    one, other = pair
    other.settimeout(0.05)
    done = threading.Event()

    def drip() -> None:
        record = bytes((23, 3, 3, 64, 0))  # the head of a long record
        for at in count():
            if done.wait(0.01):
                return
            one.raw.sendall(record[at : at + 1] or b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    with pytest.raises(TimeoutError):
        other.recv(1)
    done.set()
    thread.join()


def test_somebody_who_does_not_speak_tls() -> None:
    """Is found out at once."""
    ours, theirs = socket.socketpair()
    line = TlsSocket(ours, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), server_side=True)
    line.settimeout(20)
    theirs.sendall(b"GET / HTTP/1.1\r\n\r\n")
    with pytest.raises(ssl.SSLError):
        line.do_handshake()
    ours.close()
    theirs.close()


def test_small_pieces_share_a_record(pair: Pair) -> None:
    """Each record costs its own head, tag and call."""
    one, other = pair
    sent: list[int] = []
    pieces = [memoryview(b"%04d" % n) for n in range(100)]
    one.send_some(pieces, sent)
    assert sent == [400]
    assert len(other.raw.recv(1 << 16, socket.MSG_PEEK)) < 430
    assert other.recv(999) == b"".join(pieces)


def test_one_thread_reads_while_another_writes(pair: Pair) -> None:
    """More than any socket holds, both ways at once."""
    data = bytes(range(256)) * 12_000
    found: dict[str, bytes] = {}

    def talk(name: str, end: TlsSocket) -> list[threading.Thread]:
        def read() -> None:
            found[name] = end.recv(len(data), socket.MSG_WAITALL)

        return [threading.Thread(target=read), threading.Thread(target=end.sendall, args=(data,))]

    threads = talk("one", pair[0]) + talk("other", pair[1])
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"one": data, "other": data}


def test_who_is_interrupted_knows_what_was_sent(pair: Pair) -> None:
    """Wherever a signal may be handled: what was counted arrives, and nothing else."""
    one, other = pair
    sent: list[int] = []
    for n in count(1):
        with Interrupt(n, module, after=HANDLES_SIGNALS) as interrupt:
            try:
                one.send_some([memoryview(b"%06d" % n)], sent)
            except KeyboardInterrupt:
                assert interrupt.fired
        if one._torn:
            pytest.fail("one interrupt leaves nothing unknown in writing")
        one.flush()
        arrived = other.recv(len(sent) * 6, socket.MSG_WAITALL) if sent else b""
        assert arrived in (b"", b"%06d" % n)
        assert sum(sent) == len(arrived)
        sent.clear()
        if not interrupt.fired:
            return


def test_who_is_interrupted_knows_what_was_received() -> None:
    """Wherever a signal may be handled: what was counted is there, or it is not used."""
    torn = set()
    for n in count(1):
        one, other = tls_pair(*socket.socketpair())
        one.sendall(b"first")
        one.sendall(b"second")
        data = memoryview(bytearray(11))
        counts: list[int] = []
        with Interrupt(n, module, after=HANDLES_SIGNALS) as interrupt:
            try:
                other.receive_into([data], counts)
            except KeyboardInterrupt:
                assert interrupt.fired
        torn.add(other._torn)
        assert bytes(data[: sum(counts)]) == b"firstsecond"[: sum(counts)]
        if not other._torn and sum(counts) < 11:
            data[sum(counts) :] = other.recv(11 - sum(counts), socket.MSG_WAITALL)
            assert bytes(data) == b"firstsecond"
        one.close()
        other.close()
        if not interrupt.fired:
            return


class Interrupted:
    """OpenSSL, interrupted by a signal when it has opened a record: its count is lost."""

    def __init__(self, tls: Any) -> None:
        self._tls = tls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tls, name)

    def read(self, *args: Any) -> int:
        self._tls.read(*args)
        raise KeyboardInterrupt

    def write(self, data: Any) -> int:
        self._tls.write(data)
        raise KeyboardInterrupt


def test_a_count_that_a_signal_took_away_ends_the_connection(pair: Pair) -> None:
    """Nobody can say any more which byte is the next."""
    one, other = pair
    one.sendall(b"abc")
    other._tls = Interrupted(other._tls)
    with pytest.raises(KeyboardInterrupt):
        other.recv(1)
    with pytest.raises(ConnectionError, match="interrupted"):
        other.recv(1)
    with pytest.raises(ConnectionError, match="interrupted"):
        other.sendall(b"x")


def test_a_count_that_a_signal_took_away_while_writing_is_known(pair: Pair) -> None:
    """It was all or nothing, and the memory shows which."""
    one, other = pair
    whole, one._tls = one._tls, Interrupted(one._tls)
    sent: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        one.send_some([memoryview(b"abc")], sent)
    assert sent == [3]
    one._tls = whole
    one.sendall(b"def")
    assert other.recv(6, socket.MSG_WAITALL) == b"abcdef"
