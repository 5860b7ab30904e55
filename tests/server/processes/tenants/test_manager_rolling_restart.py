"""Posts without processes. With those: test_crew.py."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from jaxd_server.processes.tenants.manager import RollingRestart

if TYPE_CHECKING:
    import pytest

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


def test_there_is_none() -> None:
    """Which is said."""
    assert "no worker at work" in restart()["refused"]
