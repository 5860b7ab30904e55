"""The host's view, of workers without processes; see also tests/end_to_end/test_watch.py."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jaxd_protocol.messages.server_view import (
    BuildRow,
    EventRow,
    ServerRow,
    ServerView,
    row_dict,
)
from jaxd_server.processes.supervision import server_view
from jaxd_server.processes.supervision.server_view import ServerViews, period_of
from jaxd_server.processes.supervision.supervisor import Supervisor
from tests.ids import row


class FakeWorker(SimpleNamespace):
    """A worker that says what a test has it say, and counts how often it is asked."""

    def __init__(self, *says: Any, **more: Any) -> None:
        super().__init__(
            says=list(says),
            asked=0,
            epoch=1,
            pid=1,
            principal=None,
            was_ready=True,
            state="ready",
            silent_s=0.0,
            exited=asyncio.Event(),
            recorder=SimpleNamespace(entries=list),
            **more,
        )

    __hash__ = object.__hash__  # type: ignore[assignment]

    async def see(self, sequence: int, source: str, patience_s: float) -> Any:
        """The next thing to say; nothing more when there is none."""
        self.asked += 1
        await asyncio.sleep(0)
        return self.says.pop(0) if self.says else None


class FakeSupervisor(SimpleNamespace):
    """Keeps a fake worker."""

    def __init__(self, worker: Any) -> None:
        super().__init__(worker=worker, broken="", draining=list)

    def shown_state(self, worker: Any, *, is_fresh: bool) -> str:
        """As that of a supervisor."""
        return "ready" if is_fresh else "busy"


def views_of(*workers: Any, principals: tuple[str, ...] = ("",)) -> ServerViews:
    """The view of a server with these workers."""
    supervised = [
        (who, cast("Supervisor", FakeSupervisor(one)))
        for who, one in zip(principals, workers, strict=True)
    ]
    return ServerViews(lambda: supervised, lambda: ServerRow("unix:///s", pid=7))


def shown(views: ServerViews) -> ServerView:
    """What they show now."""
    return ServerView.from_dict(asyncio.run(views.whole()))


def says(sequence: int, *, more: bool = False, **tables: Any) -> dict[str, Any]:
    """Some news of a worker."""
    what = "view" if sequence == 1 else "change"
    return {what: {**tables, "sequence": sequence}, "source": "s", "more": more}


def test_rows_of_a_worker_come_in_pieces() -> None:
    """All of them are there when any is shown."""
    pieces = (
        says(1, more=True, calls={"c1": {"function": "f"}}),
        says(2, more=True, calls={"c2": {"function": "g"}}),
        says(3, counters={"calls": 5}),
    )
    view = shown(views_of(FakeWorker(*pieces)))
    assert [one.function for one in view.calls.values()] == ["f", "g"]
    assert view.counters == {"calls": 5}
    assert [one.state for one in view.workers.values()] == ["ready"]


def test_a_hostile_worker_shows_nothing_that_is_not_a_row() -> None:
    """Neither rows of another type nor those of the host; and nothing fails."""
    rows: list[Any] = [
        {},
        {"view": 3},
        {"view": {"calls": 3}},
        {"view": {"calls": {"c1": 3, "c2": {"since": "x"}, "c3": None}}, "sequence": "x"},
        {"view": {"calls": {"c1": {"since": 10**400}}}},
        {"view": {"calls": {"c1": {"since": float("nan")}}}},
        {"view": {"workers": {"9": {"state": "ready"}}, "server": {"pid": 1}}},
        {"view": {"counters": {"calls": "many", "x": float("inf"), "y": [1]}}},
        {"view": {"counters": [1]}, "more": "yes"},
        {"view": {"functions": {"00": {"latency": ["a"]}}}, "source": 5, "more": True},
    ]
    for said in rows:
        with row(said):
            view = shown(views_of(FakeWorker(said)))
            assert (view.calls, view.functions, view.counters) == ({}, {}, {})
            assert list(view.workers) == ["1"]
            assert view.server.pid == 7


def test_a_hostile_worker_writes_nothing_that_a_terminal_obeys() -> None:
    """In names and texts."""
    view = shown(views_of(FakeWorker(says(1, calls={"c\x1b[1m": {"function": "\x1b]0;hi\a"}}))))
    assert [(name, row.function) for name, row in view.calls.items()] == [("c?[1m", "?]0;hi?")]


def test_a_worker_of_one_principal_speaks_for_nobody_else() -> None:
    """Its rows have its principal's name, and it removes none of others."""
    lie = {"c1": {"function": "f", "principal": "account:bob"}}
    alice = FakeWorker(
        says(1, calls=lie, counters={"calls": 1}),
        says(2, calls={"account:bob/c1": None, "c1": {"function": "g"}}),
    )
    bob = FakeWorker(says(1, calls={"c1": {"function": "h"}}, counters={"calls": 2}))
    views = views_of(alice, bob, principals=("account:alice", "account:bob"))
    view = shown(views)
    assert {name: row.principal for name, row in view.calls.items()} == {
        "account:alice/c1": "account:alice",
        "account:bob/c1": "account:bob",
    }
    assert view.counters == {"calls": 3}
    view = shown(views)
    assert sorted(row.function for row in view.calls.values()) == ["g", "h"]


