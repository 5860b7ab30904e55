"""Starts and stops one worker per principal, behind a gateway, and sums up their status.

Of what they say of themselves only what can be believed is passed on, under the name of whose
worker it is.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Protocol

from jaxd_protocol.errors import Busy, JaxdError, ServerStartFailed
from jaxd_server.auth.listeners import Listener, check_length
from jaxd_server.config.options import ServerOptions
from jaxd_server.processes.supervision.quarantine import (
    Quarantine,
    QuarantineFile,
    WorkerQuarantine,
)
from jaxd_server.processes.supervision.tenant import Tenant
from jaxd_server.processes.supervision.untrusted_report import LISTS, printable, sanitize_report
from jaxd_server.processes.supervision.worker_process import WorkerProcess
from jaxd_server.processes.supervision.worker_slot import WorkerSlot
from jaxd_server.processes.tenants.directory import TenantCleanup, TenantDirectory
from jaxd_server.processes.tenants.tenant_worker import TenantWorker
from jaxd_server.runtime.logs import log_event
from jaxd_server.runtime.memory import allow_files

_OF_ONE: Final = frozenset({"epoch", "idle_s"})
"""Numbers that cannot be added up."""

Report = Mapping[str, Any]


def tenants_report(
    gateway: Report, tenants: Sequence[Tenant], workers: Sequence[Report]
) -> dict[str, Any]:
    """The workers' part of a status: the sums of what they say, and a row for each.

    Args:
        gateway: what is known of the gateway, as of a worker.
        tenants: whose the workers are.
        workers: what is known of each of them.
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
    for row in rows:
        for name, value in row["worker"].items():
            if name not in _OF_ONE:
                sums[name] = sums[name] + value if name in sums else value
    return {**gateway, "worker": sums, "workers": rows}


def _worker_row(said: Report, principal: str) -> dict[str, Any]:
    return {
        name: [{**each, "principal": principal} for each in value] if name in LISTS else value
        for name, value in sanitize_report(said).items()
    }


GATEWAY_COMMAND: Final = (sys.executable, "-P", "-m", "jaxd_server.processes.gateway")

_RETRY_AFTER_S: Final = 5.0
_FAILURE_BACKOFF_S: Final = 10.0
"""So long after its worker could not be started a principal is told why, and none is tried."""

_FILES_PER_WORKER: Final = 16
_MAX_RESTING: Final = 64
_MIN_RESTING_S: Final = 60.0
"""A place that nobody has asked for so long can be given up; whose it was gets another one."""

_SHARED_USER_WARNING: Final = (
    "all workers run as one user of this machine, so code in one can read the files and the memory "
    "of another: they are kept apart against accidents, not against each other. Start the server "
    "as root, with --worker-uids, to have a user for each."
)


