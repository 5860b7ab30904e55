"""Starts and stops one worker per principal, behind a gateway, and sums up their status.

Their reports are sanitized before they are passed on, under the name of the principal.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
import time
from collections.abc import Container, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final, NamedTuple

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.errors import Busy, JaxdError, ServerStartFailed
from jaxd_protocol.network.addresses import Address
from jaxd_server.auth.listeners import Listener, ListenerProbe, check_length, open_listeners
from jaxd_server.config.options import ServerOptions
from jaxd_server.processes.supervision.quarantine import Quarantine, QuarantineFile
from jaxd_server.processes.supervision.supervisor import Supervisor, installed_stamps
from jaxd_server.processes.supervision.tenant_settings import Tenant
from jaxd_server.processes.supervision.untrusted_report import LISTS, printable, sanitize_report
from jaxd_server.processes.supervision.worker_process import WorkerProcess
from jaxd_server.processes.tenants.directory import TenantCleanup, TenantDirectory
from jaxd_server.runtime.logs import log_event
from jaxd_server.runtime.system_memory import allow_files

_OF_ONE: Final = frozenset({"epoch", "idle_s"})
"""Numbers that cannot be added up."""

Report = Mapping[str, Any]


@dataclass(slots=True, eq=False)
class TenantWorker:
    """One principal's worker. Belongs to the thread of the event loop.

    Attributes:
        tenant: the principal.
        token: the digest of its account's token; None: it has no account.
        supervisor: keeps the worker.
        listener: receives clients from the gateway; stays from one worker to the next.
        closing: closes the listener.
        task: runs the supervisor.
        asked_at: when the gateway last requested it.
    """

    tenant: Tenant
    token: str | None
    supervisor: Supervisor
    listener: Listener
    closing: ExitStack
    task: asyncio.Task[int] | None = None
    asked_at: float = 0.0

    @classmethod
    def opened(
        cls, tenant: Tenant, token: str | None, path: str, supervisor: Supervisor
    ) -> TenantWorker:
        """A worker whose socket is open; its supervisor has still to be run.

        Args:
            tenant: the principal.
            token: see `TenantWorker`.
            path: of its socket.
            supervisor: of the worker.

        Raises:
            CannotListen: when there can be no socket at that path.
        """
        with ExitStack() as stack:
            (listener,) = stack.enter_context(open_listeners([Address.unix(path)]))
            return cls(tenant, token, supervisor, listener, stack.pop_all())

    @property
    def is_vacant(self) -> bool:
        """Whether it has no process, and no client waits for one."""
        sock = self.listener.socket
        is_open = self.supervisor.is_resting and sock.fileno() >= 0
        return is_open and not ListenerProbe(sock).has_waiting()

    def release_path(self) -> None:
        """Frees the path for the next worker of the same principal."""
        with suppress(OSError):
            os.unlink(self.listener.address.path)

    def close(self) -> None:
        """Closes the socket, and disconnects the clients that wait there."""
        self.closing.close()

    async def status(self) -> dict[str, Any]:
        """Its description and status; a failure does not affect the report of the others."""
        try:
            status = await self.supervisor.status()
        except Exception:  # noqa: BLE001
            log_event("status_failed", principal=self.tenant.principal)
            status = {"worker": {}, "worker_state": "unknown", "worker_silent_s": 0.0}
        return self.supervisor.describe() | status

    async def idle_s(self) -> float:
        """Seconds without connection and call; 0 when that is unknown."""
        try:
            return await self.supervisor.idle_s()
        except Exception:  # noqa: BLE001  as above
            log_event("status_failed", principal=self.tenant.principal)
            return 0.0


def tenants_report(
    gateway: Report,
    tenants: Sequence[Tenant],
    workers: Sequence[Report],
    broken: Sequence[Report] = (),
) -> dict[str, Any]:
    """The workers' part of a status: the sums of their reports, and a row for each.

    Args:
        gateway: the report of the gateway.
        tenants: the principals.
        workers: the reports of their workers.
        broken: rows of principals whose workers cannot be started.
    """
    rows = [
        {
            "principal": tenant.principal,
            "user": None if tenant.user is None else tenant.user.name,
            **worker,
            "worker": _worker_row(worker["worker"], tenant.principal),
        }
        for tenant, worker in zip(tenants, workers, strict=True)
    ]
    sums: dict[str, Any] = {}
    for name, value in chain.from_iterable(row["worker"].items() for row in rows):
        if name not in _OF_ONE:
            sums[name] = sums[name] + value if name in sums else value
    return {**gateway, "worker": sums, "workers": [*rows, *broken]}


def _worker_row(report: Report, principal: str) -> dict[str, Any]:
    return {
        name: [{**each, "principal": principal} for each in value] if name in LISTS else value
        for name, value in sanitize_report(report).items()
    }


_GATEWAY_COMMAND: Final = (sys.executable, "-P", "-m", "jaxd_server.processes.gateway")

_RETRY_AFTER_S: Final = 5.0

_FILES_PER_WORKER: Final = 16
_MAX_RESTING: Final = 64
_MIN_RESTING_S: Final = 60.0
"""A resting worker that was not requested for so long can be evicted."""

_SHARED_USER_WARNING: Final = (
    "all workers run as one user of this machine, so code in one can read the files and the memory "
    "of another: they are kept apart against accidents, not against each other. Start the server "
    "as root, with --worker-uids, to have a user for each."
)


class _FailedStart(NamedTuple):
    """A worker that was given up.

    Attributes:
        why: with its last words.
        at: `time.monotonic()` when that was.
        delay_s: after which it is tried again, when a client comes.
        installed: the packages at that time.
    """

    why: str
    at: float
    delay_s: float
    installed: list[tuple[str, int]]


class FailedStarts:
    """The principals whose workers could not be started. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._found = BoundedDict[str, _FailedStart](_MAX_FAILED)

    def record(self, principal: str, why: str) -> None:
        """The worker of a principal was given up; the next delay is longer."""
        before, now = self._found.get(principal), time.monotonic()
        is_again = before is not None and now - before.at < _FORGOTTEN_AFTER_S
        delay_s = min(2 * before.delay_s, _LONGEST_DELAY_S) if before and is_again else _DELAY_S
        self._found[principal] = _FailedStart(why, now, delay_s, installed_stamps())

    def why(self, principal: str) -> str:
        """Why there is no worker; empty when it is time to try again, or packages have changed."""
        found = self._found.get(principal)
        if found is None or time.monotonic() - found.at >= found.delay_s:
            return ""
        return found.why if found.installed == installed_stamps() else ""

    def forget(self, principal: str) -> None:
        """It could be started."""
        self._found.pop(principal, None)

    def keep_only(self, accounts: Container[str]) -> None:
        """Forgets principals whose account was revoked."""
        for name in list(self._found):
            if name not in accounts and not name.startswith("uid:"):
                self.forget(name)

    def rows(self, present: Container[str]) -> list[dict[str, Any]]:
        """Rows for the status, of all that have no worker again.

        Args:
            present: those who have one.
        """
        return [
            {
                "principal": name,
                "user": None,
                "worker_pid": None,
                "epoch": 0,
                "restarts": 0,
                "worker": {},
                "worker_state": "broken",
                "why": "\n".join(map(printable, one.why.splitlines())),
            }
            for name, one in self._found.items()
            if name not in present
        ]


