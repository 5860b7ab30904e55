"""From the wire's trees to what jax takes: a call's arguments, and which of them it gives up."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, cast

import jax
import numpy as np

from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.jax_objects.arrays import exact_array, key_array, weak_array
from jaxd_protocol.jax_objects.structures import make_structure
from jaxd_protocol.jit.nnx_objects import register_parts
from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.static_args import StaticArgs, dynamic, map_arguments
from jaxd_protocol.jit.static_leaves import StaticLeaf, wrap_untraceable
from jaxd_protocol.pickling.unpack.unpickler import unpack, unpickling_gate
from jaxd_protocol.pytree import BlobLayout, Layout, Leaf, LeafOffset, parse_skeleton, read_scalar
from jaxd_protocol.pytree.leaves import dtype_of, numpy_leaf

register_parts()

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of a call."""


def parse_arguments(skeleton: bytes) -> Layout:
    """The layout of a call's arguments; classes of named tuples are imported by name.

    Raises:
        ProtocolError: when it cannot be read, or names a class that is not here.
        ArgumentError: when a part that jax cannot trace has no content.
    """
    return parse_skeleton(
        skeleton, _named_tuple_class, unpack, open_template=_unflatten, close=StaticLeaf
    )


def build_arguments(layout: Layout, leaves: Sequence[Any], statics: StaticArgs) -> Arguments:
    """The arguments of a call; what jax cannot trace is closed, unless `statics` is strict.

    Raises:
        ArgumentError: when a part that jax cannot trace has no content.
    """
    arguments: Arguments = layout.build(
        [
            wrap_untraceable(value, strict=statics.strict) if leaf.tag == "P" else value
            for leaf, value in zip(layout.leaves, leaves, strict=True)
        ]
    )
    return arguments


def _named_tuple_class(module: str, name: str, names: tuple[str, ...] | None) -> type:
    unpickling_gate.require_open(f"class {module}.{name}")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ProtocolError(
            f"an argument is a named tuple of class {module}.{name}, which this server cannot "
            f"import: {error}. Install its package where the server runs."
        ) from error
    if (
        not isinstance(found, type)
        or not issubclass(found, tuple)
        or getattr(found, "_fields", None) != names
    ):
        raise ProtocolError(f"{module}.{name} has other fields on the server than on the client.")
    return found


def _unflatten(template: bytes) -> Callable[[list[Any]], Any]:
    """What makes an object of its leaves."""
    return cast("Callable[[list[Any]], Any]", make_structure(unpack(template)).unflatten)


def read_leaves(placement: BlobLayout, blob: bytes, buffers: Sequence[memoryview]) -> list[Any]:
    """The leaves of a call's arguments, arrays as views of the received memory.

    What is not in the message is None.

    Raises:
        ProtocolError: when the data does not fit.
    """
    placement.check(blob, buffers)
    leaves, places = placement.leaves, placement.places
    found: list[Any] = [None] * len(leaves)
    for number in placement.here:
        leaf, place = leaves[number], places[number]
        is_jax = leaf.weak or leaf.exact  # as the property, which would be a call for each leaf
        if leaf.tag == "A" and not is_jax and place.buffer < 0:  # hundreds of them, perhaps
            found[number] = np.ndarray(leaf.shape, dtype_of(leaf.dtype), blob, place.offset)
        else:
            found[number] = read_leaf(leaf, place, blob, buffers)
    return found


def read_leaf(leaf: Leaf, place: LeafOffset, blob: bytes, buffers: Sequence[memoryview]) -> Any:
    """One of them."""
    tag = leaf.tag
    if tag == "A":
        return _as_given(leaf, numpy_leaf(leaf, place, blob, buffers))
    if tag == "K":
        return key_array(leaf.impl, numpy_leaf(leaf, place, blob, buffers))
    if tag == "P":
        first = place.buffer + 1
        return unpack(buffers[place.buffer], buffers[first : first + leaf.buffers])
    return read_scalar(tag, blob, place.offset)


