"""Builds with a builder that answers as it is told."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np

from jaxd_protocol.jit.static_args import dynamic
from jaxd_server.codec.arguments import parse_arguments, read_leaves, structure_of
from jaxd_server.compilation.compiling.build_request import BuildRequest
from jaxd_server.compilation.compiling.compiler import Compiler, LoweredFunction
from jaxd_server.compilation.functions.table import Functions
from jaxd_server.compilation.remote_build.build_job import RemoteBuild
from jaxd_server.compilation.remote_build.messages import (
    BuildOrder,
    Ended,
    Refused,
    Reply,
    Request,
    SideEffects,
)
from jaxd_server.compilation.remote_build.policy import BuildIn, BuildPolicy, Clients
from jaxd_server.runtime.counters import Counters
from jaxd_server.runtime.events import SILENT, Emit
from jaxd_server.runtime.imported_packages import ImportedPackages
from tests.server.in_process import Source, prepare_once, request_of

X = np.ones(3, np.float32)
NOTHING = SideEffects({}, [])


class FakeBuilder:
    """Answers as it is told."""

    def __init__(self, state: str = "ready") -> None:
        self.state = state
        self.was_ready = state == "ready"
        self.has_failed = state == "ended"
        self.known: set[bytes] = set()
        self.pid = 1
        self.builds = 0
        self.yields = False
        self.since = 0.0
        self.bytes = 0
        self.requests: list[Request] = []
        self.waited = 0
        self.replies: list[Reply] = []

    def wait(self, check: object = None) -> bool:
        self.waited += 1
        if self.state == "starting":
            self.state, self.was_ready = "ready", True
        return self.state == "ready"

    def resident(self) -> int:
        return self.bytes

    def give_way(self) -> None:
        self.yields = True

    def end(self) -> None:
        self.state = "ended"

    close = end

    def ask(self, request: Request, emit: Emit, **more: object) -> Reply:
        self.requests.append(request)
        self.builds += isinstance(request, BuildOrder)
        reply = self.replies.pop(0)
        if isinstance(reply, Ended):
            self.state = "ended"
        return reply


class BuildScenario:
    """A `BuildPolicy` with fakes around it.

    Attributes:
        shared: whether there is more than one client.
        in_use: whether one is there that works.
        now: what the clock says.
        builders: those that were started.
    """

    def __init__(self, build_in: BuildIn = "auto", *, shared: bool = True) -> None:
        prepare_once()
        self.shared = shared
        self.in_use = False
        self.now = 100.0
        self.next: list[FakeBuilder] = []
        self.builders: list[FakeBuilder] = []
        self.counters = Counters()
        self.packages = ImportedPackages()
        self.functions = Functions()
        self.building = BuildPolicy(
            build_in,
            Clients(lambda: self.shared, lambda: self.in_use),
            self.counters,
            self.packages,
            None,
            self.functions.deadly,
            self._start,  # type: ignore[arg-type]
            clock=lambda: self.now,
        )

    def _start(self) -> FakeBuilder:
        self.builders.append(self.next.pop(0) if self.next else FakeBuilder())
        return self.builders[-1]

    def request(self, source: Source, *args: Any) -> BuildRequest:
        """That of a call of it."""
        call = source.call(args or (X,))
        function = self.functions.obtain(source.key, source)
        layout = parse_arguments(call.skeleton)
        arguments = layout.build(read_leaves(layout.whole, call.blob, call.buffers))
        return request_of(function, call, arguments, layout)

    def lowered_here(self, source: Source) -> tuple[BuildRequest, LoweredFunction]:
        """What this process makes of it."""
        request, compiler = self.request(source), Compiler(Counters(), 1)
        structure = structure_of(dynamic(request.arguments, request.function.statics))
        args = (request.arguments, structure, SILENT)
        lowered = compiler.lower(source.function, source.name, source.options, *args)
        compiler.close()
        return request, lowered

    def remote_build(self, source: Source, *args: Any) -> RemoteBuild | None:
        """For a call of it."""
        return self.building.remote_build(self.request(source, *args))

    def answered(self, source: Source, *replies: Reply) -> Any:
        """What comes of a call when the builder says that."""
        remote_build = self.remote_build(source)
        assert remote_build is not None
        self.will_answer(*replies)
        with closing(remote_build):
            return remote_build.lower()

    def will_answer(self, *replies: Reply) -> FakeBuilder:
        """Has one builder, which answers that."""
        if not self.builders:
            self.building.builders.start_spare()
        self.builders[-1].replies = list(replies)
        return self.builders[-1]


def refused(*, always: bool) -> Refused:
    """The worker has to do it."""
    return Refused(1, "a reason", always, NOTHING)
