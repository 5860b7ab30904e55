"""Access paths: `cfg.model.width` is followed to the one value that it reads.

A step is taken only where it is certain that taking it runs no code of the user's that could reach
more. Where it is not, what has been reached so far counts whole.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property, partial
from inspect import getattr_static
from types import FunctionType, MemberDescriptorType, ModuleType, SimpleNamespace
from typing import Any, Final, NoReturn

from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint import archive_members
from jaxd_protocol.fingerprint.canonical_bytes import ATOMS, digest
from jaxd_protocol.fingerprint.code.callbacks import AS_CALLBACK
from jaxd_protocol.fingerprint.code.reads import Read, facts_of
from jaxd_protocol.fingerprint.data_model import NO_CALLBACKS, Reader, Steps, parameters_of
from jaxd_protocol.fingerprint.guards import MISSING, Guards
from jaxd_protocol.fingerprint.local_imports import (
    emit_made_up,
    has_submodule,
    lazy_submodule,
)
from jaxd_protocol.fingerprint.unpatched import (
    globals_module,
    is_own_builtin,
    is_own_code,
    is_plain_data,
    is_replaced_constant,
)
from jaxd_protocol.fingerprint.values import classes, modules, settings
from jaxd_protocol.fingerprint.values.reductions import forwards, own_attributes, slot_content
from jaxd_protocol.fingerprint.walk import Walk, short_repr

_READ_ALL_GLOBALS: Final = frozenset({"globals", "eval", "exec"})
_READERS: Final[dict[str, frozenset[Reader]]] = {
    "id": frozenset({"identities", "addresses"}),
    "vars": frozenset({"order"}),
    "globals": frozenset({"order"}),
}
"""What code reads by way of builtins, beside what counts in any case."""


def emit_globals(walk: Walk, function: FunctionType, reads: Collection[Read]) -> None:
    """Appends what a function reads of its globals."""
    written = {read.name for read in reads if read.written}
    for read in reads:
        _global(walk, function, read, read.name not in written)


def _global(walk: Walk, function: FunctionType, read: Read, watched: bool) -> None:
    name, globals_ = read.name, function.__globals__
    if (name in modules.IGNORED_ATTRIBUTES and name != "__doc__") or name.startswith("@py"):
        return
    walk.text(name)
    walk.line = read.line
    value = globals_.get(name, MISSING)
    if read.written and not read.steps and type(value) in ATOMS:
        walk.guards.incomplete()  # the code may assign it: it counts as it was found
    else:
        walk.guards.item(globals_, name, value)
    if value is MISSING:
        _builtin(walk, function, read)
        return
    walk.label = f"global {name}"
    follow(walk, value, bound_steps(walk, globals_, read.steps), read.written, watched)


def _builtin(walk: Walk, function: Any, read: Read) -> None:
    name, globals_ = read.name, function.__globals__
    value = vars(builtins).get(name, MISSING)
    if function.__builtins__.get(name, MISSING) is not value and name != "__import__":
        raise PackingError(
            f"{walk.path()} uses {name} ({walk.where}), and has builtins of its own, which the "
            "server has not. Assign what it uses in its globals instead."
        )
    walk.guards.item(vars(builtins), name, value)
    if value is MISSING:
        walk.tag("missing")
        return
    walk.tag("builtin")
    walk.reach.readers |= _READERS.get(name, frozenset())
    if isinstance(value, type):
        walk.reach.installed.append(value)
        if name != "type":  # of which it is a method
            classes.refuse_subclasses(walk, value, read.steps)
    if name == "__import__" and not archive_members.allow_computed_import(walk, read.steps):
        refuse_computed_import(walk, name)
    if not is_own_builtin(name, value):
        raise PackingError(
            f"{walk.path()} uses {name} ({walk.where}), which was added to Python's "
            "builtins. The server has only Python's own. Import or define it instead."
        )
    walk.note(modules.impurity("builtins", name))
    own = walk.process_view.module(globals_.get("__name__") or "")
    if name in _READ_ALL_GLOBALS and own is not None and walk.is_local(own.__name__):
        modules.emit_module(walk, own)


def follow(
    walk: Walk, value: Any, steps: Steps, written: bool = False, watched: bool = True
) -> None:
    """Appends what the steps lead to.

    Args:
        walk: its label is how `value` is read.
        value: where the steps begin.
        steps: attributes, items, calls.
        written: whether the code that takes them changes what they lead to.
        watched: whether the containers on the way count as they are now, also where other code
            writes to them; not when this code does.
    """
    if watched:
        walk.guards.watch(value)
    while steps and steps[0][0] != "+":
        if steps[0][0] in _LAST_STEPS:
            if _LAST_STEPS[steps[0][0]](walk, value, steps[0][1]):
                return
            break
        if steps[0][0] == "!" or (walk.listed is not None and walk.is_listed(value, steps)):
            walk.callback_only(value)
            return
        walk.mark_partly_read(value)
        take = _unguarded_step if steps[1:] == _THEN_ASSIGNED else _follow_step
        taken = take(walk, value, steps)
        if taken is None:
            break
        value, steps = taken
        if value is MISSING:
            return
        if watched:
            walk.guards.watch(value)
    if written:
        walk.guards.pin(value)
    walk.emit(value)


def bound_steps(walk: Walk, globals_: Mapping[str, Any], steps: Steps) -> Steps:
    """The steps, of which the last may pass the value to a function: with that function.

    Without that step where it is not certain what the function does with the value.

    Args:
        walk: says what is local.
        globals_: of the code that takes the steps.
        steps: as they were found in the code.
    """
    if not steps or steps[-1][0] != "p":
        return steps
    before, passed = steps[:-1], steps[-1][1]
    if passed.callee == ("getattr",) and "getattr" not in globals_:
        return before if passed.text is None else (*before, ("a", passed.text))
    callee: Any = globals_.get(passed.callee[0])
    for name in passed.callee[1:]:
        is_module = isinstance(callee, ModuleType) and walk.is_local(callee.__name__)
        callee = vars(callee).get(name) if is_module else None
    name = None if type(callee) is not FunctionType else parameter_at(callee, passed.place)
    return before if name is None else (*before, ("p", (callee, name)))


def bound_uses(
    walk: Walk, globals_: Mapping[str, Any], uses: Mapping[Steps, int] | None
) -> dict[Steps, int] | None:
    """The same of all reads of a variable; None: all of it is read."""
    if uses is None:
        return None
    found = {bound_steps(walk, globals_, steps): line for steps, line in uses.items()}
    return None if () in found else found


def parameter_at(function: FunctionType, place: int | str) -> str | None:
    """The name of a parameter, given its position or keyword; None when it is no such."""
    code = function.__code__
    if isinstance(place, int):
        return code.co_varnames[place] if place < code.co_argcount else None
    return place if place in parameters_of(code)[code.co_posonlyargcount :] else None


def follow_into(walk: Walk, value: Any, function: FunctionType, name: str) -> bool:
    """Appends what a function reads of an argument; False when that may be all."""
    if type(value) in _VALUES:
        return False
    uses = uses_of_parameter(walk, function, name)
    if not uses or AS_CALLBACK in uses:
        return False
    key = (id(value), id(function), name)
    if key in walk.passed_to:
        walk.tag("as before")
    else:
        walk.passed_to.add(key)
        walk.emit_uses(walk.label, value, uses)
    return True


def _show(walk: Walk, value: Any, _: None) -> bool:
    """Appends a module that travels by what is read of it; False for all else.

    Of a module the message of an assert has the name that the code has for it.
    """
    is_module = isinstance(value, ModuleType) and walk.archives is None
    if not (is_module and walk.is_local(value.__name__)):
        return False
    walk.tag("shown")
    walk.reach.partial_read_of(value)
    return True


_LAST_STEPS: Final[Mapping[str, Callable[[Walk, Any, Any], bool]]] = {
    "p": lambda walk, value, passed: follow_into(walk, value, *passed),
    "r": _show,
}
"""Steps that end a path, by kind: what they append, unless all of the value counts."""

_VALUES: Final = ATOMS | {tuple, frozenset}
"""Types whose equal instances may be one object in one process and two in another."""

_THEN_ASSIGNED: Final = (("+", None),)


def _unguarded_step(walk: Walk, value: Any, steps: Steps) -> Followed | None:
    """A step to a place that the code itself assigns: it counts as it was found."""
    kept, walk.guards = walk.guards, Guards()
    try:
        return _follow_step(walk, value, steps)
    finally:
        walk.guards = kept
        walk.guards.incomplete()


Followed = tuple[Any, Steps]
"""The next value and the steps that remain; `MISSING` when there is nothing more to append."""


def _follow_step(walk: Walk, value: Any, steps: Steps) -> Followed | None:
    """One step; None when the value counts whole."""
    kind, name = steps[0]
    if settings.is_environment(value):
        settings.emit_variable(walk, value, steps)
        return MISSING, ()
    if walk.archives is not None and archive_members.emit_read(walk, value, steps):
        return MISSING, ()
    if kind == "c":
        return value, ()
    if isinstance(value, ModuleType):
        if kind in "ik":
            return None
        if walk.is_local(value.__name__):
            return _module_attribute(walk, value, kind, name, steps[1:])
        emit_installed(walk, value, steps)
        return MISSING, ()
    if isinstance(value, dict):
        return _dict_item(walk, value, steps)
    if settings.is_config(value):
        from jaxd_protocol.fingerprint.values import configs  # many functions read none

        field = configs.read_field(walk, value, steps)
        return None if field is None else _result_of_step(walk, *field)
    if isinstance(value, type):
        return _class_attribute(walk, value, steps)
    return follow_attribute(walk, value, kind, name, steps[1:])


def _result_of_step(walk: Walk, value: Any, step: str, rest: Steps) -> Followed:
    """The value that a step leads to; where there is none, the path ends."""
    if value is MISSING:
        walk.tag("missing")
        return MISSING, ()
    walk.label += step
    return value, rest


def _module_attribute(
    walk: Walk, module: ModuleType, kind: str, name: str, rest: Steps
) -> Followed | None:
    content = vars(module)
    value = content.get(name, MISSING)
    if name == "__dict__":
        return None
    if kind == "w":
        walk.reach.partial_read_of(module)
        return MISSING, ()
    modules.refuse_own_class(walk, module, name)
    if value is MISSING and "__getattr__" in content:
        return _made_when_read(walk, module, name, rest)
    walk.guards.item(content, name, value)
    if value is MISSING:
        walk.guards.item(content, "__getattr__")
    walk.reach.partial_read_of(module).names.add(name)
    return _result_of_step(walk, value, f".{name}", rest)


def _made_when_read(walk: Walk, module: ModuleType, name: str, rest: Steps) -> Followed:
    """A name that a module makes when it is read: a submodule that it imports, or anything."""
    if not has_submodule(walk, module, name):
        emit_made_up(walk, module, name)
        return MISSING, ()
    loaded = lazy_submodule(walk, module, name)
    if loaded is not MISSING:
        walk.label += f".{name}"
    return loaded, rest


def _dict_item(walk: Walk, value: dict[Any, Any], steps: Steps) -> Followed | None:
    if type(value) is not dict:
        from jaxd_protocol.fingerprint.values import mappings  # few functions read one

        return mappings.follow_item(walk, value, steps)
    (kind, name), rest = steps[0], steps[1:]
    if kind == "a" and name == "get" and rest and rest[0][0] == "c":
        name, rest = rest[0][1], ()
    elif kind not in "ik":
        return None
    walk.reach.partial_read_of(value).names.add(name)
    item = value.get(name, MISSING)
    walk.guards.instance(value)
    walk.guards.item(value, name, item)
    return _result_of_step(walk, item, f"[{short_repr(name)}]", rest)


def _class_attribute(walk: Walk, cls: type, steps: Steps) -> Followed | None:
    """A class as a name for settings: `Config.lr`."""
    (kind, name), rest = steps[0], steps[1:]
    if not walk.is_local(cls.__module__):
        classes.refuse_subclasses(walk, cls, steps)
        emit_setting(walk, cls.__module__, cls.__qualname__, cls, steps)
        return None
    if kind != "a" or type(cls) is not type:
        return None
    base, value = _static_lookup(cls, name)
    if base is None or hasattr(type(value), "__get__") or not walk.is_local(base.__module__):
        return None  # a method, or anything else that makes its value when it is read
    walk.guards.attribute(cls, name, value)
    walk.guards.attribute(cls, "__bases__", cls.__bases__)
    walk.reach.partial_read_of(cls).names.add(name)
    return _result_of_step(walk, value, f".{name}", rest)


_HOLDERS: Final = frozenset({tuple, list, set, frozenset, dict})


def compared_with(functions: Collection[FunctionType]) -> Iterator[tuple[Any, bool]]:
    """The globals and closure variables of functions that their code compares with others.

    Each with whether it is compared by `is`. Of a method it is the object as well. And what
    containers among them hold, or have as keys: code may ask whether something is in one.
    """
    for function in functions:
        code = function.__code__
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        for how, name, *attributes in facts_of(code).compared:
            try:
                cell = cells.get(name)
                found: Any = function.__globals__.get(name) if cell is None else cell.cell_contents
            except ValueError:  # it is empty
                continue
            for each in attributes:
                holder, found = found, getattr_static(found, each, None)
                if hasattr(type(found), "__get__"):
                    yield holder, how == "IS_OP"
            yield found, how == "IS_OP"
            if type(found) in _HOLDERS:
                yield from ((each, False) for each in tuple(found))


def uses_of_first_parameter(walk: Walk, function: Any) -> dict[Steps, int] | None:
    """What a function of the user's reads of its first argument; None when it may read all."""
    if not isinstance(function, FunctionType) or not function.__code__.co_argcount:
        return None
    return uses_of_parameter(walk, function, function.__code__.co_varnames[0])