def empty_leaves(layout: Layout, buffers: Sequence[memoryview]) -> list[Any]:
    """Leaves with the shapes and dtypes of a layout, and zeros in place of the data.

    Args:
        layout: of a call whose program is wanted and nothing else.
        buffers: those of its pickled leaves only.

    Raises:
        ProtocolError: when there are more or fewer buffers.
    """
    waiting = iter(buffers)
    try:
        leaves = [_empty(leaf, waiting) for leaf in layout.leaves]
    except StopIteration:
        raise ProtocolError("a specification lacks the pickles of its objects.") from None
    if next(waiting, None) is not None:
        raise ProtocolError("a specification brings data that it should not.")
    return leaves


def empty_arguments(
    skeleton: bytes, statics: StaticArgs, buffers: Sequence[memoryview] = ()
) -> Arguments:
    """The arguments of a call that has no data of arrays; raises as the functions that it is of."""
    layout = parse_arguments(skeleton)
    return build_arguments(layout, empty_leaves(layout, buffers), statics)


def _empty(leaf: Leaf, buffers: Iterator[memoryview]) -> Any:
    if leaf.tag == "P":
        data = next(buffers)
        return unpack(data, [next(buffers) for _ in range(leaf.buffers)])
    if leaf.tag not in "AK":
        return _ZERO_SCALARS[leaf.tag]
    array = np.zeros(leaf.shape, dtype_of(leaf.dtype))  # memory that is never touched
    if leaf.tag == "K":
        return key_array(leaf.impl, array)
    return _as_given(leaf, array)


def _as_given(leaf: Leaf, array: Any) -> Any:
    """An array of jax where the client gave one and numpy's would be taken for another."""
    if leaf.weak:
        return weak_array(array)
    return exact_array(array) if leaf.exact else array


_ZERO_SCALARS: Final[dict[str, Any]] = {"F": 0.0, "I": 0, "B": False, "C": 0j}


def jax_arrays(arguments: Arguments, statics: StaticArgs) -> Arguments:
    """The same with jax's arrays for all that is traced, so that jax sees each step of a function.

    numpy would divide by zero and go on, and Python would raise an error of its own.
    """
    converted = partial(jax.tree.map, jax.numpy.asarray)
    return map_arguments(arguments, statics, converted)


def call_order(layout: Layout, statics: StaticArgs) -> tuple[int, ...] | None:
    """For each array that an executable takes, its number among the leaves on the wire.

    None when that differs from call to call, because a part of the arguments is pickled.
    """
    if any(leaf.tag == "P" for leaf in layout.leaves):
        return None
    numbered = layout.outline(range(len(layout.leaves)))
    return tuple(leaves_of(dynamic(numbered, statics)))


def leaves_of(arguments: Arguments) -> list[Any]:
    """What an executable is called with: the leaves of the traced arguments, as jax orders them."""
    return jax.tree.leaves(arguments)


def structure_of(arguments: Arguments) -> Any:
    """jax's structure of the traced arguments."""
    return jax.tree.structure(arguments)


def donated_leaves(layout: Layout, options: Options, parameters: Sequence[str]) -> frozenset[int]:
    """The numbers of the leaves that calls with this layout donate.

    As jax, none for negative numbers, and none while it looks for NaNs: it may have to run again.

    Args:
        layout: of the arguments.
        options: those of the function.
        parameters: names of the parameters that can be given by position.
    """
    nums, names = options.donate_argnums, options.donate_argnames
    if not (nums or names) or ("jax_debug_nans", True) in options.config:
        return frozenset()
    if nums is None:
        nums = tuple(i for i, name in enumerate(parameters) if name in (names or ()))
    positions = set(nums)
    if names is None:
        names = tuple(name for i, name in enumerate(parameters) if i in positions)
    args, kwargs = layout.outline([_LeafNumber(i) for i in range(len(layout.leaves))])
    given = tuple(value for i, value in enumerate(args) if i in positions)
    named = {name: value for name, value in kwargs.items() if name in names}
    found = leaves_of((given, named))
    return frozenset(leaf.number for leaf in found if isinstance(leaf, _LeafNumber))


class _LeafNumber:
    """Stands for one leaf."""

    def __init__(self, number: int) -> None:
        self.number = number
