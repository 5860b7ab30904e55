"""The tracers of a worker, one at a time: started when needed, replaced when they end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Final

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_server.compilation.compiling.builds import current_build
from jaxd_server.compilation.remote_trace.messages import Reply, SideEffects, TraceRequest
from jaxd_server.compilation.remote_trace.process import TracerProcess
from jaxd_server.runtime.counters import Counters
from jaxd_server.runtime.events import Emit
from jaxd_server.runtime.imported_packages import ImportedPackages
from jaxd_server.runtime.logs import log_event

_MAX_KEYS: Final = 10_000
_MAX_FAILED_STARTS: Final = 3


class TracerPool:
    """Provides a tracer when one is needed; knows the functions that it cannot trace. Thread-safe.

    Args:
        counters: where what a tracer counts is added.
        packages: where it is noted what a tracer imports.
        start: starts a tracer.

    Attributes:
        refused: functions that are never traced in another process.
        deadly: functions that end the process that traces them, so that it never is the worker.
    """

    def __init__(
        self, counters: Counters, packages: ImportedPackages, start: Callable[[], TracerProcess]
    ) -> None:
        self.refused = BoundedDict[bytes, None](_MAX_KEYS)
        self.deadly = BoundedDict[bytes, None](_MAX_KEYS)
        self._counters = counters
        self._packages = packages
        self._start = start
        self._tracer: TracerProcess | None = None
        self._is_off = False
        self._false_starts = 0
        self._lock = threading.Lock()  # guards the three

    @property
    def is_disabled(self) -> bool:
        """Whether there is none any more, and will be none."""
        return self._is_off

    def present(self) -> TracerProcess | None:
        """The tracer, started if need be and perhaps not ready; None when there is to be none."""
        with self._lock:
            tracer = self._tracer
            if tracer is not None and tracer.state == "ended":
                self._false_starts = 0 if tracer.was_ready else self._false_starts + 1
                if self._false_starts >= _MAX_FAILED_STARTS:
                    log_event("tracer_given_up", level=logging.WARNING)
                    self._is_off = True
                tracer = None
            if self._is_off:
                return None
            self._tracer = tracer or self._start()
            return self._tracer

    def drop(self, tracer: TracerProcess) -> None:
        """Lets go of a tracer that is out of date, but for what it traces, and starts the next."""
        with self._lock:
            if self._tracer is tracer and not self._is_off:
                self._tracer = self._start()
        tracer.retire()

    def close(self) -> None:
        """Ends the tracer; there is none after that."""
        with self._lock:
            self._is_off = True
            tracer, self._tracer = self._tracer, None
        if tracer is not None:
            tracer.close()

    def alone(self, order: TraceRequest, emit: Emit) -> Reply:
        """Has an order worked out in a process that does nothing else."""
        with closing(self._start()) as tracer:
            tracer.wait()
            return trace_with(tracer, order, emit)

    def apply_side_effects(self, side: SideEffects) -> None:
        """Applies counters and imports that a tracer has reported."""
        self._counters.add(**side.counts)
        self._packages.adopt(side.packages)

    def mark_deadly(self, key: bytes) -> None:
        """Records that a function crashes the process that traces it."""
        self.deadly[key] = None
        self.present()  # for others, who need not wait for it then


def trace_with(tracer: TracerProcess, order: TraceRequest, emit: Emit) -> Reply:
    """What a tracer makes of an order; whoever gives up the build that this thread does ends it."""
    build = current_build()
    if build is None:
        return tracer.ask(order, emit)
    build.end_by_force = tracer.kill
    try:
        return tracer.ask(order, emit, build.cancel_hook)
    finally:
        build.end_by_force = None