def uses_of_parameter(walk: Walk, function: FunctionType, name: str) -> dict[Steps, int] | None:
    """What a function of the user's reads of an argument; None when it may read all."""
    if not walk.is_local(globals_module(function)):
        return None
    uses = facts_of(function.__code__).uses.get(name)
    return bound_uses(walk, function.__globals__, uses)


def record_method(walk: Walk, function: Any, instance: Any) -> None:
    """Notes what a function of the user's gives of its first argument to be called back."""
    if isinstance(function, FunctionType) and walk.is_local(globals_module(function)):
        gives = facts_of(function.__code__).callbacks_passed
        if gives is not NO_CALLBACKS and function.__code__.co_argcount and not walk.is_inner:
            walk.reach.targets.add_method(function, gives, instance)


def emit_callable_object(walk: Walk, instance: Any) -> bool:
    """Appends an object that is going to be called, by what its `__call__` reads of it.

    False, and nothing is appended, when that is not certain.
    """
    if uses_of_first_parameter(walk, _static_lookup(type(instance), "__call__")[1]) is None:
        return False
    taken = follow_attribute(walk, instance, "a", "__call__", ())
    if taken is None:
        return False
    walk.tag("called")
    return True


TRANSPARENT: Final = set[type]()
"""Types of descriptors that a server has put in front of what instances of a library's classes have
in their `__dict__`. A client has none, and keys are the same on both sides."""


