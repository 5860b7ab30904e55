"""Recovery: when a worker has ended, the arrays of a session are made again on the next one.

From data, where this process has it: what was fetched, and snapshots, which are taken from time to
time between two calls. Else by the calls that made them, in their order and without their effects.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from jaxd.remote_values.lineage import (
    ArgumentSource,
    CallLineage,
    KeptData,
    Lineage,
    NoLineage,
    PartLineage,
    PutLineage,
    Snapshot,
    WholeData,
    irreproducible_error,
    rows_of,
    stable_buffers,
)
from jaxd.results.reader import specs_in
from jaxd_protocol.errors import Busy, ConnectionLost, ResultError, WorkerReplaced
from jaxd_protocol.messages.calls import FAILED, is_failure
from jaxd_protocol.messages.data_locations import (
    call_number_of,
    first_value_id,
    pack_spans,
    spans_of,
    value_ids_of,
)
from jaxd_protocol.messages.failures import decode_failure
from jaxd_protocol.packages.installed import warn_user
from jaxd_protocol.pytree import Leaf

if TYPE_CHECKING:
    from jaxd.connection.connection import ClientConnection
    from jaxd.connection.settings import RecoverySettings
    from jaxd.events.effects import CallEffects
    from jaxd.interop.remote_array import RemoteArray, ResultBatch
    from jaxd.request.call_request import CallRequest
    from jaxd.transfer.routing import CallTransfer, TransferRouter


COST_SHARE: Final = 0.03
"""Snapshots take at most this share of the time of a loop."""

MAX_DEPTH: Final = 10_000
"""Calls that are made again, one after the other, for one array."""

_MAX_BUSY_S: Final = 60.0
_MAX_SETTLE_S: Final = 60.0
"""A snapshot waits so long at most for the calls in flight."""

_TOO_MUCH: Final = "this process already keeps as much data for that as JAXD_SNAPSHOT_BYTES allows"


class RecoverableStore(Protocol):
    """The arrays of one session, as their recovery needs them."""

    @property
    def takes_data(self) -> bool:
        """Whether arrays that are sent again are what they were: the server has one device."""

    def live_batches(self) -> Sequence[ResultBatch]:
        """Those that somebody holds."""

    def data_here(self, array: RemoteArray) -> memoryview | None:
        """All bytes of an array in C order, where this process has them."""

    def fetch_copies(self, arrays: Sequence[RemoteArray]) -> Iterable[memoryview]:
        """The data of arrays that are computed, which are not told of it."""

    def settle(self, deadline: float) -> None:
        """Waits for all calls in flight, whatever becomes of them.

        Raises:
            DeadlineExceeded: when `time.monotonic()` passes the deadline first.
        """


class CallInFlight(Protocol):
    """A call that is sent again once the arrays that it takes are there.

    Attributes:
        number: its number.
        call: the request.
    """

    number: int
    call: CallRequest


class Recovery:
    """Keeps what is needed to make the arrays of one session again. Thread-safe.

    Args:
        store: the arrays.
        router: gives what chooses how large arrays are transferred.
        settings: how much is kept.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        store: RecoverableStore,
        router: Callable[[], TransferRouter],
        settings: RecoverySettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._router = router
        self._settings = settings
        self._clock = clock
        self._due = clock() + settings.interval_s
        self._earliest = 0.0
        self._room = _Room()
        self._has_warned = False
        self._lock = threading.Lock()  # held by the thread that takes a snapshot

    # what is kept ------------------------------------------------------------------------------

    def of_call(
        self,
        call: CallRequest,
        effects: CallEffects,
        transfer: CallTransfer | None = None,
    ) -> Lineage:
        """The lineage of what a call returns, whose arrays its caller has not changed so far.

        Args:
            call: the request.
            effects: those that it will have.
            transfer: of its data, where that was prepared.
        """
        assert call.result_policy is not None
        number = call.result_policy.number
        if call.arguments is not None:
            name = call.spec.snapshot.name
            return NoLineage(number, f"{name} may call back what it was called with")
        sources = [
            ArgumentSource(each.leaf, _lineage_of(each.origin), each.number, each.numbers)
            for each in call.values
        ]
        if not self._has_room(sum(map(len, call.buffers)) + len(call.blob)):
            return NoLineage(number, _TOO_MUCH)
        kept = call._replace(buffers=stable_buffers(call, transfer), sources={}, leaf_headers={})
        lineage = CallLineage(kept, sources, effects)
        if lineage.depth > MAX_DEPTH:
            self._make_due()
            return NoLineage(number, f"that would take more than {MAX_DEPTH:,} calls")
        return self._kept(lineage)

    def of_put(self, number: int, data: WholeData, config: Any, transfer: CallTransfer) -> Lineage:
        """The lineage of arrays that are put.

        Args:
            number: under which they are.
            data: theirs.
            config: the settings under which they are.
            transfer: of the data.
        """
        if not self._has_room(sum(map(len, data.buffers))):
            return NoLineage(number, _TOO_MUCH)
        buffers = stable_buffers(data, transfer)
        kept = KeptData(data.skeleton, data.blob, buffers, data.buffer_leaves)
        return self._kept(PutLineage(number, kept, config))

    def of_part(self, number: int, array: RemoteArray, index: tuple[Any, ...]) -> Lineage:
        """The lineage of a part of an array."""
        return PartLineage(number, _lineage_of(array.origin), array.number, index)

    def _has_room(self, nbytes: int) -> bool:
        if self._room.used() + nbytes <= self._settings.max_bytes:
            return True
        self._make_due()
        return False

    def _kept(self, lineage: Lineage) -> Lineage:
        self._room.hold(lineage)
        return lineage

    def _make_due(self) -> None:
        """What is kept gets too much: a snapshot takes its place, unless there was one just now."""
        self._due = min(self._due, self._earliest)

    # snapshots ---------------------------------------------------------------------------------

    def snapshot_if_due(self) -> None:
        """Takes a snapshot of all arrays when the time has come; called before a call is sent."""
        if self._clock() < self._due or not self._store.takes_data:
            return
        if not self._lock.acquire(blocking=False):
            return
        try:
            began = self._clock()
            self._due = began + self._settings.interval_s  # also when it fails
            with suppress(Exception):  # another thread has donated some, or they take too long
                self._store.settle(time.monotonic() + _MAX_SETTLE_S)
                began = self._clock()
                self._take_snapshot()
            now = self._clock()
            self._earliest = now + (now - began) / COST_SHARE
            self._due = max(now + self._settings.interval_s, self._earliest)
        finally:
            self._lock.release()

    def _take_snapshot(self) -> None:
        batches = self._store.live_batches()
        for batch in batches:
            self._trim(batch)
        wanted = [
            (batch, arrays)
            for batch in batches
            if not isinstance(batch.lineage, Snapshot | PutLineage)
            and (arrays := _usable_arrays(batch))
            and len(arrays) == len(batch.arrays)  # else another thread's call is taking some
        ]
        sizes = {id(batch): sum(each.nbytes for each in arrays) for batch, arrays in wanted}
        wanted.sort(key=lambda each: sizes[id(each[0])])
        room = self._settings.max_bytes - self._room.used_by_snapshots()
        for batch, arrays in wanted:
            room -= sizes[id(batch)]
            if room < 0:
                self._warn_too_large(sum(sizes.values()))
                return
            data = dict(_data_of(arrays, self._store))
            batch.lineage = self._kept(Snapshot(call_number_of(batch.first), data))

    def _trim(self, batch: ResultBatch) -> None:
        """Forgets the data of arrays that nobody holds any more."""
        lineage = batch.lineage
        if isinstance(lineage, Snapshot):
            held = {each.number for each in batch.arrays}
            if not lineage.data.keys() <= held:
                rest = {number: each for number, each in lineage.data.items() if number in held}
                batch.lineage = self._kept(Snapshot(lineage.number, rest))

    def _warn_too_large(self, nbytes: int) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        warn_user(
            f"the arrays of this process on the server take {nbytes:,} bytes, and it keeps copies "
            f"of {self._settings.max_bytes:,} at most. The largest are lost if the worker ends "
            "and the calls since then are too many to be made again. Allow more with "
            "JAXD_SNAPSHOT_BYTES, or save them to a file from time to time.",
            RuntimeWarning,
        )

    # after the worker has ended ----------------------------------------------------------------

    def restore(
        self,
        connection: ClientConnection,
        flights: Sequence[CallInFlight],
        launching: Sequence[CallRequest],
    ) -> None:
        """Makes all arrays that somebody holds, or that a call in flight takes, again.

        Those that cannot be made again are marked as lost.

        Args:
            connection: to the new worker.
            flights: the calls that will be sent again.
            launching: those that will be sent for the first time.

        Raises:
            ConnectionLost: when that worker has ended as well.
        """
        open_numbers = {flight.number for flight in flights}
        plan = _Plan(open_numbers, has_data=self._store.takes_data)
        for batch in self._store.live_batches():
            plan.add_batch(batch)
        for call in (*(flight.call for flight in flights), *launching):
            for each in call.values:
                plan.hold(each.origin, each.numbers)
        plan.resolve()
        link = _Link(connection, self._router())
        for step in plan.steps():
            step.run(link)
            link.drop(plan.unused_after(step))
        plan.mark_lost()


