"""Reports of a worker: to its host, to new connections, and to clients that ask.

Imports no jax: the host asks while the worker still starts.
"""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING, Any, Final

from jaxd_protocol.base.process import machine_id

if TYPE_CHECKING:
    from jaxd_server.config.options import ServerOptions
    from jaxd_server.processes.worker.wiring import WorkerComponents
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
"""The state of a worker before it has any component."""


class WorkerReport:
    """Answers for one worker. Safe from any thread.

    Args:
        options: those of the server.
        counters: where everything is counted.

    Attributes:
        epoch: which worker of its host it is; 0 as long as that is not known.
        components: None until they are built; clients connect later.
        listening: where it accepts clients.
    """

    def __init__(self, options: ServerOptions, counters: Counters) -> None:
        self.epoch = 0
        self.components: WorkerComponents | None = None
        self.listening: list[str] = []
        self._options = options
        self._counters = counters

    def to_host(self) -> dict[str, Any]:
        """The status, and what only the host may know."""
        status, components = self.status(), self.components
        if components is None:
            return status
        owners, platform = components.values.owners(), components.devices.platform
        return {**status, "owners": owners, "platform": platform}

    def welcome(self) -> dict[str, Any]:
        """The description of this worker that a client receives when it connects."""
        components = self._built()
        return {
            "versions": components.versions,
            "epoch": self.epoch,
            "pid": os.getpid(),
            "slots": self._options.slots,
            "max_frame_bytes": self._options.max_frame_bytes,
            "accept": self._options.accept,
            "machine": machine_id(),
            "platform": components.devices.platform,
            "visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        }

    def answer(self, what: str, principal: str) -> dict[str, Any]:
        """The answer to a client's `statistics` or `info`."""
        if what != "statistics":
            return self.info()
        return self._built().status.shown(self.status(), principal)

    def status(self) -> dict[str, Any]:
        """Counters and the present state, as the host and `statistics` show them."""
        status = {**self._counters.snapshot(), "epoch": self.epoch, "values": 0}
        if self.components is None:
            return {**status, "phase": "starting", "connections": 0, "idle_s": 0.0, **_NOTHING}
        return {**status, "phase": "ready", **self.components.status.now()}

    def info(self) -> dict[str, Any]:
        """The description of this worker that `info` shows."""
        components = self._built()
        return {
            "epoch": self.epoch,
            "pid": os.getpid(),
            "python": platform.python_version(),
            "versions": components.versions,
            "devices": components.devices.names(),
            "listen": list(self.listening),
            "limits": {
                "slots": self._options.slots,
                "budget_bytes": self._options.budget_bytes,
                "max_frame_bytes": self._options.max_frame_bytes,
                "max_result_bytes": self._options.max_result_bytes,
            },
        }

    def _built(self) -> WorkerComponents:
        assert self.components is not None  # no client can connect before
        return self.components