def _static_lookup(cls: type, name: str) -> tuple[type | None, Any]:
    """Where a class finds an attribute, without running anything."""
    for base in cls.__mro__:
        found = vars(base).get(name, MISSING)
        if found is not MISSING and type(found) not in TRANSPARENT:
            return base, found
    return None, MISSING


def _is_readable(value: Any) -> bool:
    """Whether reading an attribute of an object only looks into its `__dict__` and class."""
    cls = type(value)
    if issubclass(cls, type | dict | list | tuple | ModuleType):
        return False
    if _static_lookup(cls, "__getattribute__")[0] not in (object, SimpleNamespace):
        return False
    return own_attributes(value) is not None or bool(classes.slot_names(cls))


def follow_attribute(walk: Walk, value: Any, kind: str, name: str, rest: Steps) -> Followed | None:
    """One step from an object; None when the object counts whole."""
    cls = type(value)
    if isinstance(value, tuple):
        from jaxd_protocol.fingerprint.values import struct_sequences  # few functions read one

        if struct_sequences.is_struct_sequence(value):
            part = struct_sequences.part_of(value, kind, name)
            return None if part is MISSING else _result_of_step(walk, part, f".{name}", rest)
    if kind not in "aw" or not _is_readable(value):
        return None
    if name != "__call__" and name.startswith("__") and name.endswith("__"):
        return None  # `__dict__`, `__class__`: the interpreter's own
    base, on_class = _static_lookup(cls, name)
    if kind == "w":
        plain = _static_lookup(cls, "__setattr__")[0] is object and not hasattr(
            type(on_class), "__set__"
        )
        return _begin_partial_read(walk, value) if plain else None
    attributes = _watched_attributes(value)
    if type(on_class) is MemberDescriptorType:
        return _slot_attribute(walk, value, name, rest)
    if base is not None and (name not in attributes or hasattr(type(on_class), "__set__")):
        is_own = walk.is_local(cls.__module__)
        return _attribute_of_class(walk, value, base, name, rest) if is_own else None
    if name not in attributes and not _is_absent(walk, value, name):
        return None
    _begin_partial_read(walk, value)
    walk.reach.partial_read_of(value).names.add(name)
    walk.guards.item(attributes, name, attributes.get(name, MISSING))
    walk.guards.lookup(cls, name)
    if on_class is not MISSING:
        walk.guards.lookup(type(on_class), "__set__")
    return _result_of_step(walk, attributes.get(name, MISSING), f".{name}", rest)


