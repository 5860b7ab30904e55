"""What the manager of tenants is made of, without processes. With those: test_manager.py."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from jaxd_protocol.errors import CannotListen
from jaxd_server.config.options import ServerOptions
from jaxd_server.processes.supervision.supervisor import Supervisor
from jaxd_server.processes.supervision.tenant_settings import Tenant, User
from jaxd_server.processes.tenants.manager import RollingRestart, TenantWorker, tenants_report

GATEWAY = {"worker": {"running_calls": 0}, "worker_state": "ready", "worker_silent_s": 0.1}
ALICE = Tenant("account:alice", "/kept", User(61000, 61000, (), "61000", "/kept"))
BOB = Tenant("account:bob", "none")


def told(**seen: object) -> dict[str, object]:
    """What is known of a worker that has said this."""
    return {"worker_state": "ready", "worker_pid": 7, "worker": seen}


def running(function: str, **more: object) -> dict[str, object]:
    """A call that runs."""
    return {"function": function, "seconds": 1.5, **more}


def test_the_report_has_the_sums_and_a_row_for_each() -> None:
    """And the state of the gateway, through which all come."""
    alices = told(calls=3, epoch=5, running=[running("f")])
    bobs = told(calls=4, epoch=1, running=[running("g")])
    report = tenants_report(GATEWAY, [ALICE, BOB], [alices, bobs])
    assert report["worker_state"] == "ready"
    assert report["worker"] == {
        "calls": 7,
        "running": [
            running("f", principal="account:alice"),
            running("g", principal="account:bob"),
        ],
    }
    assert [row["user"] for row in report["workers"]] == ["61000", None]
    assert [row["worker"]["calls"] for row in report["workers"]] == [3, 4]
    assert report["workers"][0]["worker"]["epoch"] == 5


def test_nobody_is_there() -> None:
    """Right after the start."""
    assert tenants_report(GATEWAY, [], []) == {**GATEWAY, "worker": {}, "workers": []}


def test_a_worker_that_says_nonsense_spoils_nobody_elses_report() -> None:
    """Code of its client may have made it say that, under the name of another as well."""
    lies = [7, {}, {"function": "f", "seconds": "long"}, running("f", principal="account:bob")]
    liar = told(calls="many", traces=[1], running=lies, left_behind=7, principals=["x"])
    honest = told(calls=4, traces=1, running=[running("g")], left_behind=[], principals=[])
    report = tenants_report(GATEWAY, [ALICE, BOB], [liar, honest])
    assert report["worker"] == {
        "calls": 4,
        "traces": 1,
        "running": [
            running("f", principal="account:alice"),
            running("g", principal="account:bob"),
        ],
        "left_behind": [],
        "principals": [],
    }


DONE = {"epoch": 2, "seconds": 0.5}


class FakeSupervisor:
    """Says `outcome`, once `may` be."""

    def __init__(self, outcome: Any = DONE, may: asyncio.Event | None = None) -> None:
        self.outcome = outcome
        self.may = may
        self.has_begun = asyncio.Event()

    async def restart(self, *, force: bool = False) -> dict[str, Any]:
        self.has_begun.set()
        if self.may is not None:
            await self.may.wait()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return {**self.outcome, "force": force}


def restart(**posts: Any) -> dict[str, Any]:
    """What becomes of them."""
    return asyncio.run(RollingRestart().restart(posts, force=True))


def test_one_that_never_makes_way_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says of itself is not true, or its call takes a day: the others are replaced."""
    monkeypatch.setattr("jaxd_server.processes.tenants.manager._MAX_WAIT_S", 0.0)
    monkeypatch.setattr("jaxd_server.processes.tenants.manager._MAX_CONCURRENT", 1)

    async def play() -> None:
        may = asyncio.Event()
        crew = RollingRestart()
        posts = {"slow": FakeSupervisor(may=may), "quick": FakeSupervisor()}
        outcome = await crew.restart(cast("Any", posts), force=False)
        assert [row["principal"] for row in outcome["workers"]] == ["slow", "quick"]
        assert outcome["workers"][0]["refused"].endswith("finished its calls. See jaxd status")
        assert outcome["refused"].startswith("slow: ")
        (task,) = crew._unfinished  # and it goes on
        may.set()
        assert (await task)["epoch"] == 2
        assert not task.cancelled()

    asyncio.run(play())


def test_none_waits_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one is asked before the first one has made way."""

    async def play() -> dict[str, Any]:
        second = FakeSupervisor()
        first = FakeSupervisor(may=second.has_begun)
        posts = {"first": first, "second": second}
        return await RollingRestart().restart(cast("Any", posts), force=True)

    rows = asyncio.run(play())["workers"]
    assert [(row["principal"], row["epoch"], row["force"]) for row in rows] == [
        ("first", 2, True),
        ("second", 2, True),
    ]


def test_why_one_is_needed_does_nothing_to_a_terminal() -> None:
    """It says so itself, and whoever is told is root perhaps."""
    outcome = restart(alice=FakeSupervisor({"refused": "\x1b[2J" + "x" * 10_000}))
    assert outcome["refused"].startswith("alice: ?[2Jxxx")
    assert len(outcome["refused"]) < 1100
    assert len(outcome["workers"][0]["refused"]) == 1000


def test_one_that_fails_fails_alone() -> None:
    """The others have been replaced, and that is said."""
    outcome = restart(alice=FakeSupervisor(TypeError("unhashable")), bob=FakeSupervisor())
    assert outcome["refused"] == "alice: it failed; see the server's log"
    assert outcome["workers"][1]["epoch"] == 2


def opened(path: Path) -> TenantWorker:
    """Alice's, at a path."""
    tenant = Tenant("account:alice", "none")
    return TenantWorker.opened(tenant, "t", str(path), Supervisor(ServerOptions(), (), tenant))


@pytest.fixture
def place(runtime: Path) -> Iterator[TenantWorker]:
    """One whose worker has not been started."""
    place = opened(runtime / "a.sock")
    yield place
    place.close()


def visit(place: TenantWorker) -> socket.socket:
    """Somebody who is handed over."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(place.listener.address.path)
    return sock


def test_a_place_is_free_when_nobody_is_there_and_nobody_has_come(
    place: TenantWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its worker has begun to rest it is not; nor while somebody waits; nor once closed."""
    found = [place.is_vacant]
    monkeypatch.setattr(Supervisor, "is_resting", True)
    found.append(place.is_vacant)
    with visit(place):
        found.append(place.is_vacant)
    place.close()
    assert [*found, place.is_vacant] == [False, True, False, False]


def test_whoever_waits_is_sent_away(place: TenantWorker) -> None:
    """And the path is gone."""
    with visit(place) as sock:
        place.close()
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
    assert not os.path.exists(place.listener.address.path)


def test_a_path_is_given_up_before_the_socket_is(place: TenantWorker) -> None:
    """The next place of the same principal has it, and keeps it."""
    path = Path(place.listener.address.path)
    with pytest.raises(CannotListen):
        opened(path)
    place.release_path()
    place.release_path()
    following = opened(path)
    place.close()
    with visit(following):
        pass
    following.close()
