"""Reports of a worker: to its host, to new connections, and to clients who ask.

Imports no jax: the host asks before there is any.
"""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING, Any, Final

from jaxd_protocol.base.machine import machine_id

if TYPE_CHECKING:
    from jaxd_server.config.options import ServerOptions
    from jaxd_server.runtime.counters import Counters


_NOTHING: Final = {
    "executables": 0,
    "programs": 0,
    "functions": 0,
    "running_calls": 0,
    "running": [],
    "left_behind": [],
    "held_calls": 0,
    "queued_calls": 0,
    "queued_builds": 0,
    "sessions": 0,
    "principals": [],
    "bytes_received": 0,
    "bytes_sent": 0,
    "disk_bytes": 0,
    "disk_files": 0,
}
"""What a worker does before it has any part."""


class WorkerReport:
    """Answers for one worker. Safe from any thread.

    Args:
        options: what the server was told at its start.
        counters: where everything is counted.

    Attributes:
        epoch: which worker of its host it is; 0 as long as that is not known.
        parts: what it is made of, its `Parts`; None as long as they are not there.
        listening: where it accepts clients.
    """

    def __init__(self, options: ServerOptions, counters: Counters) -> None:
        self.epoch = 0
        self.parts: Any = None
        self.listening: list[str] = []
        self._options = options
        self._counters = counters

    def to_host(self) -> dict[str, Any]:
        """The status, and what is nobody's business but the host's."""
        if self.parts is None:
            return self.status()
        owners, on = self.parts.values.owners(), self.parts.devices.platform
        return {**self.status(), "owners": owners, "platform": on}

    def welcome(self) -> dict[str, Any]:
        """What a client is told of this worker when it connects."""
        return {
            "versions": self.parts.versions,
            "epoch": self.epoch,
            "pid": os.getpid(),
            "slots": self._options.slots,
            "max_frame_bytes": self._options.max_frame_bytes,
            "accept": self._options.accept,
            "machine": machine_id(),
            "platform": self.parts.devices.platform,
            "visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        }

    def answer(self, what: str, principal: str) -> dict[str, Any]:
        """The answer to a client's `statistics` or `info`."""
        if what != "statistics":
            return self.info()
        return self.parts.status.shown(self.status(), principal)  # type: ignore[no-any-return]

    def status(self) -> dict[str, Any]:
        """Counters and the present state, as the host and `statistics` show them."""
        status = {**self._counters.snapshot(), "epoch": self.epoch, "values": 0}
        if self.parts is None:
            return {**status, "phase": "starting", "connections": 0, "idle_s": 0.0, **_NOTHING}
        return {**status, "phase": "ready", **self.parts.status.now()}

    def info(self) -> dict[str, Any]:
        """What this worker is."""
        return {
            "epoch": self.epoch,
            "pid": os.getpid(),
            "python": platform.python_version(),
            "versions": self.parts.versions,
            "devices": self.parts.devices.names(),
            "listen": list(self.listening),
            "limits": {
                "slots": self._options.slots,
                "budget_bytes": self._options.budget_bytes,
                "max_frame_bytes": self._options.max_frame_bytes,
                "max_result_bytes": self._options.max_result_bytes,
            },
        }
