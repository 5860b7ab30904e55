"""Tracing with a tracer that answers as it is told."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxd_server.codec.arguments import parse_arguments, read_leaves
from jaxd_server.compilation.compiling.builds import current_build
from jaxd_server.compilation.functions.table import Functions
from jaxd_server.compilation.remote_trace.messages import Refused, Reply, SideEffects, TraceRequest
from jaxd_server.compilation.remote_trace.policy import TraceIn, TracePolicy
from jaxd_server.compilation.remote_trace.trace_job import RemoteTrace
from jaxd_server.runtime.counters import Counters
from jaxd_server.runtime.events import Emit
from jaxd_server.runtime.imported_packages import ImportedPackages
from tests.server.in_process import Source, prepare_once, request_of

X = np.ones(3, np.float32)
NOTHING = SideEffects({}, [])


class FakeTracer:
    """Answers as it is told."""

    def __init__(self, state: str = "ready") -> None:
        self.state = state
        self.was_ready = state == "ready"
        self.known: set[bytes] = set()
        self.orders: list[TraceRequest] = []
        self.waited = 0
        self.replies: list[Reply] = []
        self.ended_by: list[object] = []

    def wait(self) -> bool:
        self.waited += 1
        if self.state == "starting":
            self.state = "ready"
        self.was_ready = self.state == "ready"
        return self.was_ready

    def kill(self) -> None:
        self.state = "ended"

    def ask(
        self, order: TraceRequest, emit: Emit, read: object = None, telling: object = None
    ) -> Reply:
        self.orders.append(order)
        build = current_build()
        self.ended_by.append(build and build.end_by_force)
        return self.replies.pop(0)

    def retire(self) -> None:
        self.state = "retired"

    def close(self) -> None:
        self.state = "closed"


class TracingScenario:
    """A `TracePolicy` with fakes around it.

    Attributes:
        shared: whether there is more than one client.
        tracers: those that were started.
    """

    def __init__(self, trace_in: TraceIn = "auto", *, shared: bool = True) -> None:
        prepare_once()
        self.shared = shared
        self.next: list[FakeTracer] = []
        self.tracers: list[FakeTracer] = []
        self.counters = Counters()
        self.packages = ImportedPackages()
        self.tracing = TracePolicy(
            trace_in,
            lambda: self.shared,
            self.counters,
            self.packages,
            None,
            self._start,  # type: ignore[arg-type]
        )
        self.functions = Functions()

    def _start(self) -> FakeTracer:
        self.tracers.append(self.next.pop(0) if self.next else FakeTracer())
        return self.tracers[-1]

    def remote_trace(self, source: Source, *args: Any) -> RemoteTrace | None:
        """For a call of it."""
        call = source.call(args or (X,))
        function = self.functions.obtain(source.key, source)
        layout = parse_arguments(call.skeleton)
        arguments = layout.build(read_leaves(layout.whole, call.blob, call.buffers))
        return self.tracing.remote_trace(request_of(function, call, arguments, layout))

    def answered(self, source: Source, *replies: Reply) -> Any:
        """What comes of a call when the tracer says that."""
        remote_trace = self.remote_trace(source)
        assert remote_trace is not None
        self.tracers[-1].replies = list(replies)
        return remote_trace.lower()


def refused(*, always: bool) -> Refused:
    """The worker has to do it."""
    return Refused(1, "a reason", always, NOTHING)
