"""Persistent functions with the option `bucket`."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, SupportsIndex

from jaxd.api.function import FunctionBinding, PersistentFunction
from jaxd.interop.jax_runtime import loaded_jax, map_leaves, to_jax
from jaxd.request.array_specs import is_spec
from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.pytree.padding import Padding, pad_arguments, pad_with

if TYPE_CHECKING:
    from jaxd.api.submission import StartedCall


class BucketedFunction(PersistentFunction[..., Any]):
    """A persistent function whose arguments are padded; see `jaxd.Bucket`."""

    __slots__ = ("_padding",)

    def __init__(self, binding: FunctionBinding, padding: Padding) -> None:
        super().__init__(binding)
        self._padding = padding
        self._jit_options = (*binding.options.of_jit(), ("padding", padding))

    def _start(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, ahead: bool = False
    ) -> StartedCall:
        return super()._start(*self._padded(args, kwargs), ahead=ahead)

    async def call_async(self, *args: Any, **kwargs: Any) -> Any:
        """As `PersistentFunction.call_async`."""
        args, kwargs = self._padded(args, kwargs)
        return await super().call_async(*args, **kwargs)

    def warm(self, *args: Any, over: Any = None, **kwargs: Any) -> Any:
        """As `PersistentFunction.warm`."""
        if over is None:
            args, kwargs = self._padded(args, kwargs)
        return super().warm(*args, over=over, **kwargs)

    def on(
        self, device: SupportsIndex | None = None, *, member: str | None = None
    ) -> BucketedFunction:
        """As `PersistentFunction.on`."""
        binding = super().on(device, member=member)._binding  # noqa: SLF001  its own kind
        return BucketedFunction(binding, self._padding)

    def _transformed(self, name: str, *, on_instance: bool = False, **given: Any) -> Any:
        """Refused: which axis is padded follows from what is transformed.

        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError(
            f".{name}() of a function with bucket= is not defined. Use jax.{name} on it, or in a "
            "persistent function around it."
        )

    def _padded(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return pad_arguments(self._padding, args, kwargs, map_leaves, _pad)


def _padding_first(name: str) -> Any:
    """The method of that name, whose arguments are padded before."""

    @functools.wraps(getattr(PersistentFunction, name))
    def padded(self: BucketedFunction, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = self._padded(args, kwargs)
        return getattr(super(BucketedFunction, self), name)(*args, **kwargs)

    return padded


for _name in ("__call__", "remote", "why", "lower", "trace", "eval_shape", "jaxpr"):
    setattr(BucketedFunction, _name, _padding_first(_name))


def _pad(leaf: Any, axis: int, wanted: int, fill: complex) -> Any:
    """An array, or what stands for one, with that many entries along an axis."""
    jax = loaded_jax()
    if jax is not None and isinstance(leaf, jax.core.Tracer):
        return pad_with(jax.numpy, leaf, axis, wanted, fill)
    if not hasattr(leaf, "__array__") and is_spec(leaf):
        shape = (*leaf.shape[:axis], wanted, *leaf.shape[axis + 1 :])
        if hasattr(leaf, "update"):  # jax's own: its weak type and sharding stay
            return leaf.update(shape=shape)
        return SimpleNamespace(shape=shape, dtype=leaf.dtype)
    import numpy

    padded = pad_with(numpy, numpy.asarray(leaf), axis, wanted, fill)
    return to_jax(padded, weak=bool(leaf.weak_type)) if hasattr(leaf, "weak_type") else padded
