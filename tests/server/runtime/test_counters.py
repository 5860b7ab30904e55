from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxd_protocol.messages.report import Use
from jaxd_protocol.wire import BulkChannel, BulkStream
from jaxd_server.runtime import counters
from jaxd_server.runtime.counters import Counters, Counts, Traffic, UseTable
from tests.server.staging import at_once, logged_by


def test_a_new_server_has_counted_nothing() -> None:
    """Every counter is there from the start."""
    snapshot = Counters().snapshot()
    assert snapshot.pop("uptime_s") >= 0
    assert set(snapshot) == {
        *("calls", "failed_calls", "executable_hits", "executable_loads", "programs_shared"),
        *("traces", "lowers", "compiles", "xla_cache_hits"),
        *("trace_s", "compile_s", "load_s", "saved_s", "waited_s", "run_s"),
        *("cancelled_calls", "late_calls", "fallback_calls", "fallback_functions"),
        *("verified_programs", "stale_programs", "incomparable_programs"),
    }
    assert set(snapshot.values()) == {0}


def test_counters_add_up() -> None:
    """Several in one step, fractions too; a hit is a call."""
    counters = Counters()
    counters.add(calls=1, traces=2)
    counters.add(calls=1, trace_s=0.5)
    snapshot = counters.snapshot()
    counters.hit()
    assert (snapshot["calls"], snapshot["traces"], snapshot["trace_s"]) == (2, 2, 0.5)
    snapshot = counters.snapshot()
    assert (snapshot["calls"], snapshot["executable_hits"]) == (3, 1)


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
    """Whoever counts at the same moment is counted; counting ends idleness."""
    counters = Counters()

    def count(_: int) -> None:
        for _ in range(1_000):
            counters.hit()
            counters.add(calls=1)

    at_once(8, count)
    assert counters.snapshot()["calls"] == 16_000
    counters = Counters()
    counters._last_activity -= 100.0
    assert counters.idle_s >= 100.0
    counters.hit()
    assert counters.idle_s < 100.0
    counters._last_activity -= 100.0
    counters.add()
    assert counters.idle_s < 100.0


@pytest.fixture
def ends() -> Iterator[tuple[BulkChannel, BulkChannel]]:
    """Two channels that are connected with each other."""
    channels = [BulkChannel(BulkStream(sock)) for sock in socket.socketpair()]
    yield channels[0], channels[1]
    for channel in channels:
        channel.close()


def talk(ends: tuple[BulkChannel, BulkChannel]) -> None:
    """1,000 bytes beside one message there, another one back."""
    ours, theirs = ends
    theirs.send(b"x", [memoryview(bytes(1_000))])
    ours.recv()
    ours.send(b"y")
    theirs.recv()


def test_bytes_of_connections_count(ends: tuple[BulkChannel, BulkChannel]) -> None:
    """As soon as they were received or sent, added up and for each principal; open or closed."""
    traffic = Traffic()
    traffic.add(ends[0], "alice")
    traffic.add(ends[1], "bob")
    assert traffic.totals() == {"bytes_received": 0, "bytes_sent": 0}
    talk(ends)
    totals, alices, bobs = traffic.totals(), traffic.totals("alice"), traffic.totals("bob")
    assert alices["bytes_received"] > 1_000 > alices["bytes_sent"] > 0
    assert bobs["bytes_sent"] > 1_000 > bobs["bytes_received"] > 0
    assert totals["bytes_received"] == sum(channel.reader.bytes_received for channel in ends)
    traffic.remove(ends[0])
    assert (traffic.totals(), traffic.totals("alice")) == (totals, alices)
    assert traffic.totals("nobody") == {"bytes_received": 0, "bytes_sent": 0}


def test_whoever_gets_a_name_again_begins_at_nothing(
    ends: tuple[BulkChannel, BulkChannel],
) -> None:
    """The former holder's bytes, also those that are still on their way, count in the sum only."""
    traffic = Traffic()
    traffic.add(ends[0], "alice")
    talk(ends)
    traffic.remove(ends[0])
    traffic.add(ends[1], "alice")
    sums = traffic.totals()
    traffic.forget("alice")
    assert traffic.totals("alice") == {"bytes_received": 0, "bytes_sent": 0}
    assert traffic.totals() == sums
    talk(ends)
    traffic.remove(ends[1])
    assert traffic.totals("alice") == {"bytes_received": 0, "bytes_sent": 0}
    assert traffic.totals()["bytes_sent"] > sums["bytes_sent"]


# what was saved and spent -------------------------------------------------------------------------

ONE = Use(found=1, loaded=2, compiled=3, saved_s=0.5, built_s=0.25)


def test_uses_are_added_to_what_other_processes_have_kept(tmp_path: Path) -> None:
    """Two workers at a time lose nothing, and counting began with the first of all."""
    first, second = (UseTable(str(tmp_path / "use")) for _ in range(2))
    first.add("me", "f", ONE)
    since = first.all().since
    second.add("me", "f", ONE)
    second.add("you", "g", ONE)
    first.add("me", "f", ONE)
    first.flush()
    found = second.all()
    assert found == (since, {("me", "f", ""): ONE + ONE + ONE, ("you", "g", ""): ONE})
    assert UseTable(str(tmp_path / "use")).all() == found
    assert second.all() == found, "nothing is added twice"


def test_a_principal_is_shown_what_was_counted_here(tmp_path: Path) -> None:
    """Not what is kept: the name may have been another person's."""
    before = UseTable(str(tmp_path))
    before.add("account:a", "secret", ONE)
    before.flush()
    table = UseTable(str(tmp_path))
    table.add("account:a", "f", ONE)
    table.add("account:b", "f", ONE)
    assert table.of("account:a").uses == {("account:a", "f", ""): ONE}
    table.all()
    assert table.of("account:a").uses == {("account:a", "f", ""): ONE}


def test_uses_of_a_revoked_account_are_dropped(tmp_path: Path) -> None:
    """Here and on disk; those of others stay."""
    table = UseTable(str(tmp_path))
    for name in ("a", "b"):
        table.add(name, "f", ONE)
    table.all()
    table.add("a", "g", ONE)
    table.forget("a")
    assert table.of("a").uses == {}
    assert UseTable(str(tmp_path)).all().uses == {("b", "f", ""): ONE}


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"format": 9}', '{"format": 1, "since": 0, "rows": [1]}', "\xff"]
)
def test_a_damaged_file_counts_as_none(tmp_path: Path, content: str) -> None:
    """And is replaced."""
    (tmp_path / "use.json").write_text(content, encoding="latin-1")
    table = UseTable(str(tmp_path))
    table.add("me", "f", ONE)
    assert table.all().uses == {("me", "f", ""): ONE}
    assert UseTable(str(tmp_path)).all().uses == {("me", "f", ""): ONE}


def test_what_cannot_be_written_is_counted_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one line in the log."""
    lines = logged_by(counters, monkeypatch)
    (tmp_path / "use").write_text("is no folder")
    table = UseTable(str(tmp_path / "use"))
    for count in (1, 2):
        table.add("me", "f", Use(found=1))
        assert table.all().uses == {("me", "f", ""): Use(found=count)}
    assert not table.is_kept
    assert [event for event, _ in lines] == ["use_not_kept"]
