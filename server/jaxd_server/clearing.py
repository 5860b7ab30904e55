"""Ends what accounts have left running, beside the event loop and in order."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from jaxd_server.tenants import Tenants

__all__ = ["Clearing"]


class Clearing:
    """What runs as the user of an account is ended before its next worker starts. For one loop.

    Args:
        tenants: knows whose user is nobody else's; nothing is done about all others.
    """

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants
        self._last: dict[str, asyncio.Task[None]] = {}
        self._looks: set[asyncio.Task[None]] = set()

    def begin(self, principal: str) -> None:
        """Begins to end what runs for a principal now."""
        if not self._tenants.has_number(principal):
            return
        earlier = self._last.get(principal)
        self._last[principal] = asyncio.create_task(self._clear(principal, earlier))

    async def clear(self, principal: str) -> None:
        """As `begin`, and waits until it is done, with all that was begun before."""
        self.begin(principal)
        last = self._last.get(principal)
        if last is not None:
            await asyncio.wait([last])

    def begin_all_but(self, valid: Collection[str], here: Collection[str]) -> None:
        """Begins to end what runs for accounts that are no more.

        Args:
            valid: the accounts that there are.
            here: those who have a worker, or get one; looked at when it is known what runs.
        """
        look = asyncio.create_task(self._look(set(valid), here))
        self._looks.add(look)
        look.add_done_callback(self._looks.discard)

    async def finish(self) -> None:
        """Ends what runs for anybody; to be called when there are no workers any more."""
        await asyncio.gather(*self._looks, return_exceptions=True)
        await asyncio.gather(*self._last.values(), return_exceptions=True)
        await asyncio.to_thread(self._tenants.end_all_processes)

    async def _look(self, valid: Collection[str], here: Collection[str]) -> None:
        for principal in await asyncio.to_thread(self._tenants.with_processes):
            if principal not in valid and principal not in here:
                self.begin(principal)

    async def _clear(self, principal: str, earlier: asyncio.Task[None] | None) -> None:
        try:
            if earlier is not None:
                await asyncio.wait([earlier])
            await asyncio.to_thread(self._tenants.end_processes, principal)
        finally:
            if self._last.get(principal) is asyncio.current_task():
                del self._last[principal]
