"""The compilation stages of a function: `f.jaxpr(...)`, `f.lower(...)`.

The server keeps nothing for these: each is derived again from the key, so they outlive it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from jaxd_protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from jaxd.dispatch.caller import Caller
    from jaxd.request.call_request import CallRequest


Dialect = Literal["stablehlo", "hlo"]
Stage = Literal["jaxpr", "lowered", "compiled"]
StageQuery = Callable[[Stage, Dialect, bool], Mapping[str, Any]]


def ask_stage(
    caller: Caller,
    call: CallRequest,
    stage: Stage,
    dialect: Dialect = "stablehlo",
    places: bool = False,
) -> Mapping[str, Any]:
    """The server's report of one compilation stage of a function.

    Raises:
        BaseException: what the function raises while it is traced.
        JaxdError: when the server cannot be reached.
    """
    message = (call.spec.key, call.skeleton, stage, dialect, places)
    reader = call.spec.snapshot.reader
    value, _ = caller.session.request("stages", message, call.buffers, reader)
    found: Mapping[str, Any] = json.loads(value)
    return found


class Lowered:
    """A function that was lowered for arguments of certain shapes, as `jax.stages.Lowered`.

    Made by `f.lower(...)`.
    """

    def __init__(self, name: str, ask: StageQuery) -> None:
        self._name = name
        self._ask = ask
        self._found = ask("lowered", "stablehlo", False)

    def as_text(self, dialect: Dialect | None = None, *, debug_info: bool = False) -> str:
        """The program before XLA has seen it.

        Args:
            dialect: `"stablehlo"`, which is the default, or `"hlo"`.
            debug_info: whether each operation has its place in the source.

        Raises:
            ConfigurationError: for another dialect.
        """
        if dialect not in (None, "stablehlo", "hlo"):
            raise ConfigurationError(
                f"dialect={dialect!r} is not known. Use 'stablehlo' or 'hlo', or leave it out."
            )
        if dialect in (None, "stablehlo") and not debug_info:
            return str(self._found["text"])
        return str(self._ask("lowered", dialect or "stablehlo", debug_info)["text"])

    def cost_analysis(self) -> dict[str, float] | None:
        """What XLA thinks that it costs, by name, such as `flops`; None where it does not say."""
        return _copy(self._found["cost"])

    def compile(self) -> Compiled:
        """Has XLA compile it, to look at: calls of the function do not use it.

        Raises:
            Exception: what jax raises.
        """
        return Compiled(self._name, self._ask("compiled", "stablehlo", False))

    def __repr__(self) -> str:
        return f"<lowered {self._name}>"


class Compiled:
    """What XLA has made of a function, as `jax.stages.Compiled`. Made by `Lowered.compile`."""

    def __init__(self, name: str, found: Mapping[str, Any]) -> None:
        self._name = name
        self._found = found

    def as_text(self) -> str:
        """The program as it runs."""
        return str(self._found["text"])

    def cost_analysis(self) -> dict[str, float] | None:
        """What it costs, by name, such as `flops`; None where the backend does not say."""
        return _copy(self._found["cost"])

    def memory_analysis(self) -> MemoryAnalysis | None:
        """What it takes of the device's memory; None where the backend does not say."""
        found = self._found["memory"]
        if found is None:
            return None
        return MemoryAnalysis(**{n: found.get(n, 0) for n in MemoryAnalysis.__dataclass_fields__})

    def __repr__(self) -> str:
        return f"<compiled {self._name}>"


@dataclass(frozen=True, slots=True)
class MemoryAnalysis:
    """Bytes that a program takes.

    Attributes:
        generated_code_size_in_bytes: its code.
        argument_size_in_bytes: what it is called with.
        output_size_in_bytes: what it returns.
        alias_size_in_bytes: what of the arguments it returns as results.
        temp_size_in_bytes: what it needs while it runs.
    """

    generated_code_size_in_bytes: int
    argument_size_in_bytes: int
    output_size_in_bytes: int
    alias_size_in_bytes: int
    temp_size_in_bytes: int


def _copy(cost: Mapping[str, float] | None) -> dict[str, float] | None:
    return None if cost is None else dict(cost)
