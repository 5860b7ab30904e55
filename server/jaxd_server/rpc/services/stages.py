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
from jaxd_server.codec.arguments import Arguments, build_arguments, empty_leaves, parse_arguments
from jaxd_server.codec.signature import signature_of
from jaxd_server.compilation.compiling.build_request import Question
from jaxd_server.compilation.compiling.compiler import Compiler, Shown
from jaxd_server.compilation.executable_source import BuildQuota
from jaxd_server.compilation.functions.function import Function
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
            arguments = _arguments(function, skeleton, buffers)
            question = Question(function, arguments, skeleton, buffers, source)
            found = self._shown_elsewhere(question, shown, principal)
            if found is None:
                found = self._shown_here(question, shown, principal)
            return json.dumps(found), ()

    def _shown_elsewhere(
        self, question: Question, shown: Shown, principal: str
    ) -> dict[str, Any] | None:
        """What a builder says; None where that is not wanted, or not possible."""
        elsewhere = None if self._building is None else self._building.remote_question(question)
        if elsewhere is None:
            return None
        turn = self._compiler.room.turn(f"({shown.stage})", is_elsewhere=True)
        with closing(elsewhere), turn, self._quota.charging(principal):
            return elsewhere.show(shown)

    def _shown_here(self, question: Question, shown: Shown, principal: str) -> dict[str, Any]:
        functions, source = self._pipeline.functions, question.source
        function = unpacked_function(functions, question.function.key, source)
        assert function.unpacked is not None
        turn = self._compiler.room.turn(f"({shown.stage})")
        with turn, self._quota.charging(principal), function.unpacked.traced_for(source.read):
            return self._compiler.show(
                function.traceable, function.options, question.arguments, shown, function.captured
            )


def _arguments(function: Function, skeleton: bytes, buffers: Sequence[memoryview]) -> Arguments:
    layout = parse_arguments(skeleton)
    arguments = build_arguments(layout, empty_leaves(layout, buffers), function.statics)
    signature_of(*arguments, function.statics)  # refuses what a call would be refused for
    return arguments
