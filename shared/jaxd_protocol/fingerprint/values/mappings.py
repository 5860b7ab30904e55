"""Subclasses of dict whose items are read as attributes: of ``cfg.lr`` one item counts.

A step is taken where it is certain that it gives the item and reads nothing else: the attributes
are the items (``self.__dict__ = self``), or `__getattr__` only looks an item up. The class counts
whole.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any, Final

from jaxd_protocol.fingerprint.code.reads import Instruction, Instructions
from jaxd_protocol.fingerprint.data_model import Step, Steps
from jaxd_protocol.fingerprint.guards import MISSING
from jaxd_protocol.fingerprint.values.reductions import find_in_class
from jaxd_protocol.fingerprint.walk import Walk, short_repr

_LOOKUPS: Final = (dict.__getitem__, dict.get)
_LIBRARIES: Final = frozenset({("munch", "Munch"), ("box.box", "Box")})
"""Installed classes whose `__getattr__` and `__getitem__` give the item, where there is one."""

_PYTHON: Final = ("builtins", "collections")
_SETTINGS: Final = "_box_config"


def is_its_own_dict(value: Any) -> bool:
    """Whether the attributes of an object are its items."""
    return isinstance(value, dict) and getattr(value, "__dict__", None) is value


def public(name: str, content: Any) -> Any:
    """The content of an attribute; of a box's settings without its notes about itself."""
    if name != _SETTINGS or type(content) is not dict:
        return content
    return {each: content[each] for each in content if not str(each).startswith("__")}


def follow_item(walk: Walk, value: dict[Any, Any], steps: Steps) -> tuple[Any, Steps] | None:
    """One step from an instance of a subclass of dict; None when all of it counts."""
    found = _item_that_is_read(value, steps)
    if found is None or not _can_be_made(type(value)):
        return None
    name, rest = found
    item = dict.get(value, name, MISSING)
    if item is MISSING and not _may_be_missing(steps[0]):
        return None
    attributes = _attributes(value)
    if attributes.get(name, item) is not item:
        return None
    walk.tag("item of")
    walk.emit_labelled("", type(value))
    walk.text(int(is_its_own_dict(value)))
    walk.guards.instance(value)
    if has_own_attributes(value):
        walk.guards.attribute(value, "__dict__", value.__dict__)
    walk.guards.answer(lambda: dict.get(value, name, MISSING) is item, True)
    if steps[0][0] == "a":
        walk.guards.item(attributes, name, attributes.get(name, MISSING))
    walk.text(int(name in attributes))
    if _SETTINGS in attributes:
        walk.emit_child(f".{_SETTINGS}", public(_SETTINGS, attributes[_SETTINGS]))
        walk.reach.partial_read_of(value).names.add(_SETTINGS)
    walk.reach.partial_read_of(value).names.add(name)
    if item is MISSING:
        walk.tag("missing")
        return MISSING, ()
    walk.label += f".{name}" if steps[0] == ("a", name) else f"[{short_repr(name)}]"
    return item, rest


def _looks_up(cls: type, key: Any, method: str) -> bool:
    """Whether that method looks for such a key among the items, and nowhere else."""
    is_path = isinstance(key, str) and not key.isidentifier()  # as `box_dots` has them
    of_library = _is_of_library(cls, method) and not is_path
    return of_library or find_in_class(cls, method) is vars(dict)[method]


def _may_be_missing(step: Step) -> bool:
    """Whether code that takes such a step expects that there may be no such item."""
    return step[0] == "k" or step == ("a", "get")


def has_own_attributes(value: Any) -> bool:
    """Whether `__dict__` is the dict of an object's attributes; munch has a copy of the items."""
    return (
        hasattr(value, "__dict__") and type(find_in_class(type(value), "__dict__")) is not property
    )


def _attributes(value: dict[Any, Any]) -> dict[str, Any]:
    """Those that are no items of it."""
    return value.__dict__ if has_own_attributes(value) and not is_its_own_dict(value) else {}


def _item_that_is_read(value: dict[Any, Any], steps: Steps) -> tuple[Any, Steps] | None:
    """The key of the item that the first step gives, and the steps that remain."""
    cls, (kind, name) = type(value), steps[0]
    if kind == "k":
        return (name, ()) if _looks_up(cls, name, "__contains__") else None
    if kind == "i":
        is_plain = find_in_class(cls, "__getitem__") is dict.__getitem__
        return (name, steps[1:]) if is_plain or _is_of_library(cls, "__getitem__") else None
    if kind != "a" or _home_of(cls, "__getattribute__").__module__ not in _PYTHON:
        return None
    if name == "get" and steps[1:2] and steps[1][0] == "c" and _looks_up(cls, steps[1][1], name):
        return steps[1][1], ()
    if name.startswith("__") or find_in_class(cls, name, MISSING) is not MISSING:
        return None
    is_attribute = is_its_own_dict(value) or name in _attributes(value)
    return (name, steps[1:]) if is_attribute or _looks_items_up(cls) else None


def _home_of(cls: type, name: str) -> type:
    """The class that has an attribute which each class has."""
    return next(base for base in cls.__mro__ if name in vars(base))


def _is_of_library(cls: type, name: str) -> bool:
    base = _home_of(cls, name)
    return (base.__module__, base.__qualname__) in _LIBRARIES


def _can_be_made(cls: type) -> bool:
    """Whether an instance can be made without running code of the user's."""
    made_by_python = _home_of(cls, "__new__").__module__ in _PYTHON
    return made_by_python or _is_of_library(cls, "__new__")


def _looks_items_up(cls: type) -> bool:
    """Whether `__getattr__` gives the item of that name, and reads no other."""
    found = find_in_class(cls, "__getattr__")
    if found is None:
        return False
    if any(found is each for each in _LOOKUPS) or _is_of_library(cls, "__getattr__"):
        return True
    plain = all(find_in_class(cls, name) is vars(dict)[name] for name in ("__getitem__", "get"))
    return plain and isinstance(found, FunctionType) and _only_looks_up(found)


def _only_looks_up(function: FunctionType) -> bool:
    """Whether each use of its first parameter is for the item that the second names."""
    code = function.__code__
    if code.co_argcount != 2 or code.co_kwonlyargcount or code.co_cellvars or code.co_freevars:
        return False
    this, name = code.co_varnames[:2]
    found = [each for one in Instructions(code) for each in _alone(one)]
    if any("STORE_FAST" in op and {this, name} & {*_variables(value)} for op, value in found):
        return False
    if not {"locals", "vars", "eval", "exec", "dir", "super"}.isdisjoint(code.co_names):
        return False
    load = ("LOAD_FAST", name)
    for at, each in enumerate(found):
        if each != ("LOAD_FAST", this):
            continue
        after = found[at + 1 : at + 4]
        is_asked = after[:1] and after[0][0] == "CONTAINS_OP"
        ops = [op for op, _ in after[1:]]
        if not is_asked and (after[:1] != [load] or ops != ["BINARY_SUBSCR", "RETURN_VALUE"]):
            return False
    return True


def _alone(each: Instruction) -> list[tuple[str, Any]]:
    """Two instructions in one, as Python 3.13 has them, apart."""
    if each.op == "LOAD_FAST_LOAD_FAST":
        return [("LOAD_FAST", variable) for variable in each.value]
    return [(each.op.replace("LOAD_FAST_CHECK", "LOAD_FAST"), each.value)]


def _variables(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
