"""The remote arrays of one session: put, fetch and release."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from jaxd.remote_values.pipelined_calls import ClientServices, PipelinedCalls
from jaxd.request.call_request import running_callbacks
from jaxd.results.reader import specs_in
from jaxd.transfer.release_queue import ReleaseQueue
from jaxd_protocol.base.process import Lazy, reset_after_fork, start_thread
from jaxd_protocol.errors import (
    ConnectionLost,
    DeadlineExceeded,
    ValueDeleted,
    ValuesFull,
    ValuesLost,
)
from jaxd_protocol.messages.calls import FAILED
from jaxd_protocol.messages.data_locations import (
    INLINE_RESULT_BYTES,
    call_number_of,
    first_value_id,
    new_call_number,
    pack_ids,
    pack_locations,
    unpack_spans,
    value_ids_of,
)
from jaxd_protocol.pytree import Leaf

if TYPE_CHECKING:
    from jaxd.connection.connection import ClientConnection
    from jaxd.connection.settings import RecoverySettings
    from jaxd.connection.shared_reader import PendingReply
    from jaxd.interop.remote_array import RemoteArray, ResultBatch
    from jaxd.remote_values.call_pipeline import PipelinedCall
    from jaxd.remote_values.lineage import Lineage
    from jaxd.remote_values.recovery import Recovery
    from jaxd.request.arguments import ArgumentEncoder as PutData
    from jaxd.transfer.dedup import Deduplicator
    from jaxd_protocol.network.addresses import Address
    from jaxd_protocol.wire import Frame


_MAX_FETCH_BYTES: Final = 1 << 28

_MAX_RESTORES: Final = 16
"""Workers on which it is tried, one after the other, to make the arrays again."""

T = TypeVar("T")


class OpenSession(NamedTuple):
    """A connection, and the remote arrays of the session in which it was opened."""

    connection: ClientConnection
    values: RemoteStore


class Uplink(ClientServices, Protocol):
    """The client's access to its server: connection and session."""

    @property
    def store(self) -> RemoteStore | None:
        """The remote arrays of the present session."""

    @property
    def open_connection(self) -> ClientConnection | None:
        """The connection that is open now."""

    def current(self, fresh: bool = False, deadline: float | None = None) -> OpenSession:
        """The open connection and its session; connects when there is none."""

    def leave(self, connection: ClientConnection) -> None:
        """Ends a connection whose session is of no more use."""

    def notify(
        self,
        remote: RemoteStore,
        verb: str,
        *args: Any,
        over: ClientConnection | None = None,
    ) -> bool:
        """Sends a message without a reply, if connected; whether the session is still current."""


