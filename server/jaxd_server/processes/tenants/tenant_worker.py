"""One principal's worker: its socket, and its process while there is one."""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from jaxd_protocol.network.addresses import Address
from jaxd_server.auth.listeners import Listener, ListenerProbe, open_listeners
from jaxd_server.processes.supervision.supervisor import Supervisor
from jaxd_server.processes.supervision.tenant_settings import Tenant
from jaxd_server.runtime.logs import log_event


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
