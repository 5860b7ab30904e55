"""Objects of any other class: those of jax by their parts, arrays, and all others by pickle's."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import MutableSet
from contextvars import ContextVar
from dataclasses import Field
from functools import partial
from operator import contains
from typing import Any, Final

from jaxd_protocol.fingerprint.canonical_bytes import constant
from jaxd_protocol.fingerprint.function_wrapper import FunctionWrapper
from jaxd_protocol.fingerprint.guards import MISSING, has_no_hidden_state
from jaxd_protocol.fingerprint.unpatched import globals_module
from jaxd_protocol.fingerprint.values import mappings, modules, settings
from jaxd_protocol.fingerprint.values.arrays import emit_array
from jaxd_protocol.fingerprint.values.classes import emit_by_content, emit_field
from jaxd_protocol.fingerprint.values.reductions import (
    code_asked,
    forwards,
    guard_own_content,
    guard_parts,
    kept_names,
    own_attributes,
    reduce_by_content,
    reduce_object,
    set_own_state,
    writes_local_name,
)
from jaxd_protocol.fingerprint.values.struct_sequences import (
    emit_struct_sequence,
    is_struct_sequence,
)
from jaxd_protocol.fingerprint.walk import Walk, short_repr
from jaxd_protocol.jax_objects.decomposition import ObjectParts, decompose
from jaxd_protocol.jax_objects.names import kind_of, name_of_jax_object
from jaxd_protocol.jax_objects.registrations import is_own_primitive, rule_tables
from jaxd_protocol.packages.bare_objects import (
    constant_name,
    names_of_bare_object,
    own_constant_name,
)
from jaxd_protocol.packages.importable import importable_name
from jaxd_protocol.packages.installed import content_of, is_local_module


class ThreadLocal(threading.local):
    """A client's `threading.local`: each thread has the content of the client's calling thread."""

    def __init__(self, content: dict[str, Any]) -> None:
        vars(self).update(content)


_STANDS_FOR: Final = "_jaxd_class"


def thread_local_of(cls: Any, content: dict[str, Any]) -> Any:
    """The same of a subclass of `threading.local`, whose `__init__` does not run."""
    made = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    made |= {"__init__": ThreadLocal.__init__, _STANDS_FOR: cls}
    return type(cls.__name__, (cls,), made)(content)


class _ThreadLocalOf:
    """What is sent in the place of one."""

    def __init__(self, cls: type, content: dict[str, Any]) -> None:
        self._made_of = cls, content

    def __reduce__(self) -> Any:
        return thread_local_of, self._made_of


def emit_other(walk: Walk, value: Any) -> None:
    """Appends an object by what it is made of: all of it, also where code reads only a part."""
    if settings.is_config(value):
        from jaxd_protocol.fingerprint.values import configs  # many functions read none

        if configs.emit_config(walk, value):
            return
    walk.reach.whole.add(id(value))
    if is_struct_sequence(value):
        walk.nested(value, emit_struct_sequence)
    elif not (_emit_jax(walk, value) or emit_array(walk, value)):
        _emit_instance(walk, value)


def _emit_instance(walk: Walk, value: Any) -> None:
    """Appends an object that counts whole."""
    kind = type(value)
    if settings.is_environment(value):
        settings.emit_environment(walk)
        return
    name = f"{kind.__module__}.{kind.__qualname__}"
    if type(value) is Field or name == "attr._make.Attribute":
        walk.numbered(value, emit_field)
    elif name == "flax.typing.HashableMapping":
        walk.numbered(value, _flax_mapping)
    elif isinstance(value, ContextVar):
        walk.numbered(value, _context_variable)
    elif isinstance(value, threading.local):
        walk.numbered(value, _thread_local)
    elif (place := own_constant_name(value)) is not None:
        body = partial(_constant, place)
        if walk.ignores:  # by the way that leads to something, which counts here alone
            walk.numbered(value, body)
        else:
            emit_by_content(walk, value, body, ".".join(place))
    else:
        walk.numbered(value, _instance)


def _constant(place: tuple[str, str], walk: Walk, value: Any) -> None:
    """Appends what code may ask which one it is, by its name beside its content."""
    walk.tag("own constant")
    for each in place:
        walk.text(each)
    module, name = place
    content = content_of(module)
    if content.get(name) is value:  # else it stands for a client's, for good
        walk.guards.item(sys.modules, module, sys.modules.get(module))
        walk.guards.item(content, name, value)
    _instance(walk, value)


def _flax_mapping(walk: Walk, value: Any) -> None:
    """By its items in any order, as flax compares it: `tree.map` sorts the metadata of nnx."""
    items = getattr(value, "_mapping", None)
    if type(items) is not dict:
        _instance(walk, value)
        return
    walk.tag("flax mapping")
    walk.guards.mapping(items)
    walk.unordered(list(items.items()))


def _context_variable(walk: Walk, value: ContextVar[Any]) -> None:
    """By what it holds here and now: code reads settings from it."""
    walk.tag("context variable")
    walk.text(value.name)
    content = _current_value(value)
    walk.guards.answer(lambda: _current_value(value) is content, True)
    sent: ContextVar[Any] = ContextVar(value.name)
    if content is not MISSING:
        sent = ContextVar(value.name, default=content)
        walk.emit_child(".get()", content)
    walk.reach.replacements[id(value)] = sent  # another thread packs it, in its own context


def _current_value(variable: ContextVar[Any]) -> Any:
    try:
        return variable.get()
    except LookupError:
        return MISSING


def _thread_local(walk: Walk, value: threading.local) -> None:
    """By what it holds in this thread; a call in another thread finds that one's."""
    walk.tag("thread local")
    content = dict(vars(value))
    walk.guards.answer(lambda: _has_content(value, content), True)
    walk.reach.replacements[id(value)] = ThreadLocal(content)  # as seen in this thread
    cls: Any = vars(type(value)).get(_STANDS_FOR, type(value))
    if cls not in (threading.local, ThreadLocal):
        walk.reach.replacements[id(value)] = _ThreadLocalOf(cls, content)
        walk.emit_labelled("", cls)
    for name in sorted(content):
        walk.text(name)
        walk.emit_child(f".{name}", content[name])


