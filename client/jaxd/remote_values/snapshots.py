"""Snapshots: copies of a session's arrays, made from time to time, which outlive its worker.

In this process; for a server on another machine, there; and where the server has several devices,
in a folder of this process, into which the worker writes them shard by shard. And how many bytes
are kept, in all, so that arrays can be made again.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar
from weakref import WeakValueDictionary

from jaxd.remote_values.lineage import (
    HeldLineage,
    KeptCopy,
    Lineage,
    PutLineage,
    SavedLineage,
    Snapshot,
    saved_name,
)
from jaxd_protocol.base.process import Lazy, OwnFolder
from jaxd_protocol.errors import (
    ConfigurationError,
    DeadlineExceeded,
    LimitExceeded,
    NotPermitted,
)
from jaxd_protocol.messages.data_locations import INLINE_RESULT_BYTES, call_number_of
from jaxd_protocol.packages.installed import warn_user
from jaxd_protocol.pytree import Leaf

if TYPE_CHECKING:
    from jaxd.connection.settings import RecoverySettings
    from jaxd.interop.remote_array import RemoteArray, ResultBatch


CopyT = TypeVar("CopyT", Snapshot, SavedLineage)
_COPIES: Final = (Snapshot, SavedLineage)

COST_SHARE: Final = 0.03
"""Snapshots take at most this share of the time of a loop."""

MAX_INTERVAL_S: Final = 600.0
"""Snapshots that would have to be further apart than this are not taken any more."""

_MAX_SETTLE_S: Final = 60.0
"""A snapshot waits so long at most for the calls in flight."""

_MAX_PAUSE_S: Final = 5.0
"""And so long for those that are sent meanwhile, while other threads wait with theirs."""

EARLY: Final = 0.8
"""When so much of what may be kept is used, a snapshot takes its place."""


class RecoverableStore(Protocol):
    """The arrays of one session, as their recovery needs them."""

    @property
    def takes_data(self) -> bool:
        """Whether arrays that are sent again are what they were: the server has one device."""

    @property
    def is_of_a_dead_worker(self) -> bool:
        """Whether the last session ended with its worker."""

    def live_batches(self) -> Sequence[ResultBatch]:
        """Those that somebody holds."""

    def data_here(self, array: RemoteArray) -> memoryview | None:
        """All bytes of an array in C order, where this process has them."""

    def fetch_copies(self, arrays: Sequence[RemoteArray]) -> Iterable[memoryview]:
        """The data of arrays that are computed, which are not told of it."""

    @property
    def is_of_this_machine(self) -> bool:
        """Whether the server is on this machine, and sees the same files."""

    def write(self, arrays: Mapping[str, RemoteArray], path: str, token: str) -> None:
        """Has the worker write arrays that are computed, by name, into a new folder."""

    @property
    def has_them_held(self) -> bool:
        """Whether the server keeps snapshots, and data would have to travel to be kept here."""

    def hold(self, arrays: Sequence[RemoteArray], number: int) -> str:
        """Has the server keep a snapshot of arrays that are computed; the secret of it."""

    def unhold_soon(self, number: int) -> None:
        """A snapshot of the server can go; also during garbage collection."""

    def tell_kept(self, text: str) -> None:
        """Tells the server what is kept, for `jaxd values`."""

    def settle(self, deadline: float) -> None:
        """Waits for all calls in flight, whatever becomes of them.

        Raises:
            DeadlineExceeded: when `time.monotonic()` passes the deadline first.
        """


class KeptBytes:
    """Counts the bytes that are kept to make arrays again. Thread-safe.

    Args:
        limit: the most that there may be.
        on_full: called when something has no room, or hardly any is left.
    """

    def __init__(self, limit: int, on_full: Callable[[], object] = lambda: None) -> None:
        self.limit = limit
        self._on_full = on_full
        self._used = {False: 0, True: 0}  # by whether it is of snapshots
        self._gone: deque[tuple[bool, int]] = deque()  # appended to during garbage collection
        self._copies: WeakValueDictionary[Hashable, KeptCopy] = WeakValueDictionary()
        self._lock = threading.Lock()  # guards _used

    def take_copies(self, wanted: Mapping[Hashable, int]) -> list[KeptCopy] | None:
        """Counts copies that are not counted so far; None when these have no room.

        Args:
            wanted: the size of each, by what tells it from others.
        """
        found = {key: copy for key in wanted if (copy := self._copies.get(key)) is not None}
        sizes = {key: nbytes for key, nbytes in wanted.items() if key not in found}
        if not self.take(sum(sizes.values())):
            return None
        new = {key: KeptCopy(nbytes, self.free) for key, nbytes in sizes.items()}
        self._copies.update(new)
        return [*found.values(), *new.values()]

    def take(self, nbytes: int) -> bool:
        """Counts so many bytes that are no snapshot's, if they have room; whether they have."""
        with self._lock:
            self._settle()
            most, used = self.limit - self._used[True], self._used[False] + nbytes
            has_room = used <= most
            if has_room:
                self._used[False] = used
        if used > EARLY * most:
            self._on_full()
        return has_room

    def free(self, nbytes: int, *, of_snapshot: bool = False) -> None:
        """Counts them no longer; takes no lock, for it is called during garbage collection too."""
        self._gone.append((of_snapshot, nbytes))

    def free_with(self, lineage: Lineage) -> None:
        """Counts the bytes of a lineage no longer once nothing depends on it."""
        is_snapshot = isinstance(lineage, _COPIES)
        lineage.on_gone = partial(self.free, lineage.nbytes, of_snapshot=is_snapshot)

    def hold(self, snapshot: CopyT) -> CopyT:
        """Counts a snapshot, whatever the limit, for as long as it exists."""
        with self._lock:
            self._used[True] += snapshot.nbytes
        self.free_with(snapshot)
        return snapshot

    def used(self) -> tuple[int, int]:
        """Bytes of arguments and answers of calls, and those of snapshots."""
        with self._lock:
            self._settle()
            return self._used[False], self._used[True]

    def _settle(self) -> None:
        """Takes off what is gone. The lock is held."""
        while self._gone:
            of_snapshot, nbytes = self._gone.popleft()
            self._used[of_snapshot] -= nbytes


