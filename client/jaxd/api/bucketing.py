"""Persistent functions with the option `bucket`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, SupportsIndex

from jaxd.api.function import FunctionBinding, PersistentFunction
from jaxd.interop.jax_runtime import loaded_jax, map_leaves, to_jax
from jaxd.request.array_specs import is_spec
from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.pytree.padding import Padding, pad_arguments, pad_with

if TYPE_CHECKING:
    from jaxd.api.submission import StartedCall
    from jaxd.api.why import Why


class BucketedFunction(PersistentFunction[..., Any]):
    """A persistent function whose arguments are padded; see `jaxd.Bucket`."""

    __slots__ = ("_padding",)

    def __init__(self, binding: FunctionBinding, padding: Padding) -> None:
        super().__init__(binding)
        self._padding = padding
        self._jit_options = (*binding.options.of_jit(), ("padding", padding))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As `PersistentFunction.__call__`."""
        args, kwargs = self._padded(args, kwargs)
        return super().__call__(*args, **kwargs)

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """As `PersistentFunction.remote`."""
        args, kwargs = self._padded(args, kwargs)
        return super().remote(*args, **kwargs)

    def _start(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, ahead: bool = False
    ) -> StartedCall:
        return super()._start(*self._padded(args, kwargs), ahead=ahead)

    async def call_async(self, *args: Any, **kwargs: Any) -> Any:
        """As `PersistentFunction.call_async`."""
        args, kwargs = self._padded(args, kwargs)
        return await super().call_async(*args, **kwargs)

    def why(self, *args: Any, **kwargs: Any) -> Why:
        """As `PersistentFunction.why`."""
        args, kwargs = self._padded(args, kwargs)
        return super().why(*args, **kwargs)

    def warm(self, *args: Any, over: Any = None, **kwargs: Any) -> Any:
        """As `PersistentFunction.warm`."""
        if over is None:
            args, kwargs = self._padded(args, kwargs)
        return super().warm(*args, over=over, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """As `PersistentFunction.lower`."""
        args, kwargs = self._padded(args, kwargs)
        return super().lower(*args, **kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """As `PersistentFunction.trace`."""
        args, kwargs = self._padded(args, kwargs)
        return super().trace(*args, **kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """As `PersistentFunction.eval_shape`."""
        args, kwargs = self._padded(args, kwargs)
        return super().eval_shape(*args, **kwargs)

    def jaxpr(self, *args: Any, **kwargs: Any) -> str:
        """As `PersistentFunction.jaxpr`."""
        args, kwargs = self._padded(args, kwargs)
        return super().jaxpr(*args, **kwargs)

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
