"""Recovery: when a worker has ended, the arrays of a session are made again on the next one.

From data, where this process has it: what was fetched, and snapshots. Else by the calls that made
them, in their order and without their effects.
"""

from __future__ import annotations

import heapq
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from jaxd.remote_values.lineage import (
    ANSWERS_OBSTACLE,
    ArgumentSource,
    CallLineage,
    KeptCopy,
    KeptData,
    Lineage,
    NoLineage,
    PartLineage,
    PutLineage,
    Snapshot,
    WeakPutLineage,
    copies_in_blocks,
    irreproducible_error,
    rows_of,
    stable_buffers,
)
from jaxd.remote_values.snapshots import EARLY, RecoverableStore, Snapshots, usable_arrays
from jaxd.results.reader import specs_in
from jaxd_protocol.errors import (
    Busy,
    ConnectionLost,
    PackingError,
    ResultError,
    ValuesFull,
    WorkerReplaced,
)
from jaxd_protocol.messages.calls import FAILED, is_failure
from jaxd_protocol.messages.data_locations import (
    call_number_of,
    first_value_id,
    pack_spans,
    spans_of,
    value_ids_of,
)
from jaxd_protocol.pytree import Leaf

if TYPE_CHECKING:
    from jaxd.connection.connection import ClientConnection
    from jaxd.connection.settings import RecoverySettings
    from jaxd.events.effects import CallEffects
    from jaxd.interop.remote_array import RemoteArray, ResultBatch
    from jaxd.remote_values.lineage import WholeData
    from jaxd.request.call_request import CallRequest
    from jaxd.transfer.routing import CallTransfer, TransferRouter
    from jaxd.transfer.shared_memory import BlockOffset


MAX_DEPTH: Final = 10_000
"""Calls that are made again, one after the other, for one array."""

MAX_BUSY_S: Final = 60.0
"""How long a server that has no room is asked again, for all arrays together."""

FULL_PAUSE_S: Final = 0.5
"""After so long it is tried again where there was no room for arrays."""

_TOO_MUCH: Final = "this process already keeps as much data for that as JAXD_SNAPSHOT_BYTES allows"

NAMED_OBSTACLE: Final = "they were found by a name"

SEVERAL_DEVICES_OBSTACLE: Final = (
    "the server has several devices, and only on one could they be put"
)

CHANGED_OBSTACLE: Final = (
    "what their call took may have been changed meanwhile, and there was no room for a copy of it"
)

_NO_BLOCKS: Final[Mapping[int, BlockOffset]] = {}
_NO_CALLS: Final[Mapping[int, CallRequest]] = {}

_PACKS: Final = "jaxd_protocol.pickling.pack.functions"
_MOST_REASONS: Final = 5
_MAX_REASON: Final = 200
_TOLD: Final = (
    *("limit_bytes", "call_bytes", "snapshot_bytes", "snapshot_age_s", "snapshot_seconds"),
    *("stopped", "calls", "call_seconds", "limit_seconds", "lost_with_worker"),
)
"""What `jaxd values` shows."""

T = TypeVar("T")
Full = TypeVar("Full", Busy, ValuesFull)


class CallInFlight(Protocol):
    """A call that is sent again once the arrays that it takes are there.

    Attributes:
        number: its number.
        call: the request.
    """

    number: int
    call: CallRequest


