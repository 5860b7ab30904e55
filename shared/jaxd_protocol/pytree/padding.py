"""Pads the arrays of a call to one of a few sizes, as the option `bucket` says."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jaxd_protocol.errors import ArgumentError, ConfigurationError

if TYPE_CHECKING:
    import inspect


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

Axis = tuple[int, tuple[int, ...], str, int, complex]
"""Its number, sizes, the name and the position of the parameter for its length, what is put in."""

Padding = tuple[tuple[str, int, tuple[Axis, ...]], ...]
"""Name and position of each parameter whose arrays are padded, and their axes. A literal."""

_EXAMPLE: Final = "Write it as bucket={'tokens': {1: (128, 256, 512)}}."
_NOWHERE: Final = 1 << 30
"""The position of a parameter that is given by name only."""


def padding_of(
    function: Callable[..., Any], given: BucketOption, statics: Collection[str] = ()
) -> Padding:
    """The option for one function, checked.

    Args:
        function: the function.
        given: the option.
        statics: names of static parameters.

    Raises:
        ConfigurationError: when it does not suit the function.
    """
    import inspect

    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"{function!r} has no signature, so that bucket= cannot find its arguments. Call it in "
            "a function of your own."
        ) from None
    found, unchecked = [], dict[str, Any](given)
    for name, axes in unchecked.items():
        position = _position(parameters, name)
        if position is None:
            raise ConfigurationError(
                f"bucket= names the parameter {name!r}, which the function does not have. It has: "
                f"{', '.join(parameters)}."
            )
        if not isinstance(axes, Mapping) or not axes:
            raise ConfigurationError(f"bucket= has no axes of {name!r}. {_EXAMPLE}")
        if name in statics:
            raise ConfigurationError(f"bucket= names {name!r}, which is static and never padded.")
        each = (_axis(name, *pair, parameters, statics) for pair in axes.items())
        found.append((name, position, tuple(each)))
    return tuple(found)


def _position(parameters: Mapping[str, inspect.Parameter], name: str) -> int | None:
    kind = parameters[name].kind.name if name in parameters else ""
    if kind in ("", "VAR_POSITIONAL", "VAR_KEYWORD"):
        return None
    return _NOWHERE if kind == "KEYWORD_ONLY" else [*parameters].index(name)


def _axis(
    name: str,
    axis: Any,
    given: Any,
    parameters: Mapping[str, inspect.Parameter],
    statics: Collection[str],
) -> Axis:
    bucket = given if isinstance(given, Bucket) else Bucket(given)
    length, fill = bucket.length, bucket.fill
    try:
        sizes = tuple(sorted(bucket.sizes))
    except TypeError:
        sizes = ()
    if type(axis) is not int or not sizes or not all(type(n) is int and n > 0 for n in sizes):
        raise ConfigurationError(
            f"bucket= has {given!r} for axis {axis!r} of {name!r}, which are no sizes. {_EXAMPLE}"
        )
    if type(fill) not in (bool, int, float, complex):
        raise ConfigurationError(f"fill={fill!r} of a Bucket is no number.")
    if not length:
        return axis, sizes, "", _NOWHERE, fill
    position = _position(parameters, length) if type(length) is str else None
    if position is None or length in statics or parameters[length].kind.name == "POSITIONAL_ONLY":
        raise ConfigurationError(
            f"length={length!r} of a Bucket is no parameter that is given by name, or is static. "
            f"Add a parameter to the function: `{length}=None`."
        )
    return axis, sizes, length, position, fill


def pad_arguments(
    padding: Padding,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    map_leaves: Callable[[Callable[[Any], Any], Any], Any],
    pad_leaf: Callable[[Any, int, int, complex], Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as the function gets them; those that were padded before are the same.

    Args:
        padding: how.
        args: positional arguments of a call.
        kwargs: keyword arguments. A length that is given stays.
        map_leaves: makes a tree of what a function makes of its leaves.
        pad_leaf: an array with that many entries along an axis, and what is put in.

    Raises:
        ArgumentError: when one length stands for several, and as `pad_leaf`.
    """
    positional, named, lengths = list(args), dict(kwargs), dict[str, int]()
    for name, position, axes in padding:
        pad = functools.partial(_padded, pad_leaf, name, axes, lengths)
        if name in named:
            named[name] = map_leaves(pad, named[name])
        elif position < len(positional):
            positional[position] = map_leaves(pad, positional[position])
    places = {length: at for _, _, axes in padding for _, _, length, at, _ in axes}
    asked = {name: size for name, size in lengths.items() if places[name] >= len(args)}
    return tuple(positional), {**asked, **named}


def _padded(
    pad_leaf: Callable[[Any, int, int, complex], Any],
    name: str,
    axes: tuple[Axis, ...],
    lengths: dict[str, int],
    leaf: Any,
) -> Any:
    """A leaf, padded; adds the sizes that it had to the lengths."""
    if not isinstance(getattr(leaf, "shape", None), tuple) or not hasattr(leaf, "dtype"):
        return leaf
    rank, seen = len(leaf.shape), set[int]()
    for axis, sizes, length, _, fill in axes:
        if not -rank <= axis < rank:
            continue
        place = axis % rank
        if place in seen:
            raise ArgumentError(
                f"bucket= has axis {place} of an array of {name!r} twice: it has {rank} axes, "
                "counted from the first and from the last. Name each once."
            )
        seen.add(place)
        size = leaf.shape[place]
        if type(size) is not int:  # a size that has a name, of what stands for an array
            continue
        if length and lengths.setdefault(length, size) != size:
            raise ArgumentError(
                f"{length} stands for {lengths[length]} and for {size}: the arrays of bucket= "
                f"({name!r}) differ in size. Give each a length of its own."
            )
        wanted = next((one for one in sizes if one >= size), size)
        if wanted != size:
            _check_fill(leaf.dtype, fill)
            leaf = pad_leaf(leaf, place, wanted, fill)
    return leaf


def _check_fill(dtype: Any, fill: complex) -> None:
    """Raises `ArgumentError` unless arrays of a dtype can hold it, and are of numbers."""
    jax: Any = sys.modules.get("jax")
    if hasattr(jax, "dtypes") and jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        raise ArgumentError("bucket= cannot pad an array of random keys. Split more of them.")
    if not fill:
        return
    import numpy

    numbers = numpy.dtype(dtype)
    holds = numbers.kind == "c" or type(fill) is not complex
    if holds and numbers.kind in "biu":
        with numpy.errstate(all="ignore"):
            holds = numpy.asarray(fill).astype(numbers).item() == fill
    if not holds:
        raise ArgumentError(f"fill={fill!r} of a Bucket is no value of {numbers}.")


def pad_with(numpy: Any, array: Any, axis: int, wanted: int, fill: complex) -> Any:
    """An array with that many entries along an axis, made by numpy or `jax.numpy`."""
    widths = [(0, wanted - size if at == axis else 0) for at, size in enumerate(array.shape)]
    return numpy.pad(array, widths, constant_values=fill)


def pad_in_trace(
    padding: Padding, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call that another function makes while it is traced."""
    jax = sys.modules["jax"]  # which traces
    pad = functools.partial(pad_with, jax.numpy)
    return pad_arguments(padding, args, kwargs, jax.tree.map, pad)
