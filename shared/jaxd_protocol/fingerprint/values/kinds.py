"""Kinds of Python's own objects: what each is made of, for the key and for the way to a server.

A walk hashes the parts of an object and the packer writes the same ones, by one table: neither sees
a part that the other leaves out.
"""

from __future__ import annotations

import functools
import gc
import logging
import sys
import threading
import types
import typing
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint.guards import Guards
from jaxd_protocol.fingerprint.values import modules
from jaxd_protocol.fingerprint.walk import Walk
from jaxd_protocol.packages.bare_objects import WEAK_TABLES, own_object_name, weak_table_of_name
from jaxd_protocol.packages.importable import find_object, importable_name


def _nothing(*_: Any) -> None:
    """Of a kind without attributes, or without what could change."""


def _guard_attributes(guards: Guards, value: Any) -> None:
    guards.mapping(vars(value))


class Kind(NamedTuple):
    """How objects of one type are taken apart and made again.

    Attributes:
        tag: what they are called in the key.
        parts: what an object is made of. All of it counts, and all of it travels. Raises a
            `ValueError` for one that cannot be made again.
        make: makes an object of its parts; None: as pickle does, if it does.
        state: attributes that are set on it afterwards; they may lead back to it.
        guard: notices what can be changed in an object itself.
        has_identity: whether code can tell two with equal parts apart.
        is_kept: whether `make` is given first what keeps objects alive on a server.
        may_have_name: whether one that an installed module has goes by its name there.
    """

    tag: str
    parts: Callable[[Any], tuple[Any, ...]]
    make: Callable[..., Any] | None
    state: Callable[[Any], Any] = _nothing
    guard: Callable[[Guards, Any], object] = _nothing
    has_identity: bool = False
    is_kept: bool = False
    may_have_name: bool = False


def find_kind(value: Any) -> Kind | None:
    """The kind of an object; None when it is of none in the table below."""
    cls = type(value)
    found = _KINDS.get(cls) or _BY_NAME.get(_type_name(cls))
    if found is None and issubclass(cls, _DESCRIPTORS):
        found = _OF_SUBCLASS
    if found is None and issubclass(cls, _ALIAS_CLASS):
        found = _ALIAS
    if found is None and issubclass(cls, logging.Logger):
        found = _LOGGER
    return found or _STREAMS.get(_stream_name(value))


def emit_kind(walk: Walk, value: Any) -> bool:
    """Appends an object by its parts; False when it is of no kind in the table."""
    kind = find_kind(value)
    if kind is None:
        return False
    walk.reach.whole.add(id(value))
    name = importable_name(value) if kind.may_have_name else None
    if name is not None:
        walk.reach.installed.append(value)
        modules.emit_reference(walk, *name)
    elif kind.has_identity:
        walk.numbered(value, partial(_emit_parts, kind))
    else:
        _emit_parts(kind, walk, value)
    return True


def _emit_parts(kind: Kind, walk: Walk, value: Any) -> None:
    try:
        parts = kind.parts(value)
    except ValueError as error:
        walk.unshared(value, str(error))
        return
    walk.tag(kind.tag)
    walk.text(len(parts))
    kind.guard(walk.guards, value)
    for number, part in enumerate(parts):
        walk.emit_labelled("" if number else walk.label, part)
    walk.emit_labelled("", kind.state(value))


def reduce_kind(value: Any, keeper: Any) -> Any:
    """A reduce tuple that makes an object of its parts; `NotImplemented` where there is no kind.

    Args:
        value: any object.
        keeper: stands for the `PrivateModules` of what is packed.
    """
    kind = find_kind(value)
    if kind is None or kind.make is None:
        return NotImplemented
    name = importable_name(value) if kind.may_have_name else None
    if name is not None:
        return find_object, name
    parts = kind.parts(value)
    return kind.make, (keeper, *parts) if kind.is_kept else parts, kind.state(value)


# around a function -------------------------------------------------------------------------------


def _property_parts(value: property) -> tuple[Any, ...]:
    """Its functions; its text where that is another one than that of the first."""
    parts = value.fget, value.fset, value.fdel
    is_own = value.__doc__ != getattr(value.fget, "__doc__", None)
    return (*parts, value.__doc__) if is_own else parts


