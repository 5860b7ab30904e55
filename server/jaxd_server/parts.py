"""The parts of a worker, put together: the only file that knows every class. Imports jax."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from typing import Any

import jax

from jaxd_protocol.addresses import Address
from jaxd_server.admission import Admission
from jaxd_server.budget import Budget
from jaxd_server.compiler import Compiler
from jaxd_server.connection import Workshop
from jaxd_server.doorman import Doorman
from jaxd_server.endpoint import Endpoint
from jaxd_server.executables import Executables
from jaxd_server.functions import Functions
from jaxd_server.jax_config import begin_with_defaults
from jaxd_server.options import ServerOptions
from jaxd_server.pipeline import Pipeline
from jaxd_server.readership import Sentry
from jaxd_server.reclaimer import Reclaimer
from jaxd_server.renewal import Renewal
from jaxd_server.sessions import Sessions
from jaxd_server.statistics import Counters
from jaxd_server.traffic import Traffic

__all__ = ["Parts"]

_BUILDER_THREADS = 1024
"""Calls that may wait for a build, or for a client to say what its function is, at once.

Started as they are needed. Many, so that some clients that do not answer do not keep the others
waiting; how many build is limited by `--builds`.
"""

_MAX_EXECUTABLES = 400
"""At about 130 memory maps each, what a Linux process may have by default is 500."""


class Parts:
    """Everything that one worker is made of.

    Args:
        options: what the server was told at its start.
        counters: where everything is counted.
        report: answers `statistics` and `info` for clients.
        renew: begins to replace this worker, told what changed on disk; None where nobody can.
    """

    def __init__(
        self,
        options: ServerOptions,
        counters: Counters,
        report: Callable[[str], dict[str, Any]],
        renew: Callable[[list[str]], None] | None = None,
    ) -> None:
        begin_with_defaults()
        self.versions = {name: metadata.version(name) for name in ("jax", "jaxlib", "numpy")}
        self._options = options
        self._token = options.read_token()
        self._counters = counters
        self._sessions = Sessions(options.session_grace_s)
        self._traffic = Traffic()
        self._executables = Executables(Reclaimer(), _MAX_EXECUTABLES)
        admission = Admission()
        self.pipeline = Pipeline(
            Functions(),
            self._executables,
            Compiler(counters, options.builds),
            admission,
            counters,
            None if renew is None else Renewal(admission, renew),
        )
        self._budget = Budget(options.budget_bytes)
        self._workshop = Workshop(
            pipeline=self.pipeline,
            runners=ThreadPoolExecutor(options.threads, "jaxd-run"),
            builders=ThreadPoolExecutor(_BUILDER_THREADS, "jaxd-build"),
            sentry=Sentry(),
            budget=self._budget,
            traffic=self._traffic,
            slots=options.slots,
            max_frame_bytes=options.max_frame_bytes,
            max_result_bytes=options.max_result_bytes,
            report=report,
        )

    def endpoint(
        self, sock: socket.socket, address: Address, welcome: Callable[[], dict[str, Any]]
    ) -> Endpoint:
        """The server for one inherited listener."""
        doorman = Doorman(
            address,
            self._token,
            os.getuid(),
            self._options.allow_unauthenticated_loopback,
            self.versions,
        )
        return Endpoint(sock, address, doorman, self._sessions, self._workshop, welcome)

    def drain(self) -> None:
        """Refuses new calls, finishes the running ones, and waits until their replies are sent."""
        self.pipeline.admission.drain()
        self._budget.idle.wait()

    def status(self) -> dict[str, Any]:
        """The present state, beside the counters."""
        running = self.pipeline.admission.running()
        return {
            "executables": len(self._executables),
            "functions": len(self.pipeline.functions),
            "connections": self._sessions.connections,
            "sessions": len(self._sessions),
            "running_calls": len(running),
            "running": running,
            "idle_s": 0.0 if running else round(self._idle_s(), 3),
            **self._traffic.totals(),
        }

    def _idle_s(self) -> float:
        """Seconds since the last call, or since a client left when that was later."""
        return min(self._counters.idle_s, self._sessions.quiet_s)

    def devices(self) -> list[str]:
        """The devices that this worker owns; starts jax's backend if nothing has yet."""
        return [f"{device.platform}:{device.id} {device.device_kind}" for device in jax.devices()]
