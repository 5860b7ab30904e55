"""Functions, what binds arguments to them, and the import statements inside of them.

Local modules that these import, and that are not imported yet, are not imported for the sake of
the key: that would run code, and a light client would have to import jax. Their compiled source
counts, and that of the local modules which it imports in turn.
"""

from __future__ import annotations

import builtins
import functools
import sys
from collections.abc import Mapping
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint import access_paths, archive_members
from jaxd_protocol.fingerprint.access_paths import bound_uses, check_installed
from jaxd_protocol.fingerprint.canonical_bytes import ATOMS
from jaxd_protocol.fingerprint.code.callbacks import names_in
from jaxd_protocol.fingerprint.code.content import stable_names
from jaxd_protocol.fingerprint.code.reads import Import, facts_of
from jaxd_protocol.fingerprint.data_model import Steps
from jaxd_protocol.fingerprint.local_imports import (
    absolute_name,
    from_import,
    local_import,
    plain_import,
)
from jaxd_protocol.fingerprint.process_view import prefixes_of
from jaxd_protocol.fingerprint.unpatched import (
    globals_module,
    source_location,
)
from jaxd_protocol.fingerprint.values import modules, settings
from jaxd_protocol.fingerprint.walk import Walk
from jaxd_protocol.packages.importable import importable_name

_CALLBACK_FUNCTIONS: Final = frozenset(
    {"pure_callback", "io_callback", "callback", "debug_callback"}
)
"""A function that uses one of these may read clocks and files in the callback: no warning."""


_WITHOUT_PARTS: Final = ATOMS | {FunctionType, tuple}
"""Types of values that count whole where a library's function closes over them."""

_REFLECTION: Final = frozenset(
    {"__closure__", "cell_contents", "f_locals", "currentframe", "_getframe", "stack"}
)
"""Names by which code gets at its variables without naming them."""

_CHECKER_STATE: Final = frozenset({"__beartype_call_curr", "__beartype_getrandbits"})
"""Defaults of functions that beartype makes: what it says of an error, which item it looks at."""


def emit_function(walk: Walk, function: FunctionType) -> None:
    """Appends a function."""
    home = globals_module(function)
    if walk.is_local(home):
        walk.numbered(function, _local_function, function.__qualname__)
        return
    if settings.is_environment(function):
        settings.emit_environment(walk)
        return
    name = importable_name(function)
    if name is not None and not walk.is_local(name[0]):
        walk.refuse_patched(function)
        walk.reach.installed.append(function)
        modules.emit_reference(walk, *name)
    else:
        walk.numbered(function, _installed_function, function.__qualname__)


def _local_function(walk: Walk, function: FunctionType) -> None:
    view, walk.process_view = walk.process_view, walk.process_view.of_code(function.__globals__)
    try:
        _content(walk, function)
    finally:
        walk.process_view = view


def _content(walk: Walk, function: FunctionType) -> None:
    code = function.__code__
    facts = facts_of(code)
    walk.where = source_location(code)
    walk.quiet = not _CALLBACK_FUNCTIONS.isdisjoint(code.co_names)
    walk.tag("function")
    walk.write(facts.digest)
    kind = "lambda" if code.co_name == "<lambda>" else "function"
    walk.part("function", f"{kind} {function.__qualname__}", facts.digest)
    walk.guards.function(function)
    walk.reach.targets.note(function, facts.callbacks_passed, is_inner=walk.is_inner)
    if function.__name__ != "__repr__":  # that of a dataclass shows the qualified name of its class
        walk.reach.readers |= facts.readers
    walk.reach.functions.append(function)
    _defaults(walk, function)
    _attributes(walk, function)
    _closure(walk, function, facts.uses)
    archive_members.add_computed_imports(walk, function)
    if archive_members.emit_defining_module(walk, function):
        return
    access_paths.emit_globals(walk, function, facts.reads)
    for statement in facts.imports:
        _emit_import(walk, function.__globals__, statement)


def _defaults(walk: Walk, function: FunctionType) -> None:
    code = function.__code__
    defaults = function.__defaults__ or ()
    walk.text(len(defaults))
    first = code.co_argcount - len(defaults)
    for name, value in zip(code.co_varnames[first : code.co_argcount], defaults, strict=False):
        _default(walk, function, name, name, value)
    given = function.__kwdefaults__ or {}
    keywords = {name: value for name, value in given.items() if name not in _CHECKER_STATE}
    walk.text(len(keywords))
    stable = dict(zip(code.co_varnames, stable_names(code.co_varnames), strict=True))
    for name in sorted(keywords, key=lambda each: stable.get(each, each)):
        shown = stable.get(name, name)
        walk.text(shown)
        _default(walk, function, name, shown, keywords[name])


