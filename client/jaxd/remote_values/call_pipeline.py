"""The pipeline of calls on remote values: ordered, at most once each, several in flight.

The reply of such a call is read by the thread that needs it, or along with the next call. When the
connection is lost, all calls without a reply are sent again, in their order; the server does not
run again what it has run already.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from jaxd.connection.shared_reader import NotSent, PendingReply
from jaxd.remote_values.callback_calls import (
    CALLBACK_WAIT_S,
    circle_error,
    needed_first,
    waits_behind,
)
from jaxd.remote_values.lineage import (
    irreproducible_error,
    unanswered_call_error,
    values_lost_error,
    with_call_array_names,
)
from jaxd.request.call_request import callback_origin, running_callbacks
from jaxd.results.exceptions import exception_of
from jaxd.results.reader import InlineLeaves, run_seconds
from jaxd_protocol.base.process import start_thread
from jaxd_protocol.errors import (
    Busy,
    ConnectionLost,
    DeadlineExceeded,
    JaxdError,
    NoServer,
    ResultError,
    ValuesLost,
    WorkerReplaced,
)
from jaxd_protocol.messages.calls import FAILED, FailureOrigin, is_failure, set_origin
from jaxd_protocol.messages.data_locations import new_call_number, unpack_leaf_spans, value_ids_of
from jaxd_protocol.messages.failures import Failure, decode_failure
from jaxd_protocol.pytree import BlobLayout, Layout
from jaxd_protocol.pytree.leaves import leaf_data

if TYPE_CHECKING:
    from jaxd.connection.connection import ClientConnection
    from jaxd.events.effects import CallEffects
    from jaxd.interop.remote_array import ResultBatch
    from jaxd.remote_values.lineage import Lineage
    from jaxd.remote_values.recovery import Recovery
    from jaxd.request.call_request import CallRequest
    from jaxd.transfer.dedup import Deduplicator
    from jaxd.transfer.release_queue import ReleaseQueue
    from jaxd.transfer.routing import CallTransfer, TransferRouter


MAX_IN_FLIGHT: Final = 8
"""Calls of one session that may be in flight at the same time."""

_MAX_WITHDRAWAL_S: Final = 2.0
_MAX_ATTEMPTS: Final = 16


class ResultShape(NamedTuple):
    """The structure of the results of such calls.

    Attributes:
        skeleton: of the results.
        layout: the parsed skeleton.
        hash: of the skeleton, for the server.
        worker: that has returned it.
    """

    skeleton: bytes
    layout: Layout
    hash: bytes
    worker: tuple[Any, ...] = ()


class SkeletonEncoder(Protocol):
    """Encodes the skeletons of the calls of one session."""

    def encode(self, skeleton: bytes) -> bytes:
        """The bytes to send for a skeleton; empty: itself."""


class PipelinedCall:
    """One pipelined call on remote values.

    Args:
        call: the call.
        form: the structure of its result, when that is known.
        donated: numbers of the leaves that such calls are known to donate.
        on_done: called with it when it is done; its reply is then always read.
        is_copied: whether its caller may change its arrays before it is done.
        skeletons: gives the bytes that are sent for its skeleton the first time.

    Attributes:
        done: whether its reply has arrived, or never will.
        error: why there is no result; None when there is one, or none so far.
        skeleton: of its result; None while it is unknown.
        layout: the parsed skeleton; None while it is unknown.
        known_shape_hash: the hash of the structure that is known, for the server.
        known_by: the worker that has returned it.
        deadline: `time.monotonic()` after which its caller does not wait; None: without limit.
        inline_leaves: the leaves that came with the reply; None before that.
        given_up: numbers of the leaves that were donated.
        changed: the skeleton of its result when that is not the known one.
        is_sent: whether the server may have it.
        request: its number on its connection.
        transfer: its data, in transfer.
        remote_leaves: the leaves that are on the server: of each handle range the first, and how
            many they are.
        released_ids: ids of released values that its message carries.
        may_go_on, has_called_back, callback_error: see `CallbackOrigin`.
        is_nested: whether a callback of another call makes it: then it is in no order.
        lineage: how its result is made again; None: that is not known.
        session: for which its transfer was prepared.
    """

    may_go_on = True

    def __init__(
        self,
        call: CallRequest,
        form: ResultShape | None,
        donated: Sequence[range] = (),
        on_done: Callable[[PipelinedCall], None] | None = None,
        is_copied: bool = False,
        skeletons: SkeletonEncoder | None = None,
    ) -> None:
        self.call = call
        self.number = 0
        timeout_s = call.timeout_s
        self.deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self.transfer: CallTransfer | None = None
        self.copies_data = is_copied
        self.skeletons = skeletons
        self.sent_skeleton = b""
        self.done = False
        self.error: BaseException | None = None
        self.skeleton: bytes | None = form.skeleton if form else None
        self.layout: Layout | None = form.layout if form else None
        self.known_shape_hash = form.hash if form else b""
        self.known_by = form.worker if form else ()
        self.inline_leaves: InlineLeaves | None = None
        self.given_up: tuple[range, ...] = ()
        self.changed: bytes | None = None
        self.is_sent = False
        self.connection: ClientConnection | None = None
        self.pending: PendingReply | None = None
        self.request = 0
        self.attempts = 0
        self.remote_leaves = call.remote_leaves
        self.released_ids = b""
        self.has_called_back = False
        self.callback_error: BaseException | None = None
        self.on_done = on_done
        self.is_nested = call.origin is not None
        self.lineage: Lineage | None = None
        self.session: tuple[Any, ...] = ()
        self._effects: CallEffects | None = None
        self._is_read = False
        self._data: dict[int, memoryview] | None = None
        self._donated = tuple(donated)
        self._lock = threading.RLock()  # guards its completion and its transfer
        for handle_range in call.values if donated else ():
            handle_range.mark_donated(donated, self.name)

    def assign_number(self) -> None:
        """Assigns a number that is larger than those of all calls that were sent before."""
        assert self.call.result_policy is not None
        self.number = new_call_number()
        policy = self.call.result_policy._replace(number=self.number)
        self.call = self.call._replace(result_policy=policy)
        if self.lineage is not None:
            self.lineage.assign_number(policy)

    @property
    def name(self) -> str:
        """The name of its function."""
        return self.call.spec.snapshot.name

    def before_callback(self) -> None:
        """What it took is kept since it was sent."""

    def effects(self) -> CallEffects:
        """Those that it has had in this process; they do not happen twice."""
        if self._effects is None:
            from jaxd.events.effects import CallEffects

            self._effects = CallEffects()
        return self._effects

    def refuse_lost(self) -> None:
        """Raises `ValuesLost` when an array that it takes could not be made again."""
        for each in self.call.values:
            error = each.origin.loss_of(each.numbers)
            if error is not None:
                raise error

    def begin_session(self) -> bool:
        """Prepares it for the next worker, to which it is sent whole; whether that is possible."""
        with self._lock:
            transfer, self.transfer = self.transfer, None
            lineage: Any = self.lineage  # of a call
            is_whole = self._is_unchanged() if lineage is None else not lineage.obstacle
            if is_whole:
                kept = self.call if lineage is None else lineage.call
                self.call = self.call._replace(
                    buffers=kept.buffers,
                    sources={},
                    leaf_headers={},
                    lost_workers=self.call.lost_workers + self.is_sent,
                )
                self.is_sent = False  # one death counts once, however often the restore is begun
        if transfer is not None:
            transfer.release()
        self.effects().begin_attempt()
        return is_whole

    def _is_unchanged(self) -> bool:
        """Whether it can be sent as it was, of a call that is not kept: its caller waits."""
        return not (self.has_called_back or (self.copies_data and self.call.buffers))

    def hand_over_lineage(self) -> Lineage | None:
        """The lineage of its result, which its arrays hold from now on."""
        lineage = self.lineage
        self._is_read = True
        if self.done:
            self.lineage = None
        return lineage

    def after_fork(self) -> None:
        """Renews the lock, which another thread of the parent may hold, in the child of a fork."""
        self._lock = threading.RLock()

    def _error_of(self, failure: Failure) -> BaseException:
        if is_failure(failure, WorkerReplaced):  # no other worker has the arrays of the call
            died = values_lost_error(with_worker=True, is_off=self.lineage is None)
            return with_call_array_names(died, self.call)
        reader = self.call.spec.snapshot.reader
        if self.connection is None:
            return decode_failure(failure, reader)
        error = exception_of(failure, self.name, reader, self.connection.address)
        if self.has_called_back:
            set_origin(error, FailureOrigin())  # it had effects
        return error

    def _failure_with(self, failure: Failure, given_up: tuple[range, ...]) -> BaseException:
        """The failure of a call that took these leaves of its arguments."""
        error = self._error_of(failure)
        if given_up and isinstance(error, JaxdError):
            error.may_repeat = False
        return error

    def complete(self, value: tuple[Any, ...], buffers: Sequence[memoryview]) -> None:
        """Completes the call with its reply.

        Raises:
            Exception: when the reply is malformed; the call is not done then.
        """
        if value[0] == FAILED:
            given_up = unpack_leaf_spans(value[2]) if len(value) > 2 else ()
            return self._finish_once(self._failure_with(value[1], given_up), given_up)
        given_up = unpack_leaf_spans(value[3])
        skeleton: Any = value[1] or self.skeleton
        if self.skeleton is not None and not self._is_expected(skeleton):
            error = ResultError(
                f"{self.name} returned another structure than before for arguments of the same "
                "shapes: it depends on something that is no argument. Call it again."
            )
            return self._finish_once(error, given_up, changed=skeleton)
        leaves = InlineLeaves.of(value, buffers)
        return self._finish_once(None, given_up, value, skeleton, leaves)

    def _is_expected(self, skeleton: bytes) -> bool:
        """Whether its result is what its caller was given, but for the tokens of another worker."""
        known = self.skeleton
        assert known is not None
        if known == skeleton:
            return True
        is_moved = self.connection is not None and self.connection.worker != self.known_by
        return is_moved and self.call.spec.snapshot.reader.are_alike(known, skeleton)

    def fail_not_run(self, error: BaseException) -> None:
        """Fails a call that did not run: its donated arguments stay usable."""
        self._finish_once(error, ())

    def fail_unknown(self, error: BaseException) -> None:
        """Fails a call of unknown state: its donated arguments stay unusable."""
        self._finish_once(error, None)

    def replace_transfer(self, transfer: CallTransfer, call: CallRequest) -> None:
        """Replaces the transfer that carries its data."""
        with self._lock:
            unused: CallTransfer | None = transfer
            if not self.done:
                unused, self.transfer, self.call = self.transfer, transfer, call
        if unused is not None:
            unused.release()

    def mark_unsent(self, error: BaseException, *, was_sent: bool) -> None:
        """Handles the failure of an attempt to send it; `was_sent`: it was sent before."""
        if isinstance(error, ConnectionLost) and not isinstance(error, NotSent):
            return
        if isinstance(error, JaxdError):
            self.is_sent = was_sent
        elif was_sent:
            self.connection = None  # it may not have been sent: it is sent again

    def notify(self) -> None:
        """Calls `on_done`, once."""
        with self._lock:
            on_done, self.on_done = self.on_done, None
        if on_done is not None:
            on_done(self)

    def _finish_once(
        self,
        error: BaseException | None,
        given_up: tuple[range, ...] | None,  # None: unknown
        reply: tuple[Any, ...] | None = None,
        skeleton: bytes | None = None,
        leaves: InlineLeaves | None = None,
        changed: bytes | None = None,
    ) -> None:
        """Completes the call once; after an interrupt, the next caller does all of it."""
        with self._lock:
            if self.done:
                return
            if given_up is not None:
                self.given_up = given_up
                self._mark_given_up(given_up)
            else:
                for handle_range in self.call.values:
                    handle_range.release(self._donated)  # nobody can use them any more
            self.error, self.inline_leaves, self.changed = error, leaves, changed
            self.skeleton = skeleton or self.skeleton
            transfer, self.transfer = self.transfer, None
            if transfer is not None:
                transfer.release(reply)
            self.call = self.call.without_data()
            if self.lineage is not None:
                self.lineage.settle(0.0 if reply is None else run_seconds(reply))
            if self._is_read or error is not None:
                self.lineage = None  # which holds data, and this is in cycles of references
            self.done = True

    def _mark_given_up(self, given_up: tuple[range, ...]) -> None:
        for handle_range in self.call.values:
            if given_up != self._donated:
                handle_range.mark_donated(given_up, self.name)
                handle_range.unmark_donated(self._donated, self.name)
            handle_range.mark_released(given_up)

    def data(self, leaf: int) -> memoryview | None:
        """The data of a result's leaf, when it came with the reply."""
        leaves = self.inline_leaves
        if self._data is None and leaves is not None and self.layout is not None:
            self._data = _data_by_leaf(self.layout.without(leaves.remote_numbers), leaves)
        return (self._data or {}).get(leaf)


