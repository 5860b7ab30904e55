"""Configuration objects of libraries: each counts by the field that is read, as its client has it.

Flags of absl, configurations of ml_collections and fiddle, and those of omegaconf, which hydra
gives. They find a field by code of their own, and what it holds may have to be worked out: a flag
is parsed, a reference is followed, an interpolation reads a variable of the environment. That is
done where the function was written, and a server gets what came out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint.data_model import FieldsRead, Step, Steps
from jaxd_protocol.fingerprint.guards import MISSING
from jaxd_protocol.fingerprint.values.config_nodes import (
    emit_node,
    guard_argument,
    guard_node,
    guard_reference,
    is_node,
    is_reference,
)
from jaxd_protocol.fingerprint.walk import Walk


class ReadFields:
    """What a function reads of an object, as its client had it. Replaces the object on a server."""

    __slots__ = ("_jaxd_fields",)

    def __init__(self, fields: Mapping[Step, Any] = MappingProxyType({})) -> None:
        self._jaxd_fields: dict[Step, Any] = dict(fields)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._jaxd_fields,)

    def __getattr__(self, name: str) -> Any:
        if name != "_jaxd_fields" and ("a", name) in self._jaxd_fields:
            return self._jaxd_fields["a", name]
        raise AttributeError(name)

    def __getitem__(self, key: Any) -> Any:
        if ("i", key) in self._jaxd_fields:
            return self._jaxd_fields["i", key]
        raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return ("i", key) in self._jaxd_fields


class ReadConfig(ReadFields):
    """Of a configuration, a single flag, or what holds one."""

    __slots__ = ()

    def get(self, key: Any, default: Any = None) -> Any:
        """The item, or the default."""
        return self._jaxd_fields.get(("i", key), default)


class ReadFlags(ReadFields):
    """Of absl's flags; where they are used as a whole, that is all of them."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        return self[name].value if name in self else super().__getattr__(name)

    def __iter__(self) -> Iterator[Any]:
        return iter([name for kind, name in self._jaxd_fields if kind == "i"])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def is_parsed(self) -> bool:
        """As absl's."""
        return True

    def flag_values_dict(self) -> dict[str, Any]:
        """As absl's: the values by name."""
        return {name: self[name].value for name in self}

    def get_flag_value(self, name: str, default: Any) -> Any:
        """As absl's: a value, or the default for a flag that is None."""
        value = getattr(self, name)
        return default if value is None else value


class _Kind(NamedTuple):
    """How configuration objects of one class are read.

    Attributes:
        guard: notices that a field has another content.
        fields: attributes that are fields; None for all that the class itself does not have.
        stand_in: what replaces one of which only fields are read.
        is_replaced: whether that replaces one that counts whole, too: then all its fields count.
        is_mapping: whether one with keys says by `in` which fields `get` has a value for.
    """

    guard: Callable[[Walk, Any, Step, Any], None]
    fields: tuple[str, ...] | None = None
    stand_in: type[ReadFields] = ReadConfig
    is_replaced: bool = False
    is_mapping: bool = False


def is_config(value: Any) -> bool:
    """Whether it is one of these objects or a part of one, or what replaces one on a server."""
    return _kind_of(value) is not None or is_node(value) or is_reference(value)


# one field ---------------------------------------------------------------------------------------


def read_field(walk: Walk, config: Any, steps: Steps) -> tuple[Any, str, Steps] | None:
    """The field that steps from a configuration object read.

    Returns:
        Its value, or `MISSING`; how code writes the read; and the steps from there. None when it is
        not a single field that is read, or one that it does not have.
    """
    kind = _kind_of(config)
    step = None if kind is None else _field_step(kind, config, steps)
    if kind is None or step is None:
        return None
    by_get = step != steps[0]
    value = _read(kind, config, step)
    if value is MISSING and not (by_get or kind.is_replaced):
        return None  # the library has an error of its own for that
    _note_field(walk, kind, config, step, value)
    rest = () if by_get else steps[1:]
    return value, f".{step[1]}" if step[0] == "a" else f"[{step[1]!r}]", rest


def _field_step(kind: _Kind, config: Any, steps: Steps) -> Step | None:
    """The step that names the field; `get` and `in` are one to an item."""
    step, rest = steps[0], steps[1:]
    if step[0] == "k":
        has_keys = type(config) is ReadConfig or hasattr(type(config), "keys")
        return ("i", step[1]) if kind.is_mapping and has_keys else None
    if step[0] == "i" and rest != _ASSIGNED:
        return step
    if step[0] != "a" or rest == _ASSIGNED or step[1].startswith("_"):
        return None
    if kind.fields is not None:
        return step if step[1] in kind.fields else None
    if not hasattr(type(config), step[1]):
        return step
    return ("i", rest[0][1]) if step[1] == "get" and rest and rest[0][0] == "c" else None


_ASSIGNED: Final = (("+", None),)


