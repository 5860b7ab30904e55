"""What jaxd knows of jax's own objects: how to hash them, how they travel, how classes do.

The one place for private names of jax, and for those of the libraries whose classes need more
than Python's own class machinery. None of it imports jax where jax is not loaded already, apart
from the functions that make an object again, which run where one arrives.
"""

from jaxd_protocol.jax_objects.names import name_of_jax_object as name_of_jax_object
from jaxd_protocol.jax_objects.parts import ArrayContent as ArrayContent
from jaxd_protocol.jax_objects.parts import ObjectParts as ObjectParts
from jaxd_protocol.jax_objects.parts import array_content as array_content
from jaxd_protocol.jax_objects.parts import decompose as decompose
from jaxd_protocol.jax_objects.reducers import reduce_jax as reduce_jax
from jaxd_protocol.jax_objects.registrations import GENERATED_ATTRIBUTES as GENERATED_ATTRIBUTES
from jaxd_protocol.jax_objects.registrations import Registration as Registration
from jaxd_protocol.jax_objects.registrations import build_class as build_class
from jaxd_protocol.jax_objects.registrations import class_registration as class_registration
from jaxd_protocol.jax_objects.registrations import finish_class as finish_class
