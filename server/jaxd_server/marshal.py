"""Between the wire's trees and jax: arguments in, results out."""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import jax
import numpy as np

from jaxd_protocol.errors import ProtocolError, ResultError
from jaxd_protocol.packing import unpack
from jaxd_protocol.trees import (
    Layout,
    Leaf,
    Place,
    TreeEncoder,
    dump_literal,
    numpy_leaf,
    parse_skeleton,
    read_scalar,
)
from jaxd_protocol.trees.leaves import spec_bytes
from jaxd_server.jax_private import is_key_array, key_array, key_data, key_impl, weak_array

__all__ = ["ResultForm", "pack_result", "parse_arguments", "read_arguments", "result_form"]


def parse_arguments(skeleton: bytes) -> Layout:
    """The layout of a call's arguments; classes of named tuples are imported by name.

    Raises:
        ProtocolError: when it cannot be read, or names a class that is not here.
    """
    return parse_skeleton(skeleton, _named_tuple_class, unpack)


def _named_tuple_class(module: str, name: str, names: tuple[str, ...] | None) -> type:
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ProtocolError(
            f"an argument is a named tuple of class {module}.{name}, which this server cannot "
            f"import: {error}. Install its package where the server runs."
        ) from error
    if not isinstance(found, type) or getattr(found, "_fields", None) != names:
        raise ProtocolError(f"{module}.{name} has other fields on the server than on the client.")
    return found


