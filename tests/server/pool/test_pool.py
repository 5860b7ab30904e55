"""Keeping as many members as are wanted: with members in this process, in the place of Ray's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxd_protocol.errors import AuthenticationFailed, ConfigurationError, ServerDraining
from jaxd_protocol.network.local_server import make_private_directory
from jaxd_protocol.network.tokens import Seal
from jaxd_server.pool import __main__ as pool_process
from jaxd_server.pool.__main__ import Pool
from jaxd_server.pool.member_server import StaticPool
from jaxd_server.pool.members import (
    LoadScaling,
    MemberEnd,
    MemberReport,
    MemberTable,
    Order,
)
from jaxd_server.pool.settings import MemberSettings, PoolSettings, ScalingSettings

KEY = "a-key-of-a-pool-for-tests-only"
STEP_S = pool_process.TICK_S
"""For so long a step takes outside of these tests."""


class FakeMember:
    """Answers sealed messages as a member's actor does."""

    def __init__(self, name: str, settings: MemberSettings, key: str = KEY) -> None:
        self.settings = settings
        self.report = MemberReport("", "ready", devices=1, version=settings.version)
        self.orders: list[Order] = []
        self.end = MemberEnd(name, Seal(key), lambda: self.report, self._obey)

    def _obey(self, order: Order, loses_values: bool) -> bool:
        """As a server does, which looks for values when it takes no more of them."""
        is_obeyed = loses_values or not self.report.values
        self.orders += [order] * is_obeyed
        return is_obeyed


class FakeCluster:
    """As `RayMembers`: what outlives a director is in it."""

    def __init__(self) -> None:
        self.members: dict[str, FakeMember] = {}
        self.dead: set[str] = set()
        self.undying: set[str] = set()
        self.silent: set[str] = set()
        self.started: list[str] = []
        self.room = 100
        self.key = KEY
        self._epoch = 0
        self._kept = b""
        self._replaced: set[int] = set()

    def take_over(self) -> tuple[int, bytes]:
        self._epoch += 1
        return self._epoch, self._kept

    def keep(self, epoch: int, kept: bytes) -> None:
        if epoch < self._epoch:
            self._replaced.add(epoch)
        else:
            self._kept = kept

    def is_replaced(self) -> bool:
        is_replaced = bool(self._replaced)
        self._replaced.clear()
        return is_replaced

    def start(self, name: str, settings: MemberSettings) -> None:
        self.started.append(name)
        if len(self.members) < self.room:
            self.members[name] = FakeMember(name, settings, self.key)

    def send(self, name: str, message: bytes) -> Callable[[], bytes | str]:
        if name not in self.started:
            raise LookupError(name)

        def answer() -> bytes | str:
            if name in self.dead:
                return "its process has ended"
            try:
                return self.members[name].end.answer(message)
            except AuthenticationFailed as error:
                return str(error)

        return answer

    def collect(self, sent: Mapping[str, Any], timeout_s: float) -> dict[str, bytes | str]:
        time.sleep(min(timeout_s, 0.001))  # as long as a look at nothing takes
        heard = self.members.keys() - self.silent
        return {name: ref() for name, ref in sent.items() if name in heard}

    def kill(self, name: str) -> str:
        if name in self.undying:
            return "the head does not answer"
        self.members.pop(name, None)
        return ""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes no time, and nothing waits."""
    monkeypatch.setattr(pool_process, "TICK_S", 0.001)
    monkeypatch.setattr(pool_process, "_EMPTY_S", 0.0)


@pytest.fixture
def cluster() -> FakeCluster:
    """Empty."""
    return FakeCluster()


def pool_in(
    cluster: FakeCluster,
    *,
    is_settled: bool = True,
    scaling: ScalingSettings = ScalingSettings(),  # noqa: B008  it is frozen
    **members: Any,
) -> Pool:
    """A director's part of two members."""
    wanted = MemberSettings(**{"count": 2, "most": 4, **members})
    settings = PoolSettings("lab", members=wanted, scaling=scaling)
    found = Pool(settings, cluster, MemberTable("lab"), Seal(KEY))  # type: ignore[arg-type]
    if is_settled:
        settle(found)
    return found


def settle(pool: Pool, steps: int = 8) -> dict[str, str]:
    """The states of the members after some steps."""
    for _ in range(steps):
        pool.step()
    return states(pool)


def states(pool: Pool) -> dict[str, str]:
    """The states of the members by name."""
    return {each["name"]: each["state"] for each in pool.status()["members"]}


