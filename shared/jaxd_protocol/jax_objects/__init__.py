"""What jaxd knows of jax's own objects: how to hash them, how they travel, how classes do.

The one place for private names of jax, and for those of the libraries whose classes need more
than Python's own class machinery. None of it imports jax where jax is not loaded already, apart
from the functions that make an object again, which run where one arrives.
"""

from jaxd_protocol.jax_objects.arrays import ArrayContent, array_content
from jaxd_protocol.jax_objects.classes import build_class
from jaxd_protocol.jax_objects.names import found_name
from jaxd_protocol.jax_objects.parts import Anatomy, take_apart
from jaxd_protocol.jax_objects.reducers import reduce_jax
from jaxd_protocol.jax_objects.registrations import (
    GENERATED_ATTRIBUTES,
    Registration,
    class_registration,
    finish_class,
)

__all__ = [
    "GENERATED_ATTRIBUTES",
    "Anatomy",
    "ArrayContent",
    "Registration",
    "array_content",
    "build_class",
    "class_registration",
    "finish_class",
    "found_name",
    "reduce_jax",
    "take_apart",
]
