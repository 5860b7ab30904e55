"""A socket stream, with open files beside the bytes, that loses nothing when it is interrupted.

An interrupt may come anywhere: C code stores the count of each system call before any signal can be
handled.

One of the modules that import rpyc; relies on `SocketStream.sock` and `SocketStream.closed`.
"""

from __future__ import annotations

import array
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import Any, Final

from rpyc.core.stream import SocketStream

from jaxd_protocol.errors import InternalError, ProtocolError

MAX_DESCRIPTORS: Final = 64
"""Linux passes up to 253 at once; a receiver needs room for them before they arrive."""

_FIRST: Final = itemgetter(0)  # of what recvmsg_into returns: the count
_NOT_INHERITABLE: Final = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))
_TRUNCATED: Final = int(getattr(socket, "MSG_CTRUNC", 0))  # not an enum: those are slow
_OPTIONS: Final = (
    (getattr(socket, "CMSG_SPACE", int)(4 * MAX_DESCRIPTORS),),
    (_NOT_INHERITABLE,),
)  # of recvmsg_into, each in a row of one
_UNSORTED: Final = "latest"
_MAX_GROUPS: Final = 8
"""Messages whose descriptors may be here before the messages are read; two are usual at most."""


def can_pass(sock: socket.socket) -> bool:
    """Whether open files can travel over this socket."""
    is_unix = sock.family == getattr(socket, "AF_UNIX", None)
    return is_unix and hasattr(socket, "SCM_RIGHTS") and hasattr(sock, "recvmsg_into")


def ancillary_data(descriptors: Sequence[int]) -> list[tuple[int, int, bytes]]:
    """What `sendmsg` takes to send these along."""
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors).tobytes())]


class Descriptors(list[int]):
    """Open files of a message, in its order.

    They are closed with the list. To keep one, take it out (`pop`), and close it later.
    """

    def __del__(self) -> None:
        while self:
            os.close(self.pop())


class ReceivedDescriptors:
    """Descriptors that have arrived over one socket, until their messages have been read.

    One thread at a time may use it. The remaining ones are closed with the object.
    """

    __slots__ = ("_groups", "_keep")

    def __init__(self) -> None:
        # Oldest first, one entry for each message with descriptors: what recvmsg_into returned,
        # then the descriptors in it. The kernel never joins those of two messages.
        self._groups: dict[object, Any] = {}
        self._keep: Callable[[Any], Any] = partial(self._groups.setdefault, _UNSORTED)

    def receive_into(
        self, sock: socket.socket, views: list[memoryview], received: list[int]
    ) -> None:
        """As `BulkStream.receive_into`; keeps the descriptors as well.

        Raises:
            OSError: when the connection broke.
            ProtocolError: when descriptors come that no message announces.
        """
        groups = self._groups
        if _UNSORTED in groups:  # an interrupted thread could not do it
            self._sort()
        received.extend(map(_FIRST, map(self._keep, map(sock.recvmsg_into, (views,), *_OPTIONS))))
        _, ancillary, flags, _ = groups[_UNSORTED]
        if ancillary or flags & _TRUNCATED:
            self._sort()
        else:
            del groups[_UNSORTED]

    def _sort(self) -> None:
        """Moves what was received last to an entry of its own, if there is anything in it."""
        groups = self._groups
        _, ancillary, flags, _ = groups[_UNSORTED]
        if not ancillary and not flags & _TRUNCATED:
            del groups[_UNSORTED]
            return
        # all in C: no interrupt between taking it out and putting it back
        groups.update(zip((object(),), map(groups.pop, (_UNSORTED,)), strict=True))
        if len(groups) > _MAX_GROUPS:
            raise ProtocolError("open files arrive that no message announces.")

    def first(self) -> Descriptors:
        """Those of the oldest message; the same ones again until they are dropped."""
        if _UNSORTED in self._groups:
            self._sort()
        for key, group in self._groups.items():
            if type(group) is tuple:
                # all in C: no interrupt between the list, which closes what it has, and its entry
                lists = map(Descriptors, (_unpacked(group),))
                self._groups.update(zip((key,), lists, strict=True))
            found: Descriptors = self._groups[key]
            return found
        return Descriptors()

    def drop(self, descriptors: Descriptors) -> None:
        """Removes what `first` returned: it belongs to the message from now on."""
        for key, group in list(self._groups.items()):
            if group is descriptors:
                del self._groups[key]

    def __del__(self) -> None:
        for group in self._groups.values():
            if type(group) is tuple:
                Descriptors(_unpacked(group))


def _unpacked(received: tuple[Any, ...]) -> list[int]:
    found = array.array("i")
    for level, kind, data in received[1]:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    if not _NOT_INHERITABLE:
        for descriptor in found:
            os.set_inheritable(descriptor, False)
    return found.tolist()