def _default(walk: Walk, function: FunctionType, name: str, shown: str, value: Any) -> None:
    """Appends the default of a parameter, by what the function reads of that."""
    label = f"default {shown} of {function.__name__}"
    _emit_argument(walk, label, value, function, name)


def _emit_argument(
    walk: Walk, label: str, value: Any, function: FunctionType, name: str | None
) -> None:
    """Appends an argument by what a function reads of that parameter; whole where it is None."""
    before, walk.label = walk.label, label
    if name is None or not access_paths.follow_into(walk, value, function, name):
        walk.emit(value)
    walk.label = before


def _attributes(walk: Walk, function: FunctionType) -> None:
    attributes = vars(function)
    names = sorted(attributes.keys() - {"__signature__"})  # what inspect shows of it
    walk.text(len(names))
    for name in names:
        walk.text(name)
        walk.emit_labelled(f"attribute {function.__name__}.{name}", attributes[name])


def is_registration_count(function: FunctionType, variable: str) -> bool:
    """Whether a variable of a closure is how many abstract registrations a generic function saw.

    It is another number in each process and after many an import. The function compares it with the
    number of its process, and forgets which forms it has found where they differ. Private to
    Python: how `functools.singledispatch` calls it.
    """
    return variable == "cache_token" and function.__globals__ is vars(functools)


def _closure(walk: Walk, function: FunctionType, uses: Mapping[str, Mapping[Steps, int]]) -> None:
    names = function.__code__.co_freevars
    for name, cell in zip(names, function.__closure__ or (), strict=True):
        walk.text(name)
        walk.reach.aliased.append(cell)
        if is_registration_count(function, name):
            is_set = cell.cell_contents is not None  # since the first form for an abstract class
            walk.emit_labelled(f"closure {name}", is_set)
            continue
        walk.guards.cell(cell)
        try:
            value = cell.cell_contents
        except ValueError:
            walk.tag("empty")
            continue
        bound = access_paths.bound_uses(walk, function.__globals__, uses.get(name))
        walk.emit_uses(f"closure {name}", value, bound)


def _installed_function(walk: Walk, function: FunctionType) -> None:
    """A function that a library made, such as `optax.sgd(0.1).update`.

    Its code and globals are the library's, on every machine; what it closes over is not.
    """
    if globals_module(function).partition(".")[0] == "gin":
        raise PackingError(
            f"{walk.path()} is configured by gin, which keeps its bindings where no key can see "
            "them. Give the function what gin binds: functools.partial(f, name=value), or an "
            "argument."
        )
    if globals_module(function) == "click.decorators":  # such as that of `@click.pass_obj`
        modules.refuse_hidden_state(walk, "click.globals", "get_current_context")
    walk.tag("installed function")
    walk.text(function.__code__.co_qualname)
    modules.emit_reference(walk, globals_module(function), "")
    walk.guards.function(function)
    _defaults(walk, function)
    _attributes(walk, function)
    _closure(walk, function, _plain_uses(function))


def _plain_uses(function: FunctionType) -> dict[str, dict[Steps, int]]:
    """What a library's function only reads, attribute by attribute, of what it closes over.

    A variable of which it assigns something, or that it passes on, is missing and counts whole.
    So do all where it may look at its own frame or closure.
    """
    if not any(map(_has_parts, function.__closure__ or ())):
        return {}
    if not _REFLECTION.isdisjoint(names_in(function.__code__)):
        return {}
    return {
        name: uses
        for name, uses in facts_of(function.__code__).uses.items()
        if all(kind in "aic" for steps in uses for kind, _ in steps)
    }


def _has_parts(cell: CellType) -> bool:
    try:
        return type(cell.cell_contents) not in _WITHOUT_PARTS
    except ValueError:
        return False


def emit_method(walk: Walk, method: MethodType) -> None:
    """Appends a bound method; of its object only what the method reads, where that is certain."""
    if settings.is_environment(method):
        settings.emit_environment(walk)
        return
    if _emit_as_module_function(walk, method, method.__name__):
        return
    walk.tag("method")
    function, instance = method.__func__, method.__self__
    walk.emit(function)
    walk.label = f"self {type(instance).__name__}"
    uses = access_paths.uses_of_first_parameter(walk, function)
    access_paths.record_method(walk, function, instance)
    if uses is not None and not isinstance(instance, type):
        walk.reach.partial_read_of(type(instance))
        walk.reach.partial_read_of(instance)
        walk.read_by.add((id(instance), id(function)))
        walk.emit_uses(walk.label, instance, uses)
    else:
        walk.mark_read_whole(instance)
        walk.emit(instance)