_MAX_FAILED: Final = 1000
_DELAY_S: Final = 10.0
_LONGEST_DELAY_S: Final = 30.0
_FORGOTTEN_AFTER_S: Final = 600.0


class TenantManager:
    """Manages the workers of all principals. Belongs to the thread of the event loop.

    Args:
        options: of the server.
        worker_command: the command of a worker, which gets one JSON argument.
        kept: keeps the functions in quarantine.
    """

    def __init__(
        self,
        options: ServerOptions,
        worker_command: Sequence[str],
        kept: QuarantineFile | None = None,
    ) -> None:
        self._quarantine_file = kept or QuarantineFile(None, "")
        self._options = options
        self._worker_command = worker_command
        gateway_options = replace(
            options,
            standby=False,
            recycle_after_calls=0,
            recycle_after_s=0.0,
            recycle_above_bytes=0,
        )
        self._gateway = Supervisor(
            gateway_options, _GATEWAY_COMMAND, on_message=self._on_gateway_message, what="door"
        )
        self._tenants: TenantDirectory  # these three are set by `run`
        self._cleanup: TenantCleanup
        self._folder: str
        self._workers: dict[str, TenantWorker] = {}
        self._detached: set[TenantWorker] = set()
        self._failed = FailedStarts()
        self._forced = False
        self._restarts = RollingRestart()

    async def run(self, listeners: Sequence[Listener], control: str) -> int:
        """Accepts clients and starts workers for them until `stop`; returns the exit code.

        Args:
            listeners: what the gateway listens on.
            control: the path of the control socket; the sockets of workers are beside it.

        Raises:
            ConfigurationError: when a folder for the workers cannot be made.
            ServerStartFailed: when the gateway cannot be opened.
        """
        allow_files(_FILES_PER_WORKER * self._options.max_workers)
        self._tenants = TenantDirectory(self._options, claims=True)
        self._cleanup = TenantCleanup(self._tenants)
        self._folder = control.removesuffix(".control") + ".workers"
        check_length(self._path_of("anybody"))
        if self._tenants.share_user:
            log_event("workers_share_user", reason=_SHARED_USER_WARNING)
        try:
            code = await self._gateway.run(listeners)
        finally:
            for one in self._workers.values():
                one.supervisor.stop(now=not self._gateway.is_stopping or self._forced)
            tasks = [one.task for one in (*self._workers.values(), *self._detached) if one.task]
            codes = await asyncio.gather(*tasks)
            await self._cleanup.finish()
            with suppress(OSError):  # it does not exist
                os.rmdir(self._folder)
        return max(code, *codes, 0)

    @property
    def is_stopping(self) -> bool:
        """Whether it has begun to stop."""
        return self._gateway.is_stopping

    def processes(self) -> list[WorkerProcess]:
        """The processes of the gateway and all workers, in whatever state."""
        workers = (*self._workers.values(), *self._detached)
        supervisors = [self._gateway, *(one.supervisor for one in workers)]
        return [process for one in supervisors for process in one.processes()]

    def stop(self, *, now: bool = False) -> None:
        """Begins to stop: finishes running calls first, or kills the workers `now`."""
        self._forced = self._forced or now
        self._gateway.stop(now=now)
        for one in self._workers.values():
            one.supervisor.stop(now=now)

    async def stop_if_unneeded(self) -> str:
        """As of a `Supervisor`: one worker after the other, until one of them is needed."""
        while True:
            left = (w for w in self._workers.items() if not w[1].supervisor.is_stopping)
            who, one = next(left, ("", None))
            if one is None:  # also of those who came while others were asked
                self.stop()
                return ""
            refusal = await one.supervisor.stop_if_unneeded()
            if refusal:
                return f"{who}: {printable(refusal)}"

    async def restart(self, *, force: bool = False) -> dict[str, Any]:
        """Replaces all running workers; see `RollingRestart.restart`."""
        all_ = {who: one.supervisor for who, one in self._workers.items()}
        running = {who: one for who, one in all_.items() if not one.is_resting}
        return await self._restarts.restart(running, force=force)

    def quarantined(self) -> list[dict[str, Any]]:
        """The functions in quarantine, each with its principal."""
        here = [one.supervisor.quarantine for one in self._workers.values()]
        return _rows([(one.principal, one.rows()) for one in (*here, *self._away())])

    def release(self, what: str) -> list[dict[str, Any]]:
        """Releases functions, by name or fingerprint, for all principals; returns their rows."""
        here = [(who, one.supervisor.release(what)) for who, one in self._workers.items()]
        away = [(one.principal, one.release(what)) for one in self._away()]
        return _rows([*here, *away])

    def _away(self) -> list[Quarantine]:
        """The quarantines of principals that have no worker now."""
        found = self._quarantine_file.quarantines()
        return [one for one in found if one.principal not in self._workers]

    def supervised(self) -> list[tuple[str, Supervisor]]:
        """Who keeps the worker of each principal."""
        return [(who, one.supervisor) for who, one in self._workers.items()]

    def failed(self) -> list[dict[str, Any]]:
        """Rows of principals whose workers cannot be started."""
        return self._failed.rows(self._workers)

    def describe(self) -> dict[str, Any]:
        """The facts about all workers for the host's part of a status."""
        rows = [one.supervisor.describe() for one in self._workers.values()]
        gateway = self._gateway.describe()
        return {
            **gateway,
            "worker_pid": None,
            "door_pid": gateway["worker_pid"],
            "restarts": sum(row["restarts"] for row in rows),
            "quarantined": len(self.quarantined()),
        }

    async def status(self) -> dict[str, Any]:
        """The sums of all workers, and the report of each."""
        workers = list(self._workers.values())
        gateway, *reports = await asyncio.gather(
            self._gateway.status(), *(one.status() for one in workers)
        )
        return tenants_report(gateway, [one.tenant for one in workers], reports, self.failed())

    async def idle_s(self) -> float:
        """Seconds without any connection and call; 0 when a worker does not report it."""
        workers = (one.idle_s() for one in self._workers.values())
        return min(await asyncio.gather(self._gateway.idle_s(), *workers))

    # requests of the gateway ----------------------------------------------------------------------

    def _on_gateway_message(self, gateway: WorkerProcess, message: Mapping[str, Any]) -> None:
        match message:
            case {"event": "wanted", "id": int(number), "principal": str(who), "token": token}:
                gateway.notify({"ask": "come", "id": number, **self._worker_for(who, token)})
            case {"event": "accounts", "valid": dict(valid)}:
                self._revoke_except(valid)

    def _revoke_except(self, valid: Mapping[str, Any]) -> None:
        """Ends and forgets what belongs to accounts other than these, given with their tokens."""
        for worker in list(self._workers.values()):
            if worker.token not in (None, valid.get(worker.tenant.principal)):
                self._revoke(worker)
        for one in self._away():
            if one.principal not in valid and not one.principal.startswith("uid:"):
                self._quarantine_file.forget(one.principal)  # its token was revoked
        self._failed.keep_only(valid)
        self._cleanup.begin_except(valid, self._workers)

    def _worker_for(self, principal: str, token: str | None) -> dict[str, Any]:
        """The path of a principal's worker, or why there is none."""
        if self.is_stopping:
            return {"refused": "the server is stopping. Connect again when it is back."}
        why = self._failed.why(principal)
        if why:
            return {"refused": why, "is_broken": True}
        worker = self._worker_with(principal, token)
        try:
            if worker is None or worker.is_vacant:
                self._check_room()
            worker = worker or self._create_worker(principal, token)
            worker.asked_at = time.monotonic()
        except Busy as error:
            return {"busy": str(error), "retry_after_s": error.retry_after_s}
        except (JaxdError, OSError) as error:  # such as too many open files
            log_event("worker_refused", principal=principal, why=str(error))
            return {"refused": str(error)}
        return {"path": worker.listener.address.path}

    def _worker_with(self, principal: str, token: str | None) -> TenantWorker | None:
        """The worker of a principal; ends one that was started with another token."""
        worker = self._workers.get(principal)
        if worker is None or worker.token == token:
            return worker
        self._revoke(worker)
        return None

    def _check_room(self) -> None:
        """Raises `Busy` when the limit of workers is reached."""
        limit = self._options.max_workers
        if sum(not worker.is_vacant for worker in self._workers.values()) >= limit:
            raise Busy(
                f"{limit} workers are running, which is the limit of this server (--max-workers). "
                "One that receives no calls for a while ends; connect later.",
                _RETRY_AFTER_S,
            )

    def _create_worker(self, principal: str, token: str | None) -> TenantWorker:
        self._evict_resting()
        tenant = self._tenants.of(principal, token)
        name = os.path.basename(tenant.folder)
        quarantine = Quarantine(self._quarantine_file, principal, name)
        options = tenant.options(self._options)
        slot = Supervisor(options, self._worker_command, tenant, quarantine=quarantine)
        worker = TenantWorker.opened(tenant, token, self._path_of(principal), slot)
        self._workers[principal] = worker
        worker.task = asyncio.create_task(self._run_worker(worker))
        return worker

    def _evict_resting(self) -> None:
        """Evicts the resting workers whose last request is longest ago, if there are many."""
        since = time.monotonic() - _MIN_RESTING_S
        resting = [
            worker
            for worker in self._workers.values()
            if worker.is_vacant and worker.asked_at < since
        ]
        resting.sort(key=lambda worker: worker.asked_at)
        for worker in resting[: max(0, len(resting) - _MAX_RESTING)]:
            self._detach(worker)
            worker.supervisor.stop()

    def _detach(self, worker: TenantWorker) -> None:
        """Separates a worker from its principal, which can get another one at once.

        The path is free then. The task of the worker, which may poll the socket, closes it at its
        end: the descriptor of a socket that is closed before could be reused.
        """
        del self._workers[worker.tenant.principal]
        self._detached.add(worker)
        worker.release_path()

    def _path_of(self, principal: str) -> str:
        """The socket at which a principal's clients are handed over."""
        name = hashlib.blake2b(principal.encode(), digest_size=6).hexdigest()
        return f"{self._folder}/{name}.sock"

    async def _run_worker(self, worker: TenantWorker) -> int:
        """Runs the supervisor of a worker; releases its resources afterwards."""
        principal = worker.tenant.principal
        try:
            await self._cleanup.clear(principal)
            if worker.supervisor.is_stopping:  # it was stopped before it had started
                return 0
            code = await worker.supervisor.run([worker.listener])
            self._failed.forget(principal)
            return code
        except ServerStartFailed as error:
            why = str(error)
            self._failed.record(principal, why)
            log_event("worker_given_up", principal=principal, reason=why)
            return 0
        except Exception:  # noqa: BLE001  the failure of one does not end the others
            log_event("supervision_failed", principal=principal)
            return 1
        finally:
            worker.close()
            self._detached.discard(worker)
            if self._workers.get(principal) is worker:
                del self._workers[principal]
                self._cleanup.begin(principal)

    def _revoke(self, worker: TenantWorker) -> None:
        """Ends the worker of an account that was revoked, or has another token now."""
        principal = worker.tenant.principal
        log_event("worker_dismissed", principal=principal)
        self._detach(worker)
        worker.supervisor.stop(now=True)  # also disconnects its waiting clients
        self._cleanup.forget(principal)
        self._quarantine_file.forget(principal)