def _cached_parts(value: Any) -> tuple[Any, ...]:
    """The function and the settings; not what it has cached.

    Raises:
        PackingError: when it calls another function than it shows.
    """
    function, settings = value.__wrapped__, value.cache_parameters()
    if not any(each is function for each in gc.get_referents(value)):
        raise PackingError(
            f"{value.__qualname__} is under functools.lru_cache, and its __wrapped__ was set to "
            "another function than the one that it calls. Write a function that calls it, and "
            "decorate that with functools.wraps."
        )
    return function, settings["maxsize"], settings["typed"]


def _cached_state(value: Any) -> dict[str, Any] | None:
    """What was set on it."""
    function = value.__wrapped__
    own = {
        name: each
        for name, each in vars(value).items()
        if name not in _ABOUT_A_CACHE
        and (name not in _NAMES or each != getattr(function, name, None))
    }
    return own or None


_NAMES: Final = frozenset({"__name__", "__qualname__", "__doc__"})
_ABOUT_A_CACHE: Final = {*functools.WRAPPER_ASSIGNMENTS, "__wrapped__", "__annotate__"} - _NAMES | {
    "cache_parameters"
}


def make_cached(function: Callable[..., Any], maxsize: int | None, typed: bool) -> Any:
    """A function under `functools.lru_cache`, with nothing in its cache."""
    return functools.lru_cache(maxsize, typed)(function)


_DESCRIPTORS: Final = (property, staticmethod, classmethod, functools.cached_property)


def _parts_of_subclass(value: Any) -> tuple[Any, ...]:
    """Its class and the one of these that this is derived from; what such a one is made of."""
    base = next(each for each in _DESCRIPTORS if isinstance(value, each))
    return type(value), base, *_KINDS[base].parts(value)


def make_of_subclass(cls: Any, base: Any, *parts: Any) -> Any:
    """A descriptor of a class that is derived from `base`, without running any code of it."""
    made = base.__new__(cls, *parts)
    base.__init__(made, *parts)
    return made


def _state_of_subclass(value: Any) -> dict[str, Any]:
    """What was set on it, by name; not the lock that a cached property has in Python 3.11."""
    is_cached = isinstance(value, functools.cached_property)
    hidden = {"lock"} if is_cached else set()
    return {name: vars(value)[name] for name in sorted(vars(value).keys() - hidden)}


def _guard_of_subclass(guards: Guards, value: Any) -> None:
    guards.instance(value)
    guards.mapping(vars(value))


_OF_SUBCLASS: Final = Kind(
    "descriptor of a class",
    _parts_of_subclass,
    make_of_subclass,
    _state_of_subclass,
    _guard_of_subclass,
    has_identity=True,
)


# views and references ----------------------------------------------------------------------------


def _underlying(value: Any) -> tuple[Any, ...]:
    """What a view is of: its only reference."""
    return tuple(gc.get_referents(value))


def _memory_parts(value: memoryview) -> tuple[Any, ...]:
    """Its bytes, and the format, the shape and the kind of memory of what is made of them.

    Raises:
        ValueError: for a format that Python cannot make, such as one in the other order of bytes.
    """
    data = value.tobytes()
    try:
        made = make_memory(data, value.format, value.shape, readonly=True)
    except ValueError as error:
        raise ValueError(f"its items have the format {value.format}") from error
    return data, made.format, made.shape, value.readonly


def make_memory(data: bytes, form: Any, shape: Any, readonly: bool) -> Any:
    """A view of memory of its own. One without items has one axis."""
    flat = memoryview(data if readonly else bytearray(data))
    return flat.cast(form, shape) if 0 not in shape else flat.cast(form)


def class_attribute(cls: type, name: str) -> Any:
    """An entry of the namespace of a class, such as the descriptor of a slot."""
    return vars(cls)[name]


def _referent(reference: Any) -> tuple[Any, ...]:
    value = reference()
    return () if value is None else (value,)


def make_reference(keeper: Any, *referent: Any) -> Any:
    """A weak reference to an object that lives as long as the function; or to nothing."""
    keeper.kept.extend(referent)
    return weakref.ref(*referent) if referent else weakref.ref(set())


def make_weak_method(keeper: Any, *method: Any) -> Any:
    """A weak reference to a bound method, of an object that lives as long as the function."""
    keeper.kept.extend(method)
    return weakref.WeakMethod(*method) if method else weakref.WeakMethod(threading.Event().is_set)


# what each process has another one of ------------------------------------------------------------