def emit_called_partial(walk: Walk, value: functools.partial[Any]) -> None:
    """Appends a `functools.partial` that is called, and whose attributes nothing reads."""
    emit_partial(walk, value, is_called=True)


def emit_partial(walk: Walk, value: functools.partial[Any], *, is_called: bool = False) -> None:
    """Appends a `functools.partial`; of its arguments all, unless it is only called."""
    walk.tag("partial")
    walk.reach.aliased.append(value)
    walk.emit(value.func)
    walk.text(len(value.args))
    walk.guards.mapping(value.keywords)
    walk.guards.mapping(vars(value))
    for name in ("func", "args", "keywords", "__dict__"):  # `__setstate__` exchanges them
        walk.guards.attribute(value, name, getattr(value, name))
    code = getattr(value.func, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if isinstance(code, CodeType) else ()
    function = value.func if is_called and type(value.func) is FunctionType else None
    for index, argument in enumerate(value.args):
        name = names[index] if index < len(names) else str(index)
        _bound_argument(walk, function, index, name, argument)
    walk.text(len(value.keywords))
    for name, argument in value.keywords.items():
        walk.text(name)
        _bound_argument(walk, function, name, name, argument)
    if vars(value):
        walk.emit(vars(value))


def _bound_argument(
    walk: Walk, function: FunctionType | None, place: int | str, name: str, value: Any
) -> None:
    """Appends an argument of a partial, by what its function reads of it, if that is given."""
    if function is None:
        walk.emit_labelled(f"partial {name}", value)
        return
    parameter = access_paths.parameter_at(function, place)
    _emit_argument(walk, f"partial {name}", value, function, parameter)


def emit_builtin(walk: Walk, value: BuiltinFunctionType) -> None:
    """Appends a function written in C, or a method of an object written in C."""
    owner = value.__self__
    if owner is None or isinstance(owner, ModuleType):
        home = value.__module__ or getattr(owner, "__name__", "builtins")
        walk.reach.installed.append(value)
        modules.emit_reference(walk, home, value.__qualname__)
    elif not _emit_as_module_function(walk, value, value.__name__):
        walk.tag("bound builtin")
        walk.text(value.__name__)
        walk.emit(owner)


def _emit_as_module_function(walk: Walk, bound: Any, name: str) -> bool:
    """Appends a method that an installed module offers as a function; False for any other.

    Such as `random.random` or `numpy.random.rand`: the object behind it belongs to the module.
    """
    home = type(bound.__self__).__module__
    if vars(sys.modules.get(home, builtins)).get(name) != bound or walk.is_local(home):
        return False
    modules.emit_reference(walk, home, name)
    return True


# import statements -------------------------------------------------------------------------------


def _emit_import(walk: Walk, globals_: dict[str, Any], statement: Import) -> None:
    """Appends what an import statement in a function brings in, as far as it is read."""
    walk.tag("import")
    statement = _with_callees(walk, globals_, statement)
    name = absolute_name(statement.name, statement.level, globals_)
    if not walk.is_local(name):
        modules.emit_reference(walk, name, "")
        _installed_import(walk, name, statement)
        return
    if archive_members.emit_import(walk, name, statement.names):
        return
    for parent in prefixes_of(name):
        local_import(walk, parent)
    module = walk.process_view.module(name)
    for each in statement.names:
        if module is not None:
            from_import(walk, module, each, statement.uses_at((each,)))
        elif walk.process_view.source(f"{name}.{each}") is not None:
            local_import(walk, f"{name}.{each}")
    if not statement.names:
        plain_import(walk, name, statement)


def _with_callees(walk: Walk, globals_: dict[str, Any], statement: Import) -> Import:
    """The statement, whose reads name the functions that something is passed to."""
    found = (
        bound_uses(walk, globals_, None if each is None else dict(each)) for each in statement.uses
    )
    return statement._replace(uses=tuple(u if u is None else (*u.items(),) for u in found))


def _installed_import(walk: Walk, name: str, statement: Import) -> None:
    """Appends what is patched, as far as this process has the module.

    Nothing else may be appended: another process may not have imported it yet.
    """
    process_view = walk.process_view
    module = process_view.module(name)
    if module is None:
        walk.guards.answer(lambda: process_view.module(name) is None, True)
        return
    top = process_view.module(name.partition(".")[0])
    for each in statement.names:
        for steps, line in (statement.uses_at((each,)) or {(): 0}).items():
            walk.line = line
            check_installed(walk, module, (("a", each), *steps))
    for _, path in () if statement.names else statement.bound:
        bound = top if path is None else module
        for steps, line in (statement.uses_at(path) or {}).items():
            walk.line = line
            check_installed(walk, bound, steps)
