"""Ends an account's remaining processes and removes its old folders, beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from typing import Any

from jaxd_server.processes.tenants.directory import TenantDirectory


class TenantCleanup:
    """Ends what runs as the user of an account before its next worker starts. For one loop.

    Args:
        tenants: knows whose user is nobody else's; nothing is done about all others.
    """

    def __init__(self, tenants: TenantDirectory) -> None:
        self._tenants = tenants
        self._last: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, principal: str) -> None:
        """Begins to end what runs for a principal now."""
        if not self._tenants.has_own_uid(principal):
            return
        earlier = self._last.get(principal)
        self._last[principal] = asyncio.create_task(self._clear(principal, earlier))

    async def clear(self, principal: str) -> None:
        """As `begin`, and waits until it is done, with all that was begun before."""
        self.begin(principal)
        last = self._last.get(principal)
        if last is not None:
            await asyncio.wait([last])

    def begin_except(self, valid: Collection[str], here: Collection[str]) -> None:
        """Begins to end what runs for accounts that are no more.

        Args:
            valid: the accounts that there are.
            here: those who have a worker, or get one; looked at when it is known what runs.
        """
        self._run_task(self._forget_gone(set(valid), here))

    def forget(self, principal: str) -> None:
        """As `begin`; what it keeps on disk goes as well."""
        self._tenants.forget(principal)
        self.begin(principal)

    async def finish(self) -> None:
        """Ends what runs for anybody; to be called when there are no workers any more."""
        while waited_for := [*self._tasks, *self._last.values()]:
            await asyncio.gather(*waited_for, return_exceptions=True)
        await asyncio.to_thread(self._tenants.end_all_processes)

    def _run_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forget_gone(self, valid: Collection[str], here: Collection[str]) -> None:
        for principal in await asyncio.to_thread(self._tenants.with_processes_or_folders):
            if principal not in valid and principal not in here:
                self.forget(principal)

    async def _clear(self, principal: str, earlier: asyncio.Task[None] | None) -> None:
        try:
            if earlier is not None:
                await asyncio.wait([earlier])
            await asyncio.to_thread(self._tenants.end_processes, principal)
            removal = asyncio.to_thread(self._tenants.remove_old_folders, principal)
            self._run_task(removal)  # the next worker has another one, and need not wait
        finally:
            if self._last.get(principal) is asyncio.current_task():
                del self._last[principal]
