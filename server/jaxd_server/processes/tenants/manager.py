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
from typing import Any, Final

from jaxd_protocol.errors import Busy, JaxdError, ServerStartFailed
from jaxd_server.auth.listeners import Listener, check_length
from jaxd_server.config.options import ServerOptions
from jaxd_server.processes.supervision.quarantine import Part, Quarantine, QuarantineFile
from jaxd_server.processes.supervision.tenant import Tenant
from jaxd_server.processes.supervision.untrusted_report import LISTS, believed, printable
from jaxd_server.processes.supervision.worker_process import WorkerProcess
from jaxd_server.processes.supervision.worker_slot import Post
from jaxd_server.processes.tenants.cleanup import Clearing
from jaxd_server.processes.tenants.directory import Tenants
from jaxd_server.processes.tenants.rolling_restart import CrewRestart
from jaxd_server.processes.tenants.tenant_worker import Place
from jaxd_server.runtime.logs import log_event
from jaxd_server.runtime.memory import allow_files

_OF_ONE: Final = frozenset({"epoch", "idle_s"})
"""Numbers that cannot be added up."""

Report = Mapping[str, Any]


def crew_report(
    door: Report, tenants: Sequence[Tenant], workers: Sequence[Report]
) -> dict[str, Any]:
    """The workers' part of a status: the sums of what they say, and a row for each.

    Args:
        door: what is known of the door, as of a worker.
        tenants: whose the workers are.
        workers: what is known of each of them.
    """
    rows = [
        {
            "principal": tenant.principal,
            "user": None if tenant.user is None else tenant.user.name,
            **worker,
            "worker": _said(worker["worker"], tenant.principal),
        }
        for tenant, worker in zip(tenants, workers, strict=True)
    ]
    sums: dict[str, Any] = {}
    for row in rows:
        for name, value in row["worker"].items():
            if name not in _OF_ONE:
                sums[name] = sums[name] + value if name in sums else value
    return {**door, "worker": sums, "workers": rows}


def _said(said: Report, principal: str) -> dict[str, Any]:
    return {
        name: [{**each, "principal": principal} for each in value] if name in LISTS else value
        for name, value in believed(said).items()
    }


DOOR_COMMAND: Final = (sys.executable, "-P", "-m", "jaxd_server.processes.gateway.gateway")

_RETRY_AFTER_S: Final = 5.0
_FAILED_S: Final = 10.0
"""So long after its worker could not be started a principal is told why, and none is tried."""

_FILES_OF_A_WORKER: Final = 16
_MOST_RESTING: Final = 64
_RESTED_S: Final = 60.0
"""A place that nobody has asked for so long can be given up; whose it was gets another one."""

_ONE_USER: Final = (
    "all workers run as one user of this machine, so code in one can read the files and the memory "
    "of another: they are kept apart against accidents, not against each other. Start the server "
    "as root, with --worker-uids, to have a user for each."
)


