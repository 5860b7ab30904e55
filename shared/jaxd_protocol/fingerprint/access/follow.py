"""Access paths: `cfg.model.width` is followed to the one value that it reads.

A step is taken only where it is certain that taking it runs no code of the user's that could reach
more. Where it is not, what has been reached so far counts whole.
"""

from __future__ import annotations

import builtins
from types import FunctionType, ModuleType
from typing import Any, Final

from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint.access import attributes, installed
from jaxd_protocol.fingerprint.archives import members
from jaxd_protocol.fingerprint.canonical import ATOMS
from jaxd_protocol.fingerprint.code.reads import Read
from jaxd_protocol.fingerprint.guards import MISSING, Guards
from jaxd_protocol.fingerprint.impure import impurity
from jaxd_protocol.fingerprint.model import Steps
from jaxd_protocol.fingerprint.unpatched import is_plain_data
from jaxd_protocol.fingerprint.values import environment, flags, modules
from jaxd_protocol.fingerprint.walk import Walk, short_repr

_CONSTANTS: Final = frozenset({"Ellipsis", "False", "None", "NotImplemented", "True", "__debug__"})

_READ_ALL_GLOBALS: Final = frozenset({"globals", "eval", "exec"})


def emit_global(walk: Walk, function: FunctionType, read: Read) -> None:
    """Appends what a function reads of a global."""
    name, home = read.name, function.__globals__
    if name in modules.IGNORED_ATTRIBUTES or name.startswith("@py"):
        return
    walk.text(name)
    walk.line = read.line
    value = home.get(name, MISSING)
    if read.written and not read.steps and type(value) in ATOMS:
        walk.guards.complete = False  # the code may assign it: it counts as it was found
    else:
        walk.guards.item(home, name, value)
    if value is MISSING:
        _builtin(walk, home, read)
        return
    walk.label = f"global {name}"
    follow(walk, value, read.steps, read.written)


def _builtin(walk: Walk, home: dict[str, Any], read: Read) -> None:
    name = read.name
    if not hasattr(builtins, name):
        walk.tag("missing")
        return
    walk.tag("builtin")
    if isinstance(getattr(builtins, name), type):
        walk.reach.installed.append(getattr(builtins, name))
    if name == "__import__" and not members.allow_computed_import(walk, read.steps):
        installed.refuse_computed_import(walk, name)
    if _is_replaced_builtin(walk, name, getattr(builtins, name)):
        raise PackingError(
            f"{walk.path()} uses {name} ({walk.where}), which somebody has put into Python's "
            "builtins. The server's are as Python made them. Import or define it instead."
        )
    impure = impurity("builtins", name)
    if impure is not None:
        walk.note(impure)
    own = walk.process_view.module(home.get("__name__") or "")
    if name in _READ_ALL_GLOBALS and own is not None and walk.is_local(own.__name__):
        modules.emit_module(walk, own)


def _is_replaced_builtin(walk: Walk, name: str, value: Any) -> bool:
    """Whether a builtin is a function of the user's, or a value that Python does not have there."""
    if isinstance(value, FunctionType):
        return walk.is_local(str(value.__globals__.get("__name__")))
    return is_plain_data(value) and name not in _CONSTANTS


def follow(walk: Walk, value: Any, steps: Steps, written: bool) -> None:
    """Appends what the steps lead to.

    Args:
        walk: its label says how `value` is read.
        value: where the steps begin.
        steps: attributes, items, calls.
        written: whether the walked code itself changes what they lead to.
    """
    while steps and steps[0][0] != "+":
        if steps[0][0] == "!" or (walk.listed is not None and walk.is_listed(value, steps)):
            walk.callback_only(value)
            return
        walk.mark_partly_read(value)
        taken = (
            _follow_step(walk, value, steps)
            if steps[1:] != _THEN_ASSIGNED
            else _unguarded_step(walk, value, steps)
        )
        if taken is None:
            break
        value, steps = taken
        if value is MISSING:
            return
    if written:
        walk.guards.pin(value)
    walk.emit(value)


_THEN_ASSIGNED: Final = (("+", None),)


def _unguarded_step(walk: Walk, value: Any, steps: Steps) -> Followed | None:
    """A step to a place that the code itself assigns: it counts as it was found."""
    kept, walk.guards = walk.guards, Guards()
    try:
        return _follow_step(walk, value, steps)
    finally:
        walk.guards = kept
        walk.guards.complete = False


Followed = tuple[Any, Steps]
"""The next value and the steps that remain; `MISSING` when there is nothing more to append."""


def _follow_step(walk: Walk, value: Any, steps: Steps) -> Followed | None:
    """One step; None when the value counts whole."""
    kind, name = steps[0]
    if environment.is_environment(value):
        environment.emit_variable(walk, value, steps)
        return MISSING, ()
    if walk.archives is not None and members.emit_read(walk, value, steps):
        return MISSING, ()
    if kind == "c":
        return value, ()
    if isinstance(value, ModuleType):
        if kind == "i":
            return None
        if walk.is_local(value.__name__):
            return _module_attribute(walk, value, kind, name, steps[1:])
        installed.emit_installed(walk, value, steps)
        return MISSING, ()
    if type(value) is dict:
        return _dict_item(walk, value, steps)
    if flags.is_flags(value):
        return flags.emit_flag(walk, value, kind, name, steps[1:])
    if isinstance(value, type):
        return _class_attribute(walk, value, steps)
    return attributes.follow_attribute(walk, value, kind, name, steps[1:])


def _module_attribute(
    walk: Walk, module: ModuleType, kind: str, name: str, rest: Steps
) -> Followed | None:
    content = vars(module)
    value = content.get(name, MISSING)
    if kind == "w":
        walk.reach.partial_read_of(module)
        return MISSING, ()
    if value is MISSING and "__getattr__" in content:
        return None
    walk.guards.item(content, name, value)
    walk.reach.partial_read_of(module).names.add(name)
    if value is MISSING:
        walk.tag("missing")
        return MISSING, ()
    walk.label += f".{name}"
    return value, rest


def _dict_item(walk: Walk, value: dict[Any, Any], steps: Steps) -> Followed | None:
    (kind, name), rest = steps[0], steps[1:]
    if kind == "a" and name == "get" and rest and rest[0][0] == "c":
        name, rest = rest[0][1], ()
    elif kind != "i":
        return None
    walk.reach.partial_read_of(value).names.add(name)
    item = value.get(name, MISSING)
    walk.guards.instance(value)
    walk.guards.item(value, name, item)
    if item is MISSING:
        walk.tag("missing")
        return MISSING, ()
    walk.label += f"[{short_repr(name)}]"
    return item, rest


def _class_attribute(walk: Walk, cls: type, steps: Steps) -> Followed | None:
    """A class as a name for settings: `Config.lr`."""
    (kind, name), rest = steps[0], steps[1:]
    if not walk.is_local(cls.__module__):
        installed.emit_setting(walk, cls.__module__, cls.__qualname__, cls, steps)
        return None
    if kind != "a" or type(cls) is not type:
        return None
    for base in cls.__mro__:
        value = vars(base).get(name, MISSING)
        if value is not MISSING:
            break
    else:
        return None
    if hasattr(type(value), "__get__") or not walk.is_local(base.__module__):
        return None  # a method, or anything else that makes its value when it is read
    walk.guards.attribute(cls, name, value)
    walk.guards.bases(cls)
    walk.reach.partial_read_of(cls).names.add(name)
    walk.label += f".{name}"
    return value, rest
