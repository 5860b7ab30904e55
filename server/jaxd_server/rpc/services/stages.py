"""Shows what becomes of a function: its jaxpr, its lowered program, and what XLA makes of that.

Everything is derived anew for each request, in a builder where functions are traced there, and
nothing is kept: the programs that answer calls are not used, and none is added.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.messages.recipes import RecordedCall
from jaxd_server.codec.arguments import empty_arguments
from jaxd_server.codec.signature import signature_of
from jaxd_server.compilation.compiling.build_request import BuildRequest
from jaxd_server.compilation.compiling.compiler import Compiler, Shown
from jaxd_server.compilation.executable_source import BuildQuota
from jaxd_server.compilation.functions.table import FunctionSource
from jaxd_server.execution.call import Reply
from jaxd_server.execution.pipeline import Pipeline
from jaxd_server.execution.run import unpacked_function
from jaxd_server.jax_compat.devices import Devices
from jaxd_server.runtime.counters import Counts

if TYPE_CHECKING:
    from jaxd_server.compilation.remote_build.policy import BuildPolicy

_STAGES: Final = ("jaxpr", "lowered", "program", "compiled")


class Stages:
    """Safe from any thread.

    Args:
        pipeline: has the functions, and admits the requests.
        compiler: traces and compiles what is not traced elsewhere, and limits the builds at a time.
        quota: how much may be built for whom.
        building: chooses what a builder traces; None: all is traced in this process.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        compiler: Compiler,
        quota: BuildQuota,
        building: BuildPolicy | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._counters = pipeline.counters
        self._compiler = compiler
        self._quota = quota
        self._building = building
        self._devices = Devices()

    def answer(
        self,
        source: FunctionSource,
        args: tuple[Any, ...],
        buffers: Sequence[memoryview],
        principal: str = "",
        own: Counts | None = None,
    ) -> Reply:
        """One stage of a function, as JSON.

        Args:
            source: describes the function, and has its code.
            args: key, skeleton, stage, dialect and whether with source locations; see
                `jaxd_protocol.messages.calls`.
            buffers: the pickles of the skeleton.
            principal: for whom.
            own: the counts of that principal.

        Raises:
            ProtocolError: when there is no such stage.
            LimitExceeded: when nothing more is built for the principal now.
            Exception: what a call of the function raises before it runs.
        """
        key, skeleton, stage, dialect, places = args
        if stage not in _STAGES:
            raise ProtocolError("a question about the stages of a function cannot be read.")
        shown = Shown(stage, dialect, places)
        with self._pipeline.operation(f"({stage})"), self._counters.on_behalf_of(own):
            self._quota.require(principal)
            function = self._pipeline.functions.obtain(key, source)
            self._devices.of(function.options.device, 0)
            arguments = empty_arguments(skeleton, function.statics, buffers)
            signature_of(*arguments, function.statics)  # refuses what a call would be refused for
            request = BuildRequest.without_data(
                *(function, arguments, RecordedCall(skeleton), source),
                buffers=buffers,
                principal=principal,
            )
            found = self._shown_elsewhere(request, shown) or self._shown_here(request, shown)
            return json.dumps(found), ()

    def _shown_elsewhere(self, request: BuildRequest, shown: Shown) -> dict[str, Any] | None:
        """What a builder says; None where that is not wanted, or not possible."""
        building = self._building
        elsewhere = building.remote_build(request, asks_early=False) if building else None
        if elsewhere is None:
            return None
        turn = self._compiler.room.turn(f"({shown.stage})", is_elsewhere=True)
        with closing(elsewhere), turn, self._quota.charging(request.principal):
            return elsewhere.show(shown)

    def _shown_here(self, request: BuildRequest, shown: Shown) -> dict[str, Any]:
        function = unpacked_function(self._pipeline.functions, request.function.key, request.source)
        assert function.unpacked is not None
        with (
            self._compiler.room.turn(f"({shown.stage})"),
            self._quota.charging(request.principal),
            function.unpacked.traced_for(request.source.read),
        ):
            return self._compiler.show(
                function.traceable, function.options, request.arguments, shown, function.captured
            )
