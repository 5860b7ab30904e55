"""Calls of a function as it was lowered, and the server's reports of its compilation stages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from jaxd.dispatch.warm import warm
from jaxd.request.function_snapshot import FunctionSpec
from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.jit.options import Options

if TYPE_CHECKING:
    from jaxd.dispatch.caller import Caller
    from jaxd.request.call_request import CallRequest, CallSettings

Dialect = Literal["stablehlo", "hlo"]
Stage = Literal["jaxpr", "lowered", "program", "compiled"]


class LoweredCall:
    """A function at the moment when it was lowered, for arguments of certain shapes.

    Args:
        caller: of the server.
        call: the function, and the shapes; see `encode_warm_request`.
        settings: of its calls.
        args, kwargs: the arguments, or specs of them; of these the static ones count.
        bound: how many of the first ones are bound, and count as well.
    """

    def __init__(
        self,
        caller: Caller,
        call: CallRequest,
        settings: CallSettings,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        bound: int = 0,
    ) -> None:
        self.caller = caller
        self.call = call
        self._settings = settings
        self._args, self._kwargs, self._bound = args, kwargs, bound

    @property
    def name(self) -> str:
        """What people call the function."""
        return self.call.spec.snapshot.name

    def compiled(self, compiler_options: Mapping[str, Any]) -> LoweredCall:
        """The same once the server has compiled it, with these options for XLA beside its own.

        Raises:
            BaseException: what the function raises while it is traced, and what XLA raises.
            JaxdError: when it cannot be built; see `jaxd.errors`.
        """
        call = self.call
        if compiler_options:
            spec = call.spec
            options = Options.from_bytes(spec.options)
            merged = {**dict(options.compiler_options), **compiler_options}
            options = options._replace(compiler_options=tuple(sorted(merged.items())))
            call = call._replace(spec=_with_options(spec, options))
            self.caller.register(call.spec)
        warm(self.caller, call)
        given = self._settings, self._args, self._kwargs, self._bound
        return LoweredCall(self.caller, call, *given)

    def run(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], *, is_checked: bool = False
    ) -> Any:
        """What the function returns for these arguments, which are those that are not static.

        Args:
            args: positional arguments.
            kwargs: those by name.
            is_checked: whether it is known that they have the shapes and dtypes.

        Raises:
            TypeError: as jax, when they have other shapes or dtypes than it was compiled for.
            BaseException, JaxdError: as a call of the function.
        """
        spec, (_, results, timeout_s, strict, _) = self.call.spec, self._settings
        call = self.caller.encode(
            spec, *self._with_statics(args, kwargs), timeout_s, results, strict
        )
        if not is_checked and call.skeleton != self.call.skeleton:
            raise TypeError(
                f"Argument types differ from the types for which {self.name} was compiled. Pass "
                "arrays of those shapes and dtypes, and leave out static arguments; or call the "
                "function itself, which compiles for the new ones."
            )
        return self.caller.call(call)

    def _with_statics(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        statics = self.call.spec.statics
        positions, given = statics.at(len(self._args)) | {*range(self._bound)}, iter(args)
        missing = object()
        whole = [x if i in positions else next(given, missing) for i, x in enumerate(self._args)]
        named = {name: x for name, x in self._kwargs.items() if name in statics.names}
        return tuple([x for x in whole if x is not missing] + list(given)), {**named, **kwargs}

    def ask(self, stage: Stage, dialect: Dialect = "stablehlo", places: bool = False) -> Any:
        """The server's report of one compilation stage.

        Args:
            stage: which.
            dialect: of its text.
            places: whether each operation has its place in the source.

        Raises:
            BaseException: what the function raises while it is traced.
            JaxdError: when the server cannot be reached.
        """
        return ask_stage(self.caller, self.call, stage, dialect, places)


def ask_stage(
    caller: Caller,
    call: CallRequest,
    stage: Stage,
    dialect: Dialect = "stablehlo",
    places: bool = False,
) -> Any:
    """The server's report of one compilation stage of a call; see `LoweredCall.ask`."""
    message = (call.spec.key, call.skeleton, stage, dialect, places)
    reader = call.spec.snapshot.reader
    value, _ = caller.session.request("stages", message, call.buffers, reader)
    return json.loads(value)


def _with_options(spec: FunctionSpec, options: Options) -> FunctionSpec:
    try:
        options.to_bytes()
    except TypeError as error:
        raise ConfigurationError(
            f"a compiler option cannot be part of a key: {error}. Use numbers and text."
        ) from error
    return FunctionSpec(spec.snapshot, options, spec.statics)


@dataclass(frozen=True, slots=True)
class MemoryAnalysis:
    """Bytes that a program takes, as jax and XLA report them; 0 for what they do not say.

    Attributes:
        generated_code_size_in_bytes: its code.
        argument_size_in_bytes: what it is called with.
        output_size_in_bytes: what it returns.
        alias_size_in_bytes: what of the arguments it returns as results.
        temp_size_in_bytes: what it needs while it runs.
        peak_memory_in_bytes: the most at one moment.
        host_generated_code_size_in_bytes, host_argument_size_in_bytes, host_output_size_in_bytes,
            host_alias_size_in_bytes, host_temp_size_in_bytes: the same in the host's memory.
        peak_unpadded_heap_bytes, total_allocation_bytes, indefinite_allocations: from jax 0.11 on.
    """

    generated_code_size_in_bytes: int
    argument_size_in_bytes: int
    output_size_in_bytes: int
    alias_size_in_bytes: int
    temp_size_in_bytes: int
    peak_memory_in_bytes: int = 0
    host_generated_code_size_in_bytes: int = 0
    host_argument_size_in_bytes: int = 0
    host_output_size_in_bytes: int = 0
    host_alias_size_in_bytes: int = 0
    host_temp_size_in_bytes: int = 0
    peak_unpadded_heap_bytes: int = 0
    total_allocation_bytes: int = 0
    indefinite_allocations: int = 0

    @classmethod
    def of(cls, report: Mapping[str, int] | None) -> MemoryAnalysis | None:
        """What the server reports; None where the backend does not say."""
        if report is None:
            return None
        return cls(**{name: report.get(name, 0) for name in cls.__dataclass_fields__})
