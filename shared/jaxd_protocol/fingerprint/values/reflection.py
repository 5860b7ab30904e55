"""What code reads of functions and classes beside what they do: names, texts, annotations.

It counts of all that the function reaches, as soon as any of its code reads such a thing of
anything, and it is looked at when the walk has met everything else.
"""

from __future__ import annotations

import gc
import inspect
import re
import sys
import typing
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from enum import EnumType
from types import CodeType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any, Final

from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint.code.callbacks import nested_codes
from jaxd_protocol.fingerprint.data_model import Reader
from jaxd_protocol.fingerprint.guards import MISSING
from jaxd_protocol.fingerprint.walk import Walk

_KEPT_BY_CLASSES: Final[frozenset[Reader]] = frozenset(
    {
        *("names", "qualified names", "docstrings", "annotations", "hints"),
        *("fields", "types", "subclasses", "order"),
    }
)


def of_classes(readers: AbstractSet[Reader]) -> frozenset[Reader]:
    """Those that read of a class what is not in its content.

    For code with one of these a server has a class of its own for each such content.
    """
    found = _KEPT_BY_CLASSES & readers
    return found if found >= _FIELD_TYPES else found - _FIELD_TYPES


_FIELD_TYPES: Final[frozenset[Reader]] = frozenset({"fields", "types"})


def emit_reflected(walk: Walk) -> None:
    """Appends what is read of the functions and classes that were met, and what that leads to."""
    done: set[tuple[Reader, int]] = set()
    while True:
        found = [
            (reader, each)
            for reader, emitters in _EMITTERS.items()
            if reader in walk.reach.readers
            and (reader != "fields" or "types" in walk.reach.readers)
            for each in (*walk.reach.functions, *walk.reach.classes, *_whole_modules(walk))
            if _kind_of(each) in emitters
            if (reader, id(each)) not in done
        ]
        for reader, each in found:
            done.add((reader, id(each)))
            walk.tag(reader)
            _EMITTERS[reader][_kind_of(each)](walk, each)
        walk.emit_queued()
        if not found:
            break
    if "docstrings" in walk.reach.readers:
        for name, source in sorted(walk.reach.sources.items()):
            walk.emit_labelled(f"docstrings {name}", _texts_in(source.code))


def _kind_of(value: Any) -> Any:
    kinds = (FunctionType, ModuleType, type)
    return next(kind for kind in kinds if isinstance(value, kind))


def _attribute(name: str) -> Callable[[Walk, Any], None]:
    def emit(walk: Walk, value: Any) -> None:
        content = getattr(value, name)
        walk.guards.attribute(value, name, content)
        walk.emit_labelled(f"attribute {_label(value)}.{name}", content)

    return emit


def _docstring_of_function(walk: Walk, function: FunctionType) -> None:
    _attribute("__doc__")(walk, function)
    walk.emit_labelled("", tuple(map(_texts_in, nested_codes(function.__code__))))


def _texts_in(code: CodeType) -> tuple[Any, ...]:
    """All that can be a docstring, of functions and classes that the code defines, too."""
    is_function = code.co_flags & inspect.CO_OPTIMIZED
    constants = code.co_consts[:1] if is_function else code.co_consts
    texts = tuple(each for each in constants if type(each) is str)
    return (*texts, *map(_texts_in, nested_codes(code)))


def _qualified_name_of_function(walk: Walk, function: FunctionType) -> None:
    _attribute("__qualname__")(walk, function)
    walk.text(function.__code__.co_qualname)  # with which the names of those within it begin


def _label(value: Any) -> str:
    return str(value.__name__)


def _docstring_of_module(walk: Walk, module: ModuleType) -> None:
    walk.emit_labelled(f"docstring {_label(module)}", vars(module).get("__doc__"))


def _docstring_of_class(walk: Walk, cls: type) -> None:
    """That of the class itself; what a dataclass makes of defaults without a name has addresses."""
    text = vars(cls).get("__doc__")
    is_made = isinstance(text, str) and " at 0x" in text
    walk.emit_labelled(f"attribute {cls.__name__}.__doc__", None if is_made else text)


def _annotations_of_function(walk: Walk, function: FunctionType) -> None:
    """As they are, and resolved where code resolves them: a server gets both."""
    raw = raw_annotations(function)
    walk.guards.mapping(raw)
    walk.guards.answer(lambda: raw_annotations(function) is raw, True)
    _contents(walk, function, raw)
    _signature(walk, function)
    if "hints" not in walk.reach.readers or not any(map(_has_text, raw.values())):
        return
    _guard_names(walk, function, function.__globals__)
    resolved = _resolved(function)
    if resolved is not None:
        _contents(walk, function, resolved)


def _annotations_of_class(walk: Walk, cls: type) -> None:
    raw = raw_annotations(cls)
    resolved = resolved_annotations(cls, walk.reach.readers)
    walk.guards.mapping(raw)
    if resolved is not None and "annotations" in walk.reach.readers:
        raise PackingError(
            f"{walk.path()} reads annotations of {cls.__qualname__} both as they are and "
            "resolved, and some are text. On the server they are resolved. Take away 'from "
            "__future__ import annotations' or the quotes."
        )
    if "hints" in walk.reach.readers and cls.__module__ in sys.modules:
        _guard_names(walk, cls, vars(sys.modules[cls.__module__]))
    _contents(walk, cls, raw if resolved is None else resolved)
    _signature(walk, cls)
    walk.emit_labelled("", vars(cls).get("__orig_bases__"))


def _guard_names(walk: Walk, value: Any, namespace: dict[str, Any]) -> None:
    """What text in its annotations means is looked up in this namespace."""
    for name in names_in_annotations(value):
        walk.guards.item(namespace, name, namespace.get(name, MISSING))


