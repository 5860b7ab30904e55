"""Shows what becomes of a function: its jaxpr, its lowered program, and what XLA makes of that.

Everything is derived anew for each request, and nothing is kept: the programs that answer calls
are not used, and none is added.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax

from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.program_identity import program_text
from jaxd_server.codec.arguments import Arguments, build_arguments, empty_leaves, parse_arguments
from jaxd_server.codec.results import result_layout
from jaxd_server.codec.signature import signature_of
from jaxd_server.compilation.compiling.compiler import Compiler, explained
from jaxd_server.compilation.executable_source import BuildQuota
from jaxd_server.compilation.functions.function import Function
from jaxd_server.compilation.functions.table import FunctionSource
from jaxd_server.execution.call import Reply
from jaxd_server.execution.pipeline import Pipeline
from jaxd_server.execution.run import unpacked_function
from jaxd_server.jax_compat.config import pinned, restore_defaults
from jaxd_server.jax_compat.devices import Devices
from jaxd_server.jax_compat.lowered import out_leaves, program_id
from jaxd_server.runtime.counters import Counts
from jaxd_server.user_code.mutation_guard import MutationGuard

_STAGES: Final = ("jaxpr", "lowered", "program", "compiled")


class Stages:
    """Safe from any thread.

    Args:
        pipeline: has the functions, admits the requests, and counts traces and lowerings;
            compilations count themselves.
        compiler: limits the builds at a time.
        quota: how much may be built for whom.
    """

    def __init__(self, pipeline: Pipeline, compiler: Compiler, quota: BuildQuota) -> None:
        self._pipeline = pipeline
        self._counters = pipeline.counters
        self._compiler = compiler
        self._quota = quota
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
        with self._pipeline.operation(f"({stage})"):
            self._quota.require(principal)
            function = unpacked_function(self._pipeline.functions, key, source)
            self._devices.of(function.options.device, 0)
            arguments = _arguments(function, skeleton, buffers)
            turn = self._compiler.room.turn(f"({stage})")
            with turn, self._quota.charging(principal), self._counters.on_behalf_of(own):
                found = self._shown(function, arguments, stage, dialect, places=places)
            return json.dumps(found), ()

    def _shown(
        self, function: Function, arguments: Arguments, stage: str, dialect: str, *, places: bool
    ) -> dict[str, Any]:
        args, kwargs = arguments
        options = function.options
        traced = self._counted(function.traceable)
        try:
            guards = function.captured, MutationGuard.of_statics(arguments)
            with pinned(options.config), guards[0].kept(), guards[1].kept():
                jitted = jax.jit(traced, **options.jit_arguments())
                if stage == "jaxpr":
                    return {"text": str(jitted.trace(*args, **kwargs).jaxpr)}
                lowered = jitted.lower(*args, **kwargs)
                self._counters.add(lowers=1)
                if stage == "compiled":
                    return _compiled(lowered)
                if stage == "program":
                    return _identified(lowered, options)
                return _lowered(lowered, dialect, places=places)
        except TypeError as error:
            raise explained(error) from error
        finally:
            restore_defaults()

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A new function object, for which jax has cached nothing."""

        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self._counters.add(traces=1)
            return function(*args, **kwargs)

        return counted


def _arguments(function: Function, skeleton: bytes, buffers: Sequence[memoryview]) -> Arguments:
    layout = parse_arguments(skeleton)
    arguments = build_arguments(layout, empty_leaves(layout, buffers), function.statics)
    signature_of(*arguments, function.statics)  # refuses what a call would be refused for
    return arguments


def _lowered(lowered: Any, dialect: str, *, places: bool) -> dict[str, Any]:
    return {
        "text": lowered.as_text(dialect, debug_info=places),
        "cost": _plain(lowered.cost_analysis()),
        "result": result_layout(out_leaves(lowered), lowered.out_tree).skeleton.hex(),
    }


def _identified(lowered: Any, options: Options) -> dict[str, Any]:
    """What a client compares with the program that it lowers itself."""
    name, obstacle = program_id(lowered, options)
    return {"id": None if obstacle else name.hex(), "text": program_text(lowered, options)}


def _compiled(lowered: Any) -> dict[str, Any]:
    compiled = lowered.compile()
    return {
        "text": compiled.as_text(),
        "cost": _plain(compiled.cost_analysis()),
        "memory": _memory(compiled.memory_analysis()),
    }


def _plain(cost: Any) -> dict[str, float] | None:
    """Numbers by name; None where the backend does not say."""
    return None if cost is None else {str(name): float(value) for name, value in cost.items()}


def _memory(stats: Any) -> dict[str, int] | None:
    if stats is None:
        return None
    found = {name: getattr(stats, name) for name in dir(stats) if not name.startswith("_")}
    return {name: number for name, number in found.items() if type(number) is int}
