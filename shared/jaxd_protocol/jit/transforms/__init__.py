"""Transformations of a function: their literals in a key, and their application.

A list of transformations is part of a function's options, so that each list has a key of its own
over the fingerprint of the one function. Nothing here imports jax until a function is called.
"""

from __future__ import annotations

from jaxd_protocol.jit.transforms.apply import TransformedFunction as TransformedFunction
from jaxd_protocol.jit.transforms.apply import apply_transformations as apply_transformations
from jaxd_protocol.jit.transforms.apply import untransformed as untransformed
from jaxd_protocol.jit.transforms.literal import NotLiteral as NotLiteral
from jaxd_protocol.jit.transforms.literal import Transformation as Transformation
from jaxd_protocol.jit.transforms.literal import decode_transformation as decode_transformation
from jaxd_protocol.jit.transforms.literal import (
    describe_transformations as describe_transformations,
)
from jaxd_protocol.jit.transforms.literal import display_name as display_name
from jaxd_protocol.jit.transforms.literal import encode_transformation as encode_transformation
