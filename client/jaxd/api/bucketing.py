"""The option `bucket`: arrays are padded to one of a few sizes, so that few programs serve all."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, SupportsIndex

from jaxd.api.function import FunctionBinding, PersistentFunction
from jaxd.interop.jax_runtime import loaded_jax, map_leaves, weak_array
from jaxd.request.array_specs import is_spec
from jaxd_protocol.errors import ArgumentError, ConfigurationError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from jaxd.api.why import Why
    from jaxd_protocol.jit.options import Options


class Bucket(NamedTuple):
    """The sizes of one axis, for the option `bucket`.

    Attributes:
        sizes: an array is padded, at its end, to the smallest of these that it fits into; a larger
            one stays as it is.
        length: the parameter of the function that is given the size before that, as a number;
            empty: none.
        fill: what is put in.
    """

    sizes: Sequence[int]
    length: str = ""
    fill: complex = 0


BucketOption = Mapping[str, Mapping[int, Sequence[int] | Bucket]]
"""By the names of parameters and their axes: the sizes."""

_EXAMPLE: Final = "Write it as bucket={'tokens': {1: (128, 256, 512)}}."


class _Argument(NamedTuple):
    """One argument that is padded: its name, its position or -1, and its axes."""

    name: str
    position: int
    axes: tuple[tuple[int, Bucket], ...]


class Padding:
    """Pads the arguments of a function.

    Args:
        function: the function.
        given: the option.
        options: the others of the function.

    Raises:
        ConfigurationError: when the option does not suit the function.
    """

    def __init__(self, function: Callable[..., Any], given: BucketOption, options: Options) -> None:
        parameters = _parameters_of(function)
        self._arguments = tuple(
            _Argument(name, _position(parameters, name), _parsed(name, axes))
            for name, axes in given.items()
        )
        static = set(options.static_argnames or ())
        static |= {[*parameters][at] for at in options.static_argnums or () if at < len(parameters)}
        for argument in self._arguments:
            for _, bucket in argument.axes:
                if bucket.length:
                    _check_length(parameters, bucket.length, static)

    def padded(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments as the function gets them.

        Raises:
            ArgumentError: when an array cannot be padded, or one length stands for several.
            TypeError: when a length is given that follows from an array.
        """
        positional, named, lengths = list(args), dict(kwargs), dict[str, int]()
        for name, position, axes in self._arguments:
            if name in named:
                named[name] = _padded(name, named[name], axes, lengths)
            elif 0 <= position < len(positional):
                positional[position] = _padded(name, positional[position], axes, lengths)
        both = sorted(lengths.keys() & kwargs.keys())
        if both:
            raise TypeError(f"{both[0]} is given, but bucket= gives it. Leave it out of the call.")
        return tuple(positional), {**named, **lengths}


def _parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"{function!r} has no signature, so that bucket= cannot find its arguments. Call it in "
            "a function of your own."
        ) from None


def _position(parameters: Mapping[str, inspect.Parameter], name: str) -> int:
    kind = parameters[name].kind.name if name in parameters else ""
    if kind in ("", "VAR_POSITIONAL", "VAR_KEYWORD"):
        raise ConfigurationError(
            f"bucket= names the parameter {name!r}, which the function does not have. It has: "
            f"{', '.join(parameters)}."
        )
    return -1 if kind == "KEYWORD_ONLY" else [*parameters].index(name)


def _check_length(parameters: Mapping[str, inspect.Parameter], name: str, static: set[str]) -> None:
    kind = parameters[name].kind.name if name in parameters else ""
    if kind not in ("POSITIONAL_OR_KEYWORD", "KEYWORD_ONLY") or name in static:
        raise ConfigurationError(
            f"length={name!r} of a Bucket is no parameter that is given by name, or is static. Add "
            f"a parameter to the function: `{name}=None`."
        )


def _parsed(name: str, axes: Any) -> tuple[tuple[int, Bucket], ...]:
    if not isinstance(axes, Mapping) or not axes:
        raise ConfigurationError(f"bucket= has no axes of {name!r}. {_EXAMPLE}")
    found = []
    for axis, given in axes.items():
        bucket = given if isinstance(given, Bucket) else Bucket(given)
        try:
            sizes = sorted(bucket.sizes)
        except TypeError:
            sizes = []
        if type(axis) is not int or not sizes or not all(type(n) is int and n > 0 for n in sizes):
            raise ConfigurationError(
                f"bucket= has {given!r} for axis {axis!r} of {name!r}, which are no sizes. "
                f"{_EXAMPLE}"
            )
        found.append((axis, bucket._replace(sizes=tuple(sizes))))
    return tuple(found)