INTERRUPTIBLE_S: Final = 0.5
"""How long a wait may delay the handling of an interrupt in its thread."""


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
    options: dict[str, Any] = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
    options["TCP_USER_TIMEOUT"] = 30_000
    if sock.getpeername()[0] in ("127.0.0.1", "::1"):
        options["TCP_CONGESTION"] = b"reno"  # bbr, a common default, is half as fast on loopback
    for name, value in options.items():
        with suppress(AttributeError, OSError):  # the system lacks it; the default will do
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class BulkStream(SocketStream):  # type: ignore[misc]
    """A socket that can wait, and that reads and writes without losing count when interrupted.

    Attributes:
        passes_descriptors: whether open files can travel beside the bytes: over a Unix socket.
        arrivals: where those that arrive are kept; None drops them.
    """

    __slots__ = ("_poll", "_reports_silence", "arrivals", "passes_descriptors")

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self._reports_silence = False
        self._poll: select.poll | None = None
        self.passes_descriptors = can_pass(sock)
        self.arrivals: ReceivedDescriptors | None = None

    def expect_descriptors(self) -> None:
        """Takes descriptors from now on, where they can be passed: before a channel is made.

        Not from the start, because receiving takes 1 µs longer then.
        """
        if self.passes_descriptors:
            self.arrivals = ReceivedDescriptors()

    def stay_interruptible(self) -> None:
        """Limits each wait for the peer to half a second, after which it begins anew.

        Python sees an interrupt between two opcodes. One that comes just before a system call, or
        that another thread makes (`_thread.interrupt_main`, as debuggers do), does not end that
        call, which may last as long as the peer keeps silent.
        """
        self._limit_waits(INTERRUPTIBLE_S, socket.SO_RCVTIMEO, socket.SO_SNDTIMEO)

    def report_silence(self, seconds: float) -> None:
        """From now on `receive_into` raises `TimeoutError` where nothing comes for so long.

        The system counts the time while it waits, so that what does come costs nothing more.
        """
        self._reports_silence = True
        self._limit_waits(seconds, socket.SO_RCVTIMEO)

    def _limit_waits(self, seconds: float, *options: int) -> None:
        whole = int(seconds)
        limit = struct.pack("ll", whole, int((seconds - whole) * 1e6))  # a timeval
        with suppress(OSError):  # macOS: the peer is gone already
            for option in options:  # on Windows, where it is no timeval: for ever
                self.sock.setsockopt(socket.SOL_SOCKET, option, limit)

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
        """A function that returns, without waiting, whether bytes (or the end) are there."""
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
            TimeoutError: when nothing has come for a while; see `report_silence`.
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
            return self._on_silence()
        except ProtocolError:  # which is an OSError as well
            raise
        except OSError as error:
            self.close()
            raise EOFError(f"connection lost: {error}") from error
        if not received[-1]:
            self.close()
            raise EOFError("connection closed by the peer")
        return None

    def _on_silence(self) -> None:
        if self._reports_silence:
            raise TimeoutError("the peer is silent")

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
            self.shutdown()
            raise EOFError(f"connection lost: {error}") from error

    def shutdown(self) -> None:
        """Ends the connection for both ends; whoever reads notices that, and closes the socket.

        Another thread must not close it: where the socket is waited for by its number (epoll), no
        one would notice, and the number may be that of another file by then.
        """
        with suppress(EOFError, OSError):  # it is closed, or has ended already
            self.sock.shutdown(socket.SHUT_RDWR)

    def flush(self) -> None:
        """Sends what `send_some` counted and an interrupt kept here: nothing, without TLS."""

    def abandon(self) -> None:
        """Releases the socket without shutting the connection down: for the child of a fork.

        `close` would shut the connection down for the parent as well.
        """
        descriptor = -1 if self.closed else self.sock.detach()
        if descriptor >= 0:  # else it was abandoned before
            os.close(descriptor)


SPIN_S: Final = 200e-6
"""How long to spin. A peer in Python needs 30 to 50 µs between a reply and the next call, and
three times that on a virtual machine, whose idle processors are taken away."""

_SPIN_AFTER_MISS_S: Final = 600e-6
"""The same after a miss: a peer that was woken has cold caches, and takes longer."""

_MAX_MISSES: Final = 3
"""Misses in a row until it pauses. Whether spinning pays depends on whether the peer spins as well,
which has pauses of its own: the attempts of both ends have to coincide now and then."""

_MIN_PAUSE: Final = 8
_MAX_PAUSE: Final = 32

_yield_processor: Final[Callable[[], None]] = getattr(os, "sched_yield", lambda: None)
_spin_lock = threading.Lock()  # one thread of a process at a time: two would only take turns


class AdaptiveWait:
    """Spins for the next message where that is quicker than blocking; used by one thread at a time.

    In a train of small calls the next message comes within some tens of microseconds, and to wake a
    thread that sleeps costs about as much as the message itself.

    After some misses it pauses for some messages, and for more the next time, so that a slow peer,
    or a machine without a free processor, costs next to nothing.

    Args:
        ready: whether a message is there, without waiting.
    """

    def __init__(self, ready: Callable[[], object]) -> None:
        self._ready = ready
        self._pays = True
        self._misses = 0
        self._rest = 0
        self._next_rest = _MIN_PAUSE

    def wait(self) -> None:
        """Returns when a message is there, or when it is time to sleep."""
        if self._rest:
            self._rest -= 1
        elif _spin_lock.acquire(blocking=False):
            try:
                self._learn(self._spin())
            finally:
                _spin_lock.release()

    def _spin(self) -> bool:
        end = time.perf_counter() + (SPIN_S if self._pays else _SPIN_AFTER_MISS_S)
        while not self._ready():
            if time.perf_counter() > end:
                return False
            _yield_processor()  # to another process, perhaps the peer
        return True

    def _learn(self, paid: bool) -> None:
        self._pays = paid
        if paid:
            self._misses = 0
            self._next_rest = _MIN_PAUSE
            return
        self._misses += 1
        if self._misses >= _MAX_MISSES:
            self._misses = 0
            self._rest = self._next_rest
            self._next_rest = min(2 * self._next_rest, _MAX_PAUSE)