def _contents(walk: Walk, value: Any, annotations: Mapping[str, Any]) -> None:
    walk.text(len(annotations))
    for name, content in annotations.items():
        walk.text(name)
        walk.emit_labelled(f"annotation {_label(value)}.{name}", content)


def _signature(walk: Walk, value: Any) -> None:
    """The one that was set on it, which `inspect.signature` gives."""
    shown = vars(value).get("__signature__")
    walk.emit_labelled("", shown if type(shown) is inspect.Signature else None)


def raw_annotations(value: Any) -> dict[str, Any]:
    """The annotations of a function or class itself, as they are.

    From Python 3.14 on they are made when they are first asked for.
    """
    if isinstance(value, type) and "__annotate_func__" not in vars(value):
        own: dict[str, Any] | None = vars(value).get("__annotations__")
        return {} if own is None else own
    found: dict[str, Any] = value.__annotations__
    return found


def annotated_names(cls: type) -> tuple[str, ...]:
    """The names that have annotations in a class itself, in order; none of these is evaluated."""
    content = vars(cls)
    known = content.get("__annotations__", content.get("__annotations_cache__"))
    make = content.get("__annotate_func__")
    if known is not None or make is None:
        return tuple(known or ())
    from importlib import import_module

    library: Any = import_module("annotationlib")  # from Python 3.14 on
    return tuple(library.call_annotate_function(make, library.Format.STRING, owner=cls))


def names_in_annotations(value: Any) -> list[str]:
    """The names in the text in the annotations of a function or class; globals resolve them."""
    texts = [repr(each) for each in raw_annotations(value).values() if _has_text(each)]
    return sorted({*_NAME.findall(" ".join(texts))})


_NAME: Final = re.compile(r"(?<![\w.])[^\W\d]\w*")


def resolved_annotations(cls: type, readers: AbstractSet[Reader]) -> dict[str, Any] | None:
    """The annotations of a class as a server gets them; None: as they are.

    Resolved where code resolves them and there is text in them: on a server the module is not
    among those in which `typing.get_type_hints` looks names up.
    """
    if "hints" not in readers or not any(map(_has_text, raw_annotations(cls).values())):
        return None
    return _resolved(cls)


def _resolved(value: Any) -> dict[str, Any] | None:
    """The annotations of a function or class, resolved; None where a name in them is nowhere."""
    try:
        hints = typing.get_type_hints(value, include_extras=True)
    except Exception:  # noqa: BLE001  a name that is nowhere: there, too
        return None
    return {name: hints.get(name, content) for name, content in raw_annotations(value).items()}


def _has_text(annotation: Any) -> bool:
    return isinstance(annotation, str) or "ForwardRef(" in repr(annotation)


def _field_types(walk: Walk, cls: type) -> None:
    fields: Mapping[str, Any] = vars(cls).get("__dataclass_fields__", {})
    walk.text(len(fields))
    for name, field in fields.items():
        walk.text(name)
        walk.guards.attribute(field, "type", field.type)
        walk.emit_labelled(f"annotation {cls.__name__}.{name}", field.type)


def _subclasses(walk: Walk, cls: type) -> None:
    found = subclasses_of(cls)
    walk.guards.answer(lambda: _are_same(type.__subclasses__(cls), found), True)
    walk.part("class", f"subclasses of {cls.__qualname__}", repr([*map(_label, found)]).encode())
    walk.text(len(found))
    for each in found:
        walk.emit_labelled("", each)


def subclasses_of(cls: type) -> list[type]:
    """What `__subclasses__` gives, without what was replaced and is not collected yet."""
    names = [(each.__module__, each.__qualname__) for each in _all_subclasses(cls)]
    if len({*names}) < len(names):
        gc.collect()  # such as the class that `dataclass(slots=True)` has made another one of
    return _all_subclasses(cls)


def _all_subclasses(cls: type) -> list[type]:
    found: list[type] = type.__subclasses__(cls)
    return found


def _are_same(found: list[type], known: list[type]) -> bool:
    return len(found) == len(known) and all(
        one is two for one, two in zip(found, known, strict=True)
    )


def _order(walk: Walk, value: Any) -> None:
    """The names of its attributes as `vars` gives them, but for those that Python makes itself."""
    if isinstance(value, EnumType):  # whose members count in their order
        return
    names = [name for name, each in vars(value).items() if not _is_made(name, each)]
    walk.emit_labelled(f"order {_label(value)}", tuple(names))


def _is_made(name: str, content: Any) -> bool:
    is_slot = isinstance(content, MemberDescriptorType)
    return is_slot or name.startswith(("__", "@")) or name == "_abc_impl"


def _whole_modules(walk: Walk) -> list[ModuleType]:
    met = (*walk.reach.numbered, *walk.reach.objects)
    found = [each for each in met if isinstance(each, ModuleType) and id(each) in walk.reach.whole]
    return [*{id(each): each for each in found}.values()]


_ANNOTATIONS: Final[dict[Any, Callable[[Walk, Any], None]]] = {
    FunctionType: _annotations_of_function,
    type: _annotations_of_class,
}
_EMITTERS: Final[dict[Reader, dict[Any, Callable[[Walk, Any], None]]]] = {
    "names": {FunctionType: _attribute("__name__"), type: _attribute("__name__")},
    "qualified names": {
        FunctionType: _qualified_name_of_function,
        type: _attribute("__qualname__"),
    },
    "docstrings": {
        FunctionType: _docstring_of_function,
        type: _docstring_of_class,
        ModuleType: _docstring_of_module,
    },
    "annotations": _ANNOTATIONS,
    "hints": _ANNOTATIONS,
    "fields": {type: _field_types},
    "subclasses": {type: _subclasses},
    "order": {FunctionType: _order, type: _order, ModuleType: _order},
}