def _padded(
    name: str, tree: Any, axes: tuple[tuple[int, Bucket], ...], lengths: dict[str, int]
) -> Any:
    """A tree with its arrays padded; adds the sizes that they had to the lengths."""

    def pad(leaf: Any) -> Any:
        shape = getattr(leaf, "shape", None)
        if not isinstance(shape, tuple):
            return leaf
        for axis, bucket in axes:
            if not -len(shape) <= axis < len(shape):
                continue
            size = shape[axis]
            if bucket.length and lengths.setdefault(bucket.length, size) != size:
                raise ArgumentError(
                    f"{bucket.length} stands for {lengths[bucket.length]} and for {size}: the "
                    f"arrays of bucket= ({name!r}) differ in size. Give each a length of its own."
                )
            wanted = next((one for one in bucket.sizes if one >= size), size)
            if wanted != size:
                leaf = _pad_leaf(name, leaf, axis % len(shape), wanted, bucket.fill)
        return leaf

    return map_leaves(pad, tree)


def _pad_leaf(name: str, leaf: Any, axis: int, wanted: int, fill: complex) -> Any:
    """An array, or what stands for one, with that many entries along an axis."""
    jax = loaded_jax()
    if jax is not None and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended):
        raise ArgumentError(f"{name!r} holds random keys, which bucket= cannot pad. Split more.")
    if not hasattr(leaf, "__array__") and is_spec(leaf):
        shape = (*leaf.shape[:axis], wanted, *leaf.shape[axis + 1 :])
        if hasattr(leaf, "update"):  # jax's own: its weak type and sharding stay
            return leaf.update(shape=shape)
        return SimpleNamespace(shape=shape, dtype=leaf.dtype)
    widths = [(0, wanted - size if at == axis else 0) for at, size in enumerate(leaf.shape)]
    if jax is not None and isinstance(leaf, jax.core.Tracer):
        return jax.numpy.pad(leaf, widths, constant_values=fill)
    import numpy

    padded = numpy.pad(numpy.asarray(leaf), widths, constant_values=fill)
    return weak_array(padded) if getattr(leaf, "weak_type", False) else padded


class BucketedFunction(PersistentFunction[..., Any]):
    """A persistent function whose arguments are padded; see `Bucket`."""

    __slots__ = ("_padding",)

    def __init__(self, binding: FunctionBinding, padding: Padding) -> None:
        super().__init__(binding)
        self._padding = padding

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As `PersistentFunction.__call__`."""
        args, kwargs = self._padding.padded(args, kwargs)
        return super().__call__(*args, **kwargs)

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """As `PersistentFunction.remote`."""
        args, kwargs = self._padding.padded(args, kwargs)
        return super().remote(*args, **kwargs)

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """As `PersistentFunction.submit`."""
        args, kwargs = self._padding.padded(args, kwargs)
        return super().submit(*args, **kwargs)

    async def call_async(self, *args: Any, **kwargs: Any) -> Any:
        """As `PersistentFunction.call_async`."""
        args, kwargs = self._padding.padded(args, kwargs)
        return await super().call_async(*args, **kwargs)

    def why(self, *args: Any, **kwargs: Any) -> Why:
        """As `PersistentFunction.why`."""
        args, kwargs = self._padding.padded(args, kwargs)
        return super().why(*args, **kwargs)

    def warm(self, *args: Any, over: Any = None, **kwargs: Any) -> Any:
        """As `PersistentFunction.warm`."""
        if over is None:
            args, kwargs = self._padding.padded(args, kwargs)
        return super().warm(*args, over=over, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """As `PersistentFunction.lower`."""
        args, kwargs = self._padding.padded(args, kwargs)
        return super().lower(*args, **kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """As `PersistentFunction.trace`."""
        args, kwargs = self._padding.padded(args, kwargs)
        return super().trace(*args, **kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """As `PersistentFunction.eval_shape`."""
        args, kwargs = self._padding.padded(args, kwargs)
        return super().eval_shape(*args, **kwargs)

    def jaxpr(self, *args: Any, **kwargs: Any) -> str:
        """As `PersistentFunction.jaxpr`."""
        args, kwargs = self._padding.padded(args, kwargs)
        return super().jaxpr(*args, **kwargs)

    def on(self, device: SupportsIndex | None) -> BucketedFunction:
        """As `PersistentFunction.on`."""
        return BucketedFunction(super().on(device)._binding, self._padding)  # noqa: SLF001  its own kind

    def _transformed(self, name: str, *, on_instance: bool = False, **given: Any) -> Any:
        """Refused: which axis is padded follows from what is transformed.

        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError(
            f".{name}() of a function with bucket= is not defined. Use jax.{name} on it, or in a "
            "persistent function around it."
        )
