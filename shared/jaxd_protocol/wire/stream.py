"""A socket stream that can wait, and whose byte counts survive interrupts by signals.

One of the modules that import rpyc; relies on `SocketStream.sock` and `SocketStream.closed`.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import Final

from rpyc.core.stream import SocketStream

from jaxd_protocol.errors import InternalError, ProtocolError
from jaxd_protocol.wire.descriptors import ReceivedDescriptors, ancillary_data, can_pass

INTERRUPTIBLE_S: Final = 0.5
"""How long a wait may keep its thread from seeing that it was interrupted."""

_FIRST: Final = itemgetter(0)  # of what recvmsg_into returns: the count


def tune_socket(sock: socket.socket) -> None:
    """Prepares a connected socket for calls: blocking, no Nagle, dead peers noticed.

    rpyc leaves its 3 s connect timeout on the socket, which kills a connection whose peer is
    merely busy, and cannot switch Nagle off, which costs 44 ms per message above 64 kB.
    """
    sock.settimeout(None)
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        _set_if_known(sock, name, value)
    _set_if_known(sock, "TCP_USER_TIMEOUT", 30_000)
    if sock.getpeername()[0] in ("127.0.0.1", "::1"):
        # bbr, a common default, is half as fast as reno on loopback
        _set_if_known(sock, "TCP_CONGESTION", b"reno")


def _set_if_known(sock: socket.socket, name: str, value: int | bytes) -> None:
    option = getattr(socket, name, None)
    if option is not None:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        except OSError:
            return  # the system does not offer it; the default will do


class BulkStream(SocketStream):  # type: ignore[misc]
    """A socket that can wait, and that reads and writes without losing count when interrupted.

    Attributes:
        passes_descriptors: whether open files can travel beside the bytes: over a Unix socket.
        arrivals: where those that arrive are kept; None drops them.
    """

    __slots__ = ("_poll", "arrivals", "passes_descriptors")

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self._poll: select.poll | None = None
        self.passes_descriptors = can_pass(sock)
        self.arrivals: ReceivedDescriptors | None = None

    def expect_descriptors(self) -> None:
        """Takes descriptors from now on, where they can be passed: before a channel is made.

        Not from the start, because receiving so takes 1 µs longer.
        """
        if self.passes_descriptors:
            self.arrivals = ReceivedDescriptors()

    def stay_interruptible(self) -> None:
        """Has each wait for the peer end after half a second, in vain, and begin anew.

        Python sees an interrupt between two opcodes. One that comes just before a system call, or
        that another thread makes (`_thread.interrupt_main`, as debuggers do), does not end that
        call, which may last as long as the peer keeps silent.
        """
        period = struct.pack("ll", 0, int(INTERRUPTIBLE_S * 1e6))  # a timeval; on Windows: for ever
        with suppress(OSError):  # macOS: the peer is gone already
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                self.sock.setsockopt(socket.SOL_SOCKET, option, period)

    def wait_readable(self, timeout_s: float | None) -> bool:
        """Whether bytes (or the end) are there within `timeout_s` seconds; None waits for ever."""
        if self.closed:  # another socket may have its number by now
            return True
        if not hasattr(select, "poll"):
            return bool(select.select([self.sock], [], [], timeout_s)[0])
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self.sock, select.POLLIN)
        return bool(self._poll.poll(None if timeout_s is None else max(timeout_s, 0) * 1000))

    def has_ended(self) -> bool:
        """Whether the peer has closed the connection, as far as it is known now."""
        flags = socket.MSG_PEEK | getattr(socket, "MSG_DONTWAIT", 0)
        if self.closed or not hasattr(socket, "MSG_DONTWAIT"):
            return bool(self.closed)
        try:
            return not self.sock.recv(1, flags)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def readiness(self) -> Callable[[], object]:
        """A quick question, true when bytes (or the end) are there now."""
        if not hasattr(select, "poll"):
            return lambda: self.wait_readable(0)
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return partial(poll.poll, 0)

    def receive_into(self, views: list[memoryview], received: list[int]) -> None:
        """Receives once; the count is appended to `received` before any signal can be handled.

        There may be none; see `stay_interruptible`.

        Raises:
            EOFError: when the peer closed the connection or it broke.
            ProtocolError: when descriptors come that no message announces.
        """
        sock = self.sock
        try:
            if self.arrivals is not None:
                self.arrivals.receive_into(sock, views, received)
            # map and extend run in C: no bytecode, so no KeyboardInterrupt, between the two
            elif len(views) == 1 or not hasattr(sock, "recvmsg_into"):
                received.extend(map(sock.recv_into, views[:1]))
            else:
                received.extend(map(_FIRST, map(sock.recvmsg_into, (views,))))
        except BlockingIOError:
            return
        except ProtocolError:  # which is an OSError as well
            raise
        except OSError as error:
            self.close()
            raise EOFError(f"connection lost: {error}") from error
        if not received[-1]:
            self.close()
            raise EOFError("connection closed by the peer")

    def send_some(
        self, views: list[memoryview], sent: list[int], descriptors: Sequence[int] = ()
    ) -> None:
        """Sends once, and the open files with it; the count is appended as in `receive_into`.

        Raises:
            EOFError: when the connection broke.
            InternalError: when open files cannot travel over this socket; nothing was sent then.
        """
        sock = self.sock
        if descriptors and not self.passes_descriptors:
            raise InternalError(
                "open files cannot travel over this connection. Send what is in them instead; "
                "please report this."
            )
        try:
            if descriptors:
                sent.extend(map(sock.sendmsg, (views,), (ancillary_data(descriptors),)))
            elif len(views) == 1 or not hasattr(sock, "sendmsg"):
                sent.extend(map(sock.send, views[:1]))
            else:
                sent.extend(map(sock.sendmsg, (views,)))
        except BlockingIOError:
            return
        except OSError as error:
            self.close()
            raise EOFError(f"connection lost: {error}") from error

    def flush(self) -> None:
        """Sends what `send_some` counted and an interrupt kept here: nothing, without TLS."""

    def abandon(self) -> None:
        """Forgets the socket without a word to the peer: for the child of a fork.

        `close` would shut the connection down for the parent as well.
        """
        descriptor = -1 if self.closed else self.sock.detach()
        if descriptor >= 0:  # else it was abandoned before
            os.close(descriptor)
