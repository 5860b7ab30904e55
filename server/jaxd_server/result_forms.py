"""How the results of an executable travel: their structure is known, only the data is new."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jax
import numpy as np

from jaxd_protocol.errors import ResultError
from jaxd_protocol.trees import Place, parse_skeleton
from jaxd_protocol.trees.references import Reference
from jaxd_server.jax_private import is_key_array, key_data
from jaxd_server.result_encoder import ResultEncoder, Slot

__all__ = ["ResultForm", "pack_result", "result_form"]


@dataclass(frozen=True, slots=True)
class ResultForm:
    """The structure that all results of one executable have, for the wire.

    Attributes:
        skeleton: see `jaxd_protocol.trees.layout`.
        order: for each leaf on the wire, its number among the arrays that the executable returns.
        places: where each leaf's bytes lie.
        keys: whether there are PRNG keys among the leaves.
        is_lasting: whether it means the same to the clients of a later process.
    """

    skeleton: bytes
    order: tuple[int, ...]
    places: tuple[Place, ...]
    keys: bool
    is_lasting: bool = True

    @classmethod
    def of(cls, skeleton: bytes, order: Sequence[int], *, is_lasting: bool = True) -> ResultForm:
        """The form with that skeleton.

        Raises:
            ProtocolError: when it is no skeleton.
        """
        layout = parse_skeleton(skeleton, lambda *_: _AnyTuple, None, _Nothing())
        keys = any(leaf.tag == "K" for leaf in layout.leaves)
        return cls(skeleton, tuple(order), layout.places, keys, is_lasting)


def result_form(leaves: Sequence[Any], structure: Any) -> ResultForm:
    """Walks the structure of a result once.

    Args:
        leaves: the arrays, or what stands for them: things with shape, dtype and `weak_type`.
        structure: jax's tree structure.

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
    return ResultForm.of(encoder.skeleton, encoder.order, is_lasting=not encoder.has_tokens)


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


def pack_result(leaves: Sequence[Any], form: ResultForm) -> tuple[bytes, list[memoryview]]:
    """Blob and buffers of a result; waits until the device is done.

    Args:
        leaves: the arrays that an executable returned.
        form: that of the executable.

    Raises:
        Exception: what jax raises when the computation failed.
    """
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
    return b"".join(blob), buffers
