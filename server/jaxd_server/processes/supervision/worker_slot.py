"""One worker slot of the host: supervised, health-checked, and reported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxd_server.auth.listeners import Listener
from jaxd_server.config.options import ServerOptions
from jaxd_server.processes.supervision.health_monitor import HealthMonitor, calls_of, process_state
from jaxd_server.processes.supervision.quarantine import Quarantine
from jaxd_server.processes.supervision.supervisor import Supervisor
from jaxd_server.processes.supervision.tenant import Tenant
from jaxd_server.processes.supervision.untrusted_report import is_number
from jaxd_server.processes.supervision.worker_process import ANSWER_TIMEOUT_S, WorkerProcess


class WorkerSlot:
    """Keeps one worker running behind some listeners. Belongs to the thread of the event loop.

    Args:
        options: of the worker.
        worker_command: what is started as worker; it gets one JSON argument.
        tenant: whose worker it is, where not all share it.
        on_message: called with the worker's messages that its supervisor does not handle.
        what: the word for the worker in the log.
        quarantine: the functions that ended its earlier workers.
    """

    def __init__(
        self,
        options: ServerOptions,
        worker_command: Sequence[str],
        tenant: Tenant | None = None,
        on_message: Callable[[WorkerProcess, Mapping[str, Any]], None] = lambda worker, message: (
            None
        ),
        what: str = "worker",
        quarantine: Quarantine | None = None,
    ) -> None:
        self._supervisor = Supervisor(options, worker_command, tenant, on_message, what, quarantine)
        self._health_monitor = HealthMonitor(self._supervisor, options)

    async def run(self, listeners: Sequence[Listener], control: str = "") -> int:
        """Keeps a worker until `stop`; returns the exit code.

        Args:
            listeners: what the worker listens on.
            control: the path of the control socket, which it does not need.

        Raises:
            ServerStartFailed: when worker after worker ended before it was ready.
        """
        watch = asyncio.create_task(self._health_monitor.watch())
        try:
            return await self._supervisor.run(listeners)
        finally:
            watch.cancel()

    @property
    def is_stopping(self) -> bool:
        """Whether it has begun to stop."""
        return self._supervisor.stopping.is_set()

    @property
    def is_resting(self) -> bool:
        """Whether there is no worker until a client connects."""
        worker = self._supervisor.worker
        return worker is not None and worker.state == "resting"

    def processes(self) -> list[WorkerProcess]:
        """All workers that there are, in whatever state."""
        return self._supervisor.processes()

    def stop(self, *, now: bool = False) -> None:
        """Begins to stop: finishes running calls first, or kills the worker `now`."""
        self._supervisor.stop(now=now)

    async def restart(self, *, force: bool = False) -> dict[str, Any]:
        """Replaces the worker; see `Supervisor.restart`."""
        return await self._supervisor.restart(force=force)

    def quarantined(self) -> list[dict[str, Any]]:
        """The functions in quarantine, because they have ended workers."""
        return self._supervisor.quarantine.rows()

    def release(self, what: str) -> list[dict[str, Any]]:
        """Releases some of them, by name or fingerprint; returns their rows."""
        return self._supervisor.release(what)

    def describe(self) -> dict[str, Any]:
        """The facts about its workers for the host's part of a status."""
        worker = self._supervisor.worker
        return {
            "epoch": worker.epoch if worker else 0,
            "worker_pid": worker.pid if worker and not worker.exited.is_set() else None,
            "restarts": worker.epoch - 1 if worker else 0,
            "quarantined": len(self.quarantined()),
        }

    async def status(self) -> dict[str, Any]:
        """The worker's part of a status; waits half a second for the worker, and no longer."""
        worker = self._supervisor.worker
        if worker is None:
            return {"worker": {}, "worker_state": "starting"}
        # A worker that is starting cannot answer, and whoever waits for it polls often.
        may_answer = worker.was_ready and worker.state != "resting"
        fresh = may_answer and await worker.refresh(ANSWER_TIMEOUT_S)
        is_busy = worker.state == "ready" and not fresh
        stuck = is_busy and self._health_monitor.is_stuck(worker)
        seen = {**worker.snapshot, "running": calls_of(worker)} if is_busy else worker.snapshot
        return {
            "worker": seen,
            "worker_state": ("stuck" if stuck else "busy") if is_busy else worker.state,
            "worker_silent_s": round(worker.silent_s, 3),
            "worker_process": process_state(worker.pid) if is_busy else None,
        }

    async def idle_s(self) -> float:
        """Seconds without connection and call; 0 when the worker does not report it now."""
        worker = self._supervisor.worker
        if worker is not None and worker.state == "resting":
            return _seconds(worker.snapshot) + worker.silent_s
        if worker is None or not worker.was_ready or not await worker.refresh(ANSWER_TIMEOUT_S):
            return 0.0
        seen = worker.snapshot
        if seen.get("connections") or seen.get("running_calls"):
            return 0.0
        return _seconds(seen)


def _seconds(snapshot: Mapping[str, Any]) -> float:
    """The idle time that a worker reports; its code may be hostile, so any value is possible."""
    idle_s = snapshot.get("idle_s")
    return max(0.0, float(idle_s)) if is_number(idle_s) else 0.0
