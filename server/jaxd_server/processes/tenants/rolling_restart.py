"""Replaces the workers of several principals, a few at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final, Protocol

from jaxd_server.processes.supervision.untrusted_report import printable
from jaxd_server.runtime.logs import log_event

_MAX_CONCURRENT: Final = 4
"""Each new worker imports jax, and is a second process of its principal for a while."""

_MAX_WAIT_S: Final = 60.0
"""So long one is waited for. It goes on: a worker may finish what it does, however long."""

Outcome = dict[str, Any]


class Restartable(Protocol):
    """What keeps a worker; see `Post`."""

    async def restart(self, *, force: bool = False) -> Outcome:
        """Replaces it: `epoch` and `seconds`, or why not, under `refused`."""


class RollingRestart:
    """Replaces workers, a few at a time. Belongs to the thread of the event loop."""

    def __init__(self) -> None:
        self._unfinished: set[asyncio.Task[Outcome]] = set()

    async def restart(self, posts: Mapping[str, Restartable], *, force: bool) -> Outcome:
        """Replaces all workers, some at the same time; see `Supervisor.restart`.

        Args:
            posts: what keeps them, by principal.
            force: also when arrays of clients are lost.

        Returns:
            `workers`: for each principal the `epoch` of the new one and `seconds`, or why not,
            under `refused`, which is also said of all.
        """
        turns = asyncio.Semaphore(_MAX_CONCURRENT)
        outcomes = await asyncio.gather(
            *(self._restart(who, post, turns, force=force) for who, post in posts.items())
        )
        if not outcomes:
            return {"refused": "there is no worker at work now. See jaxd status."}
        refused = [f"{row['principal']}: {row['refused']}" for row in outcomes if "refused" in row]
        return {"workers": outcomes, **({"refused": "; ".join(refused)} if refused else {})}

    async def _restart(
        self, principal: str, post: Restartable, turns: asyncio.Semaphore, *, force: bool
    ) -> Outcome:
        async with turns:
            task = asyncio.create_task(post.restart(force=force))
            self._unfinished.add(task)
            task.add_done_callback(self._unfinished.discard)
            await asyncio.wait([task], timeout=_MAX_WAIT_S)
        return {"principal": principal, **_outcome(task, principal)}


def _outcome(task: asyncio.Task[Outcome], principal: str) -> Outcome:
    """As it can be shown: a worker says itself why it is needed, and may say anything."""
    if not task.done():
        return {
            "refused": f"it has not made way after {_MAX_WAIT_S:.0f} s, and is replaced when it "
            "has finished its calls. See jaxd status"
        }
    try:
        outcome = task.result()
    except Exception:  # noqa: BLE001  what went wrong for one is not for all
        log_event("restart_failed", level=logging.ERROR, principal=principal)
        return {"refused": "it failed; see the server's log"}
    return {name: printable(value) for name, value in outcome.items()}