def _has_content(value: threading.local, content: dict[str, Any]) -> bool:
    """Whether it holds these very objects in this thread."""
    now = vars(value)
    return now.keys() == content.keys() and all(now[name] is content[name] for name in content)


def _instance(walk: Walk, value: Any) -> None:
    kind = type(value)
    if kind is object and _bare_object(walk, value):
        return
    name = _jitted_name(value)
    if name is not None:
        walk.reach.installed += [value, kind]
        modules.emit_reference(walk, *name)
        walk.package(kind.__module__)
        _beside_jitted(walk, value)
        return
    hook = getattr(kind, "__fingerprint__", None)
    if hook is not None:
        walk.tag("hook")
        walk.emit(kind)
        walk.emit_child(".__fingerprint__()", hook(value))
        walk.guards.answer(lambda: hook(value), hook(value))
        return
    if any(_tells_more(walk, globals_module(each)) for each in code_asked(kind)):
        walk.reach.was_told = True
    by_content = writes_local_name(value, walk.is_local)
    try:
        reduced = reduce_by_content(value) if by_content else reduce_object(value)
    except Exception as error:  # noqa: BLE001  a user's `__reduce__` may raise anything
        walk.unshared(value, str(error) or type(error).__name__)
        return
    walk.guards.instance(value)
    _guard_content(walk, value)
    if walk.is_local(kind.__module__):
        guard_parts(walk.guards, value)
    if isinstance(reduced, str) and walk.is_local(kind.__module__):
        reduced = reduce_by_content(value)
    if isinstance(reduced, str):
        home = getattr(value, "__module__", None)  # of a function of Cython its own
        modules.emit_reference(walk, home if type(home) is str else kind.__module__, reduced)
        return
    constant_place = constant_name(value)
    for each in constant_place or ():  # code may ask which one it is
        walk.text(each)
    _reduced(walk, value, reduced)


def _bare_object(walk: Walk, value: object) -> bool:
    """Appends an `object()` by its name in a module; False where it has none.

    What is packed later, such as an argument, goes by the name that it has then.
    """
    installed, own = names = names_of_bare_object(value)
    if installed is not None:
        modules.emit_reference(walk, *installed)
        return True
    walk.guards.answer(partial(names_of_bare_object, value), names)
    if own is None:
        return False
    walk.tag("own object")
    for each in own:
        walk.text(each)
    walk.part("value", walk.label, repr(own).encode(), ".".join(own))
    return True


def _jitted_name(value: Any) -> tuple[str, str] | None:
    """Module and name of an installed object around a jitted function, as `eqx.filter_jit` makes.

    It travels by that name. Here `jax.jit` may have made a persistent function, and there not.
    """
    attributes = own_attributes(value) if callable(value) else None
    if type(attributes) is not dict or is_local_module(type(value).__module__):
        return None
    return importable_name(value) if any(map(_is_jitted, attributes.values())) else None


def _is_jitted(value: Any) -> bool:
    return issubclass(type(value), FunctionWrapper) or kind_of(value) == "jit"


def _beside_jitted(walk: Walk, value: Any) -> None:
    """The other attributes of such an object, which somebody may have set."""
    attributes = own_attributes(value) or {}
    walk.guards.mapping(attributes)
    for name in sorted(attributes):
        if not _is_jitted(attributes[name]):
            walk.text(name)
            walk.emit_child(f".{name}", attributes[name])


