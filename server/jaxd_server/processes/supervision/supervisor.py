"""Supervises one worker: starts it, monitors it, replaces it, drains it, and reports on it."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from jaxd_protocol.errors import JaxdError, ServerStartFailed
from jaxd_server.auth.acceptor import RefusingAcceptor
from jaxd_server.auth.accounts import Accounts
from jaxd_server.auth.authenticator import authenticator_factory, wrong_token_limiter
from jaxd_server.auth.listeners import Listener
from jaxd_server.config.options import ServerOptions
from jaxd_server.processes.supervision.health_monitor import HealthMonitor, calls_of, process_state
from jaxd_server.processes.supervision.launch import History
from jaxd_server.processes.supervision.quarantine import Quarantine
from jaxd_server.processes.supervision.tenant_settings import Tenant
from jaxd_server.processes.supervision.untrusted_report import is_number
from jaxd_server.processes.supervision.worker_process import (
    ANSWER_TIMEOUT_S,
    OnMessage,
    WorkerProcess,
    ignore_message,
)
from jaxd_server.runtime.logs import log_event
from jaxd_server.runtime.system_memory import MemoryLoss

_POLL_S = 0.1
_PACKAGE_FOLDERS = ("site-packages", "dist-packages")


class Supervisor:
    """Keeps one worker running behind some listeners. Belongs to the thread of the event loop.

    Args:
        options: of the workers.
        worker_command: the command of a worker, which gets one JSON argument.
        tenant: whose workers they are, where not all clients share them.
        on_message: called with messages of workers that the supervisor does not handle.
        what: the name of the process in the log.
        quarantine: the functions that ended earlier workers.

    Attributes:
        worker: the present worker, or the last one while there is none; None before the first.
        stopping: set once the server has begun to stop.
        quarantine: the functions that ended workers.
    """

    def __init__(
        self,
        options: ServerOptions,
        worker_command: Sequence[str],
        tenant: Tenant | None = None,
        on_message: OnMessage = ignore_message,
        what: str = "worker",
        quarantine: Quarantine | None = None,
    ) -> None:
        self.worker: WorkerProcess | None = None
        self.stopping = asyncio.Event()
        self.quarantine = quarantine or Quarantine()
        self._options = options
        self._worker_command = worker_command
        self._tenant = tenant
        self._on_message = on_message
        self._what = what
        self._pacing = RestartPacing()
        self._memory_loss: MemoryLoss | None = None
        self._wrong_tokens = wrong_token_limiter()  # of clients that are refused
        self._broken = ""
        self._broken_since = 0.0
        self._installed: list[tuple[str, int]] = []
        self._forced = False
        self._listeners: Sequence[Listener] = ()
        self._standby: WorkerProcess | None = None
        self._successor: WorkerProcess | None = None
        self._draining_workers = DrainingWorkers(options.drain_timeout_s, lambda: self._forced)
        self._is_restarting = False
        self._standby_started = 0
        self._renewal: WorkerProcess | None = None  # the standby that a worker waits for
        self._prepared: WorkerProcess | None = None  # it has imported what a worker lacked
        self._health_monitor = HealthMonitor(self, options)

    @property
    def is_stopping(self) -> bool:
        """Whether it has begun to stop."""
        return self.stopping.is_set()

    @property
    def is_resting(self) -> bool:
        """Whether there is no worker until a client connects."""
        return self.worker is not None and self.worker.state == "resting"

    @property
    def broken(self) -> str:
        """Why no worker can be started, with the last one's words; empty when one can."""
        is_up = self.worker is not None and self.worker.was_ready
        return "" if is_up else self._broken

    def listeners(self) -> Sequence[Listener]:
        """What its workers accept clients on."""
        return self._listeners

    def processes(self) -> list[WorkerProcess]:
        """All worker processes, in whatever state."""
        known = (self.worker, self._standby, self._successor, *self._draining_workers.workers())
        return [one for one in known if one is not None]

    def stop(self, *, now: bool = False) -> None:
        """Begins to stop: finishes running calls first, or kills the worker `now`."""
        self.stopping.set()
        if now:
            self._forced = True
            self._kill_all()

    async def stop_if_unneeded(self) -> str:
        """Begins to stop, unless calls run or clients have arrays: why not, else empty.

        The worker takes no calls and no arrays from the moment at which it looks.
        """
        worker, refusal = self.worker, ""
        if worker is not None and worker.state == "ready":
            refusal = await worker.yield_to_successor(force=False, is_followed=False, is_last=True)
        if not refusal:
            self.stop()
        return refusal

    def _kill_all(self) -> None:
        for one in self.processes():
            one.kill()

    def quarantined(self) -> list[dict[str, Any]]:
        """The functions in quarantine, because they have ended workers."""
        return self.quarantine.rows()

    def release(self, what: str) -> list[dict[str, Any]]:
        """Releases functions from quarantine; see `Quarantine.release`."""
        rows = self.quarantine.release(what)
        if self.worker is not None:
            for row in rows:
                self.worker.release(row["fingerprint"])
        return rows

    async def run(self, listeners: Sequence[Listener], control: str = "") -> int:
        """Keeps a worker on `listeners` until `stop()`, and returns the exit code of the server.

        Args:
            listeners: of the worker.
            control: the path of the control socket, which only a `TenantManager` needs.

        Where worker after worker ends before it is ready, clients are told so, and it is tried
        again.

        Returns:
            0 when the last worker was drained, 1 when it had to be killed.

        Raises:
            ServerStartFailed: when that is the worker of one principal.
        """
        self._listeners = listeners
        watch = asyncio.create_task(self._health_monitor.watch())
        try:
            for epoch in itertools.count(1):
                delay_s = await self._run_worker(epoch)
                if self.is_resting:
                    await _wait_for_client(listeners, self.stopping)
                if self.broken:
                    await self._refuse_clients(delay_s)
                else:
                    await wait_first(self.stopping, timeout_s=delay_s)
                if self.stopping.is_set():
                    break
            await self._drain()
            return int(self._forced)
        finally:
            watch.cancel()
            self._kill_all()

    async def _run_worker(self, epoch: int) -> float:
        """Runs one worker until it ends or the server stops; the seconds until the next one."""
        self._installed = installed_stamps()
        try:
            worker = self.worker = self._next(epoch)
        except OSError as error:  # no memory or no process left: it is tried again
            log_event("worker_not_started", epoch=epoch, error=str(error))
            return self._after_failure(self._pacing.delay_s(0.0, was_ready=False), [str(error)])
        log_event(_STARTED[self._what], pid=worker.pid, epoch=epoch, principal=worker.principal)
        on_purpose = worker.flags.draining
        await wait_first(worker.exited, self.stopping, *on_purpose)
        if worker.was_ready:
            self._broken, self._pacing.failed_starts = "", 0
        if worker.flags.outdated.is_set() and self._standby is not self._prepared:
            self._dismiss_standby()  # it has imported the same packages
        if any(event.is_set() for event in on_purpose):
            if self._successor is not None:
                self._draining_workers.retire(worker)
                return 0.0
            await self._draining_workers.until_drained(worker, worker.kill)
        return await self._after_exit(worker) if worker.exited.is_set() else 0.0

    async def _after_exit(self, worker: WorkerProcess) -> float:
        """Records how a worker ended; the seconds until the next one."""
        await worker.read_remaining()
        worker.close()
        on_purpose = (*worker.flags.draining, worker.flags.stale)
        if any(event.is_set() for event in on_purpose):  # which is no crash
            log_exit(worker, restart_in_s=0.0)
            return 0.0
        self.quarantine.record_deaths(
            worker.recorder.entries(),
            worker.epoch,
            worker.how,
            from_outside=worker.was_killed_from_outside,
            survived=worker.recorder.survived(),
        )
        if worker.was_out_of_memory:
            self._memory_loss = worker.memory_loss(self._memory_loss)
        delay_s = self._pacing.delay_s(worker.lived_s, was_ready=worker.was_ready)
        log_event("worker_lost", pid=worker.pid, principal=worker.principal, how=worker.how)
        log_exit(worker, restart_in_s=delay_s)
        return self._after_failure(delay_s, worker.last_lines() if self._pacing.is_broken else [])

    def _after_failure(self, delay_s: float, last_lines: list[str]) -> float:
        """Records a worker that could not be started; the seconds until the next one.

        Raises:
            ServerStartFailed: when that of one principal has failed too often: what its code has
                left running may be what ends it, and is ended first.
        """
        if not self._pacing.is_broken:
            return delay_s
        output = "\n".join(f"    {line}" for line in last_lines) or "    (nothing)"
        found = (
            f"the worker ended {self._pacing.failed_starts} times before it was ready; the last "
            f"one wrote:\n{output}\nIt is tried again, and at once when installed packages "
            "change. Correct that where the server runs; `jaxd doctor` looks for usual causes."
        )
        if self._tenant is not None:
            raise ServerStartFailed(found)
        if not self._broken:
            self._broken_since = time.monotonic()
        self._broken = found
        log_event("worker_broken", retry_in_s=delay_s, reason=found)
        return delay_s

    async def _refuse_clients(self, delay_s: float) -> None:
        """Tells clients why there is no worker, until it is time to try again.

        That is after the delay, or when packages were installed.
        """
        doors = self._refusing_acceptors()
        until = time.monotonic() + delay_s
        try:
            while not self.stopping.is_set() and time.monotonic() < until:
                await wait_first(self.stopping, timeout_s=_POLL_S)
                if installed_stamps() != self._installed:  # since the last worker was started
                    log_event("packages_changed")
                    return
        finally:
            for door in doors:
                door.close()

    def _refusing_acceptors(self) -> list[RefusingAcceptor]:
        try:
            accounts = Accounts(self._options)
            admits_at = authenticator_factory(self._options, accounts, self._wrong_tokens)
        except (JaxdError, OSError) as error:  # then they wait, as before
            log_event("cannot_refuse", reason=str(error))
            return []
        doors = [
            RefusingAcceptor(one, admits_at(one.address), accounts, lambda: self._broken)
            for one in self._listeners
        ]
        for door in doors:
            with suppress(RuntimeError):  # no thread: they wait, as before
                door.start_in_thread()
        return doors

    def _next(self, epoch: int) -> WorkerProcess:
        """The worker of an epoch: the successor, else the standby, else a new one."""
        successor, self._successor = self._successor, None
        if successor is not None and not successor.exited.is_set():
            successor.open()
            return successor
        return self._assigned(epoch, holds=False)

    def _assigned(self, epoch: int, *, holds: bool) -> WorkerProcess:
        standby, self._standby = self._standby, None
        if standby is None or standby.exited.is_set():
            if not holds:
                return self._started(epoch)
            standby = self._started()
        standby.begin(epoch, self._history(), holds=holds)
        return standby

    def _started(self, epoch: int = 0) -> WorkerProcess:
        return WorkerProcess(
            self._worker_command,
            self._options,
            self._listeners,
            epoch,
            self._history(),
            self._tenant,
            self._on_message,
            self._what,
        )

    def _history(self) -> History:
        return History(self.quarantine.for_worker(), self._memory_loss)

    def stand_by(self) -> None:
        """Starts the next worker ahead, as far as it can without a device; once."""
        if self._standby is not None and self._standby.exited.is_set():
            self._dismiss_standby()
        epoch = 0 if self.worker is None else self.worker.epoch
        if self._standby is None and self._standby_started != epoch and not self.stopping.is_set():
            self._standby_started = epoch  # one that ends is not replaced
            with suppress(OSError):  # the next worker starts when it is needed then
                self._standby = self._started()

    def _dismiss_standby(self) -> None:
        standby, self._standby = self._standby, None
        if standby is not None:
            self._draining_workers.dismiss(standby)

    def prepare_renewal(self) -> None:
        """Has a worker whose packages have changed replaced when another one has imported them.

        To be called again and again. Where the packages cannot be imported, the worker stays, and
        asks again later.
        """
        worker = self.worker
        if worker is None or not worker.wants_renewal.is_set() or self.stopping.is_set():
            return
        next_one = self._renewal
        if next_one is None or next_one is not self._standby:
            self._dismiss_standby()  # it has imported the same packages as the worker
            with suppress(OSError):  # it is tried again
                self._standby = self._renewal = self._started()
        elif next_one.exited.is_set():
            log_event("renewal_failed", reason=next_one.last_lines()[-1:])
            worker.wants_renewal.clear()
            self._dismiss_standby()
        elif next_one.flags.standing_by.is_set():
            worker.wants_renewal.clear()
            self._prepared, self._renewal = next_one, None
            worker.notify({"ask": "renew"})

    async def restart(self, *, force: bool = False) -> dict[str, Any]:
        """Replaces the worker; no client sees an error.

        The two run side by side where the device has room for both, so that new calls do not wait
        for the running ones; else one after the other.

        Args:
            force: also when arrays of clients are lost.

        Returns:
            `epoch` of the new worker and `seconds` that it took; or under `refused` the reason.
        """
        worker, began = self.worker, time.monotonic()
        if worker is None or worker.state != "ready" or self._is_restarting:
            what = "one is under way" if self._is_restarting else "there is no worker at work now"
            return {"refused": f"{what}. See jaxd status."}
        self._is_restarting = True
        try:
            refusal = await self._replace(worker, force=force)
            if refusal:
                return {"refused": refusal}
            await self._is_ready(worker.epoch + 1)
        finally:
            self._is_restarting = False
        seconds = round(time.monotonic() - began, 3)
        log_event("worker_restarted", epoch=worker.epoch + 1, seconds=seconds)
        return {"epoch": worker.epoch + 1, "seconds": seconds}

    async def _replace(self, worker: WorkerProcess, *, force: bool) -> str:
        """Replaces a worker; the reason when it refuses, empty when it does not."""
        await worker.refresh(ANSWER_TIMEOUT_S)
        if worker.snapshot.get("platform") != "cpu":  # two workers would not fit into one device
            return await worker.yield_to_successor(force=force, is_followed=False)
        try:
            successor = self._assigned(worker.epoch + 1, holds=True)
        except OSError as error:
            return f"no process could be started: {error}."
        self._successor = successor
        refusal = await self._yield_to(successor, worker, force=force)
        if refusal and self._successor is successor:
            self._successor = None
            self._draining_workers.dismiss(successor)
        return refusal

    async def _yield_to(
        self, successor: WorkerProcess, worker: WorkerProcess, *, force: bool
    ) -> str:
        """Lets a worker yield as soon as its successor is prepared; the reason when it refuses."""
        await wait_first(successor.flags.prepared, successor.exited, worker.exited, self.stopping)
        if worker.exited.is_set() or self.stopping.is_set():
            return ""  # the successor is needed at once, or not at all
        if not successor.flags.prepared.is_set():
            return "the next worker ended before it was ready; see the server's log."
        return await worker.yield_to_successor(force=force, is_followed=True)

    async def _is_ready(self, epoch: int) -> None:
        while not self.stopping.is_set():
            worker = self.worker
            if worker is not None and worker.epoch >= epoch and worker.state != "starting":
                return
            await wait_first(self.stopping, timeout_s=_POLL_S)

    async def _drain(self) -> None:
        worker = self.worker
        if worker is None or worker.exited.is_set():
            return
        log_event("draining", running_calls=worker.snapshot.get("running_calls"))
        worker.drain()
        if self._forced:
            worker.kill()  # `stop(now=True)` was called before there was a worker
        await self._draining_workers.until_drained(worker, lambda: self.stop(now=True))
        await self._draining_workers.are_gone()
        worker.last_lines()  # its last lines reach the log before the host ends
        log_exit(worker)

    def supervised(self) -> list[tuple[str, Supervisor]]:
        """Itself, for all principals."""
        return [("", self)]

    def failed(self) -> list[dict[str, Any]]:
        """Nothing: it is broken itself."""
        return []

    def draining(self) -> list[WorkerProcess]:
        """The workers that finish their calls beside the present one."""
        return [one for one in self._draining_workers.workers() if one.was_ready]

    def shown_state(self, worker: WorkerProcess, *, is_fresh: bool) -> str:
        """The state of the present worker in one word.

        Args:
            worker: the present one.
            is_fresh: whether it has just answered.
        """
        if self.broken:
            return "broken"
        if worker.state != "ready":
            return "starting" if worker.state == "dead" else worker.state
        if is_fresh:
            return "ready"
        return "stuck" if self._health_monitor.is_stuck(worker) else "busy"

    def describe(self) -> dict[str, Any]:
        """The facts about the worker for the host's part of a status."""
        worker = self.worker
        return {
            "epoch": worker.epoch if worker else 0,
            "worker_pid": worker.pid if worker and not worker.exited.is_set() else None,
            "restarts": worker.epoch - 1 if worker else 0,
            "quarantined": len(self.quarantined()),
        }

    async def status(self) -> dict[str, Any]:
        """The worker's part of a status; waits half a second for the worker, and no longer."""
        worker = self.worker
        if self.broken:
            return {"worker": {}, "worker_state": "broken", "why": self.broken}
        if worker is None:
            return {"worker": {}, "worker_state": "starting"}
        # A worker that is starting cannot answer, and clients that wait for it poll often.
        may_answer = worker.was_ready and worker.state != "resting"
        fresh = may_answer and await worker.refresh(ANSWER_TIMEOUT_S)
        is_busy = worker.state == "ready" and not fresh
        seen = {**worker.snapshot, "running": calls_of(worker)} if is_busy else worker.snapshot
        seen = {name: value for name, value in seen.items() if name != "heaviest"}  # has an id
        return {
            "worker": seen,
            "worker_state": self.shown_state(worker, is_fresh=False) if is_busy else worker.state,
            "worker_silent_s": round(worker.silent_s, 3),
            "worker_process": process_state(worker.pid) if is_busy else None,
        }

    async def idle_s(self) -> float:
        """Seconds without connection and call; 0 when the worker does not report it now."""
        worker = self.worker
        if self.broken:
            return time.monotonic() - self._broken_since
        if worker is not None and worker.state == "resting":
            return _idle_s(worker.snapshot) + worker.silent_s
        if worker is None or not worker.was_ready or not await worker.refresh(ANSWER_TIMEOUT_S):
            return 0.0
        seen = worker.snapshot
        if seen.get("connections") or seen.get("running_calls"):
            return 0.0
        return _idle_s(seen)