def _watched_attributes(value: Any) -> dict[str, Any]:
    """The attributes of an object themselves, also where there are none yet: one may be set."""
    found = own_attributes(value)
    return {} if found is None else found


def _is_absent(walk: Walk, value: Any, name: str) -> bool:
    """Whether an object has no such attribute, which code may ask for: `getattr(args, "x", 0)`."""
    cls = type(value)
    if _static_lookup(cls, name)[0] is not None or forwards(cls):
        return False
    walk.guards.answer(lambda: _static_lookup(cls, name)[0] is None and not forwards(cls), True)
    return True


def _begin_partial_read(walk: Walk, value: Any) -> Followed:
    """The object, and its class, are read in part."""
    walk.tag("of")
    walk.guards.instance(value)
    walk.guards.access(type(value))
    attributes = own_attributes(value)
    if attributes is not None:
        walk.guards.attribute(value, "__dict__", attributes)
    walk.reach.partial_read_of(value)
    walk.reach.partial_read_of(type(value))
    return MISSING, ()


def _slot_attribute(walk: Walk, value: Any, name: str, rest: Steps) -> Followed:
    _begin_partial_read(walk, value)
    content = slot_content(value, name)
    if forwards(type(value)):
        walk.guards.answer(lambda: slot_content(value, name) is content, True)
    else:
        walk.guards.attribute(value, name, content)
    if content is not MISSING:
        walk.reach.partial_read_of(value).names.add(name)
    return _result_of_step(walk, content, f".{name}", rest)


