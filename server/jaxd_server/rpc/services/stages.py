"""Shows what becomes of a function: its jaxpr, its lowered program, and what XLA makes of that.

Everything is derived anew for each question, and nothing of it stays: no program that answers
calls is touched, and none is made.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax

from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.messages.calls import FAILED
from jaxd_protocol.messages.failures import encode_failure
from jaxd_server.codec.arguments import Arguments, build_arguments, empty_leaves, parse_arguments
from jaxd_server.codec.signature import signature_of
from jaxd_server.compilation.compiling.compiler import Compiler, explained
from jaxd_server.compilation.functions.function import Function
from jaxd_server.compilation.functions.table import FunctionReplaced, Functions, FunctionSource
from jaxd_server.execution.admission import Admission
from jaxd_server.execution.call import Reply
from jaxd_server.jax_compat.config import pinned, restore_defaults
from jaxd_server.jax_compat.devices import Devices
from jaxd_server.runtime.counters import Counters, Counts

_STAGES: Final = ("jaxpr", "lowered", "compiled")
_SIZES: Final = "_in_bytes"


class Stages:
    """Safe from any thread.

    Args:
        functions: where the code comes from.
        compiler: says when there is room for another build.
        admission: a question counts as a call, for which the server waits when it stops.
        counters: where traces and lowerings are counted; compilations count themselves.
    """

    def __init__(
        self, functions: Functions, compiler: Compiler, admission: Admission, counters: Counters
    ) -> None:
        self._functions = functions
        self._compiler = compiler
        self._admission = admission
        self._counters = counters
        self._devices = Devices()

    def answer(
        self,
        source: FunctionSource,
        args: tuple[Any, ...],
        buffers: Sequence[memoryview],
        own: Counts | None = None,
    ) -> Reply:
        """What is asked for, as JSON; never raises: an error comes back as that of a call does.

        Args:
            source: whom to ask what the key stands for.
            args: key, skeleton, stage, dialect and whether with places; see
                `jaxd_protocol.messages.calls`.
            buffers: the pickles of the skeleton.
            own: for whom is counted.
        """
        try:
            key, skeleton, stage, dialect, places = _checked(args)
            running = self._admission.acquire(f"({stage})", None)
            try:
                function = self._function(key, source)
                self._devices.of(function.options.device, 0)
                arguments = _arguments(function, skeleton, buffers)
                with self._compiler.room, self._counters.on_behalf_of(own):
                    found = self._shown(function, arguments, stage, dialect, places=places)
                return json.dumps(found), ()
            finally:
                self._admission.release(running)
                self._counters.add()  # the server was not idle
        except BaseException as error:  # noqa: BLE001  all of it is the caller's to know
            return (FAILED, encode_failure(error)), ()

    def _function(self, key: bytes, source: FunctionSource) -> Function:
        try:
            return self._unpacked(key, source)
        except FunctionReplaced:
            return self._unpacked(key, source)

    def _unpacked(self, key: bytes, source: FunctionSource) -> Function:
        function = self._functions.obtain(key, source)
        self._functions.unpack(function, source)
        return function

    def _shown(
        self, function: Function, arguments: Arguments, stage: str, dialect: str, *, places: bool
    ) -> dict[str, Any]:
        args, kwargs = arguments
        options = function.options
        traced = self._counted(function.traceable)
        try:
            with pinned(options.config):
                jitted = jax.jit(traced, **options.jit_arguments())
                if stage == "jaxpr":
                    return {"text": str(jitted.trace(*args, **kwargs).jaxpr)}
                lowered = jitted.lower(*args, **kwargs)
                self._counters.add(lowers=1)
                if stage == "compiled":
                    return _compiled(lowered)
                return _lowered(lowered, dialect, places=places)
        except TypeError as error:
            raise explained(error) from error
        finally:
            restore_defaults()

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function object of its own, of which jax remembers nothing."""

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
    }


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
    return {name: int(getattr(stats, name)) for name in dir(stats) if name.endswith(_SIZES)}


def _checked(args: tuple[Any, ...]) -> tuple[bytes, bytes, str, str, bool]:
    if tuple(map(type, args)) != (bytes, bytes, str, str, bool) or (args[2] not in _STAGES):
        raise ProtocolError("a question about the stages of a function cannot be read.")
    key, skeleton, stage, dialect, places = args
    return key, skeleton, stage, dialect, places
