"""Trees of arrays as flat data: no code is needed to write them and none is run to read them."""

from __future__ import annotations

from jaxd_protocol.pytree.encoder import TreeEncoder
from jaxd_protocol.pytree.layout import Layout, parse_leaves, parse_skeleton
from jaxd_protocol.pytree.leaves import INLINE_BYTES, Leaf, Place, Placement, read_scalar
from jaxd_protocol.pytree.literals import dump_literal, is_literal, load_literal

__all__ = [
    "INLINE_BYTES",
    "Layout",
    "Leaf",
    "Place",
    "Placement",
    "TreeEncoder",
    "dump_literal",
    "is_literal",
    "load_literal",
    "parse_leaves",
    "parse_skeleton",
    "read_scalar",
]