def _attribute_of_class(
    walk: Walk, value: Any, base: type, name: str, rest: Steps
) -> Followed | None:
    """An attribute that the class has: a method or property reads the object in turn."""
    found = vars(base)[name]
    function = _attribute_function(found)
    if function is None and hasattr(type(found), "__get__") and type(found) is not staticmethod:
        return None
    uses = None if function is None else uses_of_first_parameter(walk, function)
    if function is not None and (uses is None or (rest and function is found)):
        return None
    _begin_partial_read(walk, value)
    cls = type(value)
    walk.reach.partial_read_of(cls).names.add(name)
    walk.guards.answer(lambda: _static_lookup(cls, name)[1] is found, True)
    if not hasattr(type(found), "__set__"):
        walk.guards.item(_watched_attributes(value), name)
    if function is None:
        walk.label += f".{name}"
        return found, (rest if type(found) is not staticmethod else ())
    label = walk.label
    record_method(walk, function, value)
    walk.emit(found)
    if uses is not None and (id(value), id(function)) not in walk.read_by:
        walk.read_by.add((id(value), id(function)))
        walk.emit_uses(label, value, uses)
    return MISSING, ()


def _attribute_function(found: Any) -> Any:
    """The function that runs when an attribute of a class is read or called, if one does."""
    if isinstance(found, property):
        return found.fget
    if isinstance(found, cached_property):
        return found.func
    return found if isinstance(found, FunctionType) else None