def _lineage_of(batch: ResultBatch) -> Lineage:
    lineage: Lineage | None = batch.lineage
    if lineage is not None:
        return lineage
    return NoLineage(call_number_of(batch.first), "they were found by a name")


def _usable_arrays(batch: ResultBatch) -> list[RemoteArray]:
    if batch.pending_call is not None and batch.pending_call.error is not None:
        return []
    return [each for each in batch.arrays if not each.is_deleted()]


def _data_of(
    arrays: Sequence[RemoteArray], store: RecoverableStore
) -> Iterator[tuple[int, tuple[Leaf, memoryview]]]:
    """Shapes and data by number; fetches what is not here."""
    absent = []
    for array in arrays:
        data = store.data_here(array)
        if data is None:
            absent.append(array)
        else:
            yield array.number, (array.leaf, data)
    for array, data in zip(absent, store.fetch_copies(absent), strict=True):
        yield array.number, (array.leaf, data)


class _Room:
    """Counts the bytes of lineages that exist."""

    def __init__(self) -> None:
        self._used = {False: 0, True: 0}
        self._gone: deque[tuple[bool, int]] = deque()  # appended to during garbage collection

    def hold(self, lineage: Lineage) -> None:
        """Counts it for as long as it exists."""
        is_snapshot = isinstance(lineage, Snapshot)
        self._used[is_snapshot] += lineage.nbytes
        lineage.on_gone = partial(self._gone.append, (is_snapshot, lineage.nbytes))

    def used(self) -> int:
        """Bytes of all."""
        with suppress(IndexError):
            while True:
                is_snapshot, nbytes = self._gone.popleft()
                self._used[is_snapshot] -= nbytes
        return self._used[False] + self._used[True]

    def used_by_snapshots(self) -> int:
        """Bytes of snapshots."""
        self.used()
        return self._used[True]


