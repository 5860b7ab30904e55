"""The pipeline of calls on remote values: ordered, at most once each, several in flight.

The reply of such a call is read by whoever needs it, or along with the next call. When the
connection is lost, all calls without a reply are sent again, in their order; the server knows which
of them it has run already.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jaxd.connection.shared_reader import PendingReply
from jaxd.remote_values.lost import values_lost_error, with_call_array_names
from jaxd.results.exceptions import exception_of
from jaxd.results.reader import InlineLeaves
from jaxd_protocol.errors import ConnectionLost, JaxdError, ResultError, WorkerReplaced
from jaxd_protocol.messages.calls import FAILED, is_failure
from jaxd_protocol.messages.data_locations import new_call_number, unpack_leaf_numbers
from jaxd_protocol.messages.failures import Failure, decode_failure
from jaxd_protocol.pytree import BlobLayout, Layout
from jaxd_protocol.pytree.leaves import NO_OFFSET, leaf_data

if TYPE_CHECKING:
    from jaxd.connection.connection import ClientConnection
    from jaxd.request.call_request import CallRequest
    from jaxd.transfer.dedup import Deduplicator
    from jaxd.transfer.release_queue import ReleaseQueue
    from jaxd.transfer.routing import CallTransfer, TransferRouter


MAX_IN_FLIGHT: Final = 8
"""Calls of one session that are on their way at the same time."""

_MAX_ATTEMPTS: Final = 16

ConnectSession = Callable[[], "ClientConnection"]


class ResultShape(NamedTuple):
    """The structure of the results of such calls.

    Attributes:
        skeleton: theirs.
        layout: how to read it.
        hash: what the server is told of it.
    """

    skeleton: bytes
    layout: Layout
    hash: bytes


class _CallOutcome(NamedTuple):
    """The outcome of a call: its error or result, and the arguments that it consumed."""

    error: BaseException | None = None
    given_up: tuple[int, ...] | None = None  # None: nobody knows
    reply: tuple[Any, ...] | None = None
    skeleton: bytes | None = None
    home: InlineLeaves | None = None
    changed: bytes | None = None


class PipelinedCall:
    """One pipelined call on remote values.

    Args:
        call: the call.
        form: what its result looks like, when that is known.
        donated: numbers of the leaves that such calls are known to take for good.
        on_done: called with it when it is done; somebody then always reads.
        is_copied: whether its caller may change its arrays before it is done.
        sent_skeleton: what stands for its skeleton.

    Attributes:
        done: whether its reply is here, or never will be.
        error: why there is no result; None when there is one, or none so far.
        skeleton: what its result looks like; None as long as nobody knows.
        layout: how to read its result; None as long as nobody knows.
        known_shape_hash: what the server is told of the form that is known.
        inline_leaves: what of it came home; None before that.
        given_up: numbers of the leaves that it has taken for good.
        changed: what its result looks like when that is not what was known.
        is_sent: whether the server may have it.
        request: its number on its connection.
        transfer: its data, on its way.
        remote_leaves: the leaves that it takes from the server: of each handle range the first,
            and how many they are.
        released_ids: ids of values that its message says are no longer held.
        has_called_back, callback_error: see `CallbackOrigin`.
    """

    def __init__(
        self,
        call: CallRequest,
        form: ResultShape | None,
        donated: Sequence[int] = (),
        ended: Callable[[PipelinedCall], None] | None = None,
        is_copied: bool = False,
        sent_skeleton: bytes | None = None,
    ) -> None:
        self.call = call
        self.number = 0
        self.transfer: CallTransfer | None = None
        self.copies_data = is_copied
        self.sent_skeleton = sent_skeleton
        self.done = False
        self.error: BaseException | None = None
        self.skeleton: bytes | None = form.skeleton if form else None
        self.layout: Layout | None = form.layout if form else None
        self.known_shape_hash = form.hash if form else b""
        self.inline_leaves: InlineLeaves | None = None
        self.given_up: tuple[int, ...] = ()
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
        self.on_done = ended
        self._data: dict[int, memoryview] | None = None
        self._donated = tuple(donated)
        self._lock = threading.RLock()  # guards its end, and its data on its way
        for handle_range in call.values if donated else ():
            handle_range.mark_donated(donated, self.name)

    def assign_number(self) -> None:
        """Takes a number that is larger than those of all calls that were sent before."""
        assert self.call.result_policy is not None
        self.number = new_call_number()
        self.call = self.call._replace(
            result_policy=self.call.result_policy._replace(number=self.number)
        )

    @property
    def name(self) -> str:
        """What people call its function."""
        return self.call.spec.snapshot.name

    def after_fork(self) -> None:
        """In the child of a fork: nobody else holds the lock."""
        self._lock = threading.RLock()

    def _error_of(self, failure: Failure) -> BaseException:
        if is_failure(failure, WorkerReplaced):  # no other worker has what the call needs
            return with_call_array_names(values_lost_error(with_worker=True), self.call)
        reader = self.call.spec.snapshot.reader
        if self.connection is None:
            return decode_failure(failure, reader)
        return exception_of(failure, self.name, reader, self.connection.address)

    def complete(self, value: tuple[Any, ...], buffers: Sequence[memoryview]) -> None:
        """Completes the call with its reply.

        Raises:
            Exception: when that is none; the call is not done then.
        """
        if value[0] == FAILED:
            given_up = unpack_leaf_numbers(value[2]) if len(value) > 2 else ()
            return self._finish_once(_CallOutcome(self._error_of(value[1]), given_up))
        given_up = unpack_leaf_numbers(value[3])
        skeleton = value[1] or self.skeleton
        if self.skeleton is not None and self.skeleton != skeleton:
            error = ResultError(
                f"{self.name} returned another structure than before for arguments of the same "
                "shapes: it depends on something that is no argument. Call it again."
            )
            return self._finish_once(_CallOutcome(error, given_up, changed=skeleton))
        home = InlineLeaves.of(value, buffers)
        return self._finish_once(_CallOutcome(None, given_up, value, skeleton, home))

    def fail_not_run(self, error: BaseException) -> None:
        """Fails a call that did not run: its donated arguments stay usable."""
        self._finish_once(_CallOutcome(error, ()))

    def fail_unknown(self, error: BaseException) -> None:
        """Fails a call of unknown state: its donated arguments stay unusable."""
        self._finish_once(_CallOutcome(error))

    def replace_transfer(self, transfer: CallTransfer, call: CallRequest) -> None:
        """Replaces the transfer that carries its data."""
        with self._lock:
            if self.done:
                useless: CallTransfer | None = transfer
            else:
                useless, self.transfer, self.call = self.transfer, transfer, call
        if useless is not None:
            useless.release()

    def notify(self) -> None:
        """Calls `ended`, once."""
        with self._lock:
            ended, self.on_done = self.on_done, None
        if ended is not None:
            ended(self)

    def _finish_once(self, end: _CallOutcome) -> None:
        """Completes the call once; after an interrupt, the next caller does all of it."""
        with self._lock:
            if self.done:
                return
            if end.given_up is not None:
                self.given_up = end.given_up
                self._mark_given_up(end.given_up)
            self.error, self.inline_leaves, self.changed = end.error, end.home, end.changed
            self.skeleton = end.skeleton or self.skeleton
            transfer, self.transfer = self.transfer, None
            if transfer is not None:
                transfer.release(end.reply)
            self.call = self.call.without_data()
            self.done = True

    def _mark_given_up(self, given_up: tuple[int, ...]) -> None:
        for handle_range in self.call.values:
            if given_up != self._donated:
                handle_range.unmark_donated(set(self._donated).difference(given_up))
                handle_range.mark_donated(given_up, self.name)
            handle_range.mark_released(given_up)

    def data(self, leaf: int) -> memoryview | None:
        """The data of a result's leaf, when it came with the reply."""
        if self._data is None and self.inline_leaves is not None and self.layout is not None:
            self._data = _data_by_leaf(
                self.layout.without(self.inline_leaves.remote_numbers), self.inline_leaves
            )
        return (self._data or {}).get(leaf)


