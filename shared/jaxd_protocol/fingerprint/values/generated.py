"""What libraries put into the classes of the user: without the addresses and hashes in it.

These say the same in each process and have other bytes in each. What is left out follows from
something else in the class that counts.
"""

from __future__ import annotations

import re
from types import FunctionType
from typing import Any, Final

from jaxd_protocol.fingerprint.walk import Walk

_FROM_PYDANTIC_SCHEMA: Final = frozenset({"__pydantic_serializer__", "__pydantic_validator__"})
"""Made from the schema of the class, which counts."""

_PYDANTIC_MEMORY: Final = frozenset(
    {"__pydantic_parent_namespace__", "__pydantic_setattr_handlers__"}
)
"""Where pydantic looks types up, and which attributes have been assigned."""

_REFERENCES: Final = frozenset({"ref", "schema_ref"})
_ADDRESS: Final = re.compile(r":(\d{6,})")


def is_left_out(cls: type, name: str) -> bool:
    """Whether an attribute of a class of the user's only repeats or remembers something."""
    if name in _PYDANTIC_MEMORY:
        return True
    return name in _FROM_PYDANTIC_SCHEMA and type(_schema_of(cls)) is dict


def _schema_of(cls: type) -> Any:
    return vars(cls).get("__pydantic_core_schema__")


def emit_attribute(walk: Walk, name: str, value: Any) -> bool:
    """Appends an attribute that a library has made; False for any other."""
    if name == "__pydantic_core_schema__" and type(value) is dict:
        walk.emit(_without_addresses(value, {}))
    elif name == "__hash__" and _is_made_by_attrs(value):
        walk.tag("attrs hash")  # it begins with the hash of a text
    else:
        return False
    return True


def _is_made_by_attrs(value: Any) -> bool:
    is_function = isinstance(value, FunctionType)
    return is_function and value.__code__.co_filename.startswith("<attrs generated ")


def _without_addresses(schema: Any, known: dict[str, int]) -> Any:
    """A copy of a schema in which the addresses of classes are numbered as they are met."""
    if type(schema) is list or type(schema) is tuple:
        return type(schema)([_without_addresses(each, known) for each in schema])
    if type(schema) is not dict:
        return schema
    is_node = "type" in schema
    return {
        name: _ADDRESS.sub(lambda found: f":{known.setdefault(found[1], len(known))}", each)
        if is_node and name in _REFERENCES and type(each) is str
        else _without_addresses(each, known)
        for name, each in schema.items()
    }


def emit_field(walk: Walk, value: Any) -> None:
    """Appends a field of a dataclass, or of a class that attrs has made, without its annotation."""
    walk.tag("field")
    for name in sorted(name for name in type(value).__slots__ if name != "type"):
        content = getattr(value, name, None)
        walk.text(name)
        walk.emit_child(
            f".{name}", getattr(content, "name", None) if name == "_field_type" else content
        )