def hold_values(cluster: FakeCluster, name: str, count: int = 3) -> None:
    """A client has arrays in a member."""
    member = cluster.members[name]
    member.report = replace(member.report, values=count, value_bytes=10 * count, sessions=1)


def test_a_new_pool_starts_its_members(cluster: FakeCluster) -> None:
    """As many as its settings say, once."""
    pool = pool_in(cluster)
    assert states(pool) == {"m1": "ready", "m2": "ready"}
    assert cluster.started == ["m1", "m2"]


def test_what_has_no_room_is_starting(cluster: FakeCluster) -> None:
    """Ray starts it when there is room."""
    cluster.room = 1
    pool = pool_in(cluster)
    assert states(pool) == {"m1": "ready", "m2": "starting"}
    cluster.members["m2"] = FakeMember("m2", MemberSettings())
    assert settle(pool) == {"m1": "ready", "m2": "ready"}


def test_a_pool_is_scaled_within_its_limits(cluster: FakeCluster) -> None:
    """New members get names of their own; those that leave are ended."""
    pool = pool_in(cluster)
    pool.obey("scale", {"count": 3})
    assert settle(pool) == {"m1": "ready", "m2": "ready", "m3": "ready"}
    pool.obey("scale", {"count": 1})
    assert len(settle(pool)) == 1
    pool.obey("scale", {"count": 2})
    assert "m4" in settle(pool)
    for count in (0, 5, "2", None):
        with pytest.raises(ConfigurationError, match="1 to 4 members"):
            pool.obey("scale", {"count": count})


def test_scaling_down_takes_members_without_values(cluster: FakeCluster) -> None:
    """A member that has some stays, where another one can go."""
    pool = pool_in(cluster)
    hold_values(cluster, "m1")
    settle(pool)
    pool.obey("scale", {"count": 1})
    assert settle(pool) == {"m1": "ready"}


def test_scaling_down_keeps_the_members_that_are_warm(cluster: FakeCluster) -> None:
    """Of those without values the one goes that has the fewest programs, or does not serve yet."""
    pool = pool_in(cluster)
    pool.obey("scale", {"count": 3})
    settle(pool)
    for name, programs in (("m1", ("a", "b")), ("m2", ("a",))):
        member = cluster.members[name]
        member.report = replace(member.report, warm=programs)
    settle(pool)
    pool.obey("scale", {"count": 2})
    assert settle(pool) == {"m1": "ready", "m2": "ready"}
    pool.obey("scale", {"count": 1})
    assert settle(pool) == {"m1": "ready"}


def test_scaling_down_loses_no_values_without_force(cluster: FakeCluster) -> None:
    """It says which member has what, and changes nothing."""
    pool = pool_in(cluster)
    for name in ("m1", "m2"):
        hold_values(cluster, name)
    settle(pool)
    with pytest.raises(ConfigurationError, match=r"m1 \(3 of 1 clients, 0\.0 MB\).*--force"):
        pool.obey("scale", {"count": 1})
    assert settle(pool) == {"m1": "ready", "m2": "ready"}
    pool.obey("scale", {"count": 1, "force": True})
    assert len(settle(pool)) == 1


def test_what_a_new_director_has_not_heard_from_may_have_values(cluster: FakeCluster) -> None:
    """It ends nothing before it knows: the last one has not kept how many there are."""
    pool_in(cluster)
    later = pool_in(cluster, is_settled=False)
    with pytest.raises(ConfigurationError, match=r"m1 \(not heard from yet\)"):
        later.obey("down", {})
    settle(later)
    later.obey("down", {})
    settle(later)
    assert later.is_over


def test_values_of_a_lost_member_count(cluster: FakeCluster) -> None:
    """It may only be slow; until another process takes its place they may come back."""
    pool = pool_in(cluster)
    first = cluster.members["m1"]
    first.report = replace(first.report, values=3, value_bytes=5, sessions=1)
    settle(pool)
    cluster.dead.add("m1")
    assert settle(pool)["m1"] == "lost"
    pool.obey("drain", {"name": "m1"})
    assert settle(pool)["m1"] == "lost"
    with pytest.raises(ConfigurationError, match=r"m1 \(3 of 1 clients, 0\.0 MB, lost\)"):
        pool.obey("down", {})
    cluster.dead.discard("m1")
    cluster.members["m1"] = FakeMember("m1", first.settings)
    assert "m1" not in settle(pool)


# scaling by load ----------------------------------------------------------------------------------