def _data_by_leaf(placement: BlobLayout, home: InlineLeaves) -> dict[int, memoryview]:
    placement.check(home.blob, home.buffers)
    places = enumerate(zip(placement.leaves, placement.places, strict=True))
    return {
        number: leaf_data(leaf, place, home.blob, home.buffers)
        for number, (leaf, place) in places
        if place is not NO_OFFSET
    }


class CallPipeline:
    """The pipelined calls of one session. Thread-safe.

    Args:
        connect: the connection of this session; raises `ValuesLost` when there is none any more.
        routes: how large arrays travel.
        drops: what to tell the server along with a call.
        sent_before: gives what this session has sent.
        arrived: told when a reply has been read, by whoever reads; whether there is a result.
    """

    def __init__(
        self,
        connect: ConnectSession,
        transfer_router: TransferRouter,
        release_queue: ReleaseQueue,
        deduplicator: Callable[[], Deduplicator],
        arrived: Callable[[ClientConnection, PipelinedCall, bool], None],
    ) -> None:
        self._connect_session = connect
        self._transfer_router = transfer_router
        self._release_queue = release_queue
        self._deduplicator = deduplicator
        self._on_arrival = arrived
        self._open: dict[int, PipelinedCall] = {}
        self._finished: deque[PipelinedCall] = (
            deque()
        )  # those whose end somebody wants to be told of
        self._lock = threading.RLock()  # guards _open, and the order in which calls are sent
        self._lock_owner: int | None = None

    def after_fork(self) -> None:
        """In the child of a fork: nobody else holds the lock."""
        self._lock = threading.RLock()
        self._lock_owner = None
        self._finished.clear()
        for flight in list(self._open.values()):
            flight.after_fork()

    @contextmanager
    def _holding_lock(self) -> Iterator[None]:
        """Holds the lock; what ends meanwhile is told afterwards."""
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
        """Notifies of finished calls, not under the lock: handlers may make calls."""
        while self._finished and self._lock_owner != threading.get_ident():
            with suppress(IndexError):  # somebody else tells of it
                self._finished.popleft().notify()

    def _finish_call(
        self, flight: PipelinedCall, end: Callable[[BaseException], None], error: Any
    ) -> None:
        self._open.pop(flight.number, None)
        end(error)
        self._finished.append(flight)
        self._release_queue.retry()  # what was let go of may have waited for it

    def launch(self, flight: PipelinedCall) -> None:
        """Sends a call; waits while as many are on their way as may be.

        Raises:
            ValuesLost: when the session is gone.
            JaxdError: when it cannot be sent.

        Interrupted when it may have been sent, it is still to be abandoned.
        """
        try:
            self._wait_for_window()
            with suppress(ConnectionLost):  # not under the lock: others may have to be told
                connection = self._connect_session()
                connection.shared_reader.read_available()
                self._prepare_transfer(flight, connection)
            with self._holding_lock():
                connection = self._connect_session()
                self._resend_lost()  # what was lost comes first
                flight.assign_number()
                flight.connection = connection  # first: for others it is not stranded
                self._open[flight.number] = flight
                try:
                    self._send(flight, connection)
                except ConnectionLost:
                    self._resend_lost()
        except BaseException as error:
            self._launch_failed(flight, error)
            raise

    def _launch_failed(self, flight: PipelinedCall, error: BaseException) -> None:
        self._open.pop(flight.number, None)  # also when it is on its way: nobody sends it again
        if flight.is_sent:
            if isinstance(error, JaxdError):
                flight.fail_unknown(error)
            return
        flight.fail_not_run(error)
        if flight.released_ids:
            self._release_queue.requeue(flight.released_ids)

    def _wait_for_window(self) -> None:
        while len(flights := list(self._open.values())) >= MAX_IN_FLIGHT:
            self.wait(flights[0])

    def wait(self, flight: PipelinedCall, deadline: float | None = None) -> None:
        """Returns when a call is done, one way or the other.

        Raises:
            DeadlineExceeded: when `time.monotonic()` passes the deadline first.
            JaxdError: when the server cannot be reached any more.
        """
        while not flight.done:
            connection, pending = flight.connection, flight.pending
            if connection is not None and pending is not None:
                connection.shared_reader.wait(pending, deadline)
                if pending.done:  # who has read it may not be that far, or be interrupted
                    self._on_reply(flight, connection, pending)
            if not flight.done:
                self._resend_lost()

    def abandon(self, flight: PipelinedCall, ended: Callable[[PipelinedCall], None]) -> None:
        """Nobody waits for a call any more; one that would have to be sent again is forgotten.

        Args:
            flight: the call.
            ended: called when it is done, at once when it is.
        """
        with self._holding_lock():
            flight.on_done = ended
            if self._has_lost_connection(flight):
                lost = ConnectionLost("the connection to the server was lost. Call again.")
                self._finish_call(flight, flight.fail_unknown, lost)
            elif flight.done:
                self._finished.append(flight)
        connection, pending = flight.connection, flight.pending
        if not flight.done and connection is not None and pending is not None:
            connection.abandon_reply(flight.request, pending)
            self.cancel(flight)
            if pending.done:  # who has read it was perhaps interrupted
                self._on_reply(flight, connection, pending)

    def cancel(self, flight: PipelinedCall) -> None:
        """Tells the server that nobody waits for a call; its reply is read all the same."""
        if not flight.done and flight.connection is not None:
            flight.connection.cancel(flight.request)

    def wait_for_all(self) -> list[PipelinedCall]:
        """Waits for all that are on their way; returns them."""
        flights = list(self._open.values())
        for flight in flights:
            self.wait(flight)
        return flights

    def fail_all(self, error: JaxdError) -> None:
        """Fails all open calls: the session is gone."""
        with self._holding_lock():
            for flight in list(self._open.values()):
                self._finish_call(flight, flight.fail_unknown, error)

    def _prepare_transfer(
        self, flight: PipelinedCall, connection: ClientConnection
    ) -> CallTransfer:
        call = flight.call
        transfer = self._transfer_router.prepare(
            call, connection, self._deduplicator, copied=flight.copies_data
        )
        if flight.copies_data:
            transfer = transfer._replace(
                buffers=[memoryview(bytes(one)) for one in transfer.buffers]
            )
            if transfer.places:  # else none of it is ever loaded again
                call = call._replace(buffers=transfer.copies_of(call))
        flight.replace_transfer(transfer, call)
        return transfer

    def _send(self, flight: PipelinedCall, connection: ClientConnection) -> None:
        number = connection.number()
        flight.attempts += 1
        transfer = flight.transfer
        if transfer is None or not self._transfer_router.announce(connection, transfer.places):
            transfer = self._prepare_transfer(flight, connection)
        if flight.attempts == 1:
            flight.released_ids = self._release_queue.take_all()
        is_first = flight.attempts == 1  # later, what was told is perhaps not known
        message = flight.call.message(
            transfer.data_locations,
            min(list(self._open), default=flight.number),
            flight.released_ids,
            flight.sent_skeleton if is_first else None,
            flight.known_shape_hash,
        )
        pending = PendingReply(
            lambda pending: self._on_reply(flight, connection, pending),
            needs_reader=flight.on_done is not None,
            about=flight,
        )
        # not before: what was let go of must not be told before the call that makes it
        flight.connection, flight.request = connection, number
        flight.pending, was_sent, flight.is_sent = pending, flight.is_sent, True
        try:
            connection.launch("call", message, transfer.buffers, pending, number)
        except ConnectionLost:
            raise
        except JaxdError:
            flight.is_sent = was_sent
            raise
        except BaseException:
            if was_sent:
                flight.connection = None  # perhaps it did not go out: it is sent once more
            raise

    def _resend_lost(self) -> None:
        """Sends again, in order, what was on its way when a connection was lost."""
        with self._holding_lock():
            if not self.has_unsent_calls():
                return
            while self.has_unsent_calls():
                connection = self._connect_session()
                try:
                    for flight in list(self._open.values()):
                        if self._has_lost_connection(flight):
                            self._resend(flight, connection)
                except ConnectionLost:
                    continue
        self._release_queue.retry()  # it waited for the calls that make these values

    def has_unsent_calls(self) -> bool:
        """Whether calls were on their way when a connection was lost, and were not sent again."""
        return any(self._has_lost_connection(flight) for flight in list(self._open.values()))

    def _has_lost_connection(self, flight: PipelinedCall) -> bool:
        return not flight.done and (flight.connection is None or not flight.connection.alive)

    def _resend(self, flight: PipelinedCall, connection: ClientConnection) -> None:
        if flight.attempts < _MAX_ATTEMPTS:
            try:
                return self._send(flight, connection)
            except ConnectionLost:
                raise
            except JaxdError as error:  # its alone: the others are sent
                return self._finish_call(flight, flight.fail_unknown, error)
        lost = ConnectionLost(
            f"the connection to the server was lost {_MAX_ATTEMPTS} times while {flight.name} was "
            "on its way. See the server's log, and whether what lies in between ends connections."
        )
        return self._finish_call(flight, flight.fail_unknown, lost)

    def _on_reply(
        self, flight: PipelinedCall, connection: ClientConnection, pending: PendingReply
    ) -> None:
        """Called by whoever reads, and by who waits: perhaps twice."""
        if flight.connection is not connection:
            return
        if isinstance(pending.error, ConnectionLost) and not flight.done:
            self._on_arrival(connection, flight, False)
            if self._open.get(flight.number) is not flight:  # nobody sends it again
                self._finish_call(flight, flight.fail_unknown, pending.error)
                self._notify_finished()
            elif flight.on_done is not None:
                threading.Thread(
                    target=self._resend_in_background, name="jaxd-repeat", daemon=True
                ).start()
            return
        try:
            _complete_from_reply(flight, pending)
        except Exception as error:  # noqa: BLE001  whoever waits for it learns of it; others read on
            flight.fail_unknown(error)
        self._open.pop(flight.number, None)
        self._finished.append(flight)
        self._on_arrival(connection, flight, flight.error is None)
        self._notify_finished()

    def _resend_in_background(self) -> None:
        """Sends again what nobody waits for, in a thread of its own: whoever reads must go on."""
        try:
            self._resend_lost()
        except BaseException as error:  # noqa: BLE001  their owners decide about it
            with self._holding_lock():
                for flight in list(self._open.values()):
                    if flight.on_done is not None and self._has_lost_connection(flight):
                        self._finish_call(flight, flight.fail_unknown, error)


def _complete_from_reply(flight: PipelinedCall, pending: PendingReply) -> None:
    if flight.done:
        return
    if pending.frame is None:
        flight.fail_unknown(pending.error or ConnectionLost("the connection was closed."))
    elif pending.error is not None:  # the server has said so
        flight.fail_not_run(pending.error)
    else:
        flight.complete(pending.value, pending.frame.buffers)
