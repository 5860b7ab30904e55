"""Sessions: one client process each, outliving its connections."""

from __future__ import annotations

import gc
import math
import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakValueDictionary

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.errors import JaxdError, ProtocolError
from jaxd_protocol.messages.calls import FAILED, OK
from jaxd_protocol.messages.data_locations import (
    BLOCK_PROBE_BYTES,
    DEFINING_SKELETON,
    INDEXED_SKELETON,
    MAX_INDEXED_BYTES,
    ResultPolicy,
    unpack_spans,
)
from jaxd_protocol.messages.failures import encode_failure
from jaxd_protocol.wire.stream import Descriptors
from jaxd_server.execution.call import Client
from jaxd_server.jax_compat.devices import Devices
from jaxd_server.rpc.inflight_calls import InflightCall
from jaxd_server.rpc.ordered_calls import OrderedCallQueue, ReplyCache, Send, Start
from jaxd_server.runtime.counters import Counts
from jaxd_server.runtime.logs import log_event
from jaxd_server.values.client_memory import ClientMemory
from jaxd_server.values.references import ReferencedData
from jaxd_server.values.store import ValueStore
from jaxd_server.values.value import SessionValues

_MAX_SAVES: Final = 64

_REPEAT_WINDOW_S: Final = 3.0
"""A client that is back has repeated by then what it still wants."""

_ANSWER_WINDOW_S: Final = 27.0
"""So much longer is it waited for with a callback: a call on values may be repeated as late as when
the program needs its result."""


class InterruptedCalls:
    """The calls of a session that were running when their connection ended. Thread-safe.

    Their replies cannot be sent, but those of calls on values are kept. A client that reconnects
    repeats what it still wants, and that joins what is being built. What it does not repeat has to
    be cancelled, or it would keep its place among the builds, perhaps for ever.
    """

    def __init__(self) -> None:
        self._calls: WeakKeyDictionary[InflightCall, float] = WeakKeyDictionary()
        self._lock = threading.Lock()  # guards it

    def add(self, calls: Iterable[InflightCall], now: float) -> None:
        """Their connection has just ended."""
        with self._lock:
            self._calls.update(dict.fromkeys(calls, now))

    def cancel(self) -> None:
        """Cancels all of them: the client does not reconnect."""
        for call in self._before(math.inf):
            call.cancel()

    def cancel_unrepeated(self, before: float) -> None:
        """Cancels the calls interrupted before then that a reconnected client has not repeated.

        Those that run end by themselves: to cancel one could cost the worker.
        """
        for call in self._before(before):
            if not call.is_ordered:
                call.cancel_unless_running()
            call.stop_waiting(before - _ANSWER_WINDOW_S)

    def cancel_unbegun(self) -> None:
        """Cancels all that do not run: nobody can come back for them."""
        for call in self._before(math.inf):
            call.cancel_unless_running()
            call.stop_waiting()

    def _before(self, when: float) -> list[InflightCall]:
        with self._lock:
            return [call for call, at in self._calls.items() if at < when]


@dataclass(slots=True, eq=False)
class Session(Client):
    """What the server keeps for one client process.

    Attributes:
        connections: how many are open.
        left_at: `time.monotonic()` when the last one ended.
        is_over: whether its client has ended it.
        values: its arrays on the server.
        call_queue: its calls on them, in order.
        nested_calls: those that callbacks of its running calls make, which wait for them: they have
            an order of their own. None: there was none so far.
        reply_cache: the replies to these.
        skeletons: of arguments, by the numbers that the client has given them.
        unanswered: its calls that were under way when their connection ended.
        ordered_calls: its calls on values that are under way, by number.
        asking: what functions of its process are called for, by such calls.
        resumed_at: when its client connected last while it had no connection.
        since: when it was opened, as `time.time()`.
        process: the id of its client's process, as that says; empty when it does not.
        saves: the checkpoints that it has had begun, by token.
    """

    connections: int = 0
    is_over: bool = False
    left_at: float = field(default_factory=time.monotonic)
    values: SessionValues = field(init=False)
    call_queue: OrderedCallQueue = field(default_factory=OrderedCallQueue)
    nested_calls: OrderedCallQueue | None = None
    reply_cache: ReplyCache = field(default_factory=ReplyCache)
    skeletons: dict[int, bytes] = field(default_factory=dict)
    unanswered: InterruptedCalls = field(default_factory=InterruptedCalls)
    ordered_calls: WeakValueDictionary[int, InflightCall] = field(
        default_factory=WeakValueDictionary
    )
    asking: set[object] = field(default_factory=set)
    resumed_at: float = 0.0
    since: float = field(default_factory=time.time)
    process: str = ""
    saves: BoundedDict[str, Future[None]] = field(default_factory=lambda: BoundedDict(_MAX_SAVES))

    def __post_init__(self) -> None:
        self.values = SessionValues(self.principal)

    def after_calls(self, job: Callable[[], None]) -> None:
        """Runs `job` when all calls on values before it were started; at once if they were."""
        nested = self.nested_calls
        self.call_queue.then(job if nested is None else partial(nested.then, job))

    def queue_for(self, *, is_nested: bool) -> OrderedCallQueue:
        """The queue for a call on values."""
        if not is_nested:
            return self.call_queue
        self.nested_calls = self.nested_calls or OrderedCallQueue()
        return self.nested_calls