def _idle_s(snapshot: Mapping[str, Any]) -> float:
    """The idle time that a worker reports; its code may be hostile, so any value is possible."""
    idle_s = snapshot.get("idle_s")
    return max(0.0, float(idle_s)) if is_number(idle_s) else 0.0


async def _wait_for_client(listeners: Sequence[Listener], stopping: asyncio.Event) -> None:
    """Returns when a client connects, which then waits for the next worker; or when stopping."""
    connected = asyncio.Event()
    loop = asyncio.get_running_loop()
    for one in listeners:
        loop.add_reader(one.socket, connected.set)
    try:
        await wait_first(connected, stopping)
    finally:
        for one in listeners:
            loop.remove_reader(one.socket)


def installed_stamps() -> list[tuple[str, int]]:
    """When something was last installed or removed, in each folder for packages."""
    found = []
    for folder in sys.path:
        if os.path.basename(folder) in _PACKAGE_FOLDERS:
            with suppress(OSError):
                found.append((folder, os.stat(folder).st_mtime_ns))
    return found


async def wait_first(*events: asyncio.Event, timeout_s: float | None = None) -> None:
    """Returns when one of `events` is set, or after `timeout_s`."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


class DrainingWorkers:
    """Workers that accept no more clients. Belongs to the thread of the event loop.

    Args:
        drain_timeout_s: how long one that runs no call may take to end.
        is_forced: whether all are killed anyway.
    """

    def __init__(self, drain_timeout_s: float, is_forced: Callable[[], bool]) -> None:
        self._drain_timeout_s = drain_timeout_s
        self._is_forced = is_forced
        self._tasks: dict[WorkerProcess, asyncio.Task[None]] = {}

    def workers(self) -> list[WorkerProcess]:
        """The workers that have not ended."""
        return list(self._tasks)

    def retire(self, worker: WorkerProcess) -> None:
        """Lets a worker that has a successor finish its calls."""
        self._tasks[worker] = asyncio.create_task(self._retire(worker))

    def dismiss(self, worker: WorkerProcess) -> None:
        """Ends a worker that has never accepted a client."""
        worker.kill()
        self._tasks[worker] = asyncio.create_task(self._collect(worker))

    async def are_gone(self) -> None:
        """Waits until all present ones have ended."""
        if self._tasks:
            await asyncio.wait(self._tasks.values())

    async def until_drained(self, worker: WorkerProcess, give_up: Callable[[], None]) -> None:
        """Waits for a worker: without limit while calls run, else for the drain timeout.

        Args:
            worker: one that drains.
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


