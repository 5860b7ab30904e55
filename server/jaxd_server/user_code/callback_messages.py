"""What a program sends to a function of its client, as a result; what comes back, as arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxd_protocol.errors import CallbackError, ProtocolError, ResultError
from jaxd_protocol.fingerprint.client_object import holds_function
from jaxd_protocol.pytree import dump_literal
from jaxd_server.codec.arguments import parse_arguments, read_leaves
from jaxd_server.codec.result_encoder import LeafSlot, ResultEncoder
from jaxd_server.codec.results import ResultLayout, pack_result
from jaxd_server.user_code.callback_targets import CallbackTarget


def pack_callback(
    callback_target: CallbackTarget,
    held: Sequence[Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[tuple[bytes, bytes], list[memoryview]]:
    """Skeleton and blob of ``(callback_target, held, args, kwargs)``, and the buffers beside them.

    Args:
        callback_target: which function.
        held: the arrays that it speaks of.
        args: what it is called with.
        kwargs: the same by name.

    Raises:
        CallbackError: when something of it cannot travel.
    """
    leaves, structure = jax.tree.flatten((args, kwargs))
    arrays = [*held]
    slots = []
    for leaf in leaves:
        is_array = isinstance(leaf, jax.Array | np.ndarray | np.generic)
        slots.append(LeafSlot(len(arrays), leaf) if is_array else leaf)
        arrays += [leaf] if is_array else []
    places = tuple(LeafSlot(index, array) for index, array in enumerate(held))
    rebuilt = jax.tree.unflatten(structure, slots)
    if holds_function(rebuilt):
        raise CallbackError(
            "a function that is to be called back is given a function as an argument. Have it "
            "use that one by itself."
        )
    encoder = ResultEncoder([_type(array) for array in arrays])
    try:
        encoder.node((dump_literal(callback_target), places, *rebuilt))
    except ResultError as error:
        raise CallbackError(
            f"a function that is to be called back is given something that cannot travel: {error}"
        ) from error
    form = ResultLayout.of(encoder.skeleton, encoder.order)
    blob, buffers, _ = pack_result(arrays, form)
    return (form.skeleton, blob), buffers


def _type(array: Any) -> Any:
    """What an array looks like; of numpy's, which are never weak, without what jax would make."""
    if isinstance(array, jax.Array):
        return array
    return jax.core.ShapedArray(array.shape, array.dtype)


def read_callback(value: Any, buffers: Sequence[memoryview]) -> Any:
    """What the function returned.

    Raises:
        ProtocolError: when that cannot be read.
    """
    if tuple(map(type, value)) != (bytes, bytes):
        raise ProtocolError(
            "a callback's result cannot be read. Install the same jaxd on both sides."
        )
    skeleton, blob = value
    layout = parse_arguments(skeleton)
    (result,), _ = layout.build(read_leaves(layout.whole, blob, buffers))
    return result
