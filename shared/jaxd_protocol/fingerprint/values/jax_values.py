"""What belongs to jax: jitted functions, custom derivatives, shardings and the like."""

from __future__ import annotations

from typing import Any

from jaxd_protocol.fingerprint.canonical import constant
from jaxd_protocol.fingerprint.values import modules
from jaxd_protocol.fingerprint.walk import Walk
from jaxd_protocol.jax_objects import ObjectParts, decompose
from jaxd_protocol.jax_objects.names import name_of_jax_object


def emit_jax(walk: Walk, value: Any) -> bool:
    """Appends an object of jax; False when it is none that is known."""
    object_parts = decompose(value)
    if object_parts is None:
        return False
    name = name_of_jax_object(value)
    if name is not None and not walk.is_local(name[0]):
        walk.reach.installed.append(value)
        modules.emit_reference(walk, *name)
    elif object_parts.is_value:  # jax makes equal ones the same object whenever it likes
        walk.nested(value, _emit_parts)
    else:
        walk.numbered(value, _emit_parts)
    return True


def _emit_parts(walk: Walk, value: Any) -> None:
    object_parts = decompose(value)
    assert isinstance(object_parts, ObjectParts)
    walk.tag(object_parts.kind)
    walk.guards.instance(value)
    attributes = getattr(value, "__dict__", None)
    if type(attributes) is dict:
        walk.guards.mapping(attributes)
    settings = constant(object_parts.settings, None)
    walk.write(settings)
    walk.part("value", walk.label, settings, object_parts.kind)
    for label, child in object_parts.children:
        walk.text(label)
        walk.emit_child(f".{label}", child)
