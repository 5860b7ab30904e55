from __future__ import annotations

from jaxd_server.runtime.counters import Counters, Counts
from tests.server.staging import at_once


def test_a_new_server_has_counted_nothing() -> None:
    """Every counter is there from the start."""
    snapshot = Counters().snapshot()
    assert snapshot.pop("uptime_s") >= 0
    assert set(snapshot) == {
        *("calls", "failed_calls", "executable_hits", "executable_loads", "programs_shared"),
        *("traces", "lowers", "compiles", "xla_cache_hits"),
        *("trace_s", "compile_s", "load_s", "saved_s", "waited_s", "run_s"),
        *("cancelled_calls", "late_calls"),
    }
    assert set(snapshot.values()) == {0}


def test_counters_add_up() -> None:
    """Several in one step, fractions too."""
    counters = Counters()
    counters.add(calls=1, traces=2)
    counters.add(calls=1, trace_s=0.5)
    snapshot = counters.snapshot()
    assert (snapshot["calls"], snapshot["traces"], snapshot["trace_s"]) == (2, 2, 0.5)


def test_a_hit_is_a_call_too() -> None:
    """The warm path counts both at once."""
    counters = Counters()
    counters.hit()
    snapshot = counters.snapshot()
    assert (snapshot["calls"], snapshot["executable_hits"]) == (1, 1)


def test_what_is_done_for_one_counts_for_all_and_for_that_one() -> None:
    """Named, or by the thread that works for it, which also works for nobody again."""
    counters = Counters()
    alice, bob = counters.of("alice"), counters.of("bob")
    assert counters.of("alice") is alice
    counters.add(alice, calls=1)
    counters.hit(0.5, bob)
    with counters.on_behalf_of(alice):
        counters.add(traces=1)
        with counters.on_behalf_of(None):
            counters.add(traces=10)
        counters.add(bob, compiles=1)
    counters.add(lowers=1)

    def seen(own: Counts | None) -> list[float]:
        found = counters.snapshot(own)
        return [found[name] for name in ("calls", "executable_hits", "traces", "compiles", "run_s")]

    assert seen(None) == [2, 1, 11, 1, 0.5]
    assert seen(alice) == [1, 0, 1, 0, 0.0]
    assert seen(bob) == [1, 1, 0, 1, 0.5]
    counters.forget("alice")
    assert seen(counters.of("alice")) == [0, 0, 0, 0, 0.0]


def test_nothing_is_lost_between_threads() -> None:
    """Whoever counts at the same moment is counted."""
    counters = Counters()

    def count(_: int) -> None:
        for _ in range(1_000):
            counters.hit()
            counters.add(calls=1)

    at_once(8, count)
    assert counters.snapshot()["calls"] == 16_000


def test_a_snapshot_does_not_change() -> None:
    """It is what was true when it was taken."""
    counters = Counters()
    before = counters.snapshot()
    counters.hit()
    assert before["calls"] == 0


def test_counting_ends_idleness() -> None:
    """Time is counted from the last activity."""
    counters = Counters()
    counters._last_activity -= 100.0
    assert counters.idle_s >= 100.0
    counters.hit()
    assert counters.idle_s < 100.0
    counters._last_activity -= 100.0
    counters.add()
    assert counters.idle_s < 100.0
