"""Reports of a worker: for its host, for new connections, and for requests of clients.

Imports no jax: the host requests the status while the worker still starts.
"""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING, Any, Final

from jaxd_protocol.base.process import machine_id
from jaxd_server.runtime.logs import log_event

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxd_server.config.options import ServerOptions
    from jaxd_server.processes.worker.wiring import WorkerComponents
    from jaxd_server.runtime.counters import Counters


_COUNTS: Final = (
    *("executables", "programs", "functions", "sessions", "connections", "values"),
    *("running_calls", "held_calls", "queued_calls", "queued_builds"),
    *("bytes_received", "bytes_sent", "disk_bytes", "disk_files"),
)
NO_DEVICE: Final = "none (--no-device): it keeps programs for processes that run them"
"""In place of the names of devices."""

_LISTS: Final = ("running", "left_behind", "principals")


class WorkerReport:
    """Answers for one worker. Safe from any thread.

    Args:
        options: those of the server.
        counters: where everything is counted.

    Attributes:
        epoch: the number of this worker; 0 until it is assigned.
        components: None until they are built; clients connect later.
        listening: the addresses on which it accepts clients.
        is_short: whether clients wait because files or threads are missing.
    """

    def __init__(self, options: ServerOptions, counters: Counters) -> None:
        self.epoch = 0
        self.components: WorkerComponents | None = None
        self.listening: list[str] = []
        self.is_short: Callable[[], bool] = lambda: False
        self._options = options
        self._counters = counters
        self._has_failed_to_show = False

    def to_host(self) -> dict[str, Any]:
        """The status, with the entries that only the host may see."""
        status, components = self.status(), self.components
        if components is None:
            return status
        owners, platform = components.values.owners(), components.devices.platform
        own = {"owners": owners, "platform": platform, "is_short": self.is_short()}
        return {**status, **own, "heaviest": components.heaviest()}

    def view(self, since: int, source: str) -> dict[str, Any]:
        """What there is to see that is new, for the host; see `WorkerView.news`."""
        components = self.components
        if components is not None:
            try:
                return components.view.news(since, source)
            except Exception:  # noqa: BLE001  nobody has to see a worker for it to work
                if not self._has_failed_to_show:
                    self._has_failed_to_show = True
                    log_event("view_not_collected")
        return {"change": {}, "source": source, "more": False}

    def welcome(self) -> dict[str, Any]:
        """The description of this worker that a client receives when it connects."""
        components = self._built()
        return {
            "versions": components.versions,
            "epoch": self.epoch,
            "pid": os.getpid(),
            "slots": self._options.slots,
            "max_frame_bytes": self._options.max_frame_bytes,
            "session_grace_s": self._options.session_grace_s,
            "accept": self._options.accept,
            "has_device": not self._options.no_device,
            "machine": machine_id(),
            "platform": components.devices.platform,
            "devices": len(components.devices),
            "keeps_snapshots": components.values.snapshots is not None,
            "visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        }

    def answer(self, what: str, principal: str) -> dict[str, Any]:
        """The answer to a client's `statistics` or `info`."""
        if what != "statistics":
            return self.info()
        return self._built().status.shown(self.status(), principal)

    def status(self) -> dict[str, Any]:
        """Counters and the present state, as the host and `statistics` show them."""
        status: dict[str, Any] = {**self._counters.snapshot(), "epoch": self.epoch}
        if self.components is not None:
            return {**status, "phase": "ready", **self.components.status.now()}
        status |= dict.fromkeys(_COUNTS, 0)
        return {**status, "phase": "starting", "idle_s": 0.0, **{name: [] for name in _LISTS}}

    def info(self) -> dict[str, Any]:
        """The description of this worker that `info` shows."""
        components = self._built()
        return {
            "epoch": self.epoch,
            "pid": os.getpid(),
            "python": platform.python_version(),
            "versions": components.versions,
            "devices": [NO_DEVICE] if self._options.no_device else components.devices.names(),
            "listen": list(self.listening),
            "limits": {
                "slots": self._options.slots,
                "budget_bytes": self._options.budget_bytes,
                "max_frame_bytes": self._options.max_frame_bytes,
                "max_result_bytes": self._options.max_result_bytes,
            },
        }

    def _built(self) -> WorkerComponents:
        assert self.components is not None  # clients connect later
        return self.components