def _reduced(walk: Walk, value: Any, reduced: tuple[Any, ...]) -> None:
    """Appends what pickle would write: constructor, arguments, state, items, pairs."""
    walk.tag("object")
    kind = type(value)
    make, arguments, state, items, pairs, setter = (*reduced, None, None, None, None)[:6]
    if mappings.is_its_own_dict(value):
        walk.tag("own dict")
        state = None
    if isinstance(make, type) and make is not kind and (state, items, pairs) == (None,) * 3:
        walk.emit(make(*arguments))  # it arrives as something else, and counts as that
        return
    walk.emit_labelled("", make)
    walk.emit_labelled(walk.label, arguments)
    _state(walk, value, state)
    walk.tag("items")
    for index, item in enumerate(items or ()):
        walk.emit_child(f"[{index}]", item)
    walk.tag("pairs")
    for key, item in pairs or ():
        walk.emit_labelled("", key)
        walk.emit_child(f"[{short_repr(key)}]", item)
    if setter is not None and setter is not set_own_state:
        walk.tag("set by")
        walk.emit_labelled("", setter)


def _state(walk: Walk, value: Any, state: Any) -> None:
    if type(state) is dict and not state:
        state = None  # an object without attributes has a dict only after it was read
    parts = state if isinstance(state, tuple) and len(state) == 2 else (state,)
    walk.text(len(parts))
    for part in parts:
        if type(part) is not dict:
            walk.emit(part)
            continue
        walk.tag("state")  # written here: pickle may make the dict anew each time
        walk.text(len(part))
        for name, content in part.items():
            if name in _PRIVATE and _is_private(walk, value, name, content):
                continue
            walk.emit_labelled("", name)
            walk.emit_child(f".{name}", mappings.public(name, content))


_PRIVATE: Final = frozenset({"_hash", "cls_ref"})
_TELL_NO_MORE: Final = sys.stdlib_module_names | {"attr", "jaxtyping"}
"""Modules and packages whose functions say of an object no more than what it holds itself."""


def _tells_more(walk: Walk, module: str) -> bool:
    """Whether functions of a module may say more of an object than what it holds."""
    return module.partition(".")[0] not in _TELL_NO_MORE or walk.is_local(module)


def _is_private(walk: Walk, value: Any, name: str, content: Any) -> bool:
    """Whether an installed class keeps what each process has another one of: hash, address."""
    home = type(value).__module__
    if name == "cls_ref":
        return bool(home == "pydantic._internal._decorators")
    return not walk.is_local(home) and type(content) is int and content == hash(value)


def _guard_content(walk: Walk, value: Any) -> None:
    guards = walk.guards
    if "ndarray" in (base.__name__ for base in type(value).__mro__):
        guards.array(value)
    elif isinstance(value, dict | OrderedDict | defaultdict):
        guards.mapping(value)
    elif isinstance(value, list | deque | set):
        guards.sequence(value)
    elif not (guards.buffer(value) or has_no_hidden_state(type(value))):
        guards.incomplete()
    if forwards(type(value)):
        guard_own_content(guards, value)
        return
    attributes = getattr(value, "__dict__", None)
    if type(attributes) is dict and mappings.has_own_attributes(value):
        guards.mapping(attributes)
        guards.attribute(value, "__dict__", attributes)
    for name in kept_names(type(value)):
        guards.attribute(value, name, getattr(value, name, MISSING))


def _emit_jax(walk: Walk, value: Any) -> bool:
    """Appends an object of jax; False when it is of no known kind."""
    if is_own_primitive(value):
        emit_by_content(walk, value, _emit_primitive, value.name)
        return True
    object_parts = decompose(value)
    if object_parts is None:
        return False
    body = partial(_emit_parts, object_parts)
    name = name_of_jax_object(value)
    if name is not None and not walk.is_local(name[0]):
        walk.reach.installed.append(value)
        modules.emit_reference(walk, *name)
    elif object_parts.is_value:  # jax makes equal ones the same object whenever it likes
        walk.nested(value, body)
    else:
        walk.numbered(value, body)
    return True


def _emit_primitive(walk: Walk, value: Any) -> None:
    """Appends a primitive of the user's own, with the rules that jax and the like have for it."""
    object_parts = decompose(value)
    assert object_parts is not None
    _emit_parts(object_parts, walk, value)
    for table in (each.content for each in rule_tables(value)):
        if isinstance(table, MutableSet):
            walk.guards.answer(partial(contains, table, value), value in table)
        else:
            walk.guards.item(table, value, table.get(value, MISSING))


def _emit_parts(object_parts: ObjectParts, walk: Walk, value: Any) -> None:
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