def loaded(pool: Pool, cluster: FakeCluster, load: int, values: int = 0) -> dict[str, str]:
    """The states of the members after each has had so many calls open for some steps."""
    for member in cluster.members.values():
        member.report = replace(member.report, load=load, values=values)
    return settle(pool)


def test_the_number_of_members_follows_the_load(cluster: FakeCluster) -> None:
    """Between the least and the most, and no member with arrays goes."""
    scaling = ScalingSettings(busy=2.0, up_s=1e-9, down_s=1e-9)
    pool = pool_in(cluster, scaling=scaling, count=1)
    assert len(loaded(pool, cluster, 9)) == 4
    loaded(pool, cluster, 0, values=1)
    assert len(states(pool)) == 4
    kept = cluster.members["m2"]
    for name, member in cluster.members.items():
        member.report = replace(member.report, values=int(name == "m2"))
    settle(pool, 40)
    assert states(pool) == {"m2": "ready"}
    assert kept.orders == []


def test_a_load_counts_once_it_has_lasted() -> None:
    """For ten seconds where it is high, and for five minutes where it is low."""
    now = 0.0
    scaling = LoadScaling(ScalingSettings(2.0), MemberSettings(1, 1, 8), lambda: now)
    for now, load, wanted in (
        *((1.0, 9, 2), (9.0, 9, 2), (9.5, 4, 2), (10.0, 9, 2), (19.0, 9, 2), (20.0, 9, 4)),
        *((21.0, 0, 2), (319.5, 0, 2), (321.5, 0, 1)),
    ):
        assert scaling.wanted(2, load, 2) == wanted, now
    assert LoadScaling(ScalingSettings(), MemberSettings()).wanted(2, 99, 2) == 2


def test_the_load_ends_no_last_member_and_a_pool_of_none_goes_on(cluster: FakeCluster) -> None:
    """Without members there is no load that asks for one; `scale` still does."""
    scaling = ScalingSettings(busy=2.0, up_s=1e-9, down_s=1e-9)
    pool = pool_in(cluster, scaling=scaling, count=1, least=0)
    assert len(loaded(pool, cluster, 0)) == 1
    pool.obey("scale", {"count": 0})
    assert settle(pool) == {}
    pool.obey("scale", {"count": 2})
    assert list(settle(pool, 20).values()) == ["ready"]


def test_the_load_counts_beside_a_member_that_is_not_there(cluster: FakeCluster) -> None:
    """One without room is wanted no more where the load is low; one that is lost is replaced."""
    cluster.room = 1
    scaling = ScalingSettings(busy=2.0, up_s=1e-9, down_s=1e-9)
    pool = pool_in(cluster, scaling=scaling, is_settled=False)
    assert len(settle(pool)) == 1
    cluster.room = 100
    assert len(loaded(pool, cluster, 4)) == 2
    cluster.dead.add("m1")
    assert list(loaded(pool, cluster, 9).values()).count("ready") == 3


def test_what_the_load_was_before_nobody_answered_does_not_count() -> None:
    """It has to last anew."""
    now = 0.0
    scaling = LoadScaling(ScalingSettings(2.0), MemberSettings(1, 1, 8), lambda: now)
    scaling.wanted(2, 9, 2)
    now = 100.0
    scaling.restart()
    assert scaling.wanted(2, 9, 2) == 2
    now = 111.0
    assert scaling.wanted(2, 9, 2, is_starting=True) == 2
    now = 122.0
    assert scaling.wanted(2, 9, 2) == 4


def test_a_drained_member_ends_once_it_is_empty(cluster: FakeCluster) -> None:
    """Its clients take their values along; another member is started in its place."""
    pool = pool_in(cluster)
    hold_values(cluster, "m1")
    settle(pool)
    pool.obey("drain", {"name": "m1"})
    assert settle(pool) == {"m1": "draining", "m2": "ready", "m3": "ready"}
    member = cluster.members["m1"]
    assert member.orders == []
    hold_values(cluster, "m1", 0)
    assert settle(pool) == {"m2": "ready", "m3": "ready"}
    assert member.orders == ["stop"]
    assert "m1" not in cluster.members


def test_a_member_that_gets_values_before_its_stop_goes_on(cluster: FakeCluster) -> None:
    """A client had not heard yet that it is to be left; it ends when that has left, too."""
    pool = pool_in(cluster)
    send, member = cluster.send, cluster.members["m1"]

    def send_late(name: str, message: bytes) -> Callable[[], bytes | str]:
        if name in pool._stopping:
            hold_values(cluster, name)
        return send(name, message)

    cluster.send = send_late  # type: ignore[method-assign]
    pool.obey("drain", {"name": "m1"})
    assert settle(pool)["m1"] == "draining"
    assert member.orders == []
    cluster.send = send  # type: ignore[method-assign]
    with pytest.raises(ConfigurationError, match="--force"):
        pool.obey("down", {})
    hold_values(cluster, "m1", 0)
    assert settle(pool) == {"m2": "ready", "m3": "ready"}
    assert member.orders == ["stop"]