class _Step:
    """What is made again under one number.

    Attributes:
        number: the number.
        wanted: the numbers of the results that are needed.
        held: those of them that somebody holds, or that a call takes which is sent after all this.
        batches: those that are held.
        lineage: how they are made; None: that is not known, or not possible.
        obstacle: why they cannot be made; empty: they can, as far as is known.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.wanted: set[int] = set()
        self.held: set[int] = set()
        self.batches: list[ResultBatch] = []
        self.lineage: Lineage | None = None
        self.obstacle = ""
        self._candidates: dict[int, Lineage] = {}
        self._data: dict[int, tuple[Leaf, memoryview]] = {}

    def need(self, lineage: Lineage, wanted: Iterable[int]) -> None:
        """Adds what is needed, and a way to make it."""
        self.wanted.update(wanted)
        self._candidates[id(lineage)] = lineage
        if isinstance(lineage, Snapshot):
            self._data.update(lineage.data)

    def choose(self, *, has_data: bool) -> Sequence[ArgumentSource]:
        """Decides how it is made; what that needs in turn."""
        for batch in self.batches if has_data else ():
            here = ((each, each.fetcher.data_here(each)) for each in batch.arrays)
            self._data.update(
                (each.number, (each.leaf, data)) for each, data in here if data is not None
            )
        if has_data and self.wanted <= self._data.keys():
            data = {number: self._data[number] for number in sorted(self.wanted)}
            self.lineage = Snapshot(self.number, data)
            return ()
        calls = [each for each in self._candidates.values() if not isinstance(each, Snapshot)]
        self.lineage = next((each for each in calls if not each.obstacle), None)
        if self.lineage is None:
            self.obstacle = next(
                (each.obstacle for each in calls), "the server has several devices by now"
            )
            return ()
        return self.lineage.sources

    def run(self, link: _Link) -> None:
        """Makes it, unless something is in the way.

        Raises:
            ConnectionLost: when the worker has ended.
        """
        if self.obstacle or self.lineage is None:
            return
        try:
            leaves = self.lineage.make(link)
        except ConnectionLost:
            raise
        except Exception as error:  # noqa: BLE001  whatever it is, these arrays are lost
            self.obstacle = f"{type(error).__name__}: {str(error).partition('. ')[0]}"
            return
        is_other = any(tuple(leaves) != tuple(batch.leaves) for batch in self.batches)
        if is_other and not isinstance(self.lineage, Snapshot):
            self.obstacle = "their call returned something else than before"

    def kept_ids(self) -> set[int]:
        """The ids that are needed after all this."""
        return {first_value_id(self.number) + number for number in self.held}


class _Plan:
    """What is made again, in which order.

    Args:
        open_numbers: of calls that are sent again anyway.
        has_data: whether arrays may be sent from data.
    """

    def __init__(self, open_numbers: Collection[int], *, has_data: bool) -> None:
        self._open = open_numbers
        self._has_data = has_data
        self._steps: dict[int, _Step] = {}
        self._held: list[RemoteArray] = []  # or they might be released before they are made
        self._last_use: dict[int, int] = {}

    def add_batch(self, batch: ResultBatch) -> None:
        """Adds the arrays of a batch that somebody holds."""
        arrays = _usable_arrays(batch)
        self._held += arrays
        if arrays:
            self.hold(batch, [each.number for each in arrays])

    def hold(self, batch: ResultBatch, numbers: Sequence[int]) -> None:
        """Adds arrays of a batch that somebody holds, or that a call takes."""
        step = self.need(_lineage_of(batch), numbers)
        if step is not None:
            step.held.update(numbers)
            if batch not in step.batches:
                step.batches.append(batch)

    def need(self, lineage: Lineage, wanted: Iterable[int]) -> _Step | None:
        """Adds some results of a call; None: it is sent again anyway."""
        if lineage.number in self._open:
            return None
        step = self._steps.setdefault(lineage.number, _Step(lineage.number))
        step.need(lineage, wanted)
        return step

    def resolve(self) -> None:
        """Adds all that is needed in turn; the sources of a call have smaller numbers."""
        waiting = [-number for number in self._steps]
        heapq.heapify(waiting)
        while waiting:
            number = -heapq.heappop(waiting)
            for source in self._steps[number].choose(has_data=self._has_data):
                source_number = source.lineage.number
                if source_number not in self._steps and source_number not in self._open:
                    heapq.heappush(waiting, -source_number)
                self.need(source.lineage, source.arrays)
                self._last_use[source_number] = max(
                    number, self._last_use.get(source_number, number)
                )

    def steps(self) -> Iterator[_Step]:
        """In the order in which they are to be run."""
        for number in sorted(self._steps):
            step = self._steps[number]
            sources = step.lineage.sources if step.lineage is not None else ()
            needed = (self._steps.get(each.lineage.number) for each in sources)
            obstacle = next((each.obstacle for each in needed if each and each.obstacle), "")
            step.obstacle = step.obstacle or obstacle
            yield step

    def unused_after(self, step: _Step) -> list[range]:
        """The ids that nobody needs any more once a step was run."""
        done = [
            number
            for number in {step.number, *self._sources_of(step)}
            if self._last_use.get(number, number) <= step.number
        ]
        return [span for number in done for span in self._not_kept(self._steps[number])]

    def _sources_of(self, step: _Step) -> list[int]:
        sources = step.lineage.sources if step.lineage is not None else ()
        return [each.lineage.number for each in sources if each.lineage.number in self._steps]

    def _not_kept(self, step: _Step) -> Iterator[range]:
        every, kept = value_ids_of(step.number), step.kept_ids()
        start = every.start
        for span in spans_of(sorted(kept)):
            if start < span.start:
                yield range(start, span.start)
            start = span.stop
        yield range(start, every.stop)

    def mark_lost(self) -> None:
        """Marks what could not be made again."""
        for step in self._steps.values():
            for batch in step.batches if step.obstacle else ():
                batch.lost = irreproducible_error(step.obstacle)


class _Link:
    """The connection over which arrays are made again; see `RestoreLink`."""

    def __init__(self, connection: ClientConnection, router: TransferRouter) -> None:
        self._connection = connection
        self._router = router
        self._until = time.monotonic() + _MAX_BUSY_S

    def call(self, lineage: CallLineage) -> Sequence[Leaf]:
        """Makes a call again, without its effects."""
        while True:
            try:
                skeleton = self._send(lineage.call, _ReplayedCall(lineage))
                return lineage.call.spec.snapshot.reader.layout(skeleton).leaves
            except Busy as error:
                if time.monotonic() > self._until:
                    raise
                time.sleep(error.retry_after_s)

    def _send(self, call: CallRequest, replayed: _ReplayedCall) -> bytes:
        transfer = self._router.prepare(call, self._connection)
        try:
            # nothing is acknowledged: calls with smaller numbers may be sent again after this one
            message = call.message(transfer.data_locations)
            value, _ = self._connection.request("call", message, transfer.buffers, about=replayed)
        finally:
            transfer.release()
        return _skeleton_in(value)

    def put(self, number: int, data: WholeData, config: Any, ids: bytes = b"") -> Sequence[Leaf]:
        """Sends arrays."""
        transfer = self._router.prepare(data, self._connection)
        try:
            rows = rows_of(data, transfer.data_locations)
            message = (number, data.skeleton, data.blob, rows, config, *([ids] if ids else ()))
            value, _ = self._connection.request("put", message, transfer.buffers)
        finally:
            transfer.release()
        return specs_in(_skeleton_in(value))

    def part(self, number: int, whole: int, index: tuple[Any, ...]) -> Sequence[Leaf]:
        """Takes a part of an array again."""
        value, _ = self._connection.request("part", (whole, index, -1, number))
        return specs_in(_skeleton_in(value))

    def drop(self, ids: Sequence[range]) -> None:
        """Releases what nobody needs any more."""
        if ids:
            self._connection.notify("drop", (pack_spans(ids),))


def _skeleton_in(value: tuple[Any, ...]) -> bytes:
    if value[0] == FAILED:
        if is_failure(value[1], WorkerReplaced):
            raise ConnectionLost("the worker is being replaced.")
        error = decode_failure(value[1])
        if isinstance(error, ConnectionLost):  # some other worker's, and not the loss of this one
            raise ResultError(str(error)) from error
        raise error
    return bytes(value[1])


class _ReplayedCall:
    """A call that is made again for its arrays; see `CallbackOrigin`."""

    has_called_back = False
    callback_error: BaseException | None = None

    def __init__(self, lineage: CallLineage) -> None:
        self.call = lineage.call
        self._effects = lineage.effects.muted()

    def effects(self) -> CallEffects:
        """Those that it has had: none happens again."""
        return self._effects
