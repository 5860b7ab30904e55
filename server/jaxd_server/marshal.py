"""Between the wire's trees and jax: arguments in, results out."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jax
import numpy as np

from jaxd_protocol.errors import ProtocolError, ResultError
from jaxd_protocol.packing import unpack
from jaxd_protocol.trees import (
    Layout,
    Leaf,
    Place,
    numpy_leaf,
    parse_skeleton,
    read_scalar,
)
from jaxd_protocol.trees.references import Reference
from jaxd_server.jax_private import is_key_array, key_array, key_data, weak_array
from jaxd_server.result_encoder import ResultEncoder, Slot

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


def result_form(leaves: Sequence[Any], structure: Any) -> ResultForm:
    """Walks a result once.

    Raises:
        ResultError: when a node of it cannot travel.
    """
    slots = [Slot(index, leaf) for index, leaf in enumerate(leaves)]
    encoder = ResultEncoder(leaves)
    try:
        encoder.node(jax.tree.unflatten(structure, slots))
    except RecursionError as error:
        raise ResultError(
            "the function returned something that is nested too deeply, or holds itself. Return "
            "dicts, lists and tuples of arrays from the function."
        ) from error
    skeleton = encoder.skeleton
    layout = parse_skeleton(skeleton, lambda *_: _AnyTuple, None, _Nothing())
    keys = any(leaf.tag == "K" for leaf in layout.leaves)
    return ResultForm(structure, skeleton, tuple(encoder.order), layout.places, keys)


class _AnyTuple:
    """Takes the place of every class when only a layout's places are wanted."""


class _Nothing:
    """Takes the place of a client's own objects, in the same way."""

    def getter(self, reference: Reference) -> Callable[[], Any]:
        return lambda: None

    def unflattener(self, cls: type) -> Callable[[Any, list[Any]], Any]:
        return lambda aux, children: None

    def structure(self, tree: Any) -> Any:
        return None


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
