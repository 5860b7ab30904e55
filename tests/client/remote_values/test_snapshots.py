"""When snapshots are taken, by a clock of the test's own, and when there are none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from jaxd.connection.settings import RecoverySettings
from jaxd.interop.remote_array import ResultBatch
from jaxd.remote_values.snapshots import COST_SHARE, KeptBytes, Snapshots
from jaxd_protocol.pytree import Leaf
from tests.client.fake_fetcher import FakeFetcher, watched_arrays

INTERVAL_S = 10.0


class Store:
    """One array on the server; to fetch it takes as long as the test says.

    Attributes:
        now: the time.
        took: when it was fetched.
        takes_s: how long that takes.
        settles_s: how long calls in flight take.
        on_fetch: called when it is fetched.
    """

    takes_data = is_of_this_machine = True
    has_them_held = is_of_a_dead_worker = False

    def __init__(self) -> None:
        self.now = 0.0
        self.takes_s = self.settles_s = 0.0
        self.took: list[float] = []
        self.on_fetch: Callable[[], object] = list
        self.nbytes = 400
        self._arrays: Any = None

    def live_batches(self) -> Sequence[ResultBatch]:
        """Another array each time, as a loop makes it."""
        fetcher: Any = FakeFetcher()
        batch = ResultBatch(fetcher, 1 << 20, [Leaf("A", "float32", (self.nbytes // 4,))])
        self._arrays = watched_arrays(batch)
        return [batch]

    def data_here(self, array: Any) -> None:
        """It is not here."""

    def fetch_copies(self, arrays: Sequence[Any]) -> list[memoryview]:
        """The data."""
        self.on_fetch()
        self.took.append(self.now)
        self.now += self.takes_s
        return [memoryview(bytes(each.nbytes)) for each in arrays]

    def settle(self, deadline: float) -> None:
        """Nothing is in flight any more."""
        self.now += self.settles_s

    def tell_kept(self, text: str) -> None:
        """Nobody is told."""


@pytest.fixture
def store() -> Store:
    """Its time begins now."""
    return Store()


def snapshots_of(store: Store, max_bytes: int = 1000) -> Snapshots:
    """Snapshots of a store, by its clock."""
    found: Any = store
    return Snapshots(found, RecoverySettings(INTERVAL_S, max_bytes), lambda: store.now)


def run(store: Store, snapshots: Snapshots, seconds: int) -> None:
    """A loop of ten calls a second."""
    for _ in range(10 * seconds):
        snapshots.take_if_due()
        store.now += 0.1


def test_quick_ones_are_taken_at_each_interval(store: Store) -> None:
    """No more often, however little they take."""
    store.takes_s = 0.01
    run(store, snapshots_of(store), 100)
    assert len(store.took) == 9
    assert store.took[0] == pytest.approx(INTERVAL_S, abs=0.2)


def test_the_more_one_takes_the_rarer_they_are(store: Store) -> None:
    """They take three hundredths of the time at most."""
    store.takes_s = 3.0
    snapshots = snapshots_of(store)
    run(store, snapshots, 1000)
    gaps = [b - a for a, b in zip(store.took, store.took[1:], strict=False)]
    assert gaps == pytest.approx([103.0] * len(gaps), abs=0.2)
    assert 3.0 * len(store.took) / store.now <= COST_SHARE
    assert not snapshots.stopped


def test_those_that_take_too_long_are_taken_no_more(store: Store) -> None:
    """That is said once, and with why."""
    store.takes_s = 19.0
    snapshots = snapshots_of(store)
    with pytest.warns(RuntimeWarning, match=r"633 s apart.*jaxd\.save\(state, path\)"):
        run(store, snapshots, 20)
    run(store, snapshots, 2000)
    assert len(store.took) == 1
    assert "633 s apart" in snapshots.stopped


def test_to_wait_for_calls_of_others_is_no_cost(store: Store) -> None:
    """They would have been made anyhow."""
    store.settles_s, store.takes_s = 12.0, 7.0
    snapshots = snapshots_of(store)
    run(store, snapshots, 3000)
    assert len(store.took) > 2
    assert not snapshots.stopped


def test_one_that_fails_is_told_of_until_the_next_one(store: Store) -> None:
    """It is tried again."""

    def fail() -> None:
        raise TimeoutError("the server is away")

    snapshots = snapshots_of(store)
    store.on_fetch = fail
    run(store, snapshots, 12)
    assert snapshots.stopped == "the last one was not taken: the server is away"
    store.on_fetch = list
    run(store, snapshots, 30)
    assert store.took
    assert not snapshots.stopped


def test_the_thread_that_takes_one_may_make_a_call(store: Store) -> None:
    """As the handler of a signal does: it does not wait for itself."""
    snapshots = snapshots_of(store)

    def call() -> None:
        snapshots.begin_donating()
        snapshots.end_donating()

    store.on_fetch = call
    run(store, snapshots, 12)
    assert store.took


def test_a_state_that_is_too_large_counts_as_stopped_until_it_fits(store: Store) -> None:
    """It is said once; and `jaxd values` shows it as long as it is so."""
    snapshots = snapshots_of(store)
    store.nbytes = 2000
    with pytest.warns(RuntimeWarning, match="JAXD_SNAPSHOT_BYTES"):
        run(store, snapshots, 15)
    run(store, snapshots, 15)
    assert "take 2,000 bytes, and it keeps copies of 1,000 at most" in snapshots.stopped
    assert not store.took
    store.nbytes = 800
    run(store, snapshots, 15)
    assert store.took
    assert not snapshots.stopped


def test_where_neither_data_nor_files_can_be_kept_it_is_said_once(store: Store) -> None:
    """A server with several devices, on another machine."""
    store.takes_data = store.is_of_this_machine = False
    snapshots = snapshots_of(store)
    with pytest.warns(RuntimeWarning, match=r"several devices.*another machine.*jaxd\.save"):
        run(store, snapshots, 15)
    run(store, snapshots, 100)
    assert "several devices" in snapshots.stopped


def test_one_is_due_before_there_is_no_room() -> None:
    """For what is beside the snapshots: to take one more often frees nothing of these."""
    full = list[int]()
    kept = KeptBytes(1000, lambda: full.append(sum(kept.used())))
    assert all(kept.take(100) for _ in range(8))
    assert not full
    assert kept.take(100)
    assert full == [900]
    kept.free(900)
    assert kept.used() == (0, 0)
    assert not kept.take(1001)
    assert len(full) == 2