def _read(kind: _Kind, config: Any, step: Step) -> Any:
    """The field as code reads it; `MISSING` where there is none.

    Raises:
        Exception: as absl, for a flag that cannot be read yet.
    """
    how, name = step
    try:
        if how == "a":
            return getattr(config, name)
        return config.get(name, MISSING) if hasattr(type(config), "get") else config[name]
    except (AttributeError, KeyError, IndexError):
        return MISSING
    except Exception:
        if kind.is_replaced:
            raise
        return MISSING  # it cannot be worked out: only code that really reads it is told


def _note_field(walk: Walk, kind: _Kind, config: Any, step: Step, value: Any) -> None:
    """Guards a field, and notes it for what replaces the object."""
    if isinstance(config, ReadFields):
        return
    kind.guard(walk, config, step, value)
    if id(config) not in walk.reach.fields:
        walk.reach.fields[id(config)] = FieldsRead(kind.stand_in, {})
        walk.reach.objects.append(config)  # keeps its id from being used again
    if value is not MISSING:
        walk.reach.fields[id(config)].fields[step] = value


# all of it ---------------------------------------------------------------------------------------


def emit_config(walk: Walk, config: Any) -> bool:
    """Appends a configuration object that counts whole.

    False, and nothing is appended, where all that it holds counts and travels as it is.
    """
    kind = _kind_of(config)
    if kind is not None and kind.is_replaced:
        walk.numbered(config, _emit_fields)
        return True
    walk.reach.whole.add(id(config))
    return emit_node(walk, config)


def _emit_fields(walk: Walk, config: Any) -> None:
    kind = _kind_of(config)
    assert kind is not None
    walk.tag("config")
    steps = _all_steps(walk, kind, config)
    walk.text(len(steps))
    for step in steps:
        value = _read(kind, config, step)
        _note_field(walk, kind, config, step, value)
        walk.text(step[1])
        walk.emit_child(f".{step[1]}" if step[0] == "a" else f"[{step[1]!r}]", value)


def _all_steps(walk: Walk, kind: _Kind, config: Any) -> list[Step]:
    """Steps to all fields.

    Raises:
        PackingError: for flags that are not parsed yet.
    """
    if kind.fields is not None:
        return [("a", name) for name in kind.fields]
    if type(config) is ReadConfig:
        return [("a", name) for name in _FLAG_FIELDS]
    if not config.is_parsed():
        raise PackingError(
            f"{walk.path()} uses absl's flags as a whole ({walk.where}) before they were parsed. "
            "Call it in the main that app.run() calls, or read single flags, as in FLAGS.name."
        )
    names = list(config)
    walk.guards.answer(lambda: list(config), names)
    return [("i", name) for name in names]


# the kinds ---------------------------------------------------------------------------------------


def _guard_by_reading(walk: Walk, config: Any, step: Step, value: Any) -> None:
    """For absl, whose reads are short."""
    walk.guards.answer(
        lambda: getattr(config, step[1]) if step[0] == "a" else config[step[1]], value
    )


_FLAG_FIELDS: Final = ("value", "default", "present", "name")

_FLAG: Final = _Kind(_guard_by_reading, _FLAG_FIELDS, is_replaced=True)
_FLAGS: Final = _Kind(_guard_by_reading, stand_in=ReadFlags, is_replaced=True)
_REPLACED: Final = _Kind(_guard_by_reading, is_replaced=True, is_mapping=True)
_FIDDLE: Final = _Kind(guard_argument)
_ML_COLLECTIONS: Final = _Kind(guard_reference, is_mapping=True)
_OMEGACONF: Final = _Kind(guard_node, is_mapping=True)

_KINDS: Final[Mapping[tuple[str, str], _Kind]] = MappingProxyType(
    {
        ("absl.flags._flag", "Flag"): _FLAG,
        ("absl.flags._flagvalues", "FlagHolder"): _FLAG,
        ("absl.flags._flagvalues", "FlagValues"): _FLAGS,
        ("fiddle._src.config", "Config"): _FIDDLE,
        ("fiddle._src.partial", "Partial"): _FIDDLE,
        ("ml_collections.config_dict.config_dict", "ConfigDict"): _ML_COLLECTIONS,
        ("ml_collections.config_dict.config_dict", "FrozenConfigDict"): _ML_COLLECTIONS,
        ("omegaconf.dictconfig", "DictConfig"): _OMEGACONF,
        ("omegaconf.listconfig", "ListConfig"): _OMEGACONF,
        (__name__, "ReadConfig"): _REPLACED,
        (__name__, "ReadFlags"): _FLAGS,
    }
)
"""By module and name of the class: none of these libraries is imported for it."""


def _kind_of(value: Any) -> _Kind | None:
    cls = type(value)
    home = cls.__module__
    if type(home) is not str:  # of a class written in C it may be anything
        return None
    if (
        home == "absl.flags._flag" or home not in _MODULES
    ):  # flags of some types have classes of their own
        return _FLAG if _is_flag(cls) else None
    return _KINDS.get((home, cls.__qualname__))


_MODULES: Final = frozenset(module for module, _ in _KINDS)


def _is_flag(cls: type) -> bool:
    flag = getattr(sys.modules.get("absl.flags._flag"), "Flag", None)
    return flag is not None and issubclass(cls, flag)
