"""Transformations of a function: their literals in a key, and their application.

A list of transformations is part of a function's options, so that each list has a key of its own
over the fingerprint of the one function. Nothing here imports jax until a function is called.
"""

from __future__ import annotations

from jaxd_protocol.jit.transforms.transform_literals import NotLiteral as NotLiteral
from jaxd_protocol.jit.transforms.transform_literals import Transformation as Transformation
from jaxd_protocol.jit.transforms.transform_literals import (
    decode_transformation as decode_transformation,
)
from jaxd_protocol.jit.transforms.transform_literals import (
    describe_transformations as describe_transformations,
)
from jaxd_protocol.jit.transforms.transform_literals import display_name as display_name
from jaxd_protocol.jit.transforms.transform_literals import (
    encode_transformation as encode_transformation,
)
from jaxd_protocol.jit.transforms.transformed_function import (
    TransformedFunction as TransformedFunction,
)
from jaxd_protocol.jit.transforms.transformed_function import (
    apply_transformations as apply_transformations,
)
from jaxd_protocol.jit.transforms.transformed_function import untransformed as untransformed