class RemoteStore:
    """The arrays of one session; keeps them for `RemoteArray`. Thread-safe.

    Args:
        uplink: access to the server.
        address: of the server.
        worker: identifies the worker that has the arrays.
        compress: whether data may be compressed on its way over a network.
        settings: of recovery; None: arrays are lost with their worker.

    Attributes:
        address: the server's address, for people.
        takes_data: see `RecoverableStore`.
        keeps_snapshots: whether the server does, for clients on other machines.
        needs_session: whether it was begun and not ended to make the arrays again: the next
            connection has to be of another session.
        recovery: gives what keeps calls, and makes the arrays again of them when their worker has
            ended; None: nothing does.
        is_of_a_dead_worker: whether the last session ended with its worker.
        loss_error: why the arrays are gone, once they are.
        release_queue: the ids of arrays that this process no longer holds.
        deduplicator: makes what deduplicates the data that the session sends.
        calls: the calls on these arrays.
    """

    def __init__(
        self,
        uplink: Uplink,
        address: Address,
        worker: tuple[Any, ...] = (),
        *,
        compress: bool = False,
        settings: RecoverySettings | None = None,
    ) -> None:
        self.worker = worker
        self.address = str(address)
        self.takes_data = True
        self.keeps_snapshots = False
        self._snapshot_secret = ""
        self._gone_snapshots: deque[int] = deque()  # appended to during garbage collection
        self.needs_session = False
        self._is_stale = False
        self._session: tuple[Any, ...] = ()  # that was begun last
        self._made_in_it: set[int] = set()  # numbers of calls since, while it is stale
        self._late: list[ResultBatch] = []  # of a session before that one, and tracked since
        self._restoring = threading.RLock()  # held by the thread that makes arrays again
        self.loss_error: ValuesLost | None = None
        self._uplink = uplink
        self.release_queue = ReleaseQueue(self._send_releases, self._unhold_gone)
        self.drop = self.release_queue.add
        self._make_deduplicator = partial(
            _make_deduplicator, self.release_queue, address, compress=compress
        )
        self.deduplicator: Callable[[], Deduplicator] = Lazy(self._make_deduplicator)
        self.recovery = Lazy(partial(self._make_recovery, settings)) if settings else None
        self.is_of_a_dead_worker = True
        self.calls = PipelinedCalls(self, uplink)
        reset_after_fork(self)

    def _make_recovery(self, settings: RecoverySettings) -> Recovery:
        from jaxd.remote_values.recovery import Recovery  # many processes leave no values

        return Recovery(self, self._uplink.transfer_router, settings)

    def after_fork(self) -> None:
        """Marks the arrays as lost, in the child of a fork: they are the parent's."""
        self._restoring = threading.RLock()
        self.release_queue.abandon()
        self.calls.after_fork()
        self.invalidate(
            ValuesLost(
                "these arrays belong to the process that this one was forked from. Fetch them "
                "with jaxd.get before the fork, or give them a name with jaxd.put(…, name=…)."
            )
        )

    def invalidate(self, error: ValuesLost) -> None:
        """Marks the arrays as lost: using one raises this error."""
        self.loss_error = error
        self.calls.fail_all(error)

    def connection(self, deadline: float | None = None) -> ClientConnection:
        """A connection of this session, over which all arrays are there that could be made again.

        Args:
            deadline: `time.monotonic()` after which it is not tried again to connect, and not
                waited for arrays that are being made again.

        Raises:
            ValuesLost: when there is none any more.
            NoServer: when the server cannot be reached.
            DeadlineExceeded: when arrays are still being made again at the deadline.
            Busy, ValuesFull: when the server had no room for them for a minute.
        """
        if running_callbacks and self.loss_error is None:
            own = self.calls.connection_of_callback()
            if own is not None:
                return own
        full_until: float | None = None
        attempts = 0
        while attempts < _MAX_RESTORES:
            connection = self._connect(deadline)
            if not (self._is_stale or self._late):
                return connection
            try:
                self._restore_until(connection, deadline)
            except ConnectionLost:  # that worker has ended as well
                attempts += 1
            except ValuesFull as error:
                full_until = self._wait_for_room(error, full_until, deadline)
        from jaxd.remote_values.lineage import irreproducible_error

        self.invalidate(
            irreproducible_error(f"{_MAX_RESTORES} workers have ended while they were made")
        )
        return self._connect(deadline)

    def _wait_for_room(
        self, error: ValuesFull, until: float | None, deadline: float | None
    ) -> float:
        """Waits until it is tried again to make the arrays; `time.monotonic()` of the last try.

        Raises:
            ValuesFull: when it is not.
        """
        from jaxd.remote_values.recovery import FULL_PAUSE_S, MAX_BUSY_S, still_full

        now = time.monotonic()
        until = now + MAX_BUSY_S if until is None else until
        if now + FULL_PAUSE_S > min(until, math.inf if deadline is None else deadline):
            raise still_full(error) from error
        time.sleep(FULL_PAUSE_S)  # others hold less meanwhile: all that was made again is gone
        return until

    def _restore_until(self, connection: ClientConnection, deadline: float | None) -> None:
        """Makes the arrays again; goes on with that when the deadline has passed.

        Raises:
            DeadlineExceeded: when it has passed first.
            BaseException: as `_restore`.
        """
        if deadline is None:
            return self._restore(connection)
        from concurrent.futures import Future, wait

        outcome: Future[None] = Future()

        def restore() -> None:
            try:
                self._restore(connection)
            except BaseException as error:  # noqa: BLE001  raised in the thread that waits
                outcome.set_exception(error)
            else:
                outcome.set_result(None)

        start_thread(threading.Thread(target=restore, name="jaxd-restore", daemon=True))
        wait([outcome], max(0.0, deadline - time.monotonic()))
        if not outcome.done():
            raise DeadlineExceeded(
                "the worker has ended, and the arrays of this process are still being made again "
                "on the next one. That goes on: call again, or with a larger timeout_s."
            )
        return outcome.result()

    def _connect(self, deadline: float | None) -> ClientConnection:
        if self.loss_error is not None:
            raise self.loss_error
        connection, values = self._uplink.current(deadline=deadline)
        if values is not self and self.loss_error is None:
            from jaxd.remote_values.lineage import values_lost_error

            with_worker = connection.worker != self.worker
            notice, is_off = connection.notice, self.recovery is None
            self.invalidate(
                values_lost_error(with_worker=with_worker, notice=notice, is_off=is_off)
            )
        if self.loss_error is not None:
            raise self.loss_error
        return connection

    def may_restore(self) -> bool:
        """Whether the arrays may be made again in another session."""
        return self.recovery is not None and self.loss_error is None

    def begin_session(self, connection: ClientConnection) -> None:
        """The server knows nothing of these arrays any more: they are made again at the next use.

        Args:
            connection: to the worker that will have them, in another session.
        """
        was_dead = self._is_stale and self.is_of_a_dead_worker
        self.is_of_a_dead_worker = was_dead or connection.worker != self.worker
        self.worker, self._session = connection.worker, connection.session
        self._made_in_it.clear()
        self._is_stale, self.needs_session = True, False
        self.release_queue.forget_sent(self.calls.open_numbers())
        self.deduplicator = Lazy(self._make_deduplicator)
        self.calls.begin_session()

    def _restore(self, connection: ClientConnection) -> None:
        """Makes the arrays again, unless another thread has.

        Raises:
            ConnectionLost: when this worker has ended as well.
        """
        with self._restoring:
            if not (self._is_stale or self._late) or connection.session != self._session:
                return
            assert self.recovery is not None
            self.needs_session = True  # until all is done: no call of a session runs twice
            try:
                if self._is_stale:
                    made = self._restore_all(self.recovery(), connection)
                else:
                    made = self.recovery().restore_late(connection, self._late.copy())
            except BaseException:
                self._is_stale = True
                self._uplink.leave(connection)
                raise
            for batch in filter(made.__contains__, self._late.copy()):
                self._late.remove(batch)
            if connection.session == self._session:  # else there is another one by now
                self._is_stale = self.needs_session = False
                self.release_queue.retry()

    def _restore_all(
        self, recovery: Recovery, connection: ClientConnection
    ) -> Collection[ResultBatch]:
        """As `_restore`, in a session that has nothing but what was made since."""
        stay = self._made_in_it.union(self.calls.open_numbers())
        gone = unpack_spans(self.release_queue.take_all())  # which is not made again
        for ids in gone:
            if call_number_of(ids.start) in stay:
                self.release_queue.add(ids)
        return self.calls.restore(recovery, connection, self._made_in_it)

    @property
    def is_of_this_machine(self) -> bool:
        """Whether the server is on this machine, and sees the same files."""
        return self.address.startswith("unix:")

    def write(self, arrays: Mapping[str, RemoteArray], path: str, token: str) -> None:
        """Has the worker write arrays that are computed, by name, into a new folder.

        Raises:
            JaxdError, OSError: when that is not possible.
        """
        connection = self.connection()  # the only one: another worker does not have them
        names = json.dumps([[name] for name in arrays])
        ids = pack_ids(array.id for array in arrays.values())
        self.ask("save", token, path, names, ids, False, over=connection)
        self.ask("saved", token, path, over=connection)

    @property
    def has_them_held(self) -> bool:
        """See `RecoverableStore`."""
        return self.keeps_snapshots and self.takes_data and not self.is_of_this_machine

    def hold(self, arrays: Sequence[RemoteArray], number: int) -> str:
        """Has the server keep a snapshot of arrays that are computed; the secret that goes with it.

        Raises:
            LimitExceeded: when it has no room.
            JaxdError: when that is not possible.
        """
        connection = self.connection()  # the only one: another worker does not have them
        self._unhold_gone()  # which makes room
        self._snapshot_secret = self._snapshot_secret or os.urandom(16).hex()
        ids = pack_ids(array.id for array in arrays)
        self.ask("hold", self._snapshot_secret, number, ids, over=connection)
        return self._snapshot_secret

    def unhold(self) -> None:
        """Tells the server that all snapshots can go."""
        if self._snapshot_secret:
            self._uplink.notify(self, "unhold", self._snapshot_secret, ())

    def unhold_soon(self, number: int) -> None:
        """A snapshot of the server can go; also during garbage collection."""
        self._gone_snapshots.append(number)
        self.release_queue.wake()

    def _unhold_gone(self) -> None:
        """Tells the server which snapshots can go, while connected."""
        numbers = list[int]()
        if self._uplink.open_connection is not None:
            with suppress(IndexError):
                while True:
                    numbers.append(self._gone_snapshots.popleft())
        if numbers:  # none would be all
            self._uplink.notify(self, "unhold", self._snapshot_secret, tuple(numbers))

    def live_batches(self) -> Sequence[ResultBatch]:
        """The arrays that somebody holds, by call."""
        held: Any = self.release_queue.held()  # nothing else is tracked
        return list(held)

    def data_here(self, array: RemoteArray) -> memoryview | None:
        """All bytes of an array in C order, where this process has them."""
        data = array.data_here()
        return self._arrived_data(array) if data is None else data

    def settle(self, deadline: float) -> None:
        """Waits for all calls in flight, whatever becomes of them.

        Raises:
            DeadlineExceeded: when `time.monotonic()` passes the deadline first.
        """
        self.calls.settle(deadline)

    def fetch_copies(self, arrays: Sequence[RemoteArray]) -> Iterator[memoryview]:
        """The data of arrays that are computed, which are not told of it."""
        for part in groups_of(arrays):
            yield from self._fetch(part)

    def tell_kept(self, text: str) -> None:
        """Tells the server what is kept to make the arrays again."""
        self._uplink.notify(self, "kept", text)

    def _send_releases(self, ids: bytes) -> bool:
        # Chosen before it is looked whether calls were lost: over the next connection these come
        # first, which make such values, or take them for good.
        connection = self._uplink.open_connection
        if self._uplink.store is self and (connection is None or self.defers_releases()):
            self.release_queue.requeue(ids)
            if not self.defers_releases():  # perhaps since before that
                self.release_queue.retry()
            return True
        return self._uplink.notify(self, "drop", ids, over=connection)

    def defers_releases(self) -> bool:
        """Whether ids of released arrays have to wait: some are made again, or are to be."""
        is_out_of_reach = self._uplink.open_connection is None or self._is_stale
        return is_out_of_reach or self.calls.has_unsent_calls()

    def remote(
        self,
        first: int,
        leaves: Sequence[Leaf],
        numbers: Sequence[int] | None = None,
        flight: PipelinedCall | None = None,
        lineage: Lineage | None = None,
        session: tuple[Any, ...] = (),
    ) -> list[RemoteArray]:
        """Remote arrays for some leaves of a result.

        Args:
            first: the id of its first leaf.
            leaves: all leaves of the result.
            numbers: of those that are wanted; by default all.
            flight: the call that makes them, when that had not run.
            lineage: how they are made again; None: that is not known.
            session: in which a server has made them; empty: that of the other arrays. Where others
                were made again since then, so are these, before they are used.
        """
        if self._is_stale and session == self._session:
            self._made_in_it.add(call_number_of(first))
        from jaxd.interop.remote_array import ResultBatch  # a process of small results has none

        self.release_queue.start()
        batch = ResultBatch(self, first, leaves, flight, lineage)
        arrays = batch.make(range(len(leaves)) if numbers is None else numbers)
        self.release_queue.track(batch)
        is_over = flight is None or flight.done  # else it is sent again
        if self._session and session and session != self._session and is_over:
            self._late.append(batch)  # not before: a restore may be looking for such
        return arrays

    def fetch_bytes(self, array: RemoteArray) -> memoryview:
        """All bytes of an array in C order.

        Raises:
            ValuesLost: when it is gone; says which one it was.
            BaseException: what the call raised that was to compute it.
        """
        try:
            return self._fetch_one(array)
        except (ValueDeleted, ValuesLost) as error:
            if array.fetcher is not self:  # its copy on another server has taken its place
                return array.fetcher.fetch_bytes(array)
            if not isinstance(error, ValuesLost):
                raise
            from jaxd.remote_values.lineage import with_array_names

            raise with_array_names(error, [array]) from None

    def _fetch_one(self, array: RemoteArray) -> memoryview:
        if array.origin.loss_of((array.number,)) is None:  # else there may be data all the same
            self.wait(array)
        arrived = self._arrived_data(array)
        if arrived is not None:
            return arrived
        array.refuse_lost()
        together = [array, *self._small_siblings(array)]
        data, *others = self._fetch(together)
        for other, each in zip(together[1:], others, strict=True):
            other.receive(each)
        return data

    def _fetch(
        self, arrays: Sequence[RemoteArray], deadline: float | None = None
    ) -> Sequence[memoryview]:
        """The data of arrays, through shared memory where that is faster."""
        return retry_once(lambda: self._fetch_once(arrays, deadline))

    def _fetch_once(
        self, arrays: Sequence[RemoteArray], deadline: float | None
    ) -> Sequence[memoryview]:
        ids = pack_ids(array.id for array in arrays)
        connection = self.connection(deadline)
        for array in arrays:
            array.refuse_lost()
        buffer = self._uplink.transfer_router().receive_buffer(
            connection, [array.nbytes for array in arrays]
        )
        if buffer is not None:
            with suppress(ConnectionLost):  # these blocks are not known on another connection
                places = pack_ids(buffer.places)
                self.ask("fetch", ids, places, over=connection, holds=buffer, deadline=deadline)
                buffer.filled()
                return buffer.data
        frame = self.ask("fetch", ids, b"", over=connection, deadline=deadline)[1]
        return list(frame.buffers)

    def put(self, skeleton: bytes, blob: bytes, config: Any, data: PutData) -> list[RemoteArray]:
        """Sends a flat tuple of arrays, which become values of the session.

        Raises:
            ValuesFull: when there is no room.
            JaxdError: as `ask`.
        """
        return retry_once(lambda: self._put(new_call_number(), skeleton, blob, config, data))

    def _put(
        self, number: int, skeleton: bytes, blob: bytes, config: Any, data: PutData
    ) -> list[RemoteArray]:
        connection, first = self.connection(), first_value_id(number)
        transfer = self._uplink.transfer_router().prepare(data, connection)
        lineage: Lineage | None = None
        if self.recovery is not None:
            lineage = self.recovery().of_put(number, data, config, transfer)
        args = (number, skeleton, blob, pack_locations(transfer.data_locations), config)
        try:
            value, _ = self.ask(
                "put", *args, buffers=transfer.buffers, over=connection, makes=(number,)
            )
        except ConnectionLost:
            # The server may still execute it, from memory that is reused by then: its arrays must
            # not be used.
            self.drop(value_ids_of(number))
            raise
        finally:
            transfer.release()
        return self.remote(first, specs_in(value[1]), lineage=lineage, session=connection.session)

    def fetch_all(self, arrays: Sequence[RemoteArray], deadline: float | None = None) -> None:
        """Fetches several arrays with few messages; they keep their data.

        Args:
            arrays: of this session.
            deadline: `time.monotonic()` after which nobody waits for them; None: there is none.

        Raises:
            ValuesLost: when they are gone; says which ones they were.
            DeadlineExceeded: when that has passed.
            BaseException: what the call raised that was to compute one.
        """
        try:
            for flight in {array.pending_call for array in arrays} - {None}:
                self.calls.wait_for(flight, deadline)
            rest = [array for array in arrays if not self._is_local(array)]
            for part in groups_of(rest):
                for array, data in zip(part, self._fetch(part, deadline), strict=True):
                    array.receive(data)
        except (ValueDeleted, ValuesLost) as error:
            if any(array.fetcher is not self for array in arrays):
                return  # as in `fetch_bytes`: each is fetched when it is used
            if not isinstance(error, ValuesLost):
                raise
            from jaxd.remote_values.lineage import with_array_names

            raise with_array_names(error, arrays) from None

    def _small_siblings(self, array: RemoteArray) -> list[RemoteArray]:
        """Small arrays of the same batch, which are likely to be used next.

        None at the first time: a loop may use one array of its state in each step.
        """
        origin = array.origin
        if array.nbytes > INLINE_RESULT_BYTES:
            return []
        if not origin.was_fetched_alone:
            origin.was_fetched_alone = True
            return []
        return [
            other
            for other in origin.arrays
            if other is not array
            and other.nbytes <= INLINE_RESULT_BYTES
            and not other.is_deleted()
            and not self._is_local(other)
        ]

    def _is_local(self, array: RemoteArray) -> bool:
        return array.is_here or self._arrived_data(array) is not None

    def _arrived_data(self, array: RemoteArray) -> memoryview | None:
        """The data of an array that came with the reply of its call."""
        flight: PipelinedCall | None = array.pending_call
        return None if flight is None else flight.data(array.number)

    def part(self, array: RemoteArray, index: tuple[Any, ...]) -> Any:
        """The result of basic indexing: here when it is small, else on the server."""
        try:
            return self._part(array, index)
        except ValueDeleted:
            if array.fetcher is self:
                raise
            return array.fetcher.part(array, index)  # as in `fetch_bytes`

    def _part(self, array: RemoteArray, index: tuple[Any, ...]) -> Any:
        self.wait(array)
        number = new_call_number()

        def ask() -> tuple[tuple[Any, ...], tuple[Any, ...], Frame]:
            connection = self.connection()  # makes the array again where that is needed
            array.refuse_lost()
            message = array.id, index, INLINE_RESULT_BYTES, number
            reply = self.ask("part", *message, over=connection, makes=(number,))
            return connection.session, *reply

        session, value, frame = retry_once(ask)
        (spec,) = specs_in(value[1])
        recovery = self.recovery
        lineage = None if recovery is None else recovery().of_part(number, array, index)
        (made,) = self.remote(first_value_id(number), [spec], lineage=lineage, session=session)
        if frame.buffers:
            made.receive(frame.buffers[0])
            return made.fetch()
        return made

    def wait(self, array: RemoteArray, deadline: float | None = None) -> None:
        """Returns when an array is computed; with a deadline as `fetch_all`."""
        array.refuse_lost()
        if array.pending_call is not None:
            self.calls.wait_for(array.pending_call, deadline)

    def ask(
        self,
        verb: str,
        *args: Any,
        buffers: Sequence[memoryview] = (),
        over: ClientConnection | None = None,
        holds: object = None,
        makes: Sequence[int] = (),
        deadline: float | None = None,
    ) -> tuple[tuple[Any, ...], Frame]:
        """The server's reply to an idempotent request about values.

        Args:
            verb: of the request.
            args: plain values.
            buffers: bulk data beside them.
            over: the only connection to use, without a retry; None: any.
            holds: kept alive until the reply has arrived, also when the caller gave up waiting.
            makes: the numbers of calls under which the server makes the arrays of the reply; they
                are released when the reply is late.
            deadline: `time.monotonic()` after which nobody waits for it; None: there is none.

        Raises:
            DeadlineExceeded: when that has passed.
            ValuesLost: when the session is gone.
            JaxdError: the failure that the server replied with.
        """
        late = partial(self._on_late_reply, holds, makes)

        def once() -> tuple[Any, Frame]:
            return (over or self.connection()).request(verb, args, buffers, deadline, late=late)

        value, frame = once() if over else retry_once(once)
        if value[0] == FAILED:
            from jaxd_protocol.messages.failures import decode_failure

            raise decode_failure(value[1])
        return value, frame

    def _on_late_reply(self, _: object, makes: Sequence[int], pending: PendingReply) -> None:
        """Releases the values of a late reply; called by the reading thread."""
        if not makes or pending.error is not None or pending.value[0] == FAILED:
            return
        self.release_queue.start()
        for number in makes:
            self.drop(value_ids_of(number))


def groups_of(arrays: Sequence[RemoteArray]) -> Iterable[list[RemoteArray]]:
    """Consecutive arrays in groups of moderate size."""
    group: list[RemoteArray] = []
    size = 0
    for array in arrays:
        if group and size + array.nbytes > _MAX_FETCH_BYTES:
            yield group
            group, size = [], 0
        group.append(array)
        size += array.nbytes
    if group:
        yield group


def _make_deduplicator(queue: ReleaseQueue, where: Address, *, compress: bool) -> Deduplicator:
    from jaxd.transfer.dedup import Deduplicator  # a process that sends nothing large has none

    return Deduplicator(queue, where, compress=compress)


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