_COMPUTED_IMPORTS: Final = frozenset({("importlib", "import_module"), ("sys", "modules")})


def emit_installed(walk: Walk, module: ModuleType, steps: Steps) -> None:
    """Appends a chain from an installed module.

    Its names are in the code, and their values are the same on both sides, unless they were
    patched.
    """
    walk.reach.installed.append(module)
    modules.emit_reference(walk, module.__name__, "")
    check_installed(walk, module, steps)


def _static_attribute(module: ModuleType, name: str) -> Any:
    """What an installed module has; getattr could run its own `__getattr__`.

    On a server it may be one with a client's attributes on top of the server's module.
    """
    content = vars(module)
    if name in content:
        return content[name]
    below = content.get("_jaxd_real")
    return MISSING if below is None else vars(below).get(name, MISSING)


def _of_installed_attribute(walk: Walk, module: ModuleType, name: str, rest: Steps) -> None:
    """Appends something only where the value may be another one on the other side."""
    if settings.emit_from_os(walk, module, name, rest):
        return
    _check_import(walk, module, name, rest)
    value = _static_attribute(module, name)
    if "_jaxd_real" not in vars(module):
        walk.guards.item(vars(module), name, value)
    path = [name, *(str(step) for kind, step in rest if kind == "a")]
    walk.note(
        modules.impurity(module.__name__, ".".join(path))
        or modules.impurity(f"{module.__name__}.{name}", ".".join(path[1:]))
    )
    if value is MISSING:
        return
    if callable(value):
        walk.reach.installed.append(value)
        home, own = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        modules.refuse_hidden_state(walk, str(home), str(own))
    if settings.is_config(value) or walk.carries(module, name, value):
        _emit_carried(walk, module, name, rest)
    elif isinstance(value, SimpleNamespace | partial):  # which somebody may change in place
        carries = walk.process_view.carries
        walk.guards.answer(lambda: carries(module, name, value), False)
    elif isinstance(value, FunctionType):
        walk.refuse_patched(value)
    else:
        if isinstance(value, type):
            walk.refuse_patched(value)
            classes.refuse_own_node(walk, value)
            classes.refuse_subclasses(walk, value, rest)
        emit_setting(walk, module.__name__, name, value, rest)


def _emit_carried(walk: Walk, module: ModuleType, name: str, rest: Steps) -> None:
    """Appends an attribute whose value travels along."""
    value = _static_attribute(module, name)
    walk.label = f"global {module.__name__}.{name}"
    walk.tag("carried")
    walk.text(f"{module.__name__}:{name}")
    walk.carry(module.__name__, name, value)
    walk.follow(value, rest)