def read_arguments(
    layout: Layout, blob: bytes, buffers: Sequence[memoryview]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments, arrays as views of the received memory.

    Raises:
        ProtocolError: when the data does not fit the layout.
    """
    layout.check(blob, buffers)
    leaves = [
        _read(leaf, place, blob, buffers)
        for leaf, place in zip(layout.leaves, layout.places, strict=True)
    ]
    args, kwargs = layout.build(leaves)
    return args, kwargs


def _read(leaf: Leaf, place: Place, blob: bytes, buffers: Sequence[memoryview]) -> Any:
    tag = leaf.tag
    if tag == "A":
        array = numpy_leaf(leaf, place, blob, buffers)
        return weak_array(array) if leaf.weak else array
    if tag == "K":
        return key_array(leaf.impl, numpy_leaf(leaf, place, blob, buffers))
    if tag == "P":
        first = place.buffer + 1
        return unpack(buffers[place.buffer], buffers[first : first + leaf.buffers])
    return read_scalar(tag, blob, place.offset)


class _Slot:
    """Stands for leaf number `index` while a result's structure is walked."""

    __slots__ = ("dtype", "index", "ndim", "shape")

    def __init__(self, index: int, leaf: Any) -> None:
        self.index = index
        self.shape = leaf.shape
        self.dtype = leaf.dtype
        self.ndim = leaf.ndim


@dataclass(frozen=True, slots=True)
class ResultForm:
    """How the results of one executable travel; their structure is always the same.

    Attributes:
        structure: jax's tree structure.
        skeleton: the same for the wire.
        order: for each leaf on the wire, its index among jax's leaves.
        places: where each leaf's bytes lie.
        keys: whether there are PRNG keys among the leaves.
    """

    structure: Any
    skeleton: bytes
    order: tuple[int, ...]
    places: tuple[Place, ...]
    keys: bool


_NUMBERS: Final = frozenset({bool, int, float, complex})


class _ResultEncoder(TreeEncoder):
    """Writes only the skeleton: leaves are slots, their data follows with each call."""

    def __init__(self, leaves: Sequence[Any]) -> None:
        super().__init__()
        self.order: list[int] = []
        self._leaves = leaves

    def node(self, value: Any) -> None:
        if type(value) in _NUMBERS:
            self.static(value)  # part of a class's structure: data is always in slots
        else:
            super().node(value)

    def other(self, value: Any) -> None:
        if type(value) is _Slot:
            self.order.append(value.index)
            self._skeleton.append(_leaf_spec(self._leaves[value.index]))
        elif isinstance(value, tuple) and hasattr(type(value), "_fields"):
            self._named_tuple(value)
        elif type(value) is defaultdict:
            self._dict(value)
        else:
            self._object(value)

    def unusual_keys(self, value: dict[Any, Any]) -> None:
        raise ResultError(
            "the function returned a dict whose keys are not plain values. Return one with "
            "strings, numbers or tuples of them as keys."
        )

    def _object(self, value: Any) -> None:
        """A node of a registered class: its class by name and its attributes."""
        cls = type(value)
        state = _attributes(value)
        if state is None:
            raise ResultError(
                f"the function returned a {cls.__module__}.{cls.__qualname__}, which cannot come "
                "home as data. Return dicts, lists, tuples, named tuples or dataclasses of arrays."
            )
        self._skeleton += (b"O", dump_literal((cls.__module__, cls.__qualname__)))
        self.node(state)


_STATE_IS_ELSEWHERE: Final = frozenset({"__reduce__", "__reduce_ex__", "__getstate__"})


def _attributes(value: Any) -> dict[str, Any] | None:
    """The attributes that make up an instance, None when they are not the whole of it."""
    cls = type(value)
    if getattr(cls.__getstate__, "__module__", "") == "dataclasses":  # frozen, with slots
        return {f.name: getattr(value, f.name) for f in fields(value)}
    own = (name for base in cls.__mro__[:-1] for name in vars(base))
    if not _STATE_IS_ELSEWHERE.isdisjoint(own):
        return None
    try:
        _, arguments, state, items, pairs = value.__reduce_ex__(2)
    except TypeError:  # written in C, and not meant to be copied
        return None
    if arguments != (cls,) or items is not None or pairs is not None:
        return None  # a number, tuple, list or dict at heart: the attributes are not all of it
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    return {**(attributes or {}), **(slots or {})}


def _leaf_spec(leaf: Any) -> bytes:
    if is_key_array(leaf):
        data = key_data(leaf)
        spec = spec_bytes("K", data.dtype.name, data.shape)
        return spec[:1] + dump_literal(key_impl(leaf)) + spec[1:]
    return spec_bytes("A", leaf.dtype.name, leaf.shape, bool(leaf.aval.weak_type))


def result_form(leaves: Sequence[Any], structure: Any) -> ResultForm:
    """Walks a result once.

    Raises:
        ResultError: when a node of it cannot travel.
    """
    slots = [_Slot(index, leaf) for index, leaf in enumerate(leaves)]
    encoder = _ResultEncoder(leaves)
    encoder.node(jax.tree.unflatten(structure, slots))
    skeleton = encoder.skeleton
    layout = parse_skeleton(skeleton, lambda module, name, names: _AnyTuple)
    keys = any(leaf.tag == "K" for leaf in layout.leaves)
    return ResultForm(structure, skeleton, tuple(encoder.order), layout.places, keys)


class _AnyTuple:
    """Takes the place of every class when only a layout's places are wanted."""


_ROW: Final = 16
_PAD: Final = [bytes(n) for n in range(_ROW)]


def pack_result(result: Any, form: ResultForm | None) -> tuple[ResultForm, bytes, list[memoryview]]:
    """The result's form, blob and buffers; waits until the device is done.

    Args:
        result: what the executable returned.
        form: that of its last result.

    Raises:
        ResultError: when it cannot travel.
        Exception: what jax raises when the computation failed.
    """
    leaves, structure = jax.tree.flatten(result)
    if form is None or form.structure != structure:
        form = result_form(leaves, structure)
    blob: list[bytes] = []
    buffers: list[memoryview] = []
    end = 0
    for index, place in zip(form.order, form.places, strict=True):
        leaf = leaves[index]
        data = key_data(leaf) if form.keys and is_key_array(leaf) else np.asarray(leaf)
        if place.buffer >= 0:
            buffers.append(np.ascontiguousarray(data).reshape(-1).view("u1").data)
        else:
            small = data.tobytes()
            blob += (_PAD[place.offset - end], small)
            end = place.offset + len(small)
    return form, b"".join(blob), buffers