class Sessions:
    """The open sessions, and those whose client may still reconnect. Thread-safe.

    Args:
        grace_s: seconds that a session outlives its last connection.
        values: where the values of a session that ended are dropped.
        clock: seconds that only grow.
        devices: choose one for each session.
        counts: the counts of a principal; None: those of everybody.
    """

    def __init__(
        self,
        grace_s: float,
        values: ValueStore | None = None,
        clock: Callable[[], float] = time.monotonic,
        devices: Devices | None = None,
        counts: Callable[[str], Counts | None] = lambda principal: None,
    ) -> None:
        self._grace_s = grace_s
        self._clock = clock
        self._values = ValueStore() if values is None else values
        self._sessions: dict[str, Session] = {}
        self._devices = Devices() if devices is None else devices
        self._counts = counts
        self._left_at = clock()
        self._is_draining = False
        self._lock = threading.Lock()  # guards these three and the fields of each session

    def open(self, wanted: str | None, principal: str, device: int | None = None) -> Session:
        """The session `wanted` when this principal left it not too long ago, else a new one.

        Args:
            wanted: its id.
            principal: of the client.
            device: the index of the one that it is to be on; None: it stays, or one is chosen.

        Raises:
            ConfigurationError: when there is no such device.
        """
        self.poll()
        devices = self._devices
        devices.of(device, 0)
        in_use = devices.bytes_in_use() if len(devices) > 1 else ()
        with self._lock:
            session = self._sessions.get(wanted or "")
            if session is None or session.principal != principal:
                session = Session(os.urandom(16).hex(), principal)
                session.counts = self._counts(principal)
                if len(devices) > 1:
                    session.device = devices.least_used(self._sessions.values(), in_use)
                self._sessions[session.id] = session
            if device is not None:
                session.device = device
            if not session.connections:
                session.resumed_at = self._clock()
            session.connections += 1
            return session

    def close(self, session: Session, *, for_good: bool = False) -> None:
        """One connection of the session ended; `for_good` when its client cannot reconnect."""
        with self._lock:
            session.connections -= 1
            session.left_at = self._left_at = self._clock()
            if for_good or session.is_over:
                session.left_at = -math.inf
        self.poll()

    def end_if_left(self, session: Session) -> None:
        """Ends a session that has no connection: its client's process is gone."""
        with self._lock:
            if not session.connections:
                session.left_at = -math.inf
        self.poll()

    def end_all_of(self, principal: str) -> None:
        """Has the sessions of a principal end with their connections, without a grace period."""
        with self._lock:
            for session in self._sessions.values():
                if session.principal == principal:
                    session.is_over = True
                    session.left_at = -math.inf
        self.poll()

    def drain(self) -> None:
        """From now on no client can come back: what has not begun to run for one is cancelled."""
        with self._lock:
            self._is_draining = True
        self.poll()

    def poll(self) -> None:
        """Ends the sessions whose grace period is over; to be called often.

        And cancels the calls that reconnected clients have not repeated, or can repeat no more.
        """
        with self._lock:
            now = self._clock()
            oldest = now - self._grace_s
            over = [s for s in self._sessions.values() if not s.connections and s.left_at < oldest]
            for session in over:
                del self._sessions[session.id]
            before = now - _REPEAT_WINDOW_S
            sessions = list(self._sessions.values())
            back = [s for s in sessions if s.connections and s.resumed_at < before]
            gone = [s for s in sessions if not s.connections] if self._is_draining else []
        for session in back:
            session.unanswered.cancel_unrepeated(before)
        for session in gone:
            session.unanswered.cancel_unbegun()
        for session in over:  # outside the lock: what a call queue does may take a while
            self._end(session)
        self._values.poll()

    def _end(self, session: Session) -> None:
        """Ends a session. It may be a newcomer's thread, which has no part in what goes wrong."""
        try:
            session.unanswered.cancel()
            session.after_calls(partial(self._values.end, session.values))
        except Exception:  # noqa: BLE001  whatever it is
            log_event("session_not_ended", principal=session.principal)

    def all(self) -> list[Session]:
        """All sessions."""
        self.poll()
        with self._lock:
            return list(self._sessions.values())

    def heaviest(self) -> Session | None:
        """The session whose values take most; None when none has any."""
        with self._lock:
            found = max(self._sessions.values(), key=lambda s: s.values.nbytes, default=None)
        return found if found is not None and found.values.nbytes else None

    @property
    def quiet_s(self) -> float:
        """Seconds since a connection ended last, or since the start."""
        return self._clock() - self._left_at

    @property
    def connections(self) -> int:
        """Number of open connections."""
        with self._lock:
            return sum(session.connections for session in self._sessions.values())

    @property
    def callers(self) -> int:
        """Number of connected clients that have called functions."""
        with self._lock:
            return sum(s.connections > 0 and s.has_called for s in self._sessions.values())

    def by_principal(self) -> list[dict[str, Any]]:
        """One row for each principal that has sessions: how many, and how many connections."""
        rows: dict[str, dict[str, Any]] = {}
        with self._lock:
            for session in self._sessions.values():
                fresh = {"principal": session.principal, "connections": 0, "sessions": 0}
                row = rows.setdefault(session.principal, fresh)
                row["connections"] += session.connections
                row["sessions"] += 1
        return [rows[name] for name in sorted(rows)]

    def __len__(self) -> int:
        self.poll()
        with self._lock:
            return len(self._sessions)