_STARTED: Final = {"worker": "worker_started", "door": "door_started"}
_EXITED: Final = {"worker": "worker_exited", "door": "door_exited"}


def log_exit(worker: WorkerProcess, restart_in_s: float | None = None) -> None:
    """Logs how a worker ended, and when the next one starts because of that."""
    log_event(
        _EXITED[worker.what],
        pid=worker.pid,
        epoch=worker.epoch,
        principal=worker.principal,
        exit_code=worker.ending.get("exit_code"),
        signal=worker.ending.get("signal"),
        lived_s=round(worker.lived_s, 3),
        restart_in_s=restart_in_s,
    )


MAX_FAILED_STARTS = 5
"""So many workers in a row that were never ready, and the server is broken."""

_EARLY_DEATH_S = 10.0
_FIRST_DELAY_S = 0.2
_LONGEST_DELAY_S = 10.0
_LONGEST_BROKEN_S = 30.0


class RestartPacing:
    """Counts the deaths of workers, and delays the next start. Not thread-safe.

    Attributes:
        failed_starts: how many in a row ended before they were ready.
    """

    def __init__(self) -> None:
        self.failed_starts = 0
        self._early_deaths = 0

    @property
    def is_broken(self) -> bool:
        """Whether so many failed that clients are not left waiting for the next one."""
        return self.failed_starts >= MAX_FAILED_STARTS

    def delay_s(self, lived_s: float, *, was_ready: bool) -> float:
        """Seconds to wait before the next worker is started.

        After the first early death there is no delay, so that clients notice it least; after the
        next ones in a row it grows, so that a broken machine is not kept busy with starts.
        """
        self.failed_starts = 0 if was_ready else self.failed_starts + 1
        self._early_deaths = 0 if lived_s >= _EARLY_DEATH_S else self._early_deaths + 1
        deaths = max(self._early_deaths, self.failed_starts)
        if deaths <= 1:
            return 0.0
        longest_s = _LONGEST_BROKEN_S if self.is_broken else _LONGEST_DELAY_S
        return float(min(_FIRST_DELAY_S * 2 ** min(deaths - 2, 16), longest_s))
