"""TLS over a connected socket, such that one thread can read while another writes.

Python's own `SSLSocket` cannot do what the wire needs: two threads must not use it at once (in
3.13.6 one that waited for bytes even kept the other out), and a signal may take away the count of
bytes that were moved already. Here OpenSSL only turns bytes into bytes, in memory, under a lock
that no thread holds while it waits; the socket itself is read and written as any other. A
`TlsStream` is to it what `BulkStream` is to a plain socket.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from jaxd_protocol.errors import InternalError
from jaxd_protocol.wire.stream import BulkStream

_STEP_BYTES: Final = 1 << 18
"""The most that is received at once, and that is encrypted before it is sent."""

_RECORD_BYTES: Final = 1 << 14


class _OutgoingBytes:
    """Encrypted bytes to be sent; the first `sum(counts)` of them have been."""

    __slots__ = ("counts", "pieces")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.counts: list[int] = []


class TlsSocket:
    """A socket with TLS on it. One thread at a time may read, and one at a time may write.

    For the handshake of jaxd it is a socket with a timeout: `recv`, `sendall`. Messages go through
    `receive_into`, `send_some` and `flush`, which an interrupt may end at any point: their counts
    are exact, or the connection is not used any more.

    Args:
        raw: a connected socket, which belongs to this object from now on.
        context: determines which end has to show a certificate.
        server_side: whether the peer connected to us.
        server_name: the name that the server's certificate is checked against, if any.

    Attributes:
        raw: the socket.
    """

    def __init__(
        self,
        raw: socket.socket,
        context: ssl.SSLContext,
        *,
        server_side: bool = False,
        server_name: str | None = None,
    ) -> None:
        self.raw = raw
        self._arrived = ssl.MemoryBIO()
        self._encrypted = ssl.MemoryBIO()
        self._tls: Any = context.wrap_bio(
            self._arrived, self._encrypted, server_side=server_side, server_hostname=server_name
        )
        self._lock = threading.Lock()  # guards _tls, _encrypted and _torn
        self._torn = False  # whether it is unknown what _tls has done
        self._outgoing = _OutgoingBytes()
        self._timeout_s: float | None = None

    # as a socket, for handshakes ----------------------------------------------------------------

    def settimeout(self, seconds: float | None) -> None:
        """How long each of the methods below may take as a whole; None: as long as it takes."""
        self._timeout_s = seconds
        self.raw.settimeout(seconds)

    def do_handshake(self) -> None:
        """The handshake of TLS.

        Raises:
            ssl.SSLError: when the peer is not trusted, or does not speak TLS; it was sent an alert.
            EOFError: when it closed the connection.
            TimeoutError: when it took too long.
        """
        deadline = self._deadline()
        try:
            while True:
                with suppress(ssl.SSLWantReadError):
                    self._tls.do_handshake()
                    break
                self.flush()
                self._receive(deadline)
        finally:
            self.flush()  # an alert among it, if there is any

    def peer_certificate(self) -> bytes:
        """The certificate that the peer has shown, in DER; empty when it has shown none."""
        found: bytes | None = self._tls.getpeercert(binary_form=True)
        return found or b""

    def recv(self, count: int, flags: int = 0) -> bytes:
        """Up to so many bytes, all of them with `MSG_WAITALL`; less at the end of the peer."""
        deadline = self._deadline()
        data = bytearray(count)
        view = memoryview(data)
        filled = 0
        try:
            while filled < (count if flags & socket.MSG_WAITALL else min(count, 1)):
                opened: list[int] = []
                if self._open_records([view[filled:]], opened):
                    filled += sum(opened)
                else:
                    self._receive(deadline)
        except EOFError:
            pass
        return bytes(view[:filled])

    def sendall(self, data: bytes | memoryview) -> None:
        """Sends all of the data."""
        self.raw.settimeout(self._timeout_s)
        view = memoryview(data)
        sent: list[int] = []
        while sum(sent) < len(view):
            self.send_some([view[sum(sent) :]], sent)
        self.flush()

    def close(self) -> None:
        """Ends the connection.

        Without an alert: an unread one would hide the end from a peer that polls the socket, and
        our frames have lengths.
        """
        self.raw.close()

    def __getattr__(self, name: str) -> Any:
        """The other attributes of a socket: its peer, its family, its options."""
        return getattr(self.raw, name)

    def _deadline(self) -> float | None:
        return None if self._timeout_s is None else time.monotonic() + self._timeout_s

    # as a stream of bytes, for the wire ---------------------------------------------------------

    def has_input(self) -> bool:
        """Whether there are bytes that have left the socket and were not returned yet."""
        return bool(self._arrived.pending or self._tls.pending())

    def receive_into(self, views: Sequence[memoryview], received: list[int]) -> bool:
        """Waits for bytes, fills the views as far as they suffice, and appends how many they were.

        Returns:
            Whether any have come before the socket's own limit, if it has one, was over.

        Raises:
            EOFError: when the peer closed the connection.
            OSError: when the connection broke.
        """
        while not self._open_records(views, received):
            if not self._receive(None):
                return False
        return True

    def send_some(self, views: Sequence[memoryview], sent: list[int]) -> None:
        """Encrypts the first of the bytes, appends how many, and sends them.

        Interrupted, `flush` sends the rest of these.

        Raises:
            OSError: when the connection broke.
        """
        self.flush()
        self._encrypt(_first_bytes(views), sent)
        self.flush()

    def flush(self) -> None:
        """Sends what is encrypted and not sent yet; only the writing thread calls it.

        Raises:
            OSError: when the connection broke.
        """
        while True:
            outgoing = self._outgoing
            sent = sum(outgoing.counts)
            if sent == sum(map(len, outgoing.pieces)):
                with self._lock:
                    if not self._encrypted.pending:
                        return
                    outgoing = self._outgoing = _OutgoingBytes()
                    outgoing.pieces.extend(map(self._encrypted.read, (-1,)))
                sent = 0
            rest = memoryview(outgoing.pieces[0])[sent:]
            with suppress(BlockingIOError):  # see `BulkStream.stay_interruptible`
                # map and extend run in C: no interrupt between the system call and its count
                outgoing.counts.extend(map(self.raw.send, (rest,)))

    def _receive(self, deadline: float | None) -> bool:
        """Waits for bytes from the socket, and hands them to OpenSSL in the same C call.

        Returns whether there were any; the caller repeats it as needed.
        """
        if deadline is not None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("the peer took too long")
            self.raw.settimeout(left_s)
        try:
            arrived = list(map(self._arrived.write, map(self.raw.recv, (_STEP_BYTES,))))
        except BlockingIOError:  # see `BulkStream.stay_interruptible`
            return False
        if not arrived[0]:
            raise EOFError("the peer closed the connection")
        return True

    def _open_records(self, views: Sequence[memoryview], received: list[int]) -> bool:
        """Decrypts what has arrived into the views; whether there was any."""
        opened: list[int] = []
        before, counts, torn = -1, 0, True
        with self._lock:
            self._check()
            try:
                self._torn = True  # until all that OpenSSL did is counted
                for view in views:
                    rest = view
                    while rest and self.has_input():
                        before, counts = self._unopened(), len(opened)
                        opened.extend(map(self._tls.read, (len(rest),), (rest,)))
                        before = -1
                        rest = rest[opened[-1] :]
                    if rest:
                        break
                torn = False
            except ssl.SSLWantReadError:  # half a record
                torn = False
            except ssl.SSLZeroReturnError as error:
                raise EOFError("the peer closed the connection") from error
            except ssl.SSLError:
                raise
            except BaseException:  # an interrupt: the count of a record may be lost with it
                torn = before not in (-1, self._unopened()) and len(opened) == counts
                raise
            finally:
                if opened:
                    received.append(sum(opened))
                self._torn = torn
        return bool(opened)

    def _unopened(self) -> int:
        return self._arrived.pending + int(self._tls.pending())

    def _encrypt(self, data: memoryview | bytes, sent: list[int]) -> None:
        with self._lock:
            self._check()
            before, counts = self._encrypted.pending, len(sent)
            try:
                self._torn = True
                sent.extend(map(self._tls.write, (data,)))
                self._torn = False
            except ssl.SSLError:
                raise
            except BaseException:  # an interrupt: all was written to memory, or nothing
                if len(sent) == counts and self._encrypted.pending != before:
                    sent.append(len(data))
                self._torn = False
                raise

    def _check(self) -> None:
        if self._torn:
            raise ConnectionError("it was interrupted while TLS was at work")


def _first_bytes(views: Sequence[memoryview]) -> memoryview | bytes:
    """The first of the bytes: as they lie where that is much, else joined, to make few records."""
    first = views[0]
    if len(first) >= _RECORD_BYTES or len(views) == 1:
        return first[:_STEP_BYTES]
    parts, room = [], _RECORD_BYTES
    for view in views:
        parts.append(view[:room])
        room -= len(parts[-1])
        if not room:
            break
    return b"".join(parts)


class TlsStream(BulkStream):
    """As `BulkStream`; no open files travel over it.

    Args:
        tls: past its handshake.
    """

    __slots__ = ("_tls",)

    def __init__(self, tls: TlsSocket) -> None:
        super().__init__(tls.raw)
        self._tls = tls
        self.passes_descriptors = False

    def wait_readable(self, timeout_s: float | None) -> bool:
        """Whether bytes (or the end) are there; some may have left the socket already."""
        return self._tls.has_input() or super().wait_readable(timeout_s)

    def has_ended(self) -> bool:
        """Whether the peer has closed the connection, as far as it is known now."""
        return not self._tls.has_input() and super().has_ended()

    def readiness(self) -> Callable[[], object]:
        """A function that returns, without waiting, whether bytes (or the end) are there."""
        has_input, is_readable = self._tls.has_input, super().readiness()
        return lambda: has_input() or is_readable()

    def receive_into(self, views: list[memoryview], received: list[int]) -> None:
        """Receives once, and counts what was decrypted; there may be none, as of `BulkStream`.

        Raises:
            EOFError: when the peer closed the connection, it broke, or an interrupt made the
                count unknown.
            TimeoutError: when nothing has come for a while; see `report_silence`.
        """
        with self._ending(self.close):
            has_come = self._tls.receive_into(views, received)
        if not has_come:
            self._on_silence()

    def send_some(
        self, views: list[memoryview], sent: list[int], descriptors: Sequence[int] = ()
    ) -> None:
        """Encrypts and sends once; what is counted has gone out when `flush` has returned.

        Raises:
            EOFError: as in `receive_into`.
            InternalError: for open files; nothing was sent then.
        """
        if descriptors:
            raise InternalError(
                "open files cannot travel over TLS. Send what is in them; please report this."
            )
        with self._ending(self.shutdown):
            self._tls.send_some(views, sent)

    def flush(self) -> None:
        """Sends what was counted before an interrupt.

        Raises:
            EOFError: when the connection broke.
        """
        with self._ending(self.shutdown):
            self._tls.flush()

    @contextmanager
    def _ending(self, end: Callable[[], None]) -> Iterator[None]:
        try:
            yield
        except EOFError:
            end()
            raise
        except OSError as error:  # of the socket, or of TLS
            end()
            raise EOFError(f"connection lost: {error}") from error