def emit_if_patched(walk: Walk, module: ModuleType | None, steps: Steps) -> None:
    """Appends an attribute of an installed module only where the user's own code is there.

    Or another constant than the module's. For modules of the user's that run on the server first.
    Nothing else may be appended: another process may not have imported the library. So what else
    was patched, such as a list or an object, is not seen.
    """
    while module is not None and steps and steps[0][0] == "a":
        name, rest = steps[0][1], steps[1:]
        value = _static_attribute(module, name)
        if "_jaxd_real" not in vars(module):
            walk.guards.item(vars(module), name, value)
        if not isinstance(value, ModuleType):
            is_carried = walk.carries(module, name, value)
            is_own = is_own_code(value, walk.is_local)
            if is_carried and (is_own or is_replaced_constant(module, name, value)):
                before = walk.label
                _emit_carried(walk, module, name, rest)
                walk.label = before
            elif isinstance(value, FunctionType | type):
                walk.refuse_patched(value)
            return
        module, steps = None if walk.is_local(value.__name__) else value, rest


def _check_import(walk: Walk, module: ModuleType, name: str, rest: Steps) -> None:
    if (module.__name__, name) not in _COMPUTED_IMPORTS:
        return
    if rest and rest[0][0] in "ci" and not walk.is_local(str(rest[0][1]).partition(".")[0]):
        return  # an installed module, by a name that can be read
    if name == "import_module" and archive_members.allow_computed_import(walk, rest):
        return
    refuse_computed_import(walk, f"{module.__name__}.{name}")


def refuse_computed_import(walk: Walk, what: str) -> NoReturn:
    """For code that imports a module in a way that neither key nor pickling can follow.

    Raises:
        PackingError: the server would look for the module among its own.
    """
    by_source = (
        "" if what == "sys.modules" else " persistent_call(ship='source') sends whole packages;"
    )
    raise PackingError(
        f"{walk.path()} uses {what} ({walk.where}), so it cannot be seen which module it means. "
        f"Write an import statement, in the function if need be.{by_source} Or install the "
        "package where the server runs and here."
    )


def emit_setting(walk: Walk, module: str, name: str, holder: Any, rest: Steps) -> None:
    """A setting that an installed class or object has, as in `toolbox.Settings.rate`.

    It counts, and the server refuses the function when its own has another value.
    """
    if not rest or rest[0][0] != "a":
        return
    attribute = str(rest[0][1])
    value = _setting(holder, attribute)
    path = f"{name}.{attribute}"
    loaded = sys.modules.get(module)
    if value is MISSING or not is_plain_data(value) or loaded is None:
        return
    if not walk.process_view.carries(loaded, path, value):
        return
    walk.tag("set")
    walk.text(f"{module}:{path}")
    walk.count(module, path)
    walk.guards.answer(lambda: _setting(holder, attribute) is value, True)
    data = repr(value).encode()
    walk.write(digest(data))
    walk.part("installed", f"{module}.{path}", data, short_repr(value))


def _setting(holder: Any, name: str) -> Any:
    """What a class, or an object or else its class, holds under a name."""
    places = holder.__mro__ if isinstance(holder, type) else (holder, *type(holder).__mro__)
    contents = (getattr(place, "__dict__", {}) for place in places)
    return next((content[name] for content in contents if name in content), MISSING)


def check_installed(walk: Walk, module: ModuleType | None, steps: Steps) -> None:
    """Appends something only where an access path may lead to something patched.

    Nothing else: which submodules are loaded differs from process to process.
    """
    while module is not None and steps and steps[0][0] == "a":
        name, rest = steps[0][1], steps[1:]
        value = _static_attribute(module, name)
        if not isinstance(value, ModuleType):
            _of_installed_attribute(walk, module, name, rest)
            return
        walk.guards.item(vars(module), name, value)
        if walk.is_local(value.__name__):
            walk.follow(value, rest)
            return
        if value.__name__ == f"{module.__name__}.{name}":
            _installed_submodule(walk, module, value)
        module, steps = value, rest


def _installed_submodule(walk: Walk, package: ModuleType, module: ModuleType) -> None:
    """The server imports it; that of a namespace is of a distribution of its own."""
    walk.reach.submodules.add(module.__name__)
    if getattr(package, "__file__", None) is None and hasattr(package, "__path__"):
        walk.package(module.__name__)