class SessionState:
    """Values and shared blocks of one connection. For its reading thread.

    Args:
        session: whose connection it is.
        values: those of the whole worker.
        max_shared_bytes: of the client's memory that is mapped.

    Attributes:
        referenced_data: what the connection's calls may refer to.
    """

    def __init__(self, session: Session, values: ValueStore, max_shared_bytes: int) -> None:
        self._session = session
        self._values = values
        self._client_memory = ClientMemory(max_shared_bytes)
        self.referenced_data = ReferencedData(values, session.values, self._client_memory)

    def enqueue(
        self,
        stay: ResultPolicy,
        start: Start,
        send: Send,
        *,
        here: bool,
        is_short: bool,
        is_nested: bool = False,
    ) -> tuple[bool, Callable[[], None]]:
        """Gives a call on values its place: in order, and once, however often it is sent.

        Args:
            stay: has the number of the call.
            start: starts it.
            send: sends its reply.
            here: whether to run it in the calling thread, if it can start at once.
            is_short: whether it may be started in the calling thread.
            is_nested: whether a callback of a running call makes it.

        Returns:
            Whether it is new: one that was sent before is answered when that one is. And a function
            that continues it; another thread may read the next messages while that runs.
        """
        session = self._session
        queue = session.queue_for(is_nested=is_nested)
        settle = partial(session.reply_cache.answer, stay.number)
        again = partial(queue.put, start, settle, is_short=is_short)
        known = session.reply_cache.find_or_register(stay.number, stay.acked, send, again)
        if known is not None:
            return False, known
        return True, queue.enqueue(start, settle, is_short=is_short, at_once=here)

    def skeleton(self, sent: bytes) -> bytes:
        """The skeleton of a call.

        Args:
            sent: what the call has for it: the skeleton itself, or its number in the session.

        Raises:
            ProtocolError: when there is none with that number, or it is too long for one.
        """
        known = self._session.skeletons
        if sent.startswith(DEFINING_SKELETON) and 2 < len(sent) <= MAX_INDEXED_BYTES:
            known[sent[1]] = sent[2:]
            return sent[2:]
        if sent.startswith(INDEXED_SKELETON) and len(sent) == 2 and sent[1] in known:
            return known[sent[1]]
        if sent.startswith((INDEXED_SKELETON, DEFINING_SKELETON)):
            raise ProtocolError("a call has a skeleton that this session does not have.")
        return sent

    def drop(self, ids: bytes) -> None:
        """The client no longer holds some values; calls that came before may still need them."""
        gone, own = unpack_spans(ids), self._session.values
        self._session.after_calls(lambda: self._values.drop(own, gone))

    def share_block(self, descriptors: Descriptors, number: int, nbytes: int) -> tuple[Any, ...]:
        """Maps memory of the client. Its first bytes, in the reply, prove that it is the same."""
        if not descriptors:
            return (OK, b"")  # a proxy in between does not pass them on
        try:
            self._client_memory.add(number, nbytes, descriptors.pop(0))
        except JaxdError as error:
            return (FAILED, encode_failure(error))
        return (OK, bytes(self._client_memory.view(number, 0, BLOCK_PROBE_BYTES)))

    def forget_blocks(self, numbers: tuple[int, ...]) -> None:
        """The client has freed some blocks."""
        for number in numbers:
            self._client_memory.remove(number)

    def forget_snapshots(self, secret: str, numbers: tuple[int, ...]) -> None:
        """The client needs some snapshots no more; none of them where no number is given."""
        if type(numbers) is not tuple:
            raise ProtocolError("the client does not say readably which snapshots can go.")
        if self._values.snapshots is not None:
            self._values.snapshots.remove(self._session.values, secret, numbers)

    def end_session(self) -> None:
        """The client ends: its session is not kept."""
        self._session.is_over = True

    def close(self) -> None:
        """The connection ended: unmaps the client's memory; the session keeps its values."""
        self.referenced_data.close()
        # Calls in the queue still read from the memory.
        self._session.after_calls(self._release_memory)

    def _release_memory(self) -> None:
        self._client_memory.close()
        gc.collect(0)  # jax keeps what a program read until its next call, or until then
