"""The members of a pool as their director knows them, and the sealed messages between the two."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxd import connect
from jaxd_protocol.errors import (
    AuthenticationFailed,
    ConfigurationError,
    NoServer,
    ProtocolError,
)
from jaxd_protocol.messages.pool_view import LOAD_SETTLES_S, PoolView
from jaxd_protocol.messages.server_view import FunctionRow, ServerView, SessionRow, ValueRow
from jaxd_protocol.network.local_server import control_path
from jaxd_protocol.network.pool_routing import SPREAD, SPREAD_EVERY_S, Busy
from jaxd_protocol.network.tokens import Seal
from jaxd_server.pool.member_server import BusyFunctions, MemberServer, ServerWatch, report_of
from jaxd_server.pool.members import (
    SILENT_S,
    DirectorEnd,
    MemberEnd,
    MemberReport,
    MemberTable,
    Order,
    busy_rows,
)
from jaxd_server.pool.settings import MemberSettings
from tests.server.staging import until

KEY = "a-key-of-a-pool-for-tests-only"
READY = MemberReport("i1", "ready", addresses=("unix:///s",), machine="m", node="n", devices=1)


class Clock:
    """Stands still until it is set."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """At some time."""
    return Clock()


@pytest.fixture
def table(clock: Clock) -> MemberTable:
    """With one member that was started."""
    found = MemberTable("lab", clock)
    found.expect("m1", "1.0")
    return found


def seen(table: MemberTable) -> PoolView:
    """What a client sees."""
    return PoolView.from_dict(table.news(0, "").to_message()["view"])


def state_of(table: MemberTable, name: str = "m1") -> tuple[str, int]:
    """State and epoch of a member, as clients see it."""
    member = seen(table).members[name]
    return member.state, member.epoch


# sealed messages ----------------------------------------------------------------------------------


def ends(*, key: str = KEY, said: MemberReport = READY) -> tuple[DirectorEnd, MemberEnd, list[str]]:
    """Both ends, and what the member was ordered."""
    obeyed: list[str] = []

    def obey(order: Order, _: bool) -> bool:
        obeyed.append(order)
        return True

    return DirectorEnd(Seal(KEY)), MemberEnd("m1", Seal(key), lambda: said, obey), obeyed


def test_a_report_arrives() -> None:
    """With the name of the process that has made it."""
    director, member, _ = ends()
    message, nonce = director.ask("m1")
    report = director.read("m1", nonce, member.answer(message))
    assert report == replace(READY, instance=member.instance)


def test_messages_of_another_key_are_refused_at_either_end() -> None:
    """A node with the key of another pool, or a director without it."""
    director, member, obeyed = ends(key="the-key-of-another-pool-for-tests")
    message, nonce = director.ask("m1", "stop", member.instance)
    with pytest.raises(AuthenticationFailed, match="JAXD_POOL_KEY"):
        member.answer(message)
    forged = Seal("the-key-of-another-pool-for-tests").seal(f"from m1 {nonce}", {})
    with pytest.raises(AuthenticationFailed, match="JAXD_POOL_KEY"):
        director.read("m1", nonce, forged)
    assert obeyed == []


def test_a_message_that_was_changed_is_refused() -> None:
    """Each byte of it counts."""
    director, member, _ = ends()
    message, _ = director.ask("m1")
    for at in (0, 31, 32, len(message) - 1):
        changed = bytearray(message)
        changed[at] ^= 1
        with pytest.raises(AuthenticationFailed):
            member.answer(bytes(changed))


def test_a_report_is_good_for_one_question() -> None:
    """An earlier report, and that of another member, answer nothing."""
    director, member, _ = ends()
    message, nonce = director.ask("m1")
    said = member.answer(message)
    _, later = director.ask("m1")
    with pytest.raises(AuthenticationFailed):
        director.read("m1", later, said)
    with pytest.raises(AuthenticationFailed):
        director.read("m2", nonce, said)


def test_an_order_is_obeyed_once() -> None:
    """Sent again, or sent to a later process of the member, it does nothing."""
    director, member, obeyed = ends()
    message, _ = director.ask("m1", "stop", member.instance)
    member.answer(message)
    with pytest.raises(AuthenticationFailed, match="sent again"):
        member.answer(message)
    _, restarted, also_obeyed = ends()
    with pytest.raises(AuthenticationFailed, match="earlier process"):
        restarted.answer(message)
    assert (obeyed, also_obeyed) == (["stop"], [])


def test_a_server_that_does_not_answer_may_have_all_that_it_had(runtime: Path) -> None:
    """Its member is not ended as an empty one; before the first answer it has nothing."""
    view = ServerView(values={"a": ValueRow(count=3, nbytes=40)}, sessions={"a": SessionRow()})
    path = str(runtime / "control")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        watch = ServerWatch(path)
        assert report_of(None, watch.last_view).values == 0
        host, _ = listener.accept()
        host.sendall(json.dumps({"view": view.to_dict()}).encode() + b"\n")
        until(lambda: watch.view is not None)
        os.unlink(path)
        host.close()
        until(lambda: watch.view is None)
    watch.close()
    report = report_of(watch.view, watch.last_view)
    assert (report.state, report.values, report.value_bytes) == ("starting", 3, 40)
    assert report.sessions == 1


def test_a_member_reports_its_warm_functions_and_what_is_under_names() -> None:
    """Those used last first, and none without a program; so many digits as clients are told."""
    used = {"a": 1.0, "b": 3.0, "c": 2.0}
    rows = {32 * (n + n): FunctionRow(programs=1, last_use=at) for n, at in used.items()}
    rows |= {64 * "d": FunctionRow(programs=0, last_use=9.0)}
    rows |= {f"{n:064x}": FunctionRow(programs=1) for n in range(100)}
    held = {"s": ValueRow(count=2), "n": ValueRow(kind="name", count=1)}
    report = report_of(ServerView(functions=rows, values=held), ServerView())
    assert report.warm[:3] == (16 * "b", 16 * "c", 16 * "a")
    assert len(report.warm) == 64
    assert (report.values, report.named) == (3, 1)


@pytest.mark.slow
def test_a_member_that_is_to_stop_keeps_what_was_put_just_before(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks when it takes no more arrays, and not at what it has shown of them before."""
    monkeypatch.setattr(ServerWatch, "view", None)  # as before the first one
    server = MemberServer("lab", "m1", MemberSettings(), "127.0.0.1", KEY)
    server._started.wait()
    try:
        until(lambda: os.path.exists(control_path(server._unix)))
        with connect(str(server._unix)) as client:
            array = client.put(np.ones(8))
            assert server.stop(loses_values=False) is False
            assert client.get(array).tolist() == [1.0] * 8
            array.delete()
            until(lambda: server.stop(loses_values=False))
            with pytest.raises(NoServer):
                client.put(np.ones(8))
    finally:
        server.stop()


