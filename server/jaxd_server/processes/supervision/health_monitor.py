"""Monitors a worker once a second: whether it answers, and whether it is due for recycling.

It is due after a number of calls, above a size, or at an age. Runs in the host, which imports no
jax and does not hang with a worker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from jaxd_server.auth.listeners import Listener, ListenerProbe
from jaxd_server.config.options import ServerOptions
from jaxd_server.processes.supervision.untrusted_report import valid_rows
from jaxd_server.processes.supervision.worker_process import ANSWER_TIMEOUT_S, WorkerProcess
from jaxd_server.runtime.child_startup import process_facts, request_stack_dump
from jaxd_server.runtime.logs import log_event
from jaxd_server.runtime.system_memory import resident_bytes

_MIN_READY_S: Final = 60.0
"""A worker that is too large sooner than that is not replaced: the next one would be as well."""


def reason_to_recycle(
    options: ServerOptions, status: Mapping[str, Any], ready_s: float, resident_bytes: int
) -> str:
    """Why a worker should be replaced now; empty when there is no reason.

    Args:
        options: of the server.
        status: the worker's report.
        ready_s: how long it has answered calls.
        resident_bytes: its memory.
    """
    calls, limit = status.get("calls", 0), options.recycle_after_calls
    if limit and calls >= limit:
        return f"it has answered {calls:,} calls (--recycle-after-calls {limit})"
    if options.recycle_after_s and ready_s >= options.recycle_after_s:
        return f"it is {ready_s:.0f} s old (--recycle-after-s {options.recycle_after_s:g})"
    limit = options.recycle_above_bytes
    if limit and resident_bytes >= limit and ready_s >= _MIN_READY_S:
        return f"it has {resident_bytes >> 20:,} MiB of memory (--recycle-above-bytes)"
    return ""


_CHECK_S: Final = 1.0
_STAND_BY_AFTER_S: Final = 5.0
_STAND_BY_LATEST_S: Final = 60.0
_RETRY_S: Final = 60.0
_ACCEPT_S: Final = 5.0
"""So long may it take until a client that has connected is accepted."""


class Monitored(Protocol):
    """The interface of a `Supervisor` for its health monitor."""

    worker: WorkerProcess | None

    def listeners(self) -> Sequence[Listener]:
        """What the worker has to accept clients on."""

    def stand_by(self) -> None:
        """Starts the next worker ahead."""

    def prepare_renewal(self) -> None:
        """Has a worker whose packages have changed replaced once another has imported them."""

    async def restart(self) -> dict[str, Any]:
        """Replaces the worker; `refused` says why not."""


class HealthMonitor:
    """Recycles workers that are due, and reports or kills those that do not answer.

    Args:
        supervisor: of the worker.
        options: of the server.
    """

    def __init__(self, supervisor: Monitored, options: ServerOptions) -> None:
        self._supervisor = supervisor
        self._options = options
        self._reported: WorkerProcess | None = None  # logged as stuck
        self._recycle_again_at = 0.0
        self._recycling: asyncio.Task[None] | None = None
        self._waiting: tuple[WorkerProcess, Listener] | None = None  # at the last check

    async def watch(self) -> None:
        """Checks the worker until it is cancelled."""
        while True:
            await asyncio.sleep(_CHECK_S)
            try:
                await self._check()
            except Exception:  # noqa: BLE001  the next check may succeed
                log_event("heartbeat_failed")

    async def _check(self) -> None:
        worker = self._supervisor.worker
        if worker is None or worker.state != "ready":
            return
        self._supervisor.prepare_renewal()
        if await worker.refresh(ANSWER_TIMEOUT_S):
            self._check_recycling(worker)
            await self._check_listeners(worker)
        elif self.is_stuck(worker):
            self._report_stuck(worker)

    async def _check_listeners(self, worker: WorkerProcess) -> None:
        """Ends a worker that answers its host, and lets clients wait that have connected.

        One that has no files or threads left accepts them when there are some again.
        """
        waiting = [
            one for one in self._supervisor.listeners() if ListenerProbe(one.socket).has_waiting()
        ]
        suspect, self._waiting = self._waiting, (worker, waiting[0]) if waiting else None
        if self._waiting is None or suspect != self._waiting or worker.snapshot.get("is_short"):
            return
        probe = ListenerProbe(waiting[0].socket)
        is_accepted = await asyncio.to_thread(probe.accepts, _ACCEPT_S)
        if is_accepted or not await worker.refresh(ANSWER_TIMEOUT_S):
            return  # who does not answer its host either is stuck, which is another thing
        is_current = self._supervisor.worker is worker and worker.state == "ready"
        if not is_current or worker.snapshot.get("is_short"):
            return
        log_event("not_accepting", address=str(waiting[0].address))
        worker.kill("it accepted no clients any more", is_to_blame=False)

    def is_stuck(self, worker: WorkerProcess) -> bool:
        """Whether a worker has not answered for too long."""
        return worker.state == "ready" and worker.silent_s >= self._options.stuck_after_s

    def _check_recycling(self, worker: WorkerProcess) -> None:
        if self._reported is worker:
            self._reported = None
            log_event("worker_answers_again", pid=worker.pid)
        ready_s = worker.ready_s
        after_s = _STAND_BY_LATEST_S if worker.snapshot.get("running_calls") else _STAND_BY_AFTER_S
        if self._options.keeps_standby and ready_s >= after_s:  # not during the first builds
            self._supervisor.stand_by()
        if self._recycling is None and time.monotonic() >= self._recycle_again_at:
            resident = resident_bytes(worker.pid)
            reason = reason_to_recycle(self._options, worker.snapshot, ready_s, resident)
            if reason:
                self._recycling = asyncio.create_task(self._recycle(reason))

    async def _recycle(self, reason: str) -> None:
        self._recycle_again_at = time.monotonic() + _RETRY_S
        try:
            outcome = await self._supervisor.restart()
            refused = outcome.get("refused")
            log_event(
                "recycling_refused" if refused else "worker_recycled", reason=reason, why=refused
            )
        finally:
            self._recycling = None

    def _report_stuck(self, worker: WorkerProcess) -> None:
        if self._reported is not worker:
            self._reported = worker
            log_event(
                "worker_stuck",
                pid=worker.pid,
                silent_s=round(worker.silent_s, 1),
                state=process_state(worker.pid),
                running=calls_of(worker),
            )
            request_stack_dump(worker.pid)
        limit_s = self._options.recycle_stuck_s
        if limit_s and worker.silent_s >= limit_s and not others_with_values(worker):
            worker.kill(f"stuck: no word for {worker.silent_s:.0f} s")


def calls_of(worker: WorkerProcess) -> list[dict[str, Any]]:
    """The calls of a worker that does not answer, the oldest first."""
    recorded = [
        {"function": entry.function, "seconds": round(entry.seconds, 3)}
        for entry in worker.recorder.entries()
    ]
    if recorded:
        return recorded
    silent_s = round(worker.silent_s, 3)  # warm calls are not recorded: from the last status
    return [
        {**call, "seconds": round(call["seconds"] + silent_s, 3)}
        for call in valid_rows(worker.snapshot, "running")
    ]


def others_with_values(worker: WorkerProcess) -> frozenset[str]:
    """The principals that would lose arrays with a stuck worker, except the one whose call runs."""
    owners = worker.recorder.owners()
    callers = {entry.principal for entry in worker.recorder.entries()}
    return owners - callers if len(callers) == 1 else owners


def process_state(pid: int) -> str:
    """The state of a process: running, sleeping, stopped, waiting for a disk, gone."""
    letter, *_ = *process_facts(pid), "unknown"
    return _STATES.get(letter, letter)


_STATES: Final = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting for a disk or device",
    "T": "stopped",
    "t": "stopped by a debugger",
    "Z": "gone",
}
