"""Keeps one worker alive behind the listeners, and ends it well."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

from jaxd_protocol.errors import ServerStartFailed
from jaxd_server.listeners import Listener
from jaxd_server.logs import log_event
from jaxd_server.options import ServerOptions
from jaxd_server.quarantine import Quarantine
from jaxd_server.restarts import MAX_FAILED_STARTS, RestartPolicy
from jaxd_server.worker_process import WorkerProcess

__all__ = ["PATIENCE_S", "Supervisor"]

PATIENCE_S = 0.5
"""How long a worker may take to answer a question about itself before it counts as busy."""

_DRAIN_LOOK_S = 0.1


class Supervisor:
    """Starts, watches and replaces workers. Belongs to the thread of the event loop.

    Attributes:
        worker: the present worker, or the last one while there is none; None before the first.
        stopping: set once the server has begun to stop.
        quarantine: what workers died of.
    """

    def __init__(self, options: ServerOptions, worker_command: Sequence[str]) -> None:
        self.worker: WorkerProcess | None = None
        self.stopping = asyncio.Event()
        self.quarantine = Quarantine()
        self._options = options
        self._worker_command = worker_command
        self._policy = RestartPolicy()
        self._forced = False

    def stop(self, *, now: bool = False) -> None:
        """Begins to stop: finishes running calls first, or kills the worker `now`."""
        self.stopping.set()
        if now:
            self._forced = True
            if self.worker is not None:
                self.worker.kill()

    def release(self, what: str) -> list[dict[str, Any]]:
        """Has functions called again that were in quarantine; see `Quarantine.release`."""
        rows = self.quarantine.release(what)
        if self.worker is not None:
            for row in rows:
                self.worker.release(row["fingerprint"])
        return rows

    async def run(self, listeners: Sequence[Listener]) -> int:
        """Keeps a worker on `listeners` until `stop()`, and returns the exit code of the server.

        Returns:
            0 when the last worker was drained, 1 when it had to be killed.

        Raises:
            ServerStartFailed: when worker after worker ended before it was ready.
        """
        try:
            for epoch in itertools.count(1):
                delay_s = await self._live(listeners, epoch)
                if self.worker is not None and self.worker.state == "resting":
                    await _somebody_knocks(listeners, self.stopping)
                await _first_of(self.stopping, timeout_s=delay_s)
                if self.stopping.is_set():
                    break
            await self._drain()
            return int(self._forced)
        finally:
            if self.worker is not None:
                self.worker.kill()

    async def _live(self, listeners: Sequence[Listener], epoch: int) -> float:
        """One worker, until it ends or the server stops; the seconds until the next one."""
        try:
            suspects = self.quarantine.for_worker()
            worker = WorkerProcess.start(
                self._worker_command, self._options, listeners, epoch, suspects
            )
        except OSError as error:  # no memory or no process left: that may pass
            log_event("worker_not_started", epoch=epoch, error=str(error))
            return _or_give_up(self._policy.delay_s(0.0, was_ready=False), [str(error)])
        self.worker = worker
        log_event("worker_started", pid=worker.pid, epoch=epoch)
        await _first_of(worker.exited, self.stopping, worker.outdated, worker.resting)
        if worker.outdated.is_set() or worker.resting.is_set():
            await self._wait_until_drained(worker, worker.kill)
        if not worker.exited.is_set():
            return 0.0
        await worker.hear_out()
        worker.close()
        if worker.outdated.is_set() or worker.resting.is_set():  # on purpose, which is no death
            _log_exit(worker, restart_in_s=0.0)
            return 0.0
        self.quarantine.died(worker.box.entries(), worker.epoch, worker.how)
        delay_s = self._policy.delay_s(worker.lived_s, was_ready=worker.was_ready)
        _log_exit(worker, restart_in_s=delay_s)
        return _or_give_up(delay_s, worker.last_lines() if delay_s is None else [])

    async def _drain(self) -> None:
        worker = self.worker
        if worker is None or worker.exited.is_set():
            return
        log_event("draining", running_calls=worker.snapshot.get("running_calls"))
        worker.drain()
        if self._forced:
            worker.kill()  # it was asked for before there was a worker
        await self._wait_until_drained(worker, lambda: self.stop(now=True))
        worker.last_lines()  # its last words reach the log before we leave
        _log_exit(worker)

    async def _wait_until_drained(self, worker: WorkerProcess, give_up: Callable[[], None]) -> None:
        """Running calls may take as long as they like; a worker that reports none may not."""
        quiet_since = time.monotonic()
        while not worker.exited.is_set():
            if await worker.refresh(PATIENCE_S) and worker.snapshot.get("running_calls"):
                quiet_since = time.monotonic()
            elif (
                time.monotonic() - quiet_since >= self._options.drain_timeout_s and not self._forced
            ):
                log_event("drain_timed_out", pid=worker.pid)
                give_up()
            await _first_of(worker.exited, timeout_s=_DRAIN_LOOK_S)


async def _somebody_knocks(listeners: Sequence[Listener], stopping: asyncio.Event) -> None:
    """Returns when somebody connects, who is left waiting for the next worker; or when stopping."""
    knock = asyncio.Event()
    loop = asyncio.get_running_loop()
    for one in listeners:
        loop.add_reader(one.socket, knock.set)
    try:
        await _first_of(knock, stopping)
    finally:
        for one in listeners:
            loop.remove_reader(one.socket)


async def _first_of(*events: asyncio.Event, timeout_s: float | None = None) -> None:
    """Returns when one of `events` is set, or after `timeout_s`."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def _log_exit(worker: WorkerProcess, restart_in_s: float | None = None) -> None:
    log_event(
        "worker_exited",
        pid=worker.pid,
        epoch=worker.epoch,
        **worker.ending,
        lived_s=round(worker.lived_s, 3),
        restart_in_s=restart_in_s,
    )


def _or_give_up(delay_s: float | None, last_lines: list[str]) -> float:
    if delay_s is not None:
        return delay_s
    said = "\n".join(f"    {line}" for line in last_lines) or "    (nothing)"
    raise ServerStartFailed(
        f"the worker ended {MAX_FAILED_STARTS} times before it was ready; the last one wrote:\n"
        f"{said}\nCorrect that and start the server again; `jaxd doctor` looks for usual causes."
    )
