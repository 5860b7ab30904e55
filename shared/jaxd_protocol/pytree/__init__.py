"""Trees of arrays as flat data: no code is needed to write them and none is run to read them."""

from __future__ import annotations

from jaxd_protocol.pytree.encoder import TreeEncoder as TreeEncoder
from jaxd_protocol.pytree.layout import Layout as Layout
from jaxd_protocol.pytree.layout import parse_leaves as parse_leaves
from jaxd_protocol.pytree.layout import parse_skeleton as parse_skeleton
from jaxd_protocol.pytree.leaves import INLINE_BYTES as INLINE_BYTES
from jaxd_protocol.pytree.leaves import BlobLayout as BlobLayout
from jaxd_protocol.pytree.leaves import Leaf as Leaf
from jaxd_protocol.pytree.leaves import LeafOffset as LeafOffset
from jaxd_protocol.pytree.leaves import read_scalar as read_scalar
from jaxd_protocol.pytree.literals import dump_literal as dump_literal
from jaxd_protocol.pytree.literals import is_literal as is_literal
from jaxd_protocol.pytree.literals import load_literal as load_literal