def test_a_folder_that_is_full_keeps_no_member_from_reporting(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The director would take it for lost; it is told again who is in the pool."""
    monkeypatch.setattr(MemberServer, "_run", lambda _: None)
    server = MemberServer("lab", "m1", MemberSettings(), "127.0.0.1", KEY)
    os.rmdir(server.folder)
    assert server.know({"m1": ("tls://h:1",)}) is False
    member = MemberEnd("m1", Seal(KEY), lambda: READY, lambda *_: True, server.know)
    director = DirectorEnd(Seal(KEY))
    for folder_is_there in (False, True):
        if folder_is_there:
            os.mkdir(server.folder)
        message, nonce = director.ask("m1", "report", member.instance, {"m1": ("tls://h:1",)})
        report = director.read("m1", nonce, member.answer(message))
        assert bool(report.knows) is folder_is_there
    server._watch.close()


def test_an_order_to_one_member_is_none_to_another() -> None:
    """The seal covers the name."""
    director, member, obeyed = ends()
    message, _ = director.ask("m2", "stop", member.instance)
    with pytest.raises(AuthenticationFailed):
        member.answer(message)
    assert obeyed == []


def test_what_is_sealed_and_no_report_is_refused() -> None:
    """Of another version, perhaps."""
    director = DirectorEnd(Seal(KEY))
    _, nonce = director.ask("m1")
    with pytest.raises(ProtocolError, match="m1"):
        director.read("m1", nonce, Seal(KEY).seal(f"from m1 {nonce}", {"load": "many"}))


# the table ----------------------------------------------------------------------------------------


def test_a_member_is_shown_as_it_reports(table: MemberTable) -> None:
    """First as starting, then with what it says, in its first epoch."""
    assert state_of(table) == ("starting", 0)
    table.hear("m1", replace(READY, load=2, warm=("0" * 16,), values=9))
    member = seen(table).members["m1"]
    assert (member.state, member.epoch, member.load) == ("ready", 1, 2)
    assert member.addresses == ("unix:///s",)
    assert table.entries()[0].to_status()["warm"] == ("0" * 16,)


def test_another_process_is_another_epoch(table: MemberTable) -> None:
    """The values of the one before are gone."""
    table.hear("m1", READY)
    table.hear("m1", READY)
    assert state_of(table) == ("ready", 1)
    table.hear("m1", replace(READY, instance="i2", state="starting"))
    assert state_of(table) == ("starting", 2)


def test_a_silent_member_is_lost_and_comes_back_in_its_epoch(
    table: MemberTable, clock: Clock
) -> None:
    """Once it has not reported for two seconds; it has its values all the same."""
    table.hear("m1", READY)
    clock.now += SILENT_S
    table.check_silence()
    assert state_of(table) == ("ready", 1)
    clock.now += 0.01
    table.check_silence()
    assert state_of(table) == ("lost", 1)
    table.hear("m1", READY)
    assert state_of(table) == ("ready", 1)


def test_a_member_that_fails_is_lost_at_once(table: MemberTable) -> None:
    """Ray says that its process has ended; one that has never reported is still starting."""
    table.miss("m1", "no room")
    assert state_of(table) == ("starting", 0)
    assert table.entry("m1").why == "no room"
    table.hear("m1", READY)
    table.miss("m1", "its process has ended")
    assert state_of(table) == ("lost", 1)


def test_members_that_are_being_ended_may_be_silent(table: MemberTable, clock: Clock) -> None:
    """They are not asked any more."""
    table.hear("m1", READY)
    clock.now += 2 * SILENT_S
    table.check_silence({"m1"})
    assert state_of(table) == ("ready", 1)


def test_a_member_is_drained_at_once_and_stays_so(table: MemberTable) -> None:
    """Whatever it reports; it is lost when it is lost."""
    table.hear("m1", READY)
    table.drain("m1")
    assert state_of(table)[0] == "draining"
    table.hear("m1", READY)
    assert state_of(table)[0] == "draining"
    table.hear("m1", replace(READY, state="lost"))
    assert state_of(table)[0] == "lost"
    with pytest.raises(ConfigurationError, match=r"no member 'm7' \(there are: m1\)"):
        table.drain("m7")


def test_a_load_is_news_when_it_has_changed_by_an_eighth(table: MemberTable, clock: Clock) -> None:
    """Thousands of clients are told; a smaller change is told after a second."""
    table.hear("m1", replace(READY, load=80))
    before = table.sequence
    for load in range(71, 90):
        table.hear("m1", replace(READY, load=load))
    assert table.sequence == before
    table.hear("m1", replace(READY, load=90))
    assert table.sequence == before + 1
    assert seen(table).members["m1"].load == 90
    clock.now += LOAD_SETTLES_S
    table.hear("m1", replace(READY, load=91))
    assert seen(table).members["m1"].load == 91
    table.hear("m1", replace(READY, load=92, state="starting"))
    assert seen(table).members["m1"].load == 92


def test_of_a_member_with_another_load_nothing_else_is_sent(table: MemberTable) -> None:
    """Its addresses are most of what there is of it; who did not know these gets all."""
    table.hear("m1", READY)
    known = table.news(0, "")
    table.hear("m1", replace(READY, load=5))
    news = table.news(known.sequence, known.source)
    assert news.change["members"] == {"m1": {"load": 5}}
    view = PoolView.from_dict(known.change).patched(news.change)
    assert view.members == seen(table).members
    table.hear("m1", replace(READY, load=9, node="n2"))
    assert table.news(news.sequence, news.source).change["members"]["m1"]["node"] == "n2"
    assert table.news(known.sequence, known.source).change["members"]["m1"]["node"] == "n2"


def test_a_function_with_many_open_calls_is_spread(table: MemberTable, clock: Clock) -> None:
    """Of all members together; once a second, and no more when they have gone."""
    table.expect("m2", "1.0")
    busy = replace(READY, **busy_rows({"ab" * 32: Busy(3.0, 0.01), "cd" * 32: Busy(0.2, 0.01)}))
    table.hear("m1", busy)
    table.hear("m2", replace(busy, instance="i2"))
    assert seen(table).spreads == {}
    known, told = table.news(0, ""), list[None]()
    table.on_news = lambda: told.append(None)
    clock.now += SPREAD_EVERY_S
    table.hear("m1", busy)
    assert seen(table).spreads == {"ab" * 8: ceil(SPREAD * 5.99)}
    assert len(told) == 1
    change = table.news(known.sequence, known.source).change
    assert PoolView.from_dict(known.change).patched(change).spreads == seen(table).spreads
    for name, instance in (("m1", "i1"), ("m2", "i2")) * 20:
        clock.now += SPREAD_EVERY_S
        table.hear(name, replace(READY, instance=instance))
    assert seen(table).spreads == {}


def test_a_member_says_which_functions_have_its_calls_open() -> None:
    """By the time that their calls have taken since a second ago."""
    clock, key = Clock(), "ab" * 32
    busy = BusyFunctions(clock)

    def saw(hits: int, run_s: float) -> Mapping[str, Any]:
        clock.now += SPREAD_EVERY_S
        return busy.of(ServerView(functions={key: FunctionRow(hits=hits, run_s=run_s)}))

    assert saw(100, 50.0) == busy_rows({})
    found = saw(110, 51.5)
    assert found == {"busy": (key[:16],), "busy_calls": (150,), "busy_us": (150_000,)}
    assert busy.of(ServerView()) == found  # until a second has passed
    assert report_of(ServerView(), ServerView(), **found).busy == (key[:16],)


def test_a_change_that_is_being_made_is_not_lost(
    table: MemberTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that asks in the middle of it gets all of the row, and not its load alone."""
    table.hear("m1", READY)
    known, got = table.news(0, ""), []
    put = table._journal.put

    def put_and_ask(*row: Any) -> bool:
        is_change = put(*row)
        asks = threading.Thread(target=lambda: got.append(table.news(known.sequence, known.source)))
        asks.start()
        asks.join(0.2)  # it may have to wait until the change is whole
        asking.append(asks)
        return is_change

    asking: list[threading.Thread] = []
    monkeypatch.setattr(table._journal, "put", put_and_ask)
    table.hear("m1", replace(READY, state="lost"))
    asking[0].join()
    assert got[0].change["members"]["m1"]["state"] == "lost"


def test_the_next_director_knows_what_this_one_did(table: MemberTable, clock: Clock) -> None:
    """Clients see no change: neither state nor addresses nor epochs, but for the load."""
    table.expect("m2", "1.0")
    table.hear("m1", READY)
    table.hear("m2", replace(READY, instance="i2"))
    table.drain("m2")
    later = MemberTable("lab", clock)
    later.restore(table.to_kept())
    assert seen(later).members == seen(table).members
    later.hear("m1", READY)
    later.hear("m2", replace(READY, instance="i2"))
    assert (state_of(later), state_of(later, "m2")) == (("ready", 1), ("draining", 1))
    later.hear("m1", replace(READY, instance="i9"))
    assert state_of(later) == ("ready", 2)


def test_a_member_that_the_next_director_cannot_find_is_lost(
    table: MemberTable, clock: Clock
) -> None:
    """After as long as any other."""
    table.hear("m1", READY)
    later = MemberTable("lab", clock)
    later.restore(table.to_kept())
    clock.now += SILENT_S + 0.01
    later.check_silence()
    assert state_of(later) == ("lost", 1)


def test_an_epoch_is_used_once_also_by_a_member_that_was_removed(table: MemberTable) -> None:
    """A client that knew the first one sees that this is another."""
    table.hear("m1", READY)
    table.remove("m1")
    assert "m1" not in seen(table).members
    table.expect("m1", "1.0")
    table.hear("m1", replace(READY, instance="i2"))
    assert state_of(table) == ("ready", 2)


def test_what_is_kept_does_not_change_with_the_load(table: MemberTable) -> None:
    """It would be written twice a second."""
    table.hear("m1", READY)
    before: Any = table.to_kept()
    table.hear("m1", replace(READY, load=7, warm=("1" * 16,), values=3))
    assert table.to_kept() == before