class Crew:
    """Manages the workers of all principals. Belongs to the thread of the event loop.

    Args:
        options: what the server was told.
        worker_command: what is started as worker; it gets one JSON argument.
        door_command: the same for the door.
        kept: whose functions are called no more.
    """

    def __init__(
        self,
        options: ServerOptions,
        worker_command: Sequence[str],
        door_command: Sequence[str] = DOOR_COMMAND,
        kept: QuarantineFile | None = None,
    ) -> None:
        self._kept = kept or QuarantineFile(None, "")
        self._options = options
        self._worker_command = worker_command
        door_options = replace(
            options,
            standby=False,
            recycle_after_calls=0,
            recycle_after_s=0.0,
            recycle_above_bytes=0,
        )
        self._door = Post(door_options, door_command, hear=self._hear, what="door")
        self._tenants: Tenants | None = None
        self._clearing: Clearing | None = None
        self._folder = ""
        self._places: dict[str, Place] = {}
        self._leaving: set[Place] = set()
        self._failed: dict[str, tuple[float, str]] = {}
        self._forced = False
        self._restarts = CrewRestart()

    async def run(self, listeners: Sequence[Listener], control: str) -> int:
        """Lets clients in and has workers for them until `stop`; returns the exit code.

        Args:
            listeners: what the door listens on.
            control: the path of the control socket, beside which the workers' own are.

        Raises:
            ConfigurationError: when a folder for the workers cannot be made.
            ServerStartFailed: when the door cannot be opened.
        """
        allow_files(_FILES_OF_A_WORKER * self._options.max_workers)
        self._tenants = Tenants(self._options, claims=True)
        self._clearing = Clearing(self._tenants)
        self._folder = control.removesuffix(".control") + ".workers"
        check_length(self._path_of("anybody"))
        if self._tenants.share_user:
            log_event("workers_share_user", level=logging.WARNING, reason=_ONE_USER)
        try:
            code = await self._door.run(listeners)
        finally:
            for place in self._places.values():
                place.post.stop(now=not self._door.is_stopping or self._forced)
            tasks = [one.task for one in (*self._places.values(), *self._leaving) if one.task]
            codes = await asyncio.gather(*tasks)
            await self._clearing.finish()
            with suppress(OSError):  # it was never made
                os.rmdir(self._folder)
        return max(code, *codes, 0)

    @property
    def is_stopping(self) -> bool:
        """Whether it has begun to stop."""
        return self._door.is_stopping

    def processes(self) -> list[WorkerProcess]:
        """The door and all workers that there are, in whatever state."""
        posts = [self._door, *(one.post for one in (*self._places.values(), *self._leaving))]
        return [process for post in posts for process in post.processes()]

    def stop(self, *, now: bool = False) -> None:
        """Begins to stop: finishes running calls first, or kills the workers `now`."""
        self._forced = self._forced or now
        self._door.stop(now=now)
        for place in self._places.values():
            place.post.stop(now=now)

    async def restart(self, *, force: bool = False) -> dict[str, Any]:
        """Replaces all workers that there are; see `CrewRestart.restart`."""
        posts = {who: one.post for who, one in self._places.items() if not one.post.is_resting}
        return await self._restarts.restart(posts, force=force)

    def quarantined(self) -> list[dict[str, Any]]:
        """The functions that are called no more, each with whose worker does not."""
        here = [(who, place.post.quarantined()) for who, place in self._places.items()]
        return _rows([*here, *((one.principal, Quarantine(one).rows()) for one in self._away())])

    def release(self, what: str) -> list[dict[str, Any]]:
        """Has some of them called again, by name or fingerprint, for everybody; their rows."""
        here = [(who, place.post.release(what)) for who, place in self._places.items()]
        away = [(one.principal, Quarantine(one).release(what)) for one in self._away()]
        return _rows([*here, *away])

    def _away(self) -> list[Part]:
        """What is kept for those who have no place now."""
        return [one for one in self._kept.parts() if one.principal not in self._places]

    def describe(self) -> dict[str, Any]:
        """What there is to be said of all workers, for the host's part of a status."""
        rows = [place.post.describe() for place in self._places.values()]
        sums = {
            "restarts": sum(row["restarts"] for row in rows),
            "quarantined": len(self.quarantined()),
        }
        door = self._door.describe()
        return {**door, "worker_pid": None, "door_pid": door["worker_pid"], **sums}

    async def status(self) -> dict[str, Any]:
        """What all workers do together, and each by itself."""
        places = list(self._places.values())
        door, *told = await asyncio.gather(
            self._door.status(), *(place.status() for place in places)
        )
        return crew_report(
            door,
            [place.tenant for place in places],
            [{**place.post.describe(), **each} for place, each in zip(places, told, strict=True)],
        )

    async def idle_s(self) -> float:
        """Seconds without connection and call of anybody; 0 when a worker does not say so now."""
        workers = (place.idle_s() for place in self._places.values())
        return min(await asyncio.gather(self._door.idle_s(), *workers))

    # what the door asks ---------------------------------------------------------------------------

    def _hear(self, door: WorkerProcess, message: Mapping[str, Any]) -> None:
        match message:
            case {"event": "wanted", "id": int(number), "principal": str(who), "token": token}:
                door.tell({"ask": "come", "id": number, **self._place_for(who, token)})
            case {"event": "accounts", "valid": dict(valid)}:
                for place in list(self._places.values()):
                    if place.token not in (None, valid.get(place.tenant.principal)):
                        self._dismiss(place)
                for one in self._away():
                    if one.principal not in valid and not one.principal.startswith("uid:"):
                        self._kept.forget(one.principal)  # its token was taken away meanwhile
                assert self._clearing is not None
                self._clearing.begin_all_but(valid, self._places)

    def _place_for(self, principal: str, token: str | None) -> dict[str, Any]:
        """Where the door finds the worker of a principal, or why it does not."""
        if self.is_stopping:
            return {"refused": "the server is stopping. Connect again when it is back."}
        failed_at, why = self._failed.get(principal, (-_FAILED_S, ""))
        if time.monotonic() - failed_at < _FAILED_S:
            return {"refused": why}
        place = self._places.get(principal)
        if place is not None and place.token != token:
            self._dismiss(place)
            place = None
        try:
            if place is None or place.is_free:
                self._check_room()
            place = place or self._made(principal, token)
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
        if sum(not place.is_free for place in self._places.values()) >= limit:
            raise Busy(
                f"{limit} workers are here, which is as many as this server has at a time "
                "(--max-workers). One that is not called for a while makes room; connect later.",
                _RETRY_AFTER_S,
            )

    def _made(self, principal: str, token: str | None) -> Place:
        assert self._tenants is not None
        self._give_up_resting()
        tenant = self._tenants.of(principal, token)
        part = Part(self._kept, principal, os.path.basename(tenant.folder))
        options, quarantine = tenant.options(self._options), Quarantine(part)
        post = Post(options, self._worker_command, tenant, quarantine=quarantine)
        place = Place.opened(tenant, token, self._path_of(principal), post)
        self._places[principal] = place
        place.task = asyncio.create_task(self._keep(place))
        return place

    def _give_up_resting(self) -> None:
        """Evicts the workers that were not requested for longest, where there are many."""
        since = time.monotonic() - _RESTED_S
        resting = [one for one in self._places.values() if one.is_free and one.asked_at < since]
        resting.sort(key=lambda place: place.asked_at)
        for place in resting[: max(0, len(resting) - _MOST_RESTING)]:
            self._vacate(place)
            place.post.stop()

    def _vacate(self, place: Place) -> None:
        """Has a principal without a place, who can have another one at once.

        The path is free then; the socket is closed by the place's task, which may watch it until
        it is over. Closed before, its number would be another file's, and that never be watched.
        """
        del self._places[place.tenant.principal]
        self._leaving.add(place)
        place.give_up_path()

    def _path_of(self, principal: str) -> str:
        """The socket at which a principal's clients are handed over."""
        name = hashlib.blake2b(principal.encode(), digest_size=6).hexdigest()
        return f"{self._folder}/{name}.sock"

    async def _keep(self, place: Place) -> int:
        """Runs a worker slot; releases what belongs to it afterwards."""
        principal = place.tenant.principal
        assert self._clearing is not None
        try:
            await self._clearing.clear(principal)
            if place.post.is_stopping:  # it was dismissed before it had begun
                return 0
            return await place.post.run([place.listener])
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
            self._leaving.discard(place)
            if self._places.get(principal) is place:
                del self._places[principal]
                self._clearing.begin(principal)

    def _dismiss(self, place: Place) -> None:
        """Ends the worker of an account that was revoked, or has another token now."""
        principal = place.tenant.principal
        log_event("worker_dismissed", level=logging.WARNING, principal=principal)
        self._vacate(place)
        place.post.stop(now=True)  # and who waits there is sent away
        assert self._clearing is not None
        self._clearing.forget(principal)
        self._kept.forget(principal)


def _rows(found: Sequence[tuple[str, list[dict[str, Any]]]]) -> list[dict[str, Any]]:
    return [
        {**row, "name": printable(row["name"]), "principal": principal}
        for principal, rows in found
        for row in rows
    ]
