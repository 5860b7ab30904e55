"""Clearing without processes: what is done, and in which order."""

from __future__ import annotations

import asyncio
import threading
from typing import cast

from jaxd_server.processes.tenants.directory import TenantCleanup, TenantDirectory

PATIENCE_S = 30.0


class Accounts:
    """Of `TenantDirectory`, what ends processes; takes as long as it is told to."""

    def __init__(self, *running: str) -> None:
        self.running = set(running)
        self.ended: list[str] = []
        self.may_end = threading.Event()
        self.may_remove = threading.Event()

    def has_own_uid(self, principal: str) -> bool:
        return not principal.startswith("uid:")

    def with_processes_or_folders(self) -> set[str]:
        return set(self.running)

    def forget(self, principal: str) -> None:
        self.ended.append(f"forget {principal}")

    def remove_old_folders(self, principal: str) -> None:
        self.may_remove.wait(PATIENCE_S)
        self.ended.append(f"remove {principal}")

    def end_processes(self, principal: str) -> None:
        self.may_end.wait(PATIENCE_S)
        self.ended.append(principal)

    def end_all_processes(self) -> None:
        self.ended.append("all")


def clearing(accounts: Accounts) -> TenantCleanup:
    return TenantCleanup(cast("TenantDirectory", accounts))


def test_the_loop_goes_on_while_processes_end() -> None:
    """However long somebody's take; who waits goes on when all that was begun is done."""

    async def main() -> None:
        accounts = Accounts()
        one = clearing(accounts)
        one.begin("account:a")
        waiting = asyncio.create_task(one.clear("account:a"))
        await one.clear("uid:7")  # of whom nothing is ended
        assert not accounts.ended
        accounts.may_end.set()
        await asyncio.wait_for(waiting, PATIENCE_S)
        assert accounts.ended == ["account:a"] * 2, "nobody waits for folders"
        accounts.may_remove.set()
        await one.finish()
        assert accounts.ended[2:] == ["remove account:a"] * 2 + ["all"]

    asyncio.run(main())


def test_what_runs_for_accounts_that_are_no_more_is_ended() -> None:
    """Also without a worker; not for those who may stay, or got a worker meanwhile."""

    async def main() -> None:
        accounts = Accounts("account:a", "account:b", "account:c")
        accounts.may_end.set()
        accounts.may_remove.set()
        here = dict[str, None]()
        one = clearing(accounts)
        one.begin_except({"account:b"}, here)
        here["account:c"] = None
        await one.finish()
        assert accounts.ended == ["forget account:a", "account:a", "remove account:a", "all"]

    asyncio.run(main())
