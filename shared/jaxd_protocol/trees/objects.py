"""Objects from their class and their attributes."""

from __future__ import annotations

from types import MemberDescriptorType
from typing import Any

from jaxd_protocol.errors import ProtocolError, ResultError

__all__ = ["default_of", "restore"]


def default_of(cls: Any, name: str, missing: Any) -> Any:
    """The default of the parameter of that name by which instances of a class are made.

    Both ends ask their own class, so that neither takes the other's word for a callable.

    Args:
        cls: a dataclass, or any class with a signature.
        name: of a parameter and of the attribute that it sets.
        missing: what is returned when there is none.
    """
    field = getattr(cls, "__dataclass_fields__", {}).get(name)
    if field is not None and type(field.default).__name__ != "_MISSING_TYPE":
        return field.default
    from inspect import Parameter, signature  # few results have such attributes

    try:
        parameter = signature(cls).parameters.get(name)
    except (TypeError, ValueError):  # written in C
        return missing
    if parameter is None or parameter.default is Parameter.empty:
        return missing
    return parameter.default


def restore(cls: Any, state: dict[Any, Any], *, is_own: bool = True) -> Any:
    """An instance with these attributes, made as `pickle` makes one: without `__init__`.

    Nothing but `__new__` of the class is run, and not even that unless it is a class of the
    process's own: no property, and no `__setattr__`.
    """
    try:
        instance = cls.__new__(cls) if is_own else object.__new__(cls)
    except Exception as error:
        raise ResultError(
            f"the result holds a {cls.__qualname__}, which cannot be made without arguments "
            f"({error}). Return dicts, lists and tuples from the function."
        ) from error
    own = _own_attributes(instance)
    for name, value in state.items():
        slot = _slot(cls, name)
        if slot is not None:
            slot.__set__(instance, value)
        elif own is not None and type(name) is str:
            own[name] = value
        else:
            raise ProtocolError(f"a tree has an object whose class has no attribute {name!r}.")
    return instance


def _own_attributes(instance: Any) -> Any:
    try:
        return object.__getattribute__(instance, "__dict__")
    except AttributeError:
        return None


def _slot(cls: type, name: Any) -> MemberDescriptorType | None:
    for base in cls.__mro__:
        found = base.__dict__.get(name)
        if found is not None:
            return found if isinstance(found, MemberDescriptorType) else None
    return None