def _data_by_leaf(layout: BlobLayout, inline: InlineLeaves) -> dict[int, memoryview]:
    layout.check(inline.blob, inline.buffers)
    return {
        number: leaf_data(layout.places[number], inline.blob, inline.buffers)
        for number in layout.here
    }


class CallPipeline:
    """The pipelined calls of one session. Thread-safe.

    Args:
        connect: gives the connection of this session, which it tries to make until that moment of
            `time.monotonic()`; raises `ValuesLost` when the session is gone.
        transfer_router: chooses how large arrays are transferred.
        release_queue: the ids of released values, which calls carry to the server.
        deduplicator: gives what deduplicates the data of this session.
        arrived: called in the reading thread for each reply, with whether it holds a result.
        recovery: gives what keeps calls to make them again when their worker has ended; None:
            they are not kept.
        leave: called with a connection whose worker accepts no new calls.

    Attributes:
        launching: the calls that are not in flight so far, or just now, by identity: a restore
            makes the arrays again that they take.
    """

    def __init__(
        self,
        connect: Callable[[float | None], ClientConnection],
        transfer_router: TransferRouter,
        release_queue: ReleaseQueue,
        deduplicator: Callable[[], Deduplicator],
        arrived: Callable[[ClientConnection, PipelinedCall, bool], None],
        recovery: Callable[[], Recovery] | None = None,
        leave: Callable[[ClientConnection], None] = lambda _: None,
    ) -> None:
        self._connect_session = connect
        self._transfer_router = transfer_router
        self._release_queue = release_queue
        self._deduplicator = deduplicator
        self._on_arrival = arrived
        self._recovery = recovery
        self._leave = leave
        self._open: dict[int, PipelinedCall] = {}
        self.launching: dict[int, CallRequest] = {}
        self._finished: deque[PipelinedCall] = deque()  # those to notify
        self._lock = threading.RLock()  # guards _open, and the order in which calls are sent
        self._lock_owner: int | None = None

    def open_numbers(self) -> list[int]:
        """The numbers of the calls that have no reply."""
        return list(self._open)

    def after_fork(self) -> None:
        """Renews the locks, which other threads of the parent may hold, in the child of a fork."""
        self._lock = threading.RLock()
        self._lock_owner = None
        self._finished.clear()
        for flight in list(self._open.values()):
            flight.after_fork()

    @contextmanager
    def _holding_lock(self) -> Iterator[None]:
        """Holds the lock; calls that finish meanwhile are notified afterwards."""
        try:
            with self._lock:
                outer = self._lock_owner
                try:
                    self._lock_owner = threading.get_ident()
                    yield
                finally:
                    self._lock_owner = outer
        finally:
            self._notify_finished()

    def _notify_finished(self) -> None:
        """Notifies finished calls, not under the lock: their handlers may make calls."""
        while self._finished and self._lock_owner != threading.get_ident():
            with suppress(IndexError):  # another thread was faster
                self._finished.popleft().notify()

    def _fail(self, flight: PipelinedCall, error: BaseException) -> None:
        self._open.pop(flight.number, None)
        self._fail_sent(flight, self.final_error(flight, error))
        self._finished.append(flight)
        self._release_queue.retry()  # ids may have waited for this call

    def _fail_sent(self, flight: PipelinedCall, error: BaseException) -> None:
        """Fails a call that may run or have run: nobody takes what it leaves on the server."""
        flight.fail_unknown(error)
        if flight.is_sent and flight.error is error:  # else its reply has come meanwhile
            self._release_queue.add(value_ids_of(flight.number))

    def final_error(self, flight: PipelinedCall, error: BaseException) -> BaseException:
        """The error for the caller of a call that was lost with its connection, and is given up.

        It may have run, so nobody must repeat it who has given it arrays for good.
        """
        if not (isinstance(error, JaxdError) and error.may_repeat) or isinstance(error, ValuesLost):
            return error
        if flight.done or not (flight.is_sent and flight.call.spec.donates):
            return error
        is_lost = self._has_lost_connection(flight)
        if is_lost or isinstance(error, NoServer | ConnectionLost):
            return unanswered_call_error(flight.name)
        error.may_repeat = False  # its reply may still come, and say what became of them
        return error

    def launch(self, flight: PipelinedCall) -> None:
        """Sends a call; waits while `MAX_IN_FLIGHT` calls are in flight.

        Raises:
            ValuesLost: when the session is gone.
            JaxdError: when it cannot be sent.

        A call that was interrupted when it may have been sent must still be abandoned.
        """
        deadline = flight.deadline
        try:
            self._await_turn(flight)
            with suppress(ConnectionLost):  # not under the lock, for finished calls are notified
                connection = self._connect_session(deadline)
                connection.shared_reader.read_available()
                self._prepare_transfer(flight, connection)
            while not self._is_sent_behind_all(flight, self._connect_session(deadline), deadline):
                pass
            if self._has_lost_connection(flight):
                self._resend_lost(deadline)
        except BaseException as error:
            final = self._launch_failed(flight, error)
            if final is error:
                raise
            raise final from error

    def _is_sent_behind_all(
        self, flight: PipelinedCall, connection: ClientConnection, deadline: float | None
    ) -> bool:
        """Sends a call unless there are others to be sent again first; whether it did.

        The call is open then, also where its connection was lost meanwhile.
        """
        if not flight.is_nested:
            self._resend_lost(deadline)  # not under the lock: it may take long to connect
        with self._holding_lock():
            is_behind = not flight.is_nested and self.has_unsent_calls()
            if is_behind or not connection.alive:
                return False
            flight.refuse_lost()  # they may have been lost since the caller looked
            flight.assign_number()
            flight.connection = connection  # before it is open: its connection is not lost
            self._open[flight.number] = flight
            with suppress(ConnectionLost):
                self._send(flight, connection)
        return True

    def _launch_failed(self, flight: PipelinedCall, error: BaseException) -> BaseException:
        """Ends a call that could not be sent, or perhaps not; the error for its caller."""
        with self._holding_lock():  # or another thread may be sending it
            self._open.pop(flight.number, None)  # also when it is in flight: it is not sent again
        final = self.final_error(flight, error)
        if not flight.is_sent:
            flight.fail_not_run(error)
            if flight.released_ids:
                self._release_queue.requeue(flight.released_ids)
        elif isinstance(final, JaxdError):
            self._fail_sent(flight, final)
        return final

    def _await_turn(self, flight: PipelinedCall) -> None:
        """Waits until a call may be sent: while too many are in flight.

        One that a callback makes needs no place among them, but what it takes has to be there.

        Raises:
            CallbackError: when that waits for the callback itself.
        """
        if flight.is_nested:
            for needed in needed_first(flight.call, list(self._open.values())):
                self.wait(needed, flight.deadline)
            return
        while len(flights := list(self._open.values())) >= MAX_IN_FLIGHT:
            self.wait(flights[0], flight.deadline)

    def connection_of_callback(self) -> ClientConnection | None:
        """The connection of the call in flight whose callback this thread runs; None: of none.

        What a callback asks of the server goes there, though a newer worker be there already.
        """
        origin = callback_origin()
        if origin not in list(self._open.values()):
            return None
        connection: ClientConnection | None = origin.connection
        return connection if connection is not None and connection.alive else None

    def wait(self, flight: PipelinedCall, deadline: float | None = None) -> None:
        """Returns when a call is done, one way or the other.

        Raises:
            CallbackError: when this thread runs a callback that the call itself waits for.
            DeadlineExceeded: when `time.monotonic()` passes the deadline first.
            JaxdError: when the server cannot be reached any more.
        """
        if running_callbacks and not flight.done:
            self._refuse_circle(flight)
        self._wait(flight, deadline)

    def _refuse_circle(self, flight: PipelinedCall) -> None:
        origin = callback_origin()
        while origin is not None:
            first = waits_behind(flight, list(self._open.values()), origin)
            if first is None:
                return
            if first is not origin:  # its reply may be on its way
                with suppress(DeadlineExceeded):
                    self._wait(first, time.monotonic() + CALLBACK_WAIT_S)
            if not first.done:
                raise circle_error(origin, flight)

    def _wait(self, flight: PipelinedCall, deadline: float | None) -> None:
        while not flight.done:
            connection, pending = flight.connection, flight.pending
            if connection is not None and pending is not None:
                connection.shared_reader.wait(pending, deadline)
                if pending.done:  # the reading thread may not be that far, or be interrupted
                    self._on_reply(flight, connection, pending)
            if not flight.done:
                self._resend_lost(deadline)

    def abandon(self, flight: PipelinedCall, ended: Callable[[PipelinedCall], None]) -> None:
        """Abandons a call that has no waiter; it is not sent again.

        Args:
            flight: the call.
            ended: called when it is done, at once when it is.
        """
        with self._holding_lock():
            flight.on_done = ended
            if self._has_lost_connection(flight):
                lost = ConnectionLost("the connection to the server was lost. Call again.")
                self._fail(flight, lost)
            elif flight.done:
                self._finished.append(flight)
        connection, pending = flight.connection, flight.pending
        if not flight.done and connection is not None and pending is not None:
            connection.abandon_reply(flight.request, pending)
            self.cancel(flight)
            if pending.done:  # the reading thread was perhaps interrupted
                self._on_reply(flight, connection, pending)

    def cancel(self, flight: PipelinedCall) -> None:
        """Tells the server that a call has no waiter; its reply is read all the same."""
        if not flight.done and flight.connection is not None:
            flight.connection.cancel(flight.request)

    def withdraw(self, flight: PipelinedCall) -> bool:
        """Has the server cancel a call unless it runs; whether it has.

        A server that does not say so in time may be running it.
        """
        connection = flight.connection
        if flight.done or connection is None:
            return False
        try:
            deadline = time.monotonic() + _MAX_WITHDRAWAL_S
            answer, _ = connection.request("withdraw", (flight.request,), deadline=deadline)
        except (ConnectionLost, DeadlineExceeded):
            return False
        return answer is True

    @property
    def is_empty(self) -> bool:
        """Whether no call is in flight, or about to be."""
        return not (self._open or self.launching)

    def wait_for_all(
        self, deadline: float | None = None, takers_of: Collection[ResultBatch] | None = None
    ) -> list[PipelinedCall]:
        """Waits for all calls in flight, or those that take some arrays; returns them.

        Raises:
            DeadlineExceeded: when `time.monotonic()` passes the deadline first.
        """
        flights = list(self._open.values())
        if takers_of is not None:
            flights = [f for f in flights if any(v.origin in takers_of for v in f.call.values)]
        for flight in flights:
            self.wait(flight, deadline)
        return flights

    def begin_restore(self) -> list[PipelinedCall]:
        """The calls that will be sent to the next worker, which has nothing of their session.

        Those that cannot be are failed. Those that the worker before it still runs end there.
        """
        for flight in list(self._open.values()):
            while not (flight.done or self._has_lost_connection(flight)):
                connection, pending = flight.connection, flight.pending
                if connection is not None and pending is not None:
                    connection.shared_reader.wait(pending, None)
                    self._on_reply(flight, connection, pending)
        with self._holding_lock():
            for flight in list(self._open.values()):
                if not flight.done and not flight.begin_session():
                    self._fail(flight, self._lost_with_worker(flight))
            return [flight for flight in self._open.values() if not flight.done]

    def send_in_place(self, connection: ClientConnection, number: int) -> None:
        """Sends one of these calls again, before what is made again behind it.

        Raises:
            ConnectionLost: when that worker has ended as well.
        """
        with self._holding_lock():
            flight = self._open.get(number)
            if flight is not None and self._has_lost_connection(flight):
                self._resend(flight, connection)

    def _lost_with_worker(self, flight: PipelinedCall) -> ValuesLost:
        obstacle = "they are the result of a call that was under way"
        if flight.lineage is not None:
            obstacle = flight.lineage.obstacle
        return irreproducible_error(obstacle)

    def end_restore(self) -> None:
        """Fails calls on arrays that could not be made again."""
        with self._holding_lock():
            for flight in list(self._open.values()):
                for each in flight.call.values:
                    error = each.origin.loss_of(each.numbers) or getattr(
                        each.origin.pending_call, "error", None
                    )
                    if error is not None and not flight.done:
                        self._fail(flight, error)

    def fail_all(self, error: JaxdError) -> None:
        """Fails all open calls: the session is gone."""
        with self._holding_lock():
            for flight in list(self._open.values()):
                self._fail(flight, error)

    def _prepare_transfer(
        self, flight: PipelinedCall, connection: ClientConnection
    ) -> CallTransfer:
        call = flight.call
        # The connection of a callback may be of the session before this one.
        deduplicator = None if flight.is_nested else self._deduplicator
        is_new = flight.lineage is None and flight.attempts <= 1 and not flight.is_sent
        recovery = self._recovery if is_new else None
        transfer = self._transfer_router.prepare(
            call,
            connection,
            deduplicator,
            copied=flight.copies_data,
            lasting=recovery is not None,
        )
        if flight.copies_data:
            transfer = transfer._replace(
                buffers=[memoryview(bytes(one)) for one in transfer.buffers]
            )
            if transfer.places:  # else its data is never loaded again
                call = call._replace(buffers=transfer.copies_of(call))
        if recovery is not None:  # its arrays are as they were
            flight.lineage = recovery().of_call(
                flight.call, flight.effects(), transfer, copied=flight.copies_data
            )
        flight.session = connection.session
        flight.replace_transfer(transfer, call)
        return transfer

    def _send(self, flight: PipelinedCall, connection: ClientConnection) -> None:
        number = connection.number()
        flight.attempts += 1
        transfer = flight.transfer
        if (
            transfer is None
            or flight.session != connection.session
            or not self._transfer_router.announce(connection, transfer.places)
        ):
            transfer = self._prepare_transfer(flight, connection)
        is_first = flight.attempts == 1  # later, the server may not know the indexed skeleton
        if is_first and flight.skeletons is not None:
            flight.sent_skeleton = flight.skeletons.encode(flight.call.skeleton)
        if is_first and not flight.is_nested:  # else calls before it may still be unsent
            flight.released_ids = self._release_queue.take_all()
        message = flight.call.message(
            transfer.data_locations,
            min(list(self._open), default=flight.number),
            flight.released_ids,
            flight.sent_skeleton if is_first else b"",
            flight.known_shape_hash,
        )
        pending = PendingReply(
            lambda pending: self._on_reply(flight, connection, pending),
            needs_reader=flight.on_done is not None,
            about=flight,
        )
        # not before: a value must not be released before the call that makes it was sent
        flight.connection, flight.request = connection, number
        flight.pending, was_sent, flight.is_sent = pending, flight.is_sent, True
        try:
            connection.launch("call", message, transfer.buffers, pending, number)
        except BaseException as error:
            flight.mark_unsent(error, was_sent=was_sent)
            raise

    def _resend_lost(self, deadline: float | None = None) -> None:
        """Sends again, in order, the calls whose connection was lost."""
        if not self.has_unsent_calls():
            return
        while self.has_unsent_calls():
            connection = self._connect_session(deadline)  # not under the lock: it may take long
            with self._holding_lock(), suppress(ConnectionLost):
                for flight in filter(self._has_lost_connection, list(self._open.values())):
                    self._resend(flight, connection)
        self._release_queue.retry()  # ids may have waited for the calls that make the values

    def has_unsent_calls(self) -> bool:
        """Whether there are calls whose connection was lost and that were not sent again."""
        return any(self._has_lost_connection(flight) for flight in list(self._open.values()))

    def _has_lost_connection(self, flight: PipelinedCall) -> bool:
        return not flight.done and (flight.connection is None or not flight.connection.alive)

    def _resend(self, flight: PipelinedCall, connection: ClientConnection) -> None:
        if flight.attempts < _MAX_ATTEMPTS:
            try:
                return self._send(flight, connection)
            except ConnectionLost:
                raise
            except JaxdError as error:  # of this call alone: the others are sent
                return self._fail(flight, error)
        lost = ConnectionLost(
            f"the connection to the server was lost {_MAX_ATTEMPTS} times while {flight.name} was "
            "on its way. See the server's log, and whether what lies in between ends connections."
        )
        return self._fail(flight, lost)

    def _on_reply(
        self, flight: PipelinedCall, connection: ClientConnection, pending: PendingReply
    ) -> None:
        """Called by the reading and by the waiting thread: perhaps twice."""
        if flight.connection is not connection:
            return
        lost = self._loss_in(flight, connection, pending)
        if lost is not None:
            self._on_arrival(connection, flight, False)
            self._on_lost_reply(flight, lost)
            return
        try:
            _complete_from_reply(flight, pending)
        except Exception as error:  # noqa: BLE001  raised in the waiting thread; reading goes on
            flight.fail_unknown(error)
        self._open.pop(flight.number, None)
        self._finished.append(flight)
        self._on_arrival(connection, flight, flight.error is None)
        self._notify_finished()

    def _loss_in(
        self, flight: PipelinedCall, connection: ClientConnection, pending: PendingReply
    ) -> ConnectionLost | None:
        """Why a call without a result is to be sent again; None: it is over."""
        if flight.done:
            return None
        if isinstance(pending.error, ConnectionLost):
            return pending.error
        value: Any = pending.value if pending.error is None and pending.frame is not None else None
        is_refused = isinstance(value, tuple) and len(value) == 2 and value[0] == FAILED
        if self._recovery is None or not is_refused or not is_failure(value[1], WorkerReplaced):
            return None
        self._leave(connection)
        flight.connection, flight.is_sent = None, False  # it has not run
        return ConnectionLost("the worker is being replaced.")

    def _on_lost_reply(self, flight: PipelinedCall, error: ConnectionLost) -> None:
        if self._open.get(flight.number) is not flight:  # it is not sent again
            self._fail(flight, error)
            self._notify_finished()
        elif flight.on_done is not None:
            again = threading.Thread(
                target=self._resend_in_background, name="jaxd-repeat", daemon=True
            )
            try:
                start_thread(again)
            except Busy as none_left:
                self._fail_lost(none_left, None)

    def _resend_in_background(self) -> None:
        """Resends calls without a waiter, in a thread of its own: the reading thread must go on."""
        while flights := self._lost_without_waiter():
            deadlines = [one.deadline for one in flights if one.deadline is not None]
            earliest = min(deadlines, default=None)
            try:
                self._resend_lost(earliest)
            except BaseException as error:  # noqa: BLE001  passed to the handlers of the calls
                is_late = earliest is not None and time.monotonic() >= earliest
                is_in_time = not (is_late or isinstance(error, Busy | DeadlineExceeded))
                self._fail_lost(error, None if is_in_time else earliest)

    def _lost_without_waiter(self) -> list[PipelinedCall]:
        unattended = [one for one in list(self._open.values()) if one.on_done is not None]
        return list(filter(self._has_lost_connection, unattended))

    def _fail_lost(self, error: BaseException, deadline: float | None) -> None:
        """Fails calls without a waiter whose connection was lost.

        Args:
            error: why they cannot be sent again.
            deadline: fails only those whose deadline is not later; None: all.
        """
        with self._holding_lock():
            for flight in self._lost_without_waiter():
                if deadline is None or (flight.deadline or math.inf) <= deadline:
                    self._fail(flight, error)


def _complete_from_reply(flight: PipelinedCall, pending: PendingReply) -> None:
    if flight.done:
        return
    if pending.frame is None:
        flight.fail_unknown(pending.error or ConnectionLost("the connection was closed."))
    elif pending.error is not None:  # the server has refused it
        flight.fail_not_run(pending.error)
    else:
        flight.complete(pending.value, pending.frame.buffers)