class Kept(NamedTuple):
    """What a process keeps so that its arrays on the server can be made again; `jaxd.kept()`.

    Attributes:
        is_on: whether they are made again when their worker ends.
        limit_bytes: the most that is kept.
        call_bytes: kept of arguments and of answers of callbacks.
        snapshot_bytes: kept in snapshots.
        snapshot_age_s: seconds since the last snapshot; None: there was none.
        snapshot_seconds: how long it took.
        stopped: why there are no more snapshots, or was none the last time; empty: there are.
        calls: how many calls, one after the other, would be made again for the array that needs
            the most.
        lost_with_worker: why arrays cannot be made again, with how many bytes of arrays.
        call_seconds: how long the calls ran that would be made again, all together.
        limit_seconds: arrays are not made again whose calls, one after the other, ran longer.
    """

    is_on: bool = False
    limit_bytes: int = 0
    call_bytes: int = 0
    snapshot_bytes: int = 0
    snapshot_age_s: float | None = None
    snapshot_seconds: float = 0.0
    stopped: str = ""
    calls: int = 0
    lost_with_worker: dict[str, int] = {}  # noqa: RUF012  nobody changes it
    call_seconds: float = 0.0
    limit_seconds: float = 0.0

    @classmethod
    def together(cls, found: Sequence[Kept]) -> Kept:
        """Of several servers, such as the members of a pool: bytes and limits are added up.

        Args:
            found: what is kept for each, one at least; of ages, calls and their time the largest
                counts.
        """
        if len(found) == 1:
            return found[0]
        ages = [each.snapshot_age_s for each in found if each.snapshot_age_s is not None]
        lost = sum((Counter(each.lost_with_worker) for each in found), Counter())
        return cls(
            is_on=True,
            limit_bytes=sum(each.limit_bytes for each in found),
            call_bytes=sum(each.call_bytes for each in found),
            snapshot_bytes=sum(each.snapshot_bytes for each in found),
            snapshot_age_s=max(ages, default=None),
            snapshot_seconds=sum(each.snapshot_seconds for each in found),
            stopped="; ".join(dict.fromkeys(each.stopped for each in found if each.stopped)),
            calls=max(each.calls for each in found),
            lost_with_worker=dict(lost),
            call_seconds=max(each.call_seconds for each in found),
            limit_seconds=max(each.limit_seconds for each in found),
        )


