"""Replies that their client has not acknowledged: a call on values must not run twice.

A client whose connection was lost sends such calls again. Those that ran are answered from here,
those that still run when they are done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Final

from jaxd_protocol.calls import FAILED, is_failure
from jaxd_protocol.errors import ConnectionLost
from jaxd_protocol.failures import describe_failure
from jaxd_server.call import Reply

__all__ = ["Remembered"]

_MOST: Final = 1024
MOST_BYTES: Final = 1 << 26
"""Of all replies of a session, beside the last one."""

Send = Callable[[Reply], None]
Again = Callable[[], None]

_ANSWERED: Final[Reply] = (
    (FAILED, describe_failure(ConnectionLost("this call was answered before.")), b""),
    (),
)
"""What a call gets that lay in a lost connection until its answer had arrived over another one."""

_LET_GO: Final[Reply] = (
    (
        FAILED,
        describe_failure(
            ConnectionLost(
                "the reply to this call was lost with its connection, and too large to be kept. "
                "Leave large results on the server: results='auto'."
            )
        ),
        b"",
    ),
    (),
)
"""What a call gets that is sent again when its large reply is held no longer."""


class Remembered:
    """What became of the last calls of a session, by their numbers. Thread-safe."""

    def __init__(self) -> None:
        self._replies: dict[int, Reply] = {}
        self._open: dict[int, list[tuple[Send, Again]]] = {}
        self._acked = 0
        self._lock = threading.Lock()  # guards all of these

    def __len__(self) -> int:
        return len(self._replies)

    def meet(
        self, number: int, acked: int, send: Send, again: Again = lambda: None
    ) -> Callable[[], None] | None:
        """None when a call is new.

        Else what answers it, with the reply of the first time; nothing to do when that still runs.

        Args:
            number: of the call.
            acked: calls with smaller numbers have been answered for good.
            send: sends a reply.
            again: runs it after all, when the first could not ask its client for the function.
        """
        with self._lock:
            self._acked = max(acked, self._acked)
            for old in [each for each in self._replies if each < self._acked]:
                del self._replies[old]
            reply = _ANSWERED if number < self._acked else self._replies.get(number)
            if reply is None:
                is_new = number not in self._open
                self._open.setdefault(number, []).append((send, again))
                return None if is_new else _nothing
        return partial(send, reply)

    def answer(self, number: int, reply: Reply) -> None:
        """A call is done: has its reply sent to all who asked, and remembers it.

        One that lost its client before it could run is no longer known, or begins anew for who has
        sent it again.
        """
        again: Again | None = None
        with self._lock:
            asked = self._open.pop(number, [])
            if _never_ran(reply):
                asked, others = asked[:1], asked[1:]
                if others:
                    self._open[number] = others
                    again = others[0][1]
            elif number >= self._acked:
                self._replies[number] = reply
                self._make_room(number)
        for send, _ in asked:
            send(reply)
        if again is not None:
            again()

    def _make_room(self, newest: int) -> None:
        """Of what a client does not acknowledge, only so much is held. The lock is held."""
        if len(self._replies) > _MOST:
            del self._replies[min(self._replies)]
        total = sum(_size(reply) for reply in self._replies.values())
        for number in sorted(self._replies):
            if total <= MOST_BYTES or number == newest:
                return
            total -= _size(self._replies[number])
            if _size(self._replies[number]):
                self._replies[number] = _LET_GO


def _size(reply: Reply) -> int:
    return sum(map(len, reply[1]))


def _never_ran(reply: Reply) -> bool:
    """Whether a call failed because its client was gone when it was asked for the function."""
    kind, *rest = reply[0]
    return kind == FAILED and rest[1:] == [b""] and is_failure(rest[0], ConnectionLost)


def _nothing() -> None:
    pass
