"""The handler of each kind of object, and those of containers; others have `values.kinds`."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any, Final

from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint import access_paths, archive_members, functions, local_imports
from jaxd_protocol.fingerprint.canonical_bytes import constant
from jaxd_protocol.fingerprint.code.reads import facts_of
from jaxd_protocol.fingerprint.data_model import OF_NO_CODE
from jaxd_protocol.fingerprint.function_wrapper import BoundWrapper, FunctionWrapper, jit_options_of
from jaxd_protocol.fingerprint.values import classes, modules, settings
from jaxd_protocol.fingerprint.walk import Handlers, Walk, short_repr

Emit = Callable[[Walk, Any], None]


def _emit_root(walk: Walk, value: Any) -> None:
    """Appends what a walk starts from; of an instance only what its `__call__` reads."""
    value = _unbound_wrapper(value)
    if archive_members.emit_archived(walk, value):
        return
    if type(value) is functools.partial:
        functions.emit_called_partial(walk, value)
        return
    if type(value) not in _EMITTERS and not isinstance(value, type):
        walk.label = f"self {type(value).__name__}"
        if access_paths.emit_callable_object(walk, value):
            return
        walk.label = f"self {type(value).__name__}"
    walk.emit(value)


def _emit_object(walk: Walk, value: Any) -> None:
    """Appends anything that is not an atom."""
    if walk.listed is not None and walk.is_listed(value):
        walk.callback_only(value)
        return
    value = _unbound_wrapper(value)
    emit = _EMITTERS.get(type(value))
    if isinstance(value, FunctionWrapper):
        _function_wrapper(walk, value)
    elif walk.archives is not None and archive_members.emit_archived(walk, value):
        return
    elif emit is not None:
        emit(walk, value)
    elif isinstance(value, type):
        classes.emit_class(walk, value)
    elif isinstance(value, types.ModuleType):
        modules.emit_module(walk, value)
    else:
        _emit_other(walk, value)


def _emit_other(walk: Walk, value: Any) -> None:
    """Many functions reach no such object."""
    from jaxd_protocol.fingerprint.values.kinds import emit_kind

    if not emit_kind(walk, value):
        from jaxd_protocol.fingerprint.values.instances import emit_other

        emit_other(walk, value)


def _unbound_wrapper(value: Any) -> Any:
    """The value; a persistent function on an instance as any method."""
    if isinstance(value, BoundWrapper):
        return types.MethodType(value.__func__, value.__self__)
    return value


def _function_wrapper(walk: Walk, value: FunctionWrapper) -> None:
    """The function, and how it is jitted where it is called; one of an archive is plain there."""
    if jit_options_of(value) is None or archive_members.name_of(walk, value.__wrapped__):
        walk.emit(value.__wrapped__)
    else:
        walk.numbered(value, _jitted)


def _jitted(walk: Walk, value: FunctionWrapper) -> None:
    walk.tag("jitted")
    walk.emit(value.__wrapped__)
    walk.emit_child(" (options)", repr(jit_options_of(value)))


def _code(walk: Walk, value: types.CodeType) -> None:
    walk.write(constant(value, lambda code: facts_of(code).digest))


def _with_identity(content: Emit) -> Emit:
    """For a list or dict, which can be changed."""

    def emit(walk: Walk, value: Any) -> None:
        walk.reach.whole.add(id(value))
        walk.numbered(value, content)

    return emit


def _list(walk: Walk, value: list[Any]) -> None:
    walk.guards.sequence(value)
    _items(walk, value)


def _items(walk: Walk, value: list[Any] | tuple[Any, ...]) -> None:
    walk.tag(type(value).__name__)
    walk.text(len(value))
    for index, item in enumerate(value):
        walk.emit_child(f"[{index}]", item)


def _dict(walk: Walk, value: dict[Any, Any]) -> None:
    """Appends the items of a dict, in its order."""
    walk.tag("dict")
    walk.text(len(value))
    walk.guards.mapping(value)
    for key, item in list(value.items()):
        walk.emit_labelled("", key)
        walk.emit_child(f"[{short_repr(key)}]", item)


def _set(walk: Walk, value: AbstractSet[Any]) -> None:
    """Appends the elements of a set or frozenset."""
    walk.tag(type(value).__name__)
    if type(value) is set:
        walk.guards.sequence(value)
    walk.unordered(value)


def _cell(walk: Walk, value: types.CellType) -> None:
    walk.tag("cell")
    walk.guards.cell(value)
    try:
        walk.emit(value.cell_contents)
    except ValueError:
        walk.tag("empty")


_EMITTERS: Final[dict[type, Emit]] = {
    list: _with_identity(_list),
    tuple: lambda walk, value: walk.nested(value, _items),
    dict: _with_identity(_dict),
    set: lambda walk, value: walk.numbered(value, _set),
    frozenset: lambda walk, value: walk.nested(value, _set),
    types.FunctionType: functions.emit_function,
    types.MethodType: functions.emit_method,
    types.BuiltinFunctionType: functions.emit_builtin,
    types.ModuleType: modules.emit_module,
    types.CodeType: _code,
    types.CellType: _cell,
    functools.partial: functions.emit_partial,
}


def _emit_archive(walk: Walk) -> None:
    """The archive, and what its modules find in the client's process when they run."""
    archive_members.emit_archive(walk)
    assert walk.archives is not None
    for _, source in sorted(walk.archives.archive.sources.items()):
        if source.process is not None:
            settings.emit_process(walk, source.process)


def _emit_reflected(walk: Walk) -> None:
    if walk.reach.libraries:
        local_imports.emit_patched_libraries(walk)
    readers = walk.reach.readers
    if readers - OF_NO_CODE:
        from jaxd_protocol.fingerprint.values import reflection  # few functions have any

        reflection.emit_reflected(walk)
    if "addresses" in readers:
        _refuse_addresses(walk)
    if "identities" in readers:
        _emit_aliases(walk)
    walk.reach.aliased.clear()


_LEAST_ADDRESS: Final = 1 << 20
"""Where Python itself is not relocated, its own objects lie not far above."""


def _refuse_addresses(walk: Walk) -> None:
    """For code that calls `id`.

    Raises:
        PackingError: when a table that it reaches has addresses for keys: on a server they are
            those of nothing.
    """
    for each in (*walk.reach.numbered, *walk.reach.objects):
        if type(each) in (dict, set, frozenset) and any(map(_may_be_address, tuple(each))):
            raise PackingError(
                f"it calls id, and reaches a {type(each).__name__} whose keys may be what id has "
                "returned: on the server objects have other addresses. Use the objects themselves "
                "as keys, or names of them."
            )


def _may_be_address(key: Any) -> bool:
    return type(key) is int and key >= _LEAST_ADDRESS


def _emit_aliases(walk: Walk) -> None:
    """Which of the objects without a number are the same one; nothing where none is met twice."""
    numbers: dict[int, int] = {}
    found = [numbers.setdefault(id(each), len(numbers)) for each in walk.reach.aliased]
    walk.reach.has_aliases = len(numbers) < len(found)
    if walk.reach.has_aliases:
        walk.tag("aliases")
        for number in (len(found), *found):
            walk.text(number)
        walk.part("value", "which arrays are the same object", repr(found).encode())


HANDLERS: Final = Handlers(
    _emit_root,
    _emit_object,
    access_paths.follow,
    access_paths.emit_if_patched,
    _emit_archive,
    _emit_reflected,
)
"""What a walk is constructed with."""
