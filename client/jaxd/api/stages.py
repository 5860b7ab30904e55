"""The compilation stages of a function in a process without jax: `f.lower(...)`.

They are named as those of `jax.stages`, and have what can be had without jax's objects. The server
keeps nothing for these: each is derived again from the key, so they outlive it.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jaxd.dispatch.compiled_call import Dialect, LoweredCall, MemoryAnalysis
from jaxd_protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from jaxd_protocol.pytree import Leaf


@dataclass(frozen=True, slots=True)
class OutInfo:
    """What an array of a result will be.

    Attributes:
        shape: dimensions.
        dtype: name of the dtype.
        weak_type: whether the dtype gives way to others in promotion.
    """

    shape: tuple[int, ...]
    dtype: str
    weak_type: bool = False

    @classmethod
    def of(cls, leaf: Leaf) -> OutInfo:
        """That of a leaf on the wire; of random keys the name of their generator is the dtype."""
        if leaf.tag == "K":
            return cls(leaf.shape[:-1], f"key<{leaf.impl}>")
        return cls(leaf.shape, leaf.dtype, leaf.weak)


class Lowered:
    """A function that was lowered for arguments of certain shapes, as `jax.stages.Lowered`.

    Made by `f.lower(...)` in a process without jax.
    """

    def __init__(self, call: LoweredCall) -> None:
        self._call = call
        self._found = call.ask("lowered")

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
        return str(self._call.ask("lowered", dialect or "stablehlo", debug_info)["text"])

    def cost_analysis(self) -> dict[str, float] | None:
        """What XLA thinks that it costs, by name, such as `flops`; None where it does not say."""
        return _copy(self._found["cost"])

    @property
    def out_info(self) -> Any:
        """What the function returns, with an `OutInfo` in place of each array."""
        snapshot = self._call.call.spec.snapshot
        with snapshot.pickling_context():
            layout = snapshot.reader.layout(binascii.unhexlify(self._found["result"]))
            return layout.build([OutInfo.of(leaf) for leaf in layout.leaves])

    def compile(self, compiler_options: Mapping[str, Any] | None = None) -> Compiled:
        """Has the server compile it.

        Args:
            compiler_options: of XLA, beside those of the function.

        Raises:
            Exception: what jax raises.
        """
        return Compiled(self._call.compiled(compiler_options or {}), self.out_info)

    def __repr__(self) -> str:
        return f"<lowered {self._call.name}>"


class Compiled:
    """What XLA has made of a function, as `jax.stages.Compiled`. Made by `Lowered.compile`.

    Attributes:
        out_info: as that of `Lowered`.
    """

    def __init__(self, call: LoweredCall, out_info: Any) -> None:
        self._call = call
        self._report: Mapping[str, Any] | None = None
        self.out_info = out_info

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs it on the server, for arguments without the static ones.

        Raises:
            TypeError: when they have other shapes or dtypes than it was compiled for.
            BaseException, JaxdError: as a call of the function.
        """
        return self._call.run(args, kwargs)

    def as_text(self) -> str:
        """The program as it runs."""
        return str(self._reported["text"])

    def cost_analysis(self) -> dict[str, float] | None:
        """What it costs, by name, such as `flops`; None where the backend does not say."""
        return _copy(self._reported["cost"])

    def memory_analysis(self) -> MemoryAnalysis | None:
        """What it takes of the device's memory; None where the backend does not say."""
        return MemoryAnalysis.of(self._reported["memory"])

    @property
    def _reported(self) -> Mapping[str, Any]:
        if self._report is None:
            self._report = self._call.ask("compiled")
        return self._report

    def __repr__(self) -> str:
        return f"<compiled {self._call.name}>"


def _copy(cost: Mapping[str, float] | None) -> dict[str, float] | None:
    return None if cost is None else dict(cost)