def test_a_member_that_runs_calls_is_not_ended(cluster: FakeCluster) -> None:
    """Though it has no values."""
    pool = pool_in(cluster)
    member = cluster.members["m1"]
    member.report = replace(member.report, load=1)
    settle(pool)
    pool.obey("drain", {"name": "m1"})
    assert settle(pool)["m1"] == "draining"
    member.report = replace(member.report, load=0)
    assert "m1" not in settle(pool)


def test_a_forced_drain_does_not_wait(cluster: FakeCluster) -> None:
    """The values are lost."""
    pool = pool_in(cluster)
    hold_values(cluster, "m1")
    settle(pool)
    pool.obey("drain", {"name": "m1", "force": True})
    assert settle(pool) == {"m2": "ready", "m3": "ready"}


def test_a_dead_member_is_lost_and_comes_back_as_another_epoch(cluster: FakeCluster) -> None:
    """Ray starts it again under its name."""
    pool = pool_in(cluster)
    cluster.dead.add("m1")
    assert settle(pool) == {"m1": "lost", "m2": "ready"}
    cluster.dead.clear()
    cluster.members["m1"] = FakeMember("m1", MemberSettings())
    settle(pool)
    epochs = {each["name"]: each["epoch"] for each in pool.status()["members"]}
    assert (states(pool), epochs) == ({"m1": "ready", "m2": "ready"}, {"m1": 2, "m2": 1})


def test_a_member_whose_machine_is_gone_is_lost_within_three_seconds(
    cluster: FakeCluster,
) -> None:
    """Though Ray says nothing of it: it neither answers nor fails."""
    now = began = 100.0
    table = MemberTable("lab", lambda: now)
    settings = PoolSettings("lab", members=MemberSettings(count=2))
    pool = Pool(settings, cluster, table, Seal(KEY))  # type: ignore[arg-type]
    assert settle(pool) == {"m1": "ready", "m2": "ready"}
    cluster.silent.add("m1")
    seen = {}
    for now in np.arange(began + STEP_S, began + 5.0, STEP_S):
        pool.step()
        seen[now - began] = states(pool)["m1"]
    assert min(at for at, state in seen.items() if state == "lost") < 3.0
    assert max(at for at, state in seen.items() if state == "ready") >= 2.0
    assert states(pool)["m2"] == "ready"


def test_a_member_with_another_key_is_never_ready(cluster: FakeCluster) -> None:
    """Its node has not the pool's key; the status says so."""
    cluster.key = "the-key-of-another-pool-for-tests"
    pool = pool_in(cluster, count=1)
    (member,) = pool.status()["members"]
    assert member["state"] == "starting"
    assert "JAXD_POOL_KEY" in member["why"]