def test_calls_of_a_worker_that_hangs_are_the_recorded_ones() -> None:
    """Once each, and gone as soon as it answers again."""
    entry = SimpleNamespace(function="hangs", principal="uid:1", started=5.0)
    worker = FakeWorker(says(1, calls={"c1": {"function": "warm"}}))
    views = views_of(worker)
    shown(views)
    worker.recorder = SimpleNamespace(entries=lambda: [entry])
    for _ in range(2):
        view = shown(views)
        assert [row.function for row in view.calls.values()] == ["warm", "hangs"]
        assert [row.state for row in view.workers.values()] == ["busy"]
    worker.says.append(says(2))
    assert [row.function for row in shown(views).calls.values()] == ["warm"]


def test_what_a_worker_has_done_outlives_it() -> None:
    """Builds and events; what it was about to build has failed. All else goes with it."""
    builds = {"1.1": {"verdict": "compile"}, "1.2": {"verdict": "building"}}
    rows: dict[str, Any] = {"calls": {"c1": {}}, "functions": {"00": {}}}
    rows["counters"] = {"calls": 3}
    worker = FakeWorker(
        says(1, builds=builds, events={"1.1": {"name": "built", "at": 9e9}}, **rows)
    )
    views = views_of(worker)
    shown(views)
    worker.exited.set()
    worker.state = "dead"
    view = shown(views)
    assert (view.calls, view.functions, view.counters) == ({}, {}, {})
    assert {name: one.verdict for name, one in view.builds.items()} == {
        "1.1": "compile",
        "1.2": "failed",
    }
    assert view.events["1.1"].name == "built"
    assert [one.pid for one in view.workers.values()] == [0]


@pytest.mark.parametrize(
    ("asked", "every_s"),
    [(0.5, 0.5), (0, 0.1), (1e9, 60.0), (5, 5), (None, 0.5), ("1", 0.5), (float("nan"), 0.5)],
)
def test_how_often_is_bounded(asked: Any, every_s: float) -> None:
    """Whatever somebody writes to the control socket."""
    assert period_of({"every_s": asked}) == every_s


def test_a_hostile_worker_does_not_fill_the_memory_of_its_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows that have no room are left out; there is room again when others go."""
    monkeypatch.setattr(server_view, "_MAX_BYTES", 10_000)
    rows = {f"c{n}": {"function": "x" * 1500} for n in range(100)}
    worker = FakeWorker(says(1, calls=rows))
    views = views_of(worker)
    assert len(shown(views).calls) == 4
    worker.says.append(says(2, calls={"c0": None, "c9": {"function": "f"}}))
    assert shown(views).calls.keys() == {"c1", "c2", "c3", "c9"}
    assert views.journal._removed == {("calls", "c0"): None}
    monkeypatch.setattr(server_view, "_MAX_BYTES", 40_000)  # lists of texts count, and are cut
    lists: dict[str, Any] = {"largest": ["x" * 1900] * 64, "largest_nbytes": [1] * 64}
    view = shown(views_of(FakeWorker(says(1, values={f"v{n}": lists for n in range(100)}))))
    sizes = [(len(row.largest), len(row.largest_nbytes)) for row in view.values.values()]
    assert sizes == [(8, 8)] * 2


def test_all_workers_share_the_room_of_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of bytes and of rows of a table; what a worker had is free when it ends."""
    monkeypatch.setattr(server_view, "_MAX_ALL_BYTES", 10_000)
    rows = {f"c{n}": {"function": "x" * 1500} for n in range(3)}
    many = [FakeWorker(says(1, calls=rows)) for _ in range(3)]
    assert len(shown(views_of(*many, principals=("a", "b", "c"))).calls) == 4
    monkeypatch.setattr(server_view, "_MAX_ALL_BYTES", 1 << 30)
    monkeypatch.setattr(server_view, "_MAX_TABLE", 4)
    many = [FakeWorker(says(1, calls=rows)) for _ in range(3)]
    views = views_of(*many, principals=("a", "b", "c"))
    assert len(shown(views).calls) == 4
    many[0].exited.set()
    many[2].says.append(says(2, calls=rows))
    assert sorted(shown(views).calls) == ["b/c0", "c/c0", "c/c1", "c/c2"]