class TenantManager:
    """Manages the workers of all principals. Belongs to the thread of the event loop.

    Args:
        options: what the server was told.
        worker_command: what is started as worker; it gets one JSON argument.
        gateway_command: the same for the gateway.
        kept: whose functions are called no more.
    """

    def __init__(
        self,
        options: ServerOptions,
        worker_command: Sequence[str],
        gateway_command: Sequence[str] = GATEWAY_COMMAND,
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
        self._gateway = WorkerSlot(
            gateway_options, gateway_command, hear=self._on_gateway_message, what="door"
        )
        self._tenants: TenantDirectory | None = None
        self._cleanup: TenantCleanup | None = None
        self._folder = ""
        self._workers: dict[str, TenantWorker] = {}
        self._detached: set[TenantWorker] = set()
        self._failed: dict[str, tuple[float, str]] = {}
        self._forced = False
        self._restarts = RollingRestart()

    async def run(self, listeners: Sequence[Listener], control: str) -> int:
        """Lets clients in and has workers for them until `stop`; returns the exit code.

        Args:
            listeners: what the gateway listens on.
            control: the path of the control socket, beside which the workers' own are.

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
            log_event("workers_share_user", level=logging.WARNING, reason=_SHARED_USER_WARNING)
        try:
            code = await self._gateway.run(listeners)
        finally:
            for place in self._workers.values():
                place.slot.stop(now=not self._gateway.is_stopping or self._forced)
            tasks = [one.task for one in (*self._workers.values(), *self._detached) if one.task]
            codes = await asyncio.gather(*tasks)
            await self._cleanup.finish()
            with suppress(OSError):  # it was never made
                os.rmdir(self._folder)
        return max(code, *codes, 0)

    @property
    def is_stopping(self) -> bool:
        """Whether it has begun to stop."""
        return self._gateway.is_stopping

    def processes(self) -> list[WorkerProcess]:
        """The gateway and all workers that there are, in whatever state."""
        posts = [self._gateway, *(one.slot for one in (*self._workers.values(), *self._detached))]
        return [process for post in posts for process in post.processes()]

    def stop(self, *, now: bool = False) -> None:
        """Begins to stop: finishes running calls first, or kills the workers `now`."""
        self._forced = self._forced or now
        self._gateway.stop(now=now)
        for place in self._workers.values():
            place.slot.stop(now=now)

    async def restart(self, *, force: bool = False) -> dict[str, Any]:
        """Replaces all workers that there are; see `RollingRestart.restart`."""
        posts = {who: one.slot for who, one in self._workers.items() if not one.slot.is_resting}
        return await self._restarts.restart(posts, force=force)

    def quarantined(self) -> list[dict[str, Any]]:
        """The functions that are called no more, each with whose worker does not."""
        here = [(who, place.slot.quarantined()) for who, place in self._workers.items()]
        return _rows([*here, *((one.principal, Quarantine(one).rows()) for one in self._away())])

    def release(self, what: str) -> list[dict[str, Any]]:
        """Has some of them called again, by name or fingerprint, for everybody; their rows."""
        here = [(who, place.slot.release(what)) for who, place in self._workers.items()]
        away = [(one.principal, Quarantine(one).release(what)) for one in self._away()]
        return _rows([*here, *away])

    def _away(self) -> list[WorkerQuarantine]:
        """What is kept for those who have no place now."""
        return [one for one in self._quarantine_file.parts() if one.principal not in self._workers]

    def describe(self) -> dict[str, Any]:
        """What there is to be said of all workers, for the host's part of a status."""
        rows = [place.slot.describe() for place in self._workers.values()]
        sums = {
            "restarts": sum(row["restarts"] for row in rows),
            "quarantined": len(self.quarantined()),
        }
        gateway = self._gateway.describe()
        return {**gateway, "worker_pid": None, "door_pid": gateway["worker_pid"], **sums}

    async def status(self) -> dict[str, Any]:
        """What all workers do together, and each by itself."""
        places = list(self._workers.values())
        gateway, *told = await asyncio.gather(
            self._gateway.status(), *(place.status() for place in places)
        )
        return tenants_report(
            gateway,
            [place.tenant for place in places],
            [{**place.slot.describe(), **each} for place, each in zip(places, told, strict=True)],
        )

    async def idle_s(self) -> float:
        """Seconds without connection and call of anybody; 0 when a worker does not say so now."""
        workers = (place.idle_s() for place in self._workers.values())
        return min(await asyncio.gather(self._gateway.idle_s(), *workers))

    # requests of the gateway ----------------------------------------------------------------------

    def _on_gateway_message(self, gateway: WorkerProcess, message: Mapping[str, Any]) -> None:
        match message:
            case {"event": "wanted", "id": int(number), "principal": str(who), "token": token}:
                gateway.notify({"ask": "come", "id": number, **self._worker_for(who, token)})
            case {"event": "accounts", "valid": dict(valid)}:
                for place in list(self._workers.values()):
                    if place.token not in (None, valid.get(place.tenant.principal)):
                        self._revoke(place)
                for one in self._away():
                    if one.principal not in valid and not one.principal.startswith("uid:"):
                        self._quarantine_file.forget(
                            one.principal
                        )  # its token was taken away meanwhile
                assert self._cleanup is not None
                self._cleanup.begin_except(valid, self._workers)

    def _worker_for(self, principal: str, token: str | None) -> dict[str, Any]:
        """Where the gateway finds the worker of a principal, or why it does not."""
        if self.is_stopping:
            return {"refused": "the server is stopping. Connect again when it is back."}
        failed_at, why = self._failed.get(principal, (-_FAILURE_BACKOFF_S, ""))
        if time.monotonic() - failed_at < _FAILURE_BACKOFF_S:
            return {"refused": why}
        place = self._workers.get(principal)
        if place is not None and place.token != token:
            self._revoke(place)
            place = None
        try:
            if place is None or place.is_vacant:
                self._check_room()
            place = place or self._create_worker(principal, token)
            place.asked_at = time.monotonic()
        except Busy as error:
            return {"busy": str(error), "retry_after_s": error.retry_after_s}
        except (JaxdError, OSError) as error:  # no file left to open, for instance
            log_event("worker_refused", level=logging.WARNING, principal=principal, why=str(error))
            return {"refused": str(error)}
        return {"path": place.listener.address.path}

    def _check_room(self) -> None:
        """Raises `Busy` when there are as many workers as there may be."""
        limit = self._options.max_workers
        if sum(not place.is_vacant for place in self._workers.values()) >= limit:
            raise Busy(
                f"{limit} workers are here, which is as many as this server has at a time "
                "(--max-workers). One that is not called for a while makes room; connect later.",
                _RETRY_AFTER_S,
            )

    def _create_worker(self, principal: str, token: str | None) -> TenantWorker:
        assert self._tenants is not None
        self._evict_resting()
        tenant = self._tenants.of(principal, token)
        part = WorkerQuarantine(self._quarantine_file, principal, os.path.basename(tenant.folder))
        options, quarantine = tenant.options(self._options), Quarantine(part)
        post = WorkerSlot(options, self._worker_command, tenant, quarantine=quarantine)
        place = TenantWorker.opened(tenant, token, self._path_of(principal), post)
        self._workers[principal] = place
        place.task = asyncio.create_task(self._run_slot(place))
        return place

    def _evict_resting(self) -> None:
        """Evicts the workers that were not requested for longest, where there are many."""
        since = time.monotonic() - _MIN_RESTING_S
        resting = [one for one in self._workers.values() if one.is_vacant and one.asked_at < since]
        resting.sort(key=lambda place: place.asked_at)
        for place in resting[: max(0, len(resting) - _MAX_RESTING)]:
            self._detach(place)
            place.slot.stop()

    def _detach(self, place: TenantWorker) -> None:
        """Has a principal without a place, who can have another one at once.

        The path is free then; the socket is closed by the place's task, which may watch it until
        it is over. Closed before, its number would be another file's, and that never be watched.
        """
        del self._workers[place.tenant.principal]
        self._detached.add(place)
        place.release_path()

    def _path_of(self, principal: str) -> str:
        """The socket at which a principal's clients are handed over."""
        name = hashlib.blake2b(principal.encode(), digest_size=6).hexdigest()
        return f"{self._folder}/{name}.sock"

    async def _run_slot(self, place: TenantWorker) -> int:
        """Runs a worker slot; releases what belongs to it afterwards."""
        principal = place.tenant.principal
        assert self._cleanup is not None
        try:
            await self._cleanup.clear(principal)
            if place.slot.is_stopping:  # it was dismissed before it had begun
                return 0
            return await place.slot.run([place.listener])
        except ServerStartFailed as error:
            why = str(error)
            self._failed[principal] = time.monotonic(), why
            log_event("worker_given_up", level=logging.WARNING, principal=principal, reason=why)
            return 0
        except Exception:  # noqa: BLE001  what went wrong for one is not for all
            log_event("worker_given_up", level=logging.ERROR, principal=principal)
            return 1
        finally:
            place.close()
            self._detached.discard(place)
            if self._workers.get(principal) is place:
                del self._workers[principal]
                self._cleanup.begin(principal)

    def _revoke(self, place: TenantWorker) -> None:
        """Ends the worker of an account that was revoked, or has another token now."""
        principal = place.tenant.principal
        log_event("worker_dismissed", level=logging.WARNING, principal=principal)
        self._detach(place)
        place.slot.stop(now=True)  # and who waits there is sent away
        assert self._cleanup is not None
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
