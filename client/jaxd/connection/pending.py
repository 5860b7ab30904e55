"""Requests that wait for a reply, the handler of server requests, and a single retry."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from jaxd_protocol.errors import ConnectionLost

if TYPE_CHECKING:
    from jaxd_protocol.wire import Frame, Value


T = TypeVar("T")

REPLY_GRACE_S = 0.25
"""Seconds that a caller waits past its deadline for the server's own, better timeout error."""


class NotSent(ConnectionLost):
    """`ConnectionLost` for a request that was not sent completely, and so was not started."""


class ServerRequestHandler(Protocol):
    """Handles requests and events that the server sends.

    A `connection` tells the calls made over it from those of others, which have the same numbers.
    """

    def answer_request(
        self, verb: str, args: tuple[Value, ...]
    ) -> tuple[Value, Sequence[memoryview]]:
        """The answer to `describe` or `code`."""

    def call_back(
        self,
        connection: object,
        about: Any,
        question: tuple[Value, ...],
        buffers: Sequence[memoryview],
    ) -> tuple[Value, Sequence[memoryview]]:
        """Calls a function of this process for an open call; `about`: what its `PendingReply` says."""

    def event(self, connection: object, number: int, kind: str, content: dict[str, Any]) -> None:
        """Call `number` reports something; called by whoever reads, so it must be quick."""


class PendingReply:
    """A request without a reply so far.

    Attributes:
        done: whether `value` and `frame`, or `error`, are there.
        waiter_locks: one for each waiting thread; released when it has to look again.
        then: called, by whoever reads, when nobody waits for the reply; an interrupt can make
            that happen twice.
        needs_reader: whether somebody has to read it although nobody waits.
        about: the call that it is for; None when it is for something else.
    """

    __slots__ = ("about", "done", "error", "frame", "needs_reader", "then", "value", "waiter_locks")

    def __init__(
        self,
        then: Callable[[PendingReply], None] | None = None,
        *,
        needs_reader: bool = False,
        about: Any = None,
    ) -> None:
        self.needs_reader = needs_reader
        self.about = about
        self.done = False
        self.value: Value = None
        self.frame: Frame | None = None
        self.error: Exception | None = None
        self.waiter_locks: list[threading.Lock] = []
        self.then = then

    def wake(self) -> None:
        """Wakes the waiting threads, if any."""
        gates, self.waiter_locks = self.waiter_locks, []
        for gate in gates:
            gate.release()

    def result(self) -> tuple[Value, Frame]:
        """The reply; raises what took its place."""
        if self.error is not None:
            raise self.error
        assert self.frame is not None
        return self.value, self.frame


def retry_once(ask: Callable[[], T]) -> T:
    """Calls `ask`, once more when the first attempt loses its connection.

    Raises:
        ConnectionLost: when the second does, too.
        Exception: what else `ask` raises.
    """
    try:
        return ask()
    except ConnectionLost:
        return ask()