def test_a_collection_takes_so_much_of_a_worker_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows of a piece, bytes and pieces; the rest comes with the next. All watchers share it."""
    large = {f"c{n}": {"function": "f"} for n in range(5000)}
    assert len(shown(views_of(FakeWorker(says(1, calls=large)))).calls) == 800

    def asked(*pieces: Any) -> int:
        worker, views = FakeWorker(*pieces), []

        async def ask() -> None:
            views.append(views_of(worker))
            await asyncio.gather(*(views[0].refresh() for _ in range(10)))

        asyncio.run(ask())
        return int(worker.asked)

    many = [says(n, more=True, calls={"c": {}}) for n in range(1, 50)]
    assert asked(says(1)) == 1
    assert asked(*(says(2, more=True, calls={}) for _ in range(50))) <= 3  # the same again
    with monkeypatch.context() as patch:
        patch.setattr(server_view, "_MAX_PIECES", 7)
        assert asked(*many) == 7
    monkeypatch.setattr(server_view, "_MAX_READ_BYTES", 2000)
    assert asked(*many) < 7


@pytest.mark.parametrize("count", [True, 2**63, 2.0**63, -(2**63), "7"])
def test_counters_are_those_that_every_reader_takes(count: Any) -> None:
    """One that is not costs nobody the view; nor does a sum."""
    worker = FakeWorker(says(1, counters={"calls": count, "hits": 2**63 - 1}))
    other = FakeWorker(says(1, counters={"hits": 2**63 - 1}))
    view = shown(views_of(worker, other, principals=("a", "b")))
    assert view.counters == {"hits": 2**63 - 1}
    counters = {f"c{n}": 1 for n in range(300)}  # more than there is room for
    pieces = (says(1, more=True, counters=counters), says(2, counters={"c3": 9}))
    view = shown(views_of(FakeWorker(*pieces)))
    assert (len(view.counters), view.counters["c3"]) == (200, 9)


def test_a_worker_that_always_has_more_does_not_keep_others_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a number that rises or with another one each time."""

    class Endless(FakeWorker):
        async def see(self, sequence: int, source: str, patience_s: float) -> Any:
            """Something more."""
            self.asked += 1
            await asyncio.sleep(0)
            return self.make(self.asked)

    stalling = Endless(make=lambda n: {**says(1, more=True), "source": str(n)})
    shown(views_of(stalling))
    assert stalling.asked <= 4
    falling = Endless(make=lambda n: says(-n, more=True))
    shown(views_of(falling))
    assert falling.asked <= 4
    monkeypatch.setattr(server_view, "_CATCH_UP_S", 0.0)
    monkeypatch.setattr(server_view, "_MAX_PIECES", 5)
    rising = Endless(make=lambda n: says(n, more=True))
    shown(views_of(rising))
    assert rising.asked <= 10


def test_a_worker_changes_no_events_and_builds_but_its_own() -> None:
    """Those of the host and of other workers stay as they are."""
    worker = FakeWorker(says(1, events={"1.1": {"name": "built", "at": 9e9}}))
    views = views_of(worker)
    views.journal.put("events", "0.0", row_dict(EventRow(9e9, "worker_exited", "error")))
    views.journal.put("builds", "2.5", row_dict(BuildRow("f", verdict="compile")))
    lie: dict[str, Any] = {"events": {"0.0": {"name": "built"}}, "builds": {"2.5": {}}}
    worker.says += [says(2, **lie), says(3, events={"0.0": None}, builds={"2.5": None})]
    for _ in range(3):
        view = shown(views)
        assert view.events["0.0"].name == "worker_exited"
        assert view.events["1.1"].name == "built"
        assert view.builds["2.5"].verdict == "compile"


def test_the_rows_of_the_next_worker_are_not_those_that_end() -> None:
    """Also when both have rows of the same names, and nobody has looked in between."""
    rows = {"00": {"name": "f", "hits": 3}}
    first, second = FakeWorker(says(1, functions=rows)), FakeWorker(says(1, functions=rows))
    one = FakeSupervisor(first)
    views = _kept_by(one)
    shown(views)
    one.worker = second
    assert [row.hits for row in shown(views).functions.values()] == [3]


def test_why_no_worker_starts_is_shown_in_one_line() -> None:
    """Of all principals, or of one; what its output was may be hostile."""
    one = FakeSupervisor(None)
    assert [row.state for row in shown(_kept_by(one)).workers.values()] == ["starting"]
    one.broken = "it ended:\n   \x1b[31mImportError"
    (row,) = shown(_kept_by(one)).workers.values()
    assert (row.state, row.why) == ("broken", "it ended: ?[31mImportError")
    failed = [{"principal": "account:alice", "why": "it\nended"}]
    (row,) = shown(_kept_by(failed=failed)).workers.values()
    assert (row.state, row.principal, row.why) == ("broken", "account:alice", "it ended")


def _kept_by(*supervisors: FakeSupervisor, failed: Sequence[Mapping[str, Any]] = ()) -> ServerViews:
    supervised = [("", cast("Supervisor", one)) for one in supervisors]
    return ServerViews(lambda: supervised, ServerRow, lambda: failed)


def test_a_failure_to_collect_does_not_end_what_others_watch() -> None:
    """The next collection is as any other."""
    worker = FakeWorker(says(1))
    views = views_of(worker)
    calls: list[int] = []

    def describe() -> ServerRow:
        calls.append(1)
        if len(calls) < 3:
            raise ZeroDivisionError
        return ServerRow(pid=9)

    async def watch() -> int:
        changes = views.watch(0.01)
        await anext(changes)
        views._describe = describe
        async for news in changes:
            if "server" in news.change:
                break
        await changes.aclose()
        return int(news.change["server"]["pid"])

    assert asyncio.run(watch()) == 9