def _type_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _opaque_parts(value: Any) -> tuple[Any, ...]:
    """The type, and what code sees of it: a name, or whether an event is set."""
    parts: tuple[Any, ...] = (_type_name(type(value)),)
    if isinstance(getattr(value, "name", None), str):
        parts = (*parts, value.name)
    return (*parts, int(value.is_set())) if type(value) is threading.Event else parts


def _guard_event(guards: Guards, event: threading.Event) -> None:
    guards.answer(event.is_set, event.is_set())


def _table_parts(value: Any) -> tuple[Any, ...]:
    """The type, and the name in a module of the user's, if there is one.

    Classes bring what such a table has of them; see `registries`.
    """
    return _type_name(type(value)), *(own_object_name(value) or ())


def _guard_name(guards: Guards, table: Any) -> None:
    guards.answer(partial(own_object_name, table), own_object_name(table))


def make_anew(kind: str, *parts: Any) -> Any:
    """An object of this process's own: what the client's holds belongs to that process."""
    if kind == "unittest.case._Outcome":
        return find_object("unittest.case", "_Outcome")()
    if parts and kind in WEAK_TABLES:
        return weak_table_of_name(kind, *parts)
    return _ANEW[kind](*parts)


def _event(is_set: int) -> threading.Event:
    event = threading.Event()
    if is_set:
        event.set()
    return event


_ANEW: Final[dict[str, Callable[..., Any]]] = {
    "_thread.lock": threading.Lock,
    "_thread.RLock": threading.RLock,
    "threading.Condition": threading.Condition,
    "threading.Event": _event,
    **WEAK_TABLES,
    "weakref.WeakValueDictionary": weakref.WeakValueDictionary,
    "logging.Logger": logging.getLogger,
}
_MADE_ANEW: Final = Kind("opaque", _opaque_parts, make_anew)
_OPAQUE: Final = Kind("opaque", _opaque_parts, None)
_LOGGER: Final = Kind("opaque", lambda value: ("logging.Logger", value.name), make_anew)
"""Of any class: which one it is, the process says that has it."""
_BY_NAME: Final = {
    **dict.fromkeys(_ANEW, _MADE_ANEW),
    **dict.fromkeys(WEAK_TABLES, Kind("opaque", _table_parts, make_anew, guard=_guard_name)),
    "threading.Event": _MADE_ANEW._replace(guard=_guard_event),
    "threading.Semaphore": _OPAQUE,
    "threading.BoundedSemaphore": _OPAQUE,
    "threading.Barrier": _OPAQUE,
    "threading.Thread": _OPAQUE,
    "concurrent.futures.thread.ThreadPoolExecutor": _OPAQUE,
    "unittest.case._Outcome": _MADE_ANEW,  # of a test that runs: it leads to all tests
}
"""Types whose instances count as such: what they hold cannot change a result."""


def _stream_name(value: Any) -> str:
    """Which of the standard streams it is, whatever these were replaced by."""
    for name in ("stdout", "stderr", "stdin"):
        if value is getattr(sys, name) or value is getattr(sys, f"__{name}__"):
            return name
    return ""


def standard_stream(name: str) -> Any:
    """`sys.stdout` or `sys.stderr` of this process."""
    return getattr(sys, name)


_STREAM: Final = Kind("stream", lambda value: (_stream_name(value),), standard_stream)
_STREAMS: Final = {"stdout": _STREAM, "stderr": _STREAM, "stdin": _STREAM._replace(make=None)}


# type variables and named types ------------------------------------------------------------------


def _variable_parts(value: Any) -> tuple[Any, ...]:
    flags: dict[str, Any] = {}
    if getattr(value, "__infer_variance__", False):
        flags = {"infer_variance": True}
    elif not isinstance(value, typing.TypeVarTuple):
        flags = {"covariant": value.__covariant__, "contravariant": value.__contravariant__}
    bound = getattr(value, "__bound__", None)
    if bound not in (None, type(None)):  # Python 3.12 gives `ParamSpec("P")` that of None
        flags["bound"] = bound
    if getattr(value, "has_default", bool)():  # from Python 3.13 on
        flags["default"] = value.__default__
    names = value.__name__, *getattr(value, "__constraints__", ())
    return type(value), names, flags, value.__module__


def make_type_variable(
    kind: Any, positional: tuple[Any, ...], keywords: dict[str, Any], module: str
) -> Any:
    """A type variable of the user's own."""
    variable = kind(*positional, **keywords)
    variable.__module__ = module
    return variable