class Recovery:
    """Keeps what is needed to make the arrays of one session again. Thread-safe.

    Args:
        store: the arrays.
        router: gives what chooses how large arrays are transferred.
        settings: how much is kept.
        clock: seconds that only grow.

    Attributes:
        snapshots: takes them.
    """

    def __init__(
        self,
        store: RecoverableStore,
        router: Callable[[], TransferRouter],
        settings: RecoverySettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.snapshots = Snapshots(store, settings, clock, self._tell)
        self._kept = self.snapshots.kept
        self._max_s = settings.max_s
        self._store = store
        self._router = router

    # what is kept ------------------------------------------------------------------------------

    def of_call(
        self,
        call: CallRequest,
        effects: CallEffects,
        transfer: CallTransfer | None = None,
        *,
        copied: bool = False,
    ) -> Lineage:
        """The lineage of what a call returns, whose arrays its caller has not changed so far.

        Args:
            call: the request.
            effects: those that it will have.
            transfer: of its data, where that was prepared.
            copied: whether what is beside its message are copies.
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
        obstacle = self._obstacle(call, sources, effects)
        if obstacle:
            self.snapshots.make_due()
            return NoLineage(number, obstacle)
        nbytes, in_blocks = sum(map(len, call.buffers)) + len(call.blob), _NO_BLOCKS
        copies: Sequence[KeptCopy] | None = ()
        if transfer is not None and transfer.places:
            in_blocks = copies_in_blocks(call, transfer)
            pairs = zip(call.buffer_leaves, call.buffers, strict=False)
            sizes = {n: len(data) for n, data in pairs if n in in_blocks}
            nbytes -= sum(sizes.values())
            copies = self._kept.take_copies(
                {(at.number, at.lease, start): sizes[n] for n, (at, start) in in_blocks.items()}
            )
        if copies is None or not self._kept.take(nbytes):
            return NoLineage(number, _TOO_MUCH)
        rows: Any = sources  # which is what a message needs of them
        kept = call._replace(
            buffers=stable_buffers(call, transfer, in_blocks, copied=copied),
            timeout_s=None,
            values=rows,
            sources={},
            leaf_headers={},
            origin=None,
        )
        effects.keep_in(self._kept)
        lineage = CallLineage(kept, sources, effects, nbytes, copies, self._max_s)
        self._kept.free_with(lineage)
        return lineage

    def of_changed(self, number: int) -> Lineage:
        """The lineage of what a call returns whose arguments may not be what they were."""
        self.snapshots.make_due()
        return NoLineage(number, CHANGED_OBSTACLE)

    def _obstacle(
        self, call: CallRequest, sources: Sequence[ArgumentSource], effects: CallEffects
    ) -> str:
        """Why a call cannot be made again; empty where it can.

        Packs the function, whose globals may be others when a server asks for it later. Not for
        the first call of a process that has packed nothing: what packs is imported for that, and
        the next server most likely finds the program on disk.
        """
        depth, seconds = 0, 0.0
        for source, taken in zip(sources, call.values, strict=True):
            made = source.lineage
            if made.obstacle and not self._are_here(taken.arrays):
                return made.obstacle
            depth, seconds = max(depth, made.depth), max(seconds, made.seconds)
        if not effects.are_recorded:
            return ANSWERS_OBSTACLE
        function = call.spec.snapshot
        if not function.is_repeatable:
            return f"{function.name} reads what may be another next time, while it is traced"
        try:
            if depth or _PACKS in sys.modules:
                function.code  # noqa: B018  kept by the snapshot
        except PackingError:
            return f"the code of {function.name} cannot travel to another worker"
        if seconds > self._max_s / 2 or depth + 1 >= EARLY * MAX_DEPTH:
            self.snapshots.make_due()  # before it is too late
        if depth >= MAX_DEPTH:
            return f"that would take more than {MAX_DEPTH:,} calls"
        return ""

    def _are_here(self, arrays: Iterable[RemoteArray]) -> bool:
        """Whether this process has the data of all of these."""
        return all(self._store.data_here(each) is not None for each in arrays)

    def of_put(self, number: int, data: WholeData, config: Any, transfer: CallTransfer) -> Lineage:
        """The lineage of arrays that are put.

        Args:
            number: under which they are.
            data: theirs.
            config: the settings under which they are.
            transfer: of the data.
        """
        if not self._kept.take(sum(map(len, data.buffers)) + len(data.blob)):
            weak = WeakPutLineage.of(number, data, data.skeleton, data.blob, config)
            return weak or NoLineage(number, _TOO_MUCH)
        in_blocks = copies_in_blocks(data, transfer) if transfer.places else _NO_BLOCKS
        buffers = stable_buffers(data, transfer, in_blocks)
        kept = KeptData(data.skeleton, data.blob, buffers, data.buffer_leaves)
        lineage = PutLineage(number, kept, config)
        self._kept.free_with(lineage)
        return lineage

    def of_part(self, number: int, array: RemoteArray, index: tuple[Any, ...]) -> Lineage:
        """The lineage of a part of an array."""
        return PartLineage(number, _lineage_of(array.origin), array.number, index)

    def report(self) -> Kept:
        """What is kept now, and what could not be made again."""
        plan = _Plan(has_data=self._store.takes_data)
        plan.add_batches(self._store.live_batches())
        steps = list(plan.steps())
        lost: Counter[str] = Counter()
        for step in steps:
            lost[step.obstacle] += step.nbytes_missing()
        last = self.snapshots.last
        call_bytes, snapshot_bytes = self._kept.used()
        return Kept(
            is_on=True,
            limit_bytes=self._kept.limit,
            call_bytes=call_bytes,
            snapshot_bytes=snapshot_bytes,
            snapshot_age_s=self.snapshots.age_s,
            snapshot_seconds=0.0 if last is None else last.seconds,
            stopped=self.snapshots.stopped,
            calls=max((step.lineage.depth for step in steps if step.lineage), default=0),
            lost_with_worker={why: nbytes for why, nbytes in lost.items() if nbytes},
            call_seconds=sum(step.lineage.run_s for step in steps if step.lineage),
            limit_seconds=self._max_s,
        )

    def _tell(self) -> None:
        """Tells the server what is kept, which shows it with the arrays."""
        kept = self.report()
        most = sorted(kept.lost_with_worker.items(), key=lambda each: -each[1])[:_MOST_REASONS]
        lost = {why[:_MAX_REASON]: nbytes for why, nbytes in most}
        stopped = kept.stopped[:_MAX_REASON]
        told = kept._replace(lost_with_worker=lost, stopped=stopped)._asdict()
        self._store.tell_kept(json.dumps({name: told[name] for name in _TOLD}))

    # after the worker has ended ----------------------------------------------------------------

    def restore(
        self,
        connection: ClientConnection,
        flights: Sequence[CallInFlight],
        launching: Sequence[CallRequest],
        there: Collection[int],
        send: Callable[[int], object],
    ) -> Collection[ResultBatch]:
        """Makes all arrays that somebody holds, or that a call in flight takes, again.

        Those that cannot be made again are marked as lost.

        Args:
            connection: to the new worker.
            flights: the calls that will be sent again.
            launching: those that will be sent for the first time.
            there: numbers of calls whose results this worker has; more may come.
            send: sends one of `flights` now, by its number.

        Returns:
            Those that somebody holds.

        Raises:
            ConnectionLost: when that worker has ended as well.
            ValuesFull: when it has no room; nothing is marked as lost, and all of it can be tried
                again in another session.
            Busy: the same, after `MAX_BUSY_S`.
        """
        open_calls = {flight.number: flight.call for flight in flights}
        plan = _Plan(open_calls, there, has_data=self._store.takes_data)
        for call in (*(flight.call for flight in flights), *launching):
            for each in call.values:
                plan.hold(each.origin, each.numbers)
        held = self._store.live_batches()
        plan.add_batches(held)
        self._run(plan, connection, send)
        return set(held)

    def restore_late(
        self, connection: ClientConnection, late: Sequence[ResultBatch]
    ) -> Sequence[ResultBatch]:
        """As `restore`, of arrays whose reply was read when all others had been made again.

        Raises:
            ConnectionLost: when they need others, which may not be there any more: all have to be
                made again, in another session.
        """
        if any(_lineage_of(batch).sources for batch in late if usable_arrays(batch)):
            raise ConnectionLost("arrays of an earlier session have come late.")
        plan = _Plan(has_data=self._store.takes_data)
        plan.add_batches(late)
        self._run(plan, connection)
        return late

    def _run(
        self,
        plan: _Plan,
        connection: ClientConnection,
        send: Callable[[int], object] = lambda _: None,
    ) -> None:
        link = _Link(connection, self._router())
        for step in plan.steps():
            for number in plan.open_before(step):
                send(number)
            step.run(link)
            link.drop(plan.unused_after(step))
        plan.mark_lost(with_worker=self._store.is_of_a_dead_worker)


def _lineage_of(batch: ResultBatch) -> Lineage:
    lineage: Lineage | None = batch.lineage
    return lineage or NoLineage(call_number_of(batch.first), NAMED_OBSTACLE)


class _Step:
    """What is made again under one number.

    Attributes:
        number: the number.
        wanted: the numbers of the results that are needed.
        held: those of them that somebody holds, or that a call takes which is sent after all this.
        missing: those of them that cannot be made.
        batches: those that are held.
        lineage: how they are made; None: that is not known, or not possible.
        sources: what the call needs that was chosen to make them.
        obstacle: why the missing ones cannot be made; empty: all can, as far as is known.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.wanted: set[int] = set()
        self.held: set[int] = set()
        self.missing: set[int] = set()
        self.batches: list[ResultBatch] = []
        self.lineage: Lineage | None = None
        self.sources: Sequence[ArgumentSource] = ()
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
        for batch in self.batches:
            # one that goes on as its copy on another server has the number of that
            own = (each for each in batch.arrays if each.origin is batch)
            here = ((each, each.fetcher.data_here(each)) for each in own)
            self._data.update(
                (each.number, (each.leaf, data)) for each, data in here if data is not None
            )
        is_usable = has_data or not self._data
        if not has_data:
            self._data.clear()
        calls = [each for each in self._candidates.values() if not isinstance(each, Snapshot)]
        makers = [each for each in calls if not each.obstacle and each.has(self.wanted)]
        if makers and not self.wanted <= self._data.keys():
            self.lineage = min(makers, key=attrgetter("depth"))
            self.sources = self.lineage.sources
            return self.sources
        obstacles = (each.obstacle for each in calls if each.obstacle and is_usable)
        self.lose(next(obstacles, SEVERAL_DEVICES_OBSTACLE))
        return ()

    def lose(self, obstacle: str) -> None:
        """It cannot be made by a call: only that is made again of which the data is here."""
        there = self.wanted & self._data.keys()
        self.missing = self.wanted - there
        self.obstacle = obstacle if self.missing else ""
        data = {number: self._data[number] for number in sorted(there)}
        self.lineage = Snapshot(self.number, data) if data else None

    def lacks(self, sources: Sequence[ArgumentSource]) -> bool:
        """Whether some of what is missing is among these."""
        needed = (each.arrays for each in sources if each.lineage.number == self.number)
        return any(not self.missing.isdisjoint(arrays) for arrays in needed)

    def nbytes_missing(self) -> int:
        """Bytes of what somebody holds and cannot be made."""
        leaves = self.batches[0].leaves if self.batches else ()
        return sum(leaves[number].nbytes for number in self.held & self.missing)

    def run(self, link: _Link) -> None:
        """Makes it, as far as that is possible.

        Raises:
            ConnectionLost: when the worker has ended.
            Busy, ValuesFull: when it has no room.
        """
        while self.lineage is not None:
            obstacle = self._obstacle(self.lineage, link)
            if not obstacle:
                return
            is_data = isinstance(self.lineage, Snapshot)
            if is_data:
                self._data.clear()
            self.lose(obstacle)

    def _obstacle(self, lineage: Lineage, link: _Link) -> str:
        """Makes it in one way; why that was not possible."""
        try:
            leaves = lineage.make(link)
        except (ConnectionLost, Busy, ValuesFull):
            raise
        except Exception as error:  # noqa: BLE001  whatever it is, these arrays are lost
            return f"{type(error).__name__}: {str(error).partition('. ')[0]}"
        is_other = any(tuple(leaves) != tuple(batch.leaves) for batch in self.batches)
        if is_other and not lineage.is_copy:
            link.drop([value_ids_of(self.number)])
            return "their call returned something else than before"
        return ""

    def kept_ids(self) -> set[int]:
        """The ids that are needed after all this."""
        return {first_value_id(self.number) + number for number in self.held}


class _Taken(NamedTuple):
    """What a call takes.

    Attributes:
        arrays: of which call they are results, and their numbers among these.
        for_good: whether some of them are donated.
    """

    arrays: Sequence[tuple[int, range]]
    for_good: bool

    @classmethod
    def by_lineage(cls, made: Lineage) -> _Taken:
        """What that takes to be made again."""
        return cls([(each.lineage.number, each.arrays) for each in made.sources], made.donates)

    @classmethod
    def by_call(cls, call: CallRequest) -> _Taken:
        """What one takes that is sent again."""
        arrays = [(call_number_of(each.origin.first), each.numbers) for each in call.values]
        return cls(arrays, call.spec.donates)

    def is_behind(self, number: int, other: _Taken) -> bool:
        """Whether a call with a smaller number has to be sent first.

        Args:
            number: its number.
            other: what it takes.
        """
        if any(maker == number for maker, _ in self.arrays):
            return True
        return self.for_good and any(
            maker == its_maker and numbers.start < its.stop and its.start < numbers.stop
            for maker, numbers in self.arrays
            for its_maker, its in other.arrays
        )


class _Plan:
    """What is made again, in which order.

    Args:
        open_calls: those that are sent again anyway, by number.
        there: numbers of calls whose results are there; more may come.
        has_data: whether arrays may be sent from data.
    """

    def __init__(
        self,
        open_calls: Mapping[int, CallRequest] = _NO_CALLS,
        there: Collection[int] = (),
        *,
        has_data: bool,
    ) -> None:
        self._unsent = dict(open_calls)
        self._spared = open_calls.keys(), there
        self._has_data = has_data
        self._steps: dict[int, _Step] = {}
        self._held: list[RemoteArray] = []  # or they might be released before they are made
        self._last_use: dict[int, int] = {}

    def add_batches(self, batches: Iterable[ResultBatch]) -> None:
        """Adds the arrays of batches that somebody holds, and all that is needed in turn."""
        for batch in batches:
            arrays = usable_arrays(batch)
            self._held += arrays
            if arrays:
                self.hold(batch, [each.number for each in arrays])
        self._resolve()

    def hold(self, batch: ResultBatch, numbers: Sequence[int]) -> None:
        """Adds arrays of a batch that somebody holds, or that a call takes."""
        step = self.need(_lineage_of(batch), numbers)
        if step is not None:
            step.held.update(numbers)
            if batch not in step.batches:
                step.batches.append(batch)

    def need(self, lineage: Lineage, wanted: Iterable[int]) -> _Step | None:
        """Adds some results of a call; None: it is not made again."""
        if any(lineage.number in numbers for numbers in self._spared):
            return None
        step = self._steps.setdefault(lineage.number, _Step(lineage.number))
        step.need(lineage, wanted)
        return step

    def _resolve(self) -> None:
        """Adds all that is needed in turn; the sources of a call have smaller numbers."""
        waiting = [-number for number in self._steps]
        heapq.heapify(waiting)
        while waiting:
            number = -heapq.heappop(waiting)
            for source in self._steps[number].choose(has_data=self._has_data):
                source_number = source.lineage.number
                is_known = source_number in self._steps
                if self.need(source.lineage, source.arrays) is not None and not is_known:
                    heapq.heappush(waiting, -source_number)
                self._last_use[source_number] = max(
                    number, self._last_use.get(source_number, number)
                )

    def steps(self) -> Iterator[_Step]:
        """In the order in which they are to be run; what others lack is known by then."""
        for number in sorted(self._steps):
            step = self._steps[number]
            needed = filter(None, (self._steps.get(each.lineage.number) for each in step.sources))
            obstacle = next((each.obstacle for each in needed if each.lacks(step.sources)), "")
            if obstacle:
                step.lose(obstacle)
            yield step

    def open_before(self, step: _Step) -> list[int]:
        """The open calls, by number, that have to be sent again before a step is run.

        They had ended before it on the last worker, and only their replies had not come. The step
        takes what they make; or it takes for good what they take, and it would be gone.
        """
        made = step.lineage
        if made is None or not self._unsent:
            return []
        behind = [_Taken.by_lineage(made)]
        found = list[int]()
        for number in sorted(filter(step.number.__gt__, self._unsent), reverse=True):
            own = _Taken.by_call(self._unsent[number])
            if any(each.is_behind(number, own) for each in behind):
                behind.append(own)
                found.append(number)
                del self._unsent[number]
        return found[::-1]

    def unused_after(self, step: _Step) -> list[range]:
        """The ids that nobody needs any more once a step was run."""
        done = [
            number
            for number in {step.number, *self._sources_of(step)}
            if self._last_use.get(number, number) <= step.number
        ]
        return [span for number in done for span in self._not_kept(self._steps[number])]

    def _sources_of(self, step: _Step) -> list[int]:
        return [one for each in step.sources if (one := each.lineage.number) in self._steps]

    def _not_kept(self, step: _Step) -> Iterator[range]:
        every, kept = value_ids_of(step.number), step.kept_ids()
        start = every.start
        for span in spans_of(sorted(kept)):
            if start < span.start:
                yield range(start, span.start)
            start = span.stop
        yield range(start, every.stop)

    def mark_lost(self, *, with_worker: bool) -> None:
        """Marks what could not be made again."""
        for step in self._steps.values():
            for batch in step.batches if step.missing else ():
                error = irreproducible_error(step.obstacle, with_worker=with_worker)
                batch.lose(step.missing, error)


class _Link:
    """The connection over which arrays are made again; see `RestoreLink`."""

    def __init__(self, connection: ClientConnection, router: TransferRouter) -> None:
        self._connection = connection
        self._router = router
        self._until = time.monotonic() + MAX_BUSY_S

    def call(self, lineage: CallLineage) -> Sequence[Leaf]:
        """Makes a call again, without its effects."""
        skeleton = self._when_free(lambda: self._send(lineage.call, _ReplayedCall(lineage)))
        return lineage.call.spec.snapshot.reader.layout(skeleton).leaves

    def _when_free(self, ask: Callable[[], T]) -> T:
        """What `ask` returns once the server has room.

        Raises:
            Busy: when it has none for too long.
            BaseException: what else it raises.
        """
        while True:
            try:
                return ask()
            except Busy as error:
                if time.monotonic() > self._until:
                    raise still_full(error) from error
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
        return specs_in(self._when_free(lambda: self._put(number, data, config, ids)))

    def _put(self, number: int, data: WholeData, config: Any, ids: bytes) -> bytes:
        transfer = self._router.prepare(data, self._connection)
        try:
            rows = rows_of(data, transfer.data_locations)
            message = (number, data.skeleton, data.blob, rows, config, *([ids] if ids else ()))
            value, _ = self._connection.request("put", message, transfer.buffers)
        finally:
            transfer.release()
        return _skeleton_in(value)

    def part(self, number: int, whole: int, index: tuple[Any, ...]) -> Sequence[Leaf]:
        """Takes a part of an array again."""
        return self._made_by("part", whole, index, -1, number)

    def restore(self, number: int, *asked: Any) -> Sequence[Leaf]:
        """Has a checkpoint read again."""
        path, like, *rest = asked
        return self._made_by("restore", path, like, number, *rest)

    def held(self, secret: str, place: int, ids: bytes) -> Sequence[Leaf]:
        """Has a snapshot of the server read again."""
        return self._made_by("held", secret, place, ids)

    def _made_by(self, verb: str, *message: Any) -> Sequence[Leaf]:
        """What a request makes that sends no data."""
        return specs_in(
            self._when_free(lambda: _skeleton_in(self._connection.request(verb, message)[0]))
        )

    def drop(self, ids: Sequence[range]) -> None:
        """Releases what nobody needs any more."""
        if ids:
            self._connection.notify("drop", (pack_spans(ids),))


def still_full(error: Full) -> Full:
    """The error of arrays that had no room on the next worker for so long."""
    what = str(error).partition(". ")[0].rstrip(".")
    return type(error)(
        "the worker has ended, and the next one has had no room for the arrays of this process "
        f"for {MAX_BUSY_S:.0f} s: {what}. Nothing is lost: use them again once others have freed "
        "memory (jaxd values lists them)."
    )


def _skeleton_in(value: tuple[Any, ...]) -> bytes:
    if value[0] == FAILED:
        if is_failure(value[1], WorkerReplaced):
            raise ConnectionLost("the worker is being replaced.")
        from jaxd_protocol.messages.failures import decode_failure

        error = decode_failure(value[1])
        if isinstance(error, ConnectionLost):  # some other worker's, and not the loss of this one
            raise ResultError(str(error)) from error
        raise error
    return bytes(value[1])


class _ReplayedCall:
    """A call that is made again for its arrays; see `CallbackOrigin`."""

    may_go_on = False
    has_called_back = False
    callback_error: BaseException | None = None
    connection = None

    def __init__(self, lineage: CallLineage) -> None:
        self.call = lineage.call
        self._effects = lineage.effects.muted()

    def before_callback(self) -> None:
        """No function is called."""

    def effects(self) -> CallEffects:
        """Those that it has had: none happens again."""
        return self._effects
