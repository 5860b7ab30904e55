"""Open files that travel beside messages over a Unix socket, received without losing any.

As with the bytes (see `jaxd_protocol.wire.frame_reader`), an interrupt may come anywhere: what a
system call has received is stored by C code, before any signal can be handled.
"""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Final

from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.wire.frames import MAX_DESCRIPTORS, Descriptors

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


class ReceivedDescriptors:
    """Descriptors that have come over one socket, until their messages have been read.

    One thread at a time may use it. What is left is closed with the object.
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
        """Gives what was received last an entry of its own, if there is anything in it."""
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
        """Forgets what `first` returned: it belongs to the message from now on."""
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
