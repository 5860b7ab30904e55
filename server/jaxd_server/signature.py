"""The signature of one call: what decides whether an executable fits its arguments."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import jax
import numpy as np

from jaxd_protocol.errors import ArgumentError
from jaxd_protocol.statics import Statics
from jaxd_protocol.trees import dump_literal, is_literal

__all__ = ["signature_of"]


def signature_of(args: tuple[Any, ...], kwargs: dict[str, Any], statics: Statics) -> Hashable:
    """Tree structure; shape, dtype and weak type of each leaf; type and value of what is static.

    Two calls with equal signatures run the same executable; unequal ones may as well be
    different programs.

    Raises:
        ArgumentError: when a static argument is not hashable, or a leaf is not data and no
            static argument either.
    """
    if not statics:
        return _tree_signature((args, kwargs))
    return (
        tuple(
            _static_signature(value) if i in statics.positions else _tree_signature(value)
            for i, value in enumerate(args)
        ),
        tuple(
            (name, _static_signature(value) if name in statics.names else _tree_signature(value))
            for name, value in sorted(kwargs.items())
        ),
    )


def _tree_signature(tree: Any) -> Hashable:
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple(map(_leaf_signature, leaves))


def _leaf_signature(leaf: Any) -> Hashable:
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.shape, leaf.dtype.name, False
    if isinstance(leaf, jax.Array):
        return leaf.shape, str(leaf.dtype), leaf.aval.weak_type
    if type(leaf) in (bool, int, float, complex):
        # As the weakly typed array that jax makes of it, which is how it comes back from a call.
        return (), str(jax.dtypes.canonicalize_dtype(type(leaf))), type(leaf) is not bool
    raise ArgumentError(
        f"an argument, or a part of one, is of type {type(leaf).__name__}, which jax cannot "
        "trace. Pass arrays and numbers, or declare the argument in static_argnames."
    )


def _static_signature(value: Any) -> Hashable:
    if is_literal(value):
        return dump_literal(value)  # tells (1,) from (True,) and 0.0 from -0.0, which == does not
    try:
        hash(value)
    except TypeError as error:
        raise ValueError(
            f"Non-hashable static arguments are not supported: a value of type "
            f"{type(value).__name__} was passed for one. Make it hashable (a tuple for a list, "
            "a frozen dataclass), or pass it as an ordinary argument."
        ) from error
    return type(value), value