def _rows(found: Sequence[tuple[str, list[dict[str, Any]]]]) -> list[dict[str, Any]]:
    return [
        {**row, "name": printable(row["name"]), "principal": principal}
        for principal, rows in found
        for row in rows
    ]


_MAX_CONCURRENT: Final = 4
"""Each new worker imports jax, and is a second process of its principal for a while."""

_MAX_WAIT_S: Final = 60.0
"""How long a restart is awaited. It continues afterwards: a worker may finish its calls."""

Outcome = dict[str, Any]


class RollingRestart:
    """Replaces workers, a few at a time. Belongs to the thread of the event loop."""

    def __init__(self) -> None:
        self._unfinished: set[asyncio.Task[Outcome]] = set()

    async def restart(self, supervisors: Mapping[str, Supervisor], *, force: bool) -> Outcome:
        """Replaces all workers, some at the same time; see `Supervisor.restart`.

        Args:
            supervisors: of the workers, by principal.
            force: also when arrays of clients are lost.

        Returns:
            `workers`: for each principal the `epoch` of the new one and `seconds`, or why not,
            under `refused`, which is also given for all.
        """
        semaphore = asyncio.Semaphore(_MAX_CONCURRENT)
        outcomes = await asyncio.gather(
            *(self._restart(who, one, semaphore, force=force) for who, one in supervisors.items())
        )
        if not outcomes:
            return {"refused": "there is no worker at work now. See jaxd status."}
        refused = [f"{row['principal']}: {row['refused']}" for row in outcomes if "refused" in row]
        return {"workers": outcomes, **({"refused": "; ".join(refused)} if refused else {})}

    async def _restart(
        self, principal: str, supervisor: Supervisor, semaphore: asyncio.Semaphore, *, force: bool
    ) -> Outcome:
        async with semaphore:
            task = asyncio.create_task(supervisor.restart(force=force))
            self._unfinished.add(task)
            task.add_done_callback(self._unfinished.discard)
            await asyncio.wait([task], timeout=_MAX_WAIT_S)
        return {"principal": principal, **_outcome(task, principal)}


def _outcome(task: asyncio.Task[Outcome], principal: str) -> Outcome:
    """The outcome, made printable: the reasons come from workers, which may be hostile."""
    if not task.done():
        return {
            "refused": f"it has not made way after {_MAX_WAIT_S:.0f} s, and is replaced when it "
            "has finished its calls. See jaxd status"
        }
    try:
        outcome = task.result()
    except Exception:  # noqa: BLE001  the failure of one does not end the others
        log_event("restart_failed", principal=principal)
        return {"refused": "it failed; see the server's log"}
    return {name: printable(value) for name, value in outcome.items()}