def test_what_cannot_start_is_started_again(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray gives up what fails before it has begun; the reason may pass."""
    monkeypatch.setattr(pool_process, "_GONE_S", 0.0)
    cluster.key = "the-key-of-another-pool-for-tests"
    pool = pool_in(cluster, count=1)
    cluster.key = KEY
    assert settle(pool, 20) == {"m1": "ready"}
    assert set(cluster.started) == {"m1"}


def test_the_next_director_takes_the_members_over(cluster: FakeCluster) -> None:
    """None is started, ended or counted as another epoch; what was drained stays so."""
    before = pool_in(cluster)
    hold_values(cluster, "m1")
    settle(before)
    before.obey("drain", {"name": "m1"})
    settle(before)
    after = pool_in(cluster, is_settled=False)
    assert states(after) == {"m1": "draining", "m2": "ready", "m3": "ready"}
    assert settle(after) == {"m1": "draining", "m2": "ready", "m3": "ready"}
    assert {each["epoch"] for each in after.status()["members"]} == {1}
    assert cluster.started == ["m1", "m2", "m3"]
    assert (before.epoch, after.epoch) == (1, 2)


def test_a_director_that_was_replaced_ends(cluster: FakeCluster) -> None:
    """It would start members of its own."""
    before = pool_in(cluster)
    after = pool_in(cluster)
    before.obey("drain", {"name": "m1"})
    with pytest.raises(ServerDraining, match="another director"):
        settle(before)
    assert settle(after) == {"m1": "ready", "m2": "ready"}


def test_a_state_that_is_not_sealed_is_refused(cluster: FakeCluster) -> None:
    """Whoever is in the cluster could have put it there."""
    pool_in(cluster)
    cluster._kept += b" "
    with pytest.raises(AuthenticationFailed):
        pool_in(cluster)


def test_a_count_that_was_scaled_outlives_the_director(cluster: FakeCluster) -> None:
    """Unless the file has another one now."""
    pool_in(cluster).obey("scale", {"count": 3})
    before = pool_in(cluster)
    assert before.status()["wanted"] == 2, "the first director had not kept it"
    before.obey("scale", {"count": 3})
    settle(before)
    assert pool_in(cluster).status()["wanted"] == 3
    assert pool_in(cluster, count=1).status()["wanted"] == 1


def test_two_versions_are_there_until_the_new_one_is_ready(cluster: FakeCluster) -> None:
    """The old members are left one by one, and end when they are empty."""
    settle(pool_in(cluster, version="1"))
    hold_values(cluster, "m1")
    cluster.room = 3
    pool = pool_in(cluster, version="2")
    told = {"m1": "draining", "m2": "ready", "m3": "ready", "m4": "starting"}
    assert states(pool) == told
    versions = {each["version"] for each in pool.status()["members"] if each["state"] == "ready"}
    assert versions == {"1", "2"}
    cluster.room = 4
    cluster.members.setdefault("m4", FakeMember("m4", MemberSettings(version="2")))
    assert settle(pool) == {"m1": "draining", "m3": "ready", "m4": "ready"}
    hold_values(cluster, "m1", 0)
    assert settle(pool) == {"m3": "ready", "m4": "ready"}


def test_a_pool_that_is_down_has_no_members(cluster: FakeCluster) -> None:
    """It refuses while clients have values, unless it is forced."""
    pool = pool_in(cluster)
    hold_values(cluster, "m2")
    settle(pool)
    with pytest.raises(ConfigurationError, match="m2"):
        pool.obey("down", {})
    assert states(pool) == {"m1": "ready", "m2": "ready"}
    pool.obey("down", {"force": True})
    assert settle(pool) == {}
    assert pool.is_over
    assert cluster.members == {}


def test_a_member_that_ray_does_not_end_is_shown_and_ended_later(cluster: FakeCluster) -> None:
    """The pool is not over before; in between nothing is started in its place."""
    pool = pool_in(cluster)
    cluster.undying.add("m2")
    pool.obey("down", {})
    assert settle(pool) == {"m2": "lost"}
    (row,) = pool.status()["members"]
    assert row["why"] == "Ray does not end it: the head does not answer"
    was_over = pool.is_over
    cluster.undying.clear()
    assert settle(pool) == {}
    assert (was_over, pool.is_over) == (False, True)
    assert cluster.started == ["m1", "m2"]


def test_an_unknown_order_is_refused(cluster: FakeCluster) -> None:
    """Of a newer jaxd."""
    with pytest.raises(ConfigurationError, match="'dance'"):
        pool_in(cluster).obey("dance", {})


def test_a_director_of_servers_of_others_knows_their_epochs_again(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else clients would take each for another one than before, and their arrays for gone."""
    said, is_over = {"report": MemberReport("i1", "ready")}, threading.Event()

    class Server:
        """Reports what the test says."""

        def __init__(self, *_: object) -> None:
            pass

        def wait_for_load(self, *_: object) -> None:
            is_over.wait(0.01)
            if is_over.is_set():
                threading.Event().wait()

        def report(self) -> MemberReport:
            return said["report"]

    monkeypatch.setattr("jaxd_server.pool.member_server.StaticServer", Server)
    settings = PoolSettings("lab", static={"m1": ("unix:///s",)})
    make_private_directory(settings.files.directory)

    def epoch_in(table: MemberTable) -> int:
        return table.entry("m1").member.epoch

    table = MemberTable("lab")
    StaticPool(settings, table, None)
    for instance, epoch in (("i1", 1), ("i2", 2)):
        said["report"] = MemberReport(instance, "ready")
        while epoch_in(table) != epoch:
            is_over.wait(0.01)
    while '"epoch": 2' not in Path(settings.files.directory, "static.json").read_text():
        is_over.wait(0.01)
    is_over.set()
    later = MemberTable("lab")
    StaticPool(settings, later, None)
    assert epoch_in(later) == 2