class LastSnapshot(NamedTuple):
    """The last snapshot.

    Attributes:
        at: when it was done, by the clock.
        seconds: how long it took.
    """

    at: float
    seconds: float


class Snapshots:
    """Takes snapshots of the arrays of one session. Thread-safe.

    Args:
        store: the arrays.
        settings: how often, and how much.
        clock: seconds that only grow.
        on_end: called after each, taken or not.

    Attributes:
        kept: counts what is kept.
        last: the last one; None before the first.
        stopped: why none is taken any more, or none was the last time; empty: they are.
    """

    def __init__(
        self,
        store: RecoverableStore,
        settings: RecoverySettings,
        clock: Callable[[], float],
        on_end: Callable[[], object] = lambda: None,
    ) -> None:
        self.kept = KeptBytes(settings.max_bytes, self.make_due)
        self.last: LastSnapshot | None = None
        self.stopped = ""
        self._store = store
        self._folder = SnapshotFolder()
        self._places = itertools.count()
        self._interval_s = settings.interval_s or math.inf
        self._clock = clock
        self._on_end = on_end
        self._due = clock() + self._interval_s
        self._earliest = 0.0
        self._has_warned = self._is_over = False
        self._lock = threading.Lock()  # held by the thread that takes one
        self._pause = threading.Condition()  # notified of these two
        self._is_paused = False  # whether no call may be sent that takes arrays for good
        self._taker = 0  # the thread that has paused them
        self._sending = set[int]()  # threads that are sending such calls

    def make_due(self) -> None:
        """What is kept gets too much: a snapshot takes its place, unless there was one just now."""
        self._due = min(self._due, self._earliest)

    @property
    def age_s(self) -> float | None:
        """Seconds since the last one; None before the first."""
        return None if self.last is None else self._clock() - self.last.at

    def take_if_due(self) -> None:
        """Takes one of all arrays when the time has come; called before a call is sent."""
        if self._clock() < self._due or self._is_over:
            return
        if not self._lock.acquire(blocking=False):
            return
        try:
            asked = self._clock()
            self._due = asked + self._interval_s  # also when it fails
            if self._store.takes_data or self._store.is_of_this_machine:
                try:
                    self._take_settled(asked)
                except Exception as error:  # noqa: BLE001  it is tried again
                    self.stopped = self.stopped or f"the last one was not taken: {error}"
            else:
                self._has_none(
                    "the server has several devices and is on another machine, so its worker "
                    "cannot write into a folder of this process"
                )
                self._on_end()
        finally:
            self._lock.release()

    def _take_settled(self, asked: float) -> None:
        """Takes one when no call is in flight; those of other threads wait that would disturb it.

        Raises:
            Exception: when it could not be taken.
        """
        self._store.settle(time.monotonic() + _MAX_SETTLE_S)
        began = self._clock()
        try:
            with self._paused():
                self._store.settle(time.monotonic() + _MAX_PAUSE_S)
                began = self._clock()  # to wait for others is no cost of it
                self._take()
        finally:
            self._plan_next(began)
            self._on_end()  # tells of that
            self._plan_next(began)  # for to tell takes time as well
            now = self._clock()  # calls wait for those in flight, which is no cost of it
            self._earliest = now + (now - asked) / COST_SHARE

    @contextmanager
    def _paused(self) -> Iterator[None]:
        """No call is sent meanwhile that takes arrays for good.

        Raises:
            DeadlineExceeded: when one is still being sent.
        """
        with self._pause:
            self._is_paused, self._taker = True, threading.get_ident()
        try:
            with self._pause:
                self._sending.discard(threading.get_ident())  # an interrupt may have left it there
                if not self._pause.wait_for(lambda: not self._sending, _MAX_PAUSE_S):
                    raise DeadlineExceeded("another thread is still sending a call.")
            yield
        finally:
            with self._pause:
                self._is_paused = False
                self._pause.notify_all()

    def begin_donating(self) -> None:
        """A call is about to be sent that takes arrays for good: waits while one is taken.

        Takes no lock where none is: either this thread sees that, or the other one sees this.
        """
        me = threading.get_ident()
        self._sending.add(me)
        while self._is_paused and self._taker != me:  # else a signal's handler is at work in it
            self.end_donating()
            with self._pause:
                self._pause.wait_for(lambda: not self._is_paused)
            self._sending.add(me)

    def end_donating(self) -> None:
        """Such a call was sent, or could not be."""
        self._sending.discard(threading.get_ident())
        if self._is_paused:
            with self._pause:
                self._pause.notify_all()

    def _plan_next(self, began: float) -> None:
        """Cost comes before freshness: the more one takes, the rarer they are."""
        now = self._clock()
        pause_s = (now - began) / COST_SHARE
        self._earliest = now + pause_s
        self._due = max(now + self._interval_s, self._earliest)
        if pause_s > max(MAX_INTERVAL_S, self._interval_s):
            self._is_over = True
            self._has_none(
                f"a snapshot takes {now - began:,.1f} s, so they would be {pause_s:,.0f} s apart",
                "there is none any more",
            )

    def _take(self) -> None:
        began, batches = self._clock(), self._store.live_batches()
        for batch in batches:
            self._trim(batch)
        wanted = [
            (batch, arrays)
            for batch in batches
            if not (batch.lineage is not None and batch.lineage.is_copy)
            and (arrays := usable_arrays(batch))
            and not any(each.is_deleted() for each in batch.arrays)  # by another thread just now
        ]
        sizes = {id(batch): sum(each.nbytes for each in arrays) for batch, arrays in wanted}
        wanted.sort(key=lambda each: sizes[id(each[0])])
        # What these take the place of is there until then: twice the limit, for that time.
        copies = (each.lineage for each in batches if each.lineage is not None)
        stay = [each for each in copies if each.is_copy and not isinstance(each, PutLineage)]
        most, used = self.kept.limit, sum(self.kept.used())
        room = min(most - sum(each.nbytes for each in stay), 2 * most - used)
        for batch, arrays in wanted:
            room -= sizes[id(batch)]
            if room < 0:
                self._has_none(
                    f"the arrays of this process on the server take {sum(sizes.values()):,} bytes, "
                    f"and it keeps copies of {self.kept.limit:,} at most (JAXD_SNAPSHOT_BYTES)"
                )
                return
            number = call_number_of(batch.first)
            held = self._held(number, arrays)
            if held is not None:
                batch.lineage = held
            elif self._store.takes_data:
                data = dict(_data_of(arrays, self._store))
                batch.lineage = self.kept.hold(Snapshot(number, data))
            elif sizes[id(batch)]:
                batch.lineage = self._written(number, arrays)
        now, self.stopped = self._clock(), ""
        self.last = LastSnapshot(now, now - began)

    def _written(self, number: int, arrays: Sequence[RemoteArray]) -> Lineage:
        """The lineage of arrays that the worker has written."""
        path, token = self._folder.new_path(), os.urandom(8).hex()
        named = {saved_name(each.number): each for each in arrays}
        try:
            self._store.write(named, path, token)
            if not os.path.isdir(path):
                raise FileNotFoundError("the server does not see the files of this process")
        except (ConfigurationError, NotPermitted, OSError) as error:
            if isinstance(error, ConnectionError | TimeoutError):  # the next one may be written
                raise
            self._is_over = True
            self._has_none(str(error).partition(". ")[0])
            raise
        leaves = {each.number: each.leaf for each in arrays}
        saved = self.kept.hold(SavedLineage(number, leaves, path, token))
        saved.on_gone = partial(self._folder.discard, path, saved.on_gone)
        return saved

    def _held(self, number: int, arrays: Sequence[RemoteArray]) -> Lineage | None:
        """The lineage of arrays that the server keeps; None where they are to be kept here."""
        if not self._store.has_them_held:
            return None
        absent = [each.nbytes for each in arrays if self._store.data_here(each) is None]
        if sum(absent) <= INLINE_RESULT_BYTES:
            return None
        place = next(self._places)
        try:
            secret = self._store.hold(arrays, place)
        except LimitExceeded:  # it has no room
            return None
        except BaseException:  # it may have written it
            self._store.unhold_soon(place)
            raise
        leaves = {each.number: each.leaf for each in arrays}
        held = self.kept.hold(HeldLineage(number, leaves, secret, place))
        held.on_gone = partial(self._discard, place, held.on_gone)
        return held

    def _discard(self, place: int, then: Callable[[], object] | None) -> None:
        """Nothing depends on a snapshot of the server any more; also during garbage collection."""
        self._store.unhold_soon(place)
        if then is not None:
            then()

    def _trim(self, batch: ResultBatch) -> None:
        """Forgets the data of arrays that nobody holds any more."""
        lineage = batch.lineage
        if isinstance(lineage, Snapshot):
            held = {each.number for each in batch.arrays}
            if not lineage.data.keys() <= held:
                rest = {number: each for number, each in lineage.data.items() if number in held}
                batch.lineage = self.kept.hold(Snapshot(lineage.number, rest))

    def _has_none(self, why: str, then: str = "there is no snapshot") -> None:
        """Warns once that there is none."""
        self.stopped = why
        if self._has_warned:
            return
        self._has_warned = True
        warn_user(
            f"{why}: {then}. Arrays are lost if their worker ends and the calls since then are too "
            "many to be made again. Have the server write them from time to time, which sends "
            "nothing here: jaxd.save(state, path).",
            RuntimeWarning,
        )


class SnapshotFolder:
    """A folder of this process for what the worker writes for it. Thread-safe."""

    def __init__(self) -> None:
        self._folder = Lazy(partial(OwnFolder, "jaxd-snapshots"))
        self._count = itertools.count()
        self._gone: deque[str] = deque()  # appended to during garbage collection

    def new_path(self) -> str:
        """A path in it where nothing is; removes what was discarded."""
        import shutil  # few servers have several devices

        with suppress(IndexError):
            while True:
                shutil.rmtree(self._gone.popleft(), ignore_errors=True)
        return os.path.join(self._folder().path, str(next(self._count)))

    def discard(self, path: str, then: Callable[[], object] | None = None) -> None:
        """What was written there is not needed any more; also during garbage collection."""
        self._gone.append(path)
        if then is not None:
            then()


def usable_arrays(batch: ResultBatch) -> list[RemoteArray]:
    """Those that somebody holds and that were neither deleted, nor donated, nor lost."""
    if batch.pending_call is not None and batch.pending_call.error is not None:
        return []
    held = [each for each in batch.arrays if not each.is_deleted()]
    return [each for each in held if batch.loss_of((each.number,)) is None]


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
