"""Calls on remote values: in order; they return early where the shape of the result is known."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from jaxd.connection.settings import REPLY_GRACE_S
from jaxd.request.call_request import running_callbacks
from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.base.process import Lazy, start_thread
from jaxd_protocol.errors import Busy, DeadlineExceeded, JaxdError, ValuesLost
from jaxd_protocol.messages.data_locations import (
    DEFINING_SKELETON,
    MAX_INDEXED_BYTES,
    MIN_INDEXED_BYTES,
    defining_skeleton,
    first_value_id,
    indexed_skeleton,
    shape_hash,
)
from jaxd_protocol.pytree import Leaf

if TYPE_CHECKING:
    from concurrent.futures import Future

    from jaxd.connection.connection import ClientConnection
    from jaxd.events.effects import CallEffects
    from jaxd.events.progress import Progress
    from jaxd.events.warnings import WarningQueue
    from jaxd.interop.remote_array import RemoteArray, ResultBatch
    from jaxd.remote_values.call_pipeline import CallPipeline, PipelinedCall
    from jaxd.remote_values.lineage import Lineage
    from jaxd.remote_values.recovery import Recovery
    from jaxd.remote_values.snapshots import Snapshots
    from jaxd.request.call_request import CallRequest
    from jaxd.results.reader import InlineLeaves
    from jaxd.transfer.dedup import Deduplicator
    from jaxd.transfer.release_queue import ReleaseQueue
    from jaxd.transfer.routing import CallTransfer, TransferRouter


_MAX_RESULT_SHAPES: Final = 1024
_MAX_SKELETONS: Final = 256

_CallKind = tuple[bytes, bytes, str, tuple[tuple[int, int], ...]]
"""Of calls whose results look alike: function, arguments, form, and the leaves on the server."""

_KnownResult = tuple[bytes, tuple[range, ...], bytes, tuple[Any, ...]]
"""Of such results: their skeleton, the leaves that are given up for them, a hash, the worker."""


class SkeletonTable:
    """The table of indexed skeletons of one session. Thread-safe.

    A loop need not send the structure of its state in each step.

    An index is never given to another skeleton: a call must not be taken for another.
    """

    def __init__(self) -> None:
        self.after_fork()

    def after_fork(self) -> None:
        """In the child of a fork: no other thread holds the lock."""
        self._numbers: dict[bytes, int] = {}
        self._assigned = 0
        self._is_over = False
        self._lock = threading.Lock()  # guards _assigned

    def end(self) -> None:
        """The session is over: another one knows none of these."""
        self._is_over = True

    def encode(self, skeleton: bytes) -> bytes:
        """The bytes to send for a skeleton: an index, a definition, or itself."""
        if self._is_over:
            return skeleton
        number = self._numbers.get(skeleton)
        if number is not None:
            return indexed_skeleton(number)
        if not MIN_INDEXED_BYTES <= len(skeleton) <= MAX_INDEXED_BYTES - 2:
            return skeleton
        with self._lock:
            if self._assigned >= _MAX_SKELETONS:
                return skeleton
            number, self._assigned = self._assigned, self._assigned + 1
        return defining_skeleton(number, skeleton)

    def confirm(self, sent: bytes) -> None:
        """Confirms a definition: the server has answered the call that contained it."""
        if sent.startswith(DEFINING_SKELETON):
            self._numbers[sent[2:]] = sent[1]


class ClientServices(Protocol):
    """The services of the client that pipelined calls use.

    Attributes:
        transfer_router: makes what chooses how large arrays travel.
        warning_queue: the warnings of the server about calls.
        progress: makes what shows how far long calls are.
    """

    transfer_router: Lazy[TransferRouter]
    warning_queue: WarningQueue
    progress: Lazy[Progress]

    def drain(self, connection: ClientConnection) -> None:
        """Makes no new calls over a connection, whose worker is being replaced."""


class ValueStore(Protocol):
    """The arrays of one session, as calls on them need it.

    Attributes:
        release_queue: collects the ids of those that this process released.
        deduplicator: gives what the session has sent.
        recovery: gives what keeps calls to make the arrays again when their worker has ended;
            None: they are not kept.
    """

    release_queue: ReleaseQueue
    deduplicator: Callable[[], Deduplicator]
    recovery: Lazy[Recovery] | None

    def connection(self, deadline: float | None = None) -> ClientConnection:
        """A connection of this session; raises `ValuesLost` when there is none any more."""

    def remote(
        self,
        first: int,
        leaves: Sequence[Leaf],
        numbers: Sequence[int] | None = None,
        flight: PipelinedCall | None = None,
        lineage: Lineage | None = None,
        session: tuple[Any, ...] = (),
    ) -> list[Any]:
        """What stands for some leaves of a result."""


class PipelinedCalls:
    """The calls of one session on its remote values. Thread-safe.

    Args:
        values: the arrays of the session.
        services: of the client.
    """

    def __init__(self, values: ValueStore, services: ClientServices) -> None:
        self._store = values
        self._services = services
        self._result_shapes = BoundedDict[_CallKind, _KnownResult](_MAX_RESULT_SHAPES)
        self._skeletons = SkeletonTable()
        self._lazy_pipeline = Lazy(self._make_pipeline)

    def _make_pipeline(self) -> CallPipeline:
        from jaxd.remote_values.call_pipeline import CallPipeline

        values = self._store
        ways = (
            values.connection,
            self._services.transfer_router(),
            values.release_queue,
            lambda: values.deduplicator(),  # noqa: PLW0108  each session has another one
        )
        return CallPipeline(*ways, self._on_arrival, values.recovery, self._services.drain)

    @property
    def _pipeline(self) -> CallPipeline:
        """Those on their way."""
        return self._lazy_pipeline()

    def after_fork(self) -> None:
        """In the child of a fork: a thread of the parent may have been sending."""
        if self._lazy_pipeline.made is not None:
            self._lazy_pipeline.made.after_fork()
        self._skeletons.after_fork()

    def connection_of_callback(self) -> ClientConnection | None:
        """See `CallPipeline.connection_of_callback`."""
        made = self._lazy_pipeline.made
        return None if made is None else made.connection_of_callback()

    def has_unsent_calls(self) -> bool:
        """See `CallPipeline.has_unsent_calls`."""
        return self._lazy_pipeline.made is not None and self._lazy_pipeline.made.has_unsent_calls()

    def fail_all(self, error: JaxdError) -> None:
        """The session is gone: nothing comes of what is on its way."""
        if self._lazy_pipeline.made is not None:
            self._lazy_pipeline.made.fail_all(error)

    def open_numbers(self) -> list[int]:
        """The numbers of the calls that have no reply."""
        return self._pipeline.open_numbers()

    def begin_session(self) -> None:
        """The server knows nothing of these calls any more."""
        self._result_shapes.clear()
        self._skeletons.end()
        self._skeletons = SkeletonTable()

    def restore(
        self, recovery: Recovery, connection: ClientConnection, there: Collection[int]
    ) -> Collection[ResultBatch]:
        """Makes the arrays again that these calls need, or somebody holds; see `Recovery`.

        Returns:
            Those that somebody holds.

        Raises:
            ConnectionLost: when that worker has ended as well.
        """
        pipeline = self._pipeline
        flights = pipeline.begin_restore()
        send = partial(pipeline.send_in_place, connection)
        launching = list(pipeline.launching.values())
        held = recovery.restore(connection, flights, launching, there, send)
        pipeline.end_restore()
        return held

    def settle(
        self, deadline: float | None, takers_of: Collection[ResultBatch] | None = None
    ) -> None:
        """Waits for all calls in flight, whatever becomes of them.

        Args:
            deadline: `time.monotonic()` after which nobody waits; None: there is none.
            takers_of: only for those that take arrays of these; None: for all.

        Raises:
            DeadlineExceeded: when that passes first.
        """
        self._pipeline.wait_for_all(deadline, takers_of)

    @property
    def are_over(self) -> bool:
        """Whether no call is in flight, or about to be."""
        made = self._lazy_pipeline.made
        return made is None or made.is_empty

    def call(self, call: CallRequest) -> Any:
        """Makes a call on values; returns before it has run where its result's form is known.

        Raises:
            BaseException: what the function raised, or one before it on whose result it depends.
            JaxdError: when the call could not be made.
        """
        lies_here = self._services.transfer_router().uses_shared_blocks(
            call
        )  # and could be changed too early
        may_return = call.timeout_s is None and call.origin is None and not lies_here
        flight = self._launch(call, may_return=may_return)
        try:
            if flight.layout is not None and _is_remote(call):
                return self._result(flight)
            self.wait_for(flight, flight.deadline)
            return self._completed_result(flight)
        except BaseException as error:
            final = self._pipeline.final_error(flight, error)
            self._abandon(flight)
            if final is error:
                raise
            raise final from error

    def _abandon(self, flight: PipelinedCall) -> None:
        """Abandons a call: what it leaves on the server is released when it is done."""
        self._pipeline.abandon(flight, self._discard_result)

    def _discard_result(self, flight: PipelinedCall) -> None:
        with suppress(BaseException):
            self._completed_result(flight)

    def submit(self, call: CallRequest) -> Future[Any]:
        """The same as a future, which is done when the call is."""
        from jaxd.connection.call_future import CallFuture  # a plain call does not need it

        flight: PipelinedCall
        may_cancel = (lambda: self._pipeline.withdraw(flight)) if call.spec.donates else None
        future: CallFuture[Any] = CallFuture(may_cancel)
        flight = self._launch(call, may_return=False, ended=partial(self._settle, future))
        future.add_inline_callback(partial(self._cancel_with, flight))
        future.watch_deadline(flight.deadline, partial(self._give_up, flight, future))
        if call.origin is not None:  # what the callback does next may come before it
            from concurrent.futures import wait

            wait([future])
        return future

    def _give_up(self, flight: PipelinedCall, future: Future[Any], late: DeadlineExceeded) -> None:
        """The time of a submitted call is over, and nothing has come of it."""
        from concurrent.futures import InvalidStateError

        with suppress(InvalidStateError):
            future.set_exception(self._pipeline.final_error(flight, late))
        with suppress(Busy):  # not in this thread: others wait for it, and to cancel may take long
            start_thread(
                threading.Thread(
                    target=self._abandon, args=(flight,), name="jaxd-give-up", daemon=True
                )
            )

    def _settle(self, future: Future[Any], flight: PipelinedCall) -> None:
        """Completes the future of a call that is done."""
        from concurrent.futures import InvalidStateError

        with suppress(InvalidStateError):
            try:
                result = self._completed_result(flight)
            except BaseException as error:  # noqa: BLE001  the future's owner decides about it
                future.set_exception(error)
            else:
                future.set_result(result)

    def _cancel_with(self, flight: PipelinedCall, future: Future[Any]) -> None:
        """Cancels a call whose future was cancelled."""
        if future.cancelled():
            self._pipeline.cancel(flight)

    def _launch(self, call: CallRequest, *, may_return: bool, ended: Any = None) -> PipelinedCall:
        from jaxd.remote_values.call_pipeline import PipelinedCall, ResultShape

        flight: PipelinedCall | None = None
        form: ResultShape | None = None
        donated: tuple[range, ...] = ()
        launching = self._pipeline.launching
        snapshots: Snapshots | None = None
        try:
            snapshots = self._begin_donating(call)
            for handle_range in call.values:
                if handle_range.origin.may_be_unusable(handle_range.numbers):
                    self.check(handle_range.arrays)
            kind = _call_kind(call, call.remote_leaves)
            known = self._result_shapes.get(kind) if may_return else None
            if known is not None:
                skeleton, donated, hash_, worker = known
                layout = call.spec.snapshot.reader.layout(skeleton)
                form = ResultShape(skeleton, layout, hash_, worker)
            is_copied = known is not None or ended is not None
            skeletons = self._skeletons if call.origin is None else None
            launching[id(call)] = call  # before its arrays are marked as donated
            flight = PipelinedCall(call, form, donated, ended, is_copied, skeletons)
            self._pipeline.launch(flight)
        except BaseException as error:
            self._launch_failed(call, flight, error)
            raise
        finally:
            launching.pop(id(call), None)
            if snapshots is not None:
                snapshots.end_donating()
        return flight

    def _begin_donating(self, call: CallRequest) -> Snapshots | None:
        """Takes a snapshot if one is due; what has to know when a call is sent, None: nothing.

        One that has no time for that, or is made by a callback that a snapshot may wait for, does
        not wait: where it takes arrays for good just then, there is none.
        """
        recovery = self._store.recovery
        if recovery is None or call.timeout_s is not None or running_callbacks:
            return None
        snapshots = recovery().snapshots
        snapshots.take_if_due()
        if not call.spec.donates:
            return None
        snapshots.begin_donating()
        return snapshots

    def _launch_failed(
        self, call: CallRequest, flight: PipelinedCall | None, error: BaseException
    ) -> None:
        if isinstance(error, ValuesLost):
            from jaxd.remote_values.lineage import with_call_array_names

            raise with_call_array_names(error, call) from None
        if flight is not None and not flight.done:  # interrupted, and perhaps on its way
            self._abandon(flight)

    def wait_for(self, flight: PipelinedCall, deadline: float | None = None) -> None:
        """Returns when a call is done.

        Args:
            flight: the call.
            deadline: `time.monotonic()` after which the server should have answered; None: none.

        Raises:
            BaseException: what it raised.
            DeadlineExceeded: when that takes longer.
        """
        self._pipeline.wait(flight, None if deadline is None else deadline + REPLY_GRACE_S)
        if self._services.warning_queue.has_pending and flight.connection is not None:
            self._services.warning_queue.issue(flight.connection, flight.request)
        if flight.error is not None:
            raise flight.error

    def _completed_result(self, flight: PipelinedCall) -> Any:
        """The result of a call that is done."""
        if flight.error is not None:
            raise flight.error
        call = flight.call
        assert flight.skeleton is not None
        assert call.result_policy is not None
        flight.layout = call.spec.snapshot.reader.layout(flight.skeleton)
        if _is_remote(call):
            self._store_shape(flight, flight.skeleton)
            if flight.skeletons is self._skeletons and flight.attempts == 1:
                self._skeletons.confirm(flight.sent_skeleton)
        return self._result(flight)

    def _store_shape(self, flight: PipelinedCall, skeleton: bytes) -> None:
        kind = _call_kind(flight.call, flight.remote_leaves)
        known = self._result_shapes.get(kind)
        if known is not None and known[:2] == (skeleton, flight.given_up):
            return
        worker = () if flight.connection is None else flight.connection.worker
        self._result_shapes[kind] = skeleton, flight.given_up, shape_hash(skeleton), worker

    def _replace_shape(self, flight: PipelinedCall, skeleton: bytes) -> None:
        """Replaces the known result shape of such calls, after a result had another."""
        stay = flight.call.result_policy
        assert stay is not None
        self._result_shapes.pop(_call_kind(flight.call, flight.remote_leaves), None)
        with suppress(Exception):  # it cannot be read in this process
            layout = flight.call.spec.snapshot.reader.layout(skeleton)
            self._store_shape(flight, skeleton)
            first = first_value_id(stay.number)
            self._store.release_queue.add(range(first, first + len(layout.leaves)))

    def _result(self, flight: PipelinedCall) -> Any:
        assert flight.skeleton is not None
        session = () if flight.connection is None else flight.connection.session
        lineage = flight.hand_over_lineage()
        return self.read(
            flight.call, flight.skeleton, flight.inline_leaves, flight, lineage, session
        )

    def read(
        self,
        call: CallRequest,
        skeleton: bytes,
        home: InlineLeaves | None,
        flight: PipelinedCall | None = None,
        lineage: Lineage | None = None,
        session: tuple[Any, ...] = (),
    ) -> Any:
        """The result of a call, some of which stays on the server.

        Args:
            call: the call.
            skeleton: what its result looks like.
            home: what is in the reply; None when there is none so far.
            flight: the call, when it returns before its reply is here.
            lineage: how the result is made again; None: that is not known.
            session: see `RemoteStore.remote`.

        Raises:
            JaxdError: when it cannot be read in this process.
        """
        snapshot, stay = call.spec.snapshot, call.result_policy
        assert stay is not None
        first = first_value_id(stay.number)

        def remote(leaves: Sequence[Leaf], numbers: Sequence[int]) -> list[Any]:
            return self._store.remote(first, leaves, numbers, flight, lineage, session)

        with snapshot.pickling_context():
            return snapshot.reader.read_part(skeleton, home, stay, call.results, remote)

    def lineage_of(
        self,
        call: CallRequest,
        effects: CallEffects | None,
        transfer: CallTransfer | None = None,
        *,
        is_changed: bool = False,
    ) -> Lineage | None:
        """How the result of a call is made again that was not one of these.

        Args:
            call: the request.
            effects: those that it had; None: none.
            transfer: of its data, as long as that was not released.
            is_changed: whether its caller may have changed its arrays since.
        """
        if self._store.recovery is None:
            return None
        if is_changed:
            assert call.result_policy is not None
            return self._store.recovery().of_changed(call.result_policy.number)
        from jaxd.events.effects import CallEffects

        own = CallEffects() if effects is None else effects
        return self._store.recovery().of_call(call, own, transfer)

    def _on_arrival(self, connection: ClientConnection, flight: PipelinedCall, ready: bool) -> None:
        self._services.progress().finish(connection, flight.request, ready=ready)
        if flight.changed is not None:
            self._replace_shape(flight, flight.changed)

    def check(self, arrays: Iterable[RemoteArray]) -> None:
        """Returns when arrays can be used, as far as that is known.

        Raises:
            ValueDeleted: when one was deleted or donated.
            BaseException: what the call raised that was to compute one.
        """
        for array in arrays:
            array.refuse_deleted()
            array.refuse_lost()
            flight = array.pending_call
            if flight is not None and flight.error is not None:
                raise flight.error

    def wait_for_all(self) -> None:
        """Returns when all calls on values are done.

        Raises:
            BaseException: what the first of them raised that failed.
        """
        for flight in self._pipeline.wait_for_all():
            if flight.error is not None:
                raise flight.error


def _is_remote(call: CallRequest) -> bool:
    return call.results in ("auto", "remote")


def _call_kind(call: CallRequest, on: tuple[tuple[int, int], ...]) -> _CallKind:
    return call.spec.key, call.skeleton, call.results, on
