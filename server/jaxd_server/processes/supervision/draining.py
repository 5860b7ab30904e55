"""Drains workers that have been replaced: waits until their last call is done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from jaxd_server.processes.supervision.worker_channel import ANSWER_TIMEOUT_S
from jaxd_server.processes.supervision.worker_process import WorkerProcess
from jaxd_server.runtime.logs import log_event


async def wait_first(*events: asyncio.Event, timeout_s: float | None = None) -> None:
    """Returns when one of `events` is set, or after `timeout_s`."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


_POLL_S: Final = 0.1


class DrainingWorkers:
    """Workers that accept no more clients. Belongs to the thread of the event loop.

    Args:
        drain_timeout_s: how long one may still be there that runs no call.
        is_forced: whether all are to be killed anyway.
    """

    def __init__(self, drain_timeout_s: float, is_forced: Callable[[], bool]) -> None:
        self._drain_timeout_s = drain_timeout_s
        self._is_forced = is_forced
        self._tasks: dict[WorkerProcess, asyncio.Task[None]] = {}

    def workers(self) -> list[WorkerProcess]:
        """Those that are still there."""
        return list(self._tasks)

    def retire(self, worker: WorkerProcess) -> None:
        """Lets one that another one has followed finish its calls."""
        self._tasks[worker] = asyncio.create_task(self._retire(worker))

    def dismiss(self, worker: WorkerProcess) -> None:
        """Ends one that never let anybody in."""
        worker.kill()
        self._tasks[worker] = asyncio.create_task(self._collect(worker))

    async def are_gone(self) -> None:
        """Returns when none of those is left that there are now."""
        if self._tasks:
            await asyncio.wait(self._tasks.values())

    async def until_drained(self, worker: WorkerProcess, give_up: Callable[[], None]) -> None:
        """Running calls may take as long as they like; a worker that reports none may not.

        Args:
            worker: has been told to end.
            give_up: kills it.
        """
        quiet_since = time.monotonic()
        while not worker.exited.is_set():
            if await worker.refresh(ANSWER_TIMEOUT_S) and worker.snapshot.get("running_calls"):
                quiet_since = time.monotonic()
            elif time.monotonic() - quiet_since >= self._drain_timeout_s and not self._is_forced():
                log_event("drain_timed_out", pid=worker.pid)
                give_up()
            await wait_first(worker.exited, timeout_s=_POLL_S)

    async def _retire(self, worker: WorkerProcess) -> None:
        await self.until_drained(worker, worker.kill)
        await self._collect(worker)

    async def _collect(self, worker: WorkerProcess) -> None:
        await worker.exited.wait()
        await worker.read_remaining()
        worker.close()
        log_exit(worker)
        self._tasks.pop(worker, None)


def log_exit(worker: WorkerProcess, restart_in_s: float | None = None) -> None:
    """Says how a worker ended, and when the next one begins if that is because of it."""
    log_event(
        f"{worker.what}_exited",
        pid=worker.pid,
        epoch=worker.epoch,
        principal=worker.principal,
        **worker.ending,
        lived_s=round(worker.lived_s, 3),
        restart_in_s=restart_in_s,
    )
