"""Decides which builds are traced in the tracer process.

Tracing holds the interpreter, so that other clients of the worker would wait meanwhile. So a
sibling process does it, see `processes.tracer`. A single client would delay only itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from jaxd_server.compilation.compiling.build_request import BuildRequest
from jaxd_server.compilation.disk_cache.programs import ProgramCache
from jaxd_server.compilation.disk_cache.records import call_name
from jaxd_server.compilation.remote_trace.trace_job import RemoteTrace, trace_request_of
from jaxd_server.compilation.remote_trace.tracer_process import TracerPool, TracerProcess
from jaxd_server.runtime.counters import Counters
from jaxd_server.runtime.imported_packages import ImportedPackages

TraceIn = Literal["auto", "worker", "tracer"]
"""Where functions are traced: `auto` as there are clients, always here, or always there."""


class TracePolicy:
    """Chooses which builds are traced in the tracer. Thread-safe.

    Args:
        trace_in: where functions are traced.
        is_shared: whether more than one client is there.
        counters: to which the counts of the tracer are added.
        packages: to which the imports of the tracer are added. Where they have changed, the tracer
            is the process that has the new ones.
        program_cache: where packed functions are found; None where nothing is kept.
        start: starts a tracer.
    """

    def __init__(
        self,
        trace_in: TraceIn,
        is_shared: Callable[[], bool],
        counters: Counters,
        packages: ImportedPackages,
        program_cache: ProgramCache | None,
        start: Callable[[], TracerProcess],
    ) -> None:
        self._trace_in = trace_in
        self._is_shared = is_shared
        self._packages = packages
        self._program_cache = program_cache
        self._tracers = TracerPool(counters, packages, start)

    def start(self) -> None:
        """Starts the tracer now if every build is traced there."""
        if self._trace_in == "tracer":
            self._tracers.present()

    def remote_trace(self, request: BuildRequest) -> RemoteTrace | None:
        """The trace of a function in the tracer; None: it is traced here.

        The client is asked for the code when that is needed.

        Args:
            request: what is to be built; its function need not be unpacked.

        Raises:
            Exception: what asking the client raises.
        """
        tracers, function = self._tracers, request.function
        if not self._is_wanted() or function.key in tracers.refused:
            return None
        name = call_name(function, request.arguments)
        # a call without a name may differ in another process
        order = None if name is None else trace_request_of(request, name)
        if order is None:
            return None
        is_needed = function.key in tracers.deadly or self._packages.have_changed
        tracer = self._ready(patiently=is_needed)
        if tracer is None:
            return None
        remote_trace = RemoteTrace(
            tracers, tracer, order, request.source, self._program_cache, request.emit
        )
        is_known = order.described.fingerprint in tracer.known
        return remote_trace if is_known else remote_trace.with_code()

    def close(self) -> None:
        """Ends the tracer."""
        self._tracers.close()

    def _is_wanted(self) -> bool:
        gains = self._packages.have_changed or self._is_shared()
        wanted = self._trace_in == "tracer" or (self._trace_in == "auto" and gains)
        return wanted and not self._tracers.is_disabled

    def _ready(self, *, patiently: bool) -> TracerProcess | None:
        """The tracer; one that has only just been started is for the next build."""
        tracer = self._tracers.present()
        if tracer is not None and self._trace_in == "auto" and not patiently:
            return tracer if tracer.state == "ready" else None
        return tracer if tracer is not None and tracer.wait() else None