def make_new_type(name: str, supertype: Any, module: str) -> Any:
    """A `NewType` of the user's own."""
    kind: Any = typing.NewType  # which a type checker wants a literal for
    made = kind(name, supertype)
    made.__module__ = module
    return made


def make_type_alias(name: str, value: Any, variables: tuple[Any, ...]) -> Any:
    """What `type name[*variables] = value` makes, from Python 3.12 on."""
    return typing.TypeAliasType(name, value, type_params=variables)  # type: ignore[attr-defined]


_ALIAS_CLASS: Final = type(typing.List[typing.Any])  # noqa: UP006  the one of `typing`
_ALIAS: Final = Kind("alias", lambda value: value.__reduce__()[1], None)
"""`Optional[int]` and the like. `typing` keeps those that were made last, and gives them again:
whether two that are equal are one object depends on what else a process has imported."""


# names of types that are looked up later ----------------------------------------------------------


def _forward_state(value: typing.ForwardRef) -> tuple[None, dict[str, Any]]:
    """Its attributes but for what `typing.get_type_hints` has found, which may lead back to it."""
    names = "__forward_module__", "__forward_is_argument__", "__forward_is_class__"
    return None, {name: getattr(value, name) for name in names}


# the table ---------------------------------------------------------------------------------------


def _view(of: Callable[..., Any]) -> Kind:
    """The keys, values or items of a dict: `of` gives them."""
    return Kind(of.__name__, _underlying, of)


_DESCRIPTOR: Final = Kind(
    "descriptor", lambda value: (value.__objclass__, value.__name__), class_attribute
)
"""What the interpreter has made for a class: a slot, a method written in C."""

_VARIABLE: Final = Kind("type variable", _variable_parts, make_type_variable, may_have_name=True)

_KINDS: Final[dict[type, Kind]] = {
    property: Kind("property", _property_parts, property, guard=Guards.instance),
    staticmethod: Kind("staticmethod", lambda value: (value.__func__,), staticmethod),
    classmethod: Kind("classmethod", lambda value: (value.__func__,), classmethod),
    types.MethodType: Kind(
        "method", lambda value: (value.__func__, value.__self__), types.MethodType
    ),
    functools.cached_property: Kind(
        "cached_property",
        lambda value: (value.func,),
        functools.cached_property,
        lambda value: {"attrname": value.attrname},
        _guard_attributes,
    ),
    type(functools.lru_cache(len)): Kind(
        "lru_cache",
        _cached_parts,
        make_cached,
        _cached_state,
        _guard_attributes,
        has_identity=True,
        may_have_name=True,
    ),
    slice: Kind("slice", lambda value: (value.start, value.stop, value.step), slice),
    types.MappingProxyType: Kind("mappingproxy", _underlying, types.MappingProxyType),
    type({}.keys()): _view(dict.keys),
    type({}.values()): _view(dict.values),
    type({}.items()): _view(dict.items),
    memoryview: Kind(
        "memoryview",
        _memory_parts,
        make_memory,
        guard=lambda guards, value: guards.answer(value.tobytes, value.tobytes()),
        has_identity=True,
    ),
    weakref.ref: Kind("weakref", _referent, make_reference, is_kept=True),
    weakref.WeakMethod: Kind("weak method", _referent, make_weak_method, is_kept=True),
    types.MemberDescriptorType: _DESCRIPTOR,
    types.GetSetDescriptorType: _DESCRIPTOR,
    types.WrapperDescriptorType: _DESCRIPTOR,
    types.MethodDescriptorType: _DESCRIPTOR,
    types.ClassMethodDescriptorType: _DESCRIPTOR,
    typing.ForwardRef: Kind(
        "forward reference",
        lambda value: (value.__forward_arg__,),
        typing.ForwardRef,
        _forward_state,
    ),
    typing.TypeVar: _VARIABLE,
    typing.ParamSpec: _VARIABLE,
    typing.TypeVarTuple: _VARIABLE,
    typing.NewType: Kind(
        "new type",
        lambda value: (value.__qualname__, value.__supertype__, value.__module__),
        make_new_type,
        may_have_name=True,
    ),
}
if sys.version_info >= (3, 12):
    _KINDS[typing.TypeAliasType] = Kind(
        "type alias",
        lambda value: (value.__name__, value.__value__, value.__type_params__),
        make_type_alias,
        has_identity=True,  # it may lead to itself
        may_have_name=True,
    )
