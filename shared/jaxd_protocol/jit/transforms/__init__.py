"""What a function is transformed by: how that is written in a key, and how it is done.

A list of transformations is part of a function's options, so that each list has a key of its own
over the fingerprint of the one function. Nothing here imports jax until a function is called.
"""

from __future__ import annotations

from jaxd_protocol.jit.transforms.apply import Transformed, transformed, untransformed
from jaxd_protocol.jit.transforms.literal import (
    NotSpelled,
    Transformation,
    options_of,
    shown,
    shown_name,
    transformation,
)

__all__ = [
    "NotSpelled",
    "Transformation",
    "Transformed",
    "options_of",
    "shown",
    "shown_name",
    "transformation",
    "transformed",
    "untransformed",
]
