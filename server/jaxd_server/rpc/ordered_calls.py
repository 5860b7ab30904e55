"""The queue of the calls of one session on its values, in the order in which they arrived.

The next one is dispatched while the device still works on the last, as in a process of its own.
A call that takes no time to start is started by the thread that has read it, or by the one that
has sent the reply before. Each thread that need not be woken leaves the processor to the device,
which consists of threads where it is a CPU. The reply to such a call may be sent before that to one
which was dispatched before it: clients take replies in any order.

The reply cache keeps the replies that a client has not acknowledged: a call on values must not run
twice. A client whose connection was lost sends such calls again. Those that ran are answered from
the cache, those that still run when they are done.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from jaxd_protocol.errors import ConnectionLost
from jaxd_protocol.messages.calls import FAILED, is_failure
from jaxd_protocol.messages.failures import encode_failure
from jaxd_server.execution.call import Finish, Reply
from jaxd_server.runtime.threads.executors import SerialExecutor

_MOST: Final = 1024
MAX_BYTES: Final = 1 << 26
"""Of all replies of a session, beside the last one."""

Rerun = Callable[[], None]


def _connection_lost(text: str) -> Reply:
    return (FAILED, encode_failure(ConnectionLost(text)), b""), ()


_ALREADY_ANSWERED: Final = _connection_lost("this call was answered before.")
"""To a call that was read from a lost connection after its reply had arrived over another one."""

_REPLY_DROPPED: Final = _connection_lost(
    "the reply to this call was lost with its connection, and too large to be kept. Leave large "
    "results on the server: results='auto'."
)
"""To a call that is sent again when its large reply is kept no longer."""


class ReplyCache:
    """The replies to the last calls of a session, by number. Thread-safe."""

    def __init__(self) -> None:
        self._replies: dict[int, Reply] = {}
        self._open: dict[int, list[tuple[Send, Rerun]]] = {}
        self._acked = 0
        self._lock = threading.Lock()  # guards all of these

    def find_or_register(
        self, number: int, acked: int, send: Send, again: Rerun = lambda: None
    ) -> Callable[[], None] | None:
        """None when a call is new.

        Else a function that sends the first reply; it does nothing when the call still runs.

        Args:
            number: of the call.
            acked: calls with smaller numbers have been answered for good.
            send: sends a reply.
            again: runs it after all, when the first one lost its client before it had the function.
        """
        with self._lock:
            self._acked = max(acked, self._acked)
            for old in [each for each in self._replies if each < self._acked]:
                del self._replies[old]
            reply = _ALREADY_ANSWERED if number < self._acked else self._replies.get(number)
            if reply is None:
                is_new = number not in self._open
                self._open.setdefault(number, []).append((send, again))
                return None if is_new else _nothing
        return partial(send, reply)

    def answer(self, number: int, reply: Reply) -> None:
        """Completes a call: answers all requests for it, and keeps the reply.

        One that lost its client before it could run is forgotten, or started again for the next
        request.
        """
        again: Rerun = _nothing
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
        again()

    def _make_room(self, newest: int) -> None:
        """Limits the replies that a client has not acknowledged. The lock is held."""
        if len(self._replies) > _MOST:
            del self._replies[min(self._replies)]
        total = sum(_size(reply) for reply in self._replies.values())
        for number in sorted(self._replies):
            if total <= MAX_BYTES or number == newest:
                return
            total -= _size(self._replies[number])
            if _size(self._replies[number]):
                self._replies[number] = _REPLY_DROPPED


def _size(reply: Reply) -> int:
    return sum(map(len, reply[1]))


def _never_ran(reply: Reply) -> bool:
    """Whether a call failed because its client was gone before it had sent the function."""
    kind, *rest = reply[0]
    return kind == FAILED and rest[1:] == [b""] and is_failure(rest[0], ConnectionLost)


def _nothing() -> None:
    pass


MAX_DISPATCHED: Final = 4
"""Calls of one session that are dispatched and not done."""

_LINGER_S: Final = 0.25

Start = Callable[[], Finish]
Send = Callable[[Reply], None]


class _Item(NamedTuple):
    """A call; or a job, which has no reply to send."""

    start: Start | Callable[[], None]
    send: Send | None
    is_short: bool


class OrderedCallQueue:
    """Starts calls in order, and sends each reply when its call is done. Thread-safe."""

    def __init__(self) -> None:
        self._waiting: deque[_Item] = deque()
        self._starts = False  # whether a thread is starting one, or about to
        self._ahead = 0
        self._lock = threading.Lock()  # guards all of the above
        self._long = SerialExecutor("jaxd-lane", _LINGER_S)
        self._finishes = SerialExecutor("jaxd-deliver", _LINGER_S)

    @property
    def is_idle(self) -> bool:
        """Whether no call is being started or waits for that."""
        return not (self._starts or self._waiting)

    def enqueue(
        self, start: Start, send: Send, *, is_short: bool = False, at_once: bool = False
    ) -> Callable[[], None]:
        """Gives a call its place behind those that came before, in no time.

        Args:
            start: starts it.
            send: sends its reply.
            is_short: whether it is started in no time; then it may be in the calling thread.
            at_once: whether it is run in the calling thread, whole, when nothing is before it.

        Returns:
            A function that continues with it, or with those before it; may be called much later.
        """
        if at_once and self._claim():
            return partial(self._run, start, send)
        self._waiting.append(_Item(start, send, is_short))
        return self._go_on

    def put(self, start: Start, send: Send, *, is_short: bool = False) -> None:
        """Queues a call and starts what may be started; see `enqueue`."""
        self.enqueue(start, send, is_short=is_short)()

    def then(self, job: Callable[[], None]) -> None:
        """Runs `job` when all calls before it were started; at once if they were."""
        self._waiting.append(_Item(job, None, is_short=True))
        self._go_on()

    def _claim(self) -> bool:
        """Whether no other call is being started or waits; then no other thread starts one."""
        with self._lock:
            if self._starts or self._waiting:
                return False
            self._starts = True
            return True

    def _run(self, start: Start, send: Send) -> None:
        send(start()())
        self._started()
        self._go_on()

    def _go_on(self) -> None:
        """Starts what may be started, up to one that takes long, which another thread starts."""
        while (next_one := self._next()) is not None:
            if not next_one.is_short:
                return self._long.put(lambda: self._begin_long(next_one))
            self._begin(next_one)
        return None

    def _next(self) -> _Item | None:
        """The next call or job, for this thread to start; None when there is none."""
        with self._lock:
            if self._starts or not self._waiting:
                return None
            if self._waiting[0].send is not None:
                if self._ahead >= MAX_DISPATCHED:
                    return None  # the thread that finishes one continues
                self._ahead += 1
            self._starts = True
            return self._waiting.popleft()

    def _begin_long(self, next_one: _Item) -> None:
        self._begin(next_one)
        self._go_on()

    def _begin(self, next_one: _Item) -> None:
        finish, send = next_one.start(), next_one.send
        if finish is not None and send is not None:
            self._finishes.put(partial(self._finish, finish, send))
        self._started()

    def _started(self) -> None:
        with self._lock:
            self._starts = False

    def _finish(self, finish: Finish, send: Send) -> None:
        try:
            reply = finish()
        finally:
            with self._lock:
                self._ahead -= 1
        send(reply)
        self._go_on()
