"""flax nnx objects as trees that jax can trace, and made again of these.

nnx passes modules, optimizers, metrics and variables by reference: one that is there twice is one
object, and objects may hold each other. jax's trees know neither. So `TakenApart` numbers the
objects in the order in which it meets them: a variable stays what it is, any other object becomes
`ObjectParts`, and where one was met before stands its number. `PutTogether` is the reverse. As for
`nnx.jit`, what is no array within a container of an object is static.

Private to flax: `_pytree__nodes` and `_pytree__state` of objects, `_pytree__nodes` and
`_pytree__is_pytree` of their classes, and `flax.nnx.pytreelib.PytreeState`.
tests/shared/jit/test_nnx_objects.py fails when they move.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.pickling.names import HERE
from jaxd_protocol.pytree.decoder import NNX_PARTS

NUMBERED: Final = "jaxd: object"
"""Key of a dict that stands for an object: `{NUMBERED: {3: None}}` is that with number 3. Where
a new one is returned, its parts are in the place of the None."""

LEAF, CONTAINER, STATE, VARIABLE, OBJECT = range(5)
"""Kinds of values: what jax does not take apart, what it does, a `nnx.State`, a variable, and any
other object of nnx."""

_MAX_CLASSES: Final = 1000
_kinds: Final = BoundedDict[type, int](_MAX_CLASSES)
_NODES: Final = "_pytree__nodes"
_STATE: Final = "_pytree__state"
_OWN: Final = frozenset({_NODES, _STATE})


def loaded_nnx() -> Any:
    """`flax.nnx`, where it is imported completely, else None."""
    nnx = sys.modules.get("flax.nnx")
    return nnx if nnx is not None and hasattr(nnx, "Variable") and hasattr(nnx, "State") else None


def kind_of(value: Any) -> int:
    """What nnx takes a value for. It is loaded."""
    kind = _kinds.get(type(value))
    if kind is None:
        kind = _kinds[type(value)] = _kind_of(value)
    return kind


def _kind_of(value: Any) -> int:
    import jax

    nnx, cls = loaded_nnx(), type(value)
    for base, kind in ((nnx.Variable, VARIABLE), (nnx.Pytree, OBJECT), (nnx.State, STATE)):
        if issubclass(cls, base):
            return kind
    return LEAF if value is None or jax.tree_util.all_leaves((value,)) else CONTAINER


def is_object(value: Any) -> bool:
    """Whether it is an object of nnx other than a variable."""
    return loaded_nnx() is not None and kind_of(value) == OBJECT


def is_object_state(value: Any) -> bool:
    """Whether it is what nnx keeps of an object, apart from the trace that it belongs to."""
    cls = type(value)
    return (cls.__module__, cls.__qualname__) == ("flax.nnx.pytreelib", "PytreeState")


def contains_objects(value: Any) -> bool:
    """Whether an argument is an nnx object, or has one in its containers.

    A `State` is passed as values: it counts for none.
    """
    kind = kind_of(value)
    if kind == CONTAINER:
        return any(map(contains_objects, _children(value)))
    return kind >= VARIABLE


def _children(container: Any) -> Any:
    if isinstance(container, dict):
        return container.values()
    if isinstance(container, list | tuple):
        return container
    import jax

    found = jax.tree_util.default_registry.flatten_one_level(container)
    return () if found is None else found[0]


def is_array(value: Any) -> bool:
    """Whether a leaf is data wherever in an object it stands."""
    return hasattr(value, "dtype") and not isinstance(value, type)


class ObjectParts:
    """What an object is made of; a node of jax's trees.

    Attributes:
        cls: its class.
        names: of the attributes that are data.
        values: of these, in the same order.
        statics: name and value of each other attribute, one after the other.
        rest: of containers among the data, what is static: name, position and value.
        flags: the state that nnx keeps of it; of a change, the names that are gone.
    """

    __module__ = HERE  # keys and packed bytes name it
    __slots__ = ("cls", "flags", "names", "rest", "statics", "values")

    def __init__(
        self,
        cls: type,
        names: tuple[str, ...],
        statics: tuple[Any, ...],
        rest: tuple[tuple[str, int, Any], ...],
        flags: tuple[Any, ...],
        values: Any,
    ) -> None:
        self.cls = cls
        self.names = names
        self.statics = statics
        self.rest = rest
        self.flags = flags
        self.values = values

    @property
    def aux(self) -> tuple[Any, ...]:
        """All but the data."""
        return self.cls, self.names, self.statics, self.rest, self.flags

    def static_items(self) -> Iterator[tuple[str, Any]]:
        """The attributes that are no data."""
        return zip(self.statics[::2], self.statics[1::2], strict=True)


def _parts_with(aux: Any, values: Any) -> ObjectParts:
    cls, names, statics, rest, flags = aux
    return ObjectParts(cls, names, statics, rest, flags, values)


@functools.cache
def register_parts() -> None:
    """Makes `ObjectParts` a node of jax's trees, once in a process."""
    from jax.tree_util import GetAttrKey, register_pytree_with_keys

    register_pytree_with_keys(
        ObjectParts,
        lambda parts: (
            [(GetAttrKey(n), v) for n, v in zip(parts.names, parts.values, strict=True)],
            parts.aux,
        ),
        _parts_with,
        lambda parts: (parts.values, parts.aux),
    )


class TakenApart:
    """Takes objects apart, and numbers them in the order in which it meets them.

    Args:
        known: objects that have numbers already, and are not taken apart.
        met: is called with each of these, every time.

    Attributes:
        objects: all of them.
    """

    def __init__(
        self, known: list[Any] | None = None, met: Callable[[Any], object] | None = None
    ) -> None:
        register_parts()
        self.objects: list[Any] = list(known or ())
        self._numbers = {id(each): number for number, each in enumerate(self.objects)}
        self._met = met

    def tree(self, value: Any) -> Any:
        """An argument or a result, without objects; itself where there are none."""
        kind = kind_of(value)
        if kind >= VARIABLE:
            return self.object(value)
        if kind != CONTAINER or not contains_objects(value):
            return value
        import jax

        return jax.tree.map(
            lambda leaf: self.object(leaf) if kind_of(leaf) >= VARIABLE else leaf,
            value,
            is_leaf=lambda each: kind_of(each) >= STATE,
        )

    def object(self, value: Any) -> Any:
        """A variable, the parts of another object, or the number of one that was met before."""
        number = self._numbers.get(id(value))
        if number is not None:
            if self._met is not None:
                self._met(value)
            return {NUMBERED: {number: None}}
        number = self._numbers[id(value)] = len(self.objects)
        self.objects.append(value)
        parts = value if kind_of(value) == VARIABLE else self.parts(value)
        return parts if self._met is None else {NUMBERED: {number: parts}}

    def parts(self, value: Any, only: Any = None, gone: tuple[str, ...] | None = None) -> Any:
        """What an object is made of.

        Args:
            value: the object.
            only: the names of attributes to take; by default all.
            gone: of a change, the names that are gone.
        """
        attributes = vars(value)
        names: list[str] = []
        values: list[Any] = []
        statics: list[Any] = []
        rest: list[tuple[str, int, Any]] = []
        for name in sorted(attributes if only is None else only):
            if name in _OWN:
                continue
            child = attributes[name]
            if is_data(value, name, child):
                names.append(name)
                values.append(self._data(name, child, rest))
            else:
                statics += (name, child)
        flags = _flags(value) if gone is None else gone
        return ObjectParts(
            type(value), tuple(names), tuple(statics), tuple(rest), flags, tuple(values)
        )

    def _data(self, name: str, value: Any, rest: list[tuple[str, int, Any]]) -> Any:
        kind = kind_of(value)
        if kind >= VARIABLE:
            return self.object(value)
        if kind == LEAF:
            return value
        leaves, structure = flatten_container(value)
        for position, leaf in enumerate(leaves):
            if kind_of(leaf) >= VARIABLE:
                leaves[position] = self.object(leaf)
            elif leaf is not None and not is_array(leaf):
                rest.append((name, position, leaf))
                leaves[position] = None
        return structure.unflatten(leaves)


def flatten_container(value: Any) -> tuple[list[Any], Any]:
    """Leaves and structure of a container in an object: objects and None are leaves."""
    import jax

    found: tuple[list[Any], Any] = jax.tree.flatten(
        value, is_leaf=lambda each: each is None or kind_of(each) >= VARIABLE
    )
    return found


def is_data(owner: Any, name: str, value: Any) -> bool:
    """Whether nnx takes an attribute of an object for data."""
    if type(owner)._pytree__is_pytree:
        return bool(vars(owner)[_NODES].get(name, False))
    kind = kind_of(value)
    if kind in (CONTAINER, STATE):
        return any(
            kind_of(leaf) >= VARIABLE or is_array(leaf) for leaf in flatten_container(value)[0]
        )
    return kind >= VARIABLE or is_array(value)


def _flags(value: Any) -> tuple[bool, ...]:
    state = vars(value)[_STATE]
    found = bool(state.initializing), bool(state.is_setup)
    return found if True in found else ()


class PutTogether:
    """Makes objects of their parts.

    Args:
        known: objects that have numbers already.
        convert: gives what is kept of the data of new objects.
        check: is called with class, name and value of each attribute that is no data.

    Attributes:
        objects: all of them, by number.
    """

    def __init__(
        self,
        known: list[Any] | None = None,
        convert: Callable[[Any], Any] | None = None,
        check: Callable[[type, str, Any], object] | None = None,
    ) -> None:
        self.objects: list[Any] = list(known or ())
        self._convert = convert
        self._check = check

    def tree(self, value: Any) -> Any:
        """An argument or a result, with objects."""
        if _is_whole(value) or kind_of(value) != CONTAINER:
            return self._leaf(value)
        import jax

        return jax.tree.map(
            self._leaf, value, is_leaf=lambda each: _is_whole(each) or kind_of(each) == STATE
        )

    def _leaf(self, value: Any) -> Any:
        if _is_numbered(value):
            return self._numbered(value[NUMBERED])
        if type(value) is ObjectParts:
            return self._object(value)
        if kind_of(value) == VARIABLE:
            self.objects.append(value)
            if self._convert is not None:
                value.set_raw_value(self._convert(value.get_raw_value()))
        return value

    def _numbered(self, entry: Any) -> Any:
        ((number, parts),) = entry.items()
        if parts is not None:
            if number != len(self.objects):
                raise ProtocolError("a result has an object in it out of its turn.")
            return self._leaf(parts)
        if type(number) is not int or not 0 <= number < len(self.objects):
            raise ProtocolError("a result has an object in it that nobody has.")
        return self.objects[number]

    def _object(self, parts: ObjectParts) -> Any:
        made: Any = object.__new__(parts.cls)
        self.objects.append(made)
        attributes = vars(made)
        attributes.update(self.attributes(parts))
        attributes[_NODES] = parts.cls._pytree__nodes  # type: ignore[attr-defined]
        _note_data(made, parts)
        from flax.nnx.pytreelib import PytreeState

        attributes[_STATE] = PytreeState(*parts.flags)
        return made

    def attributes(self, parts: ObjectParts) -> dict[str, Any]:
        """The attributes that are in the parts of an object."""
        found = dict(parts.static_items())
        static: dict[str, dict[int, Any]] = {}
        for name, position, value in parts.rest:
            static.setdefault(name, {})[position] = value
        if self._check is not None:
            for name, value in (*found.items(), *((name, value) for name, _, value in parts.rest)):
                self._check(parts.cls, name, value)
        for name, value in zip(parts.names, parts.values, strict=True):
            found[name] = self._data(value, static.get(name, {}))
        return found

    def _data(self, value: Any, static: dict[int, Any]) -> Any:
        if _is_whole(value):
            return self._leaf(value)
        if kind_of(value) == LEAF:
            return value if self._convert is None else self._convert(value)
        import jax

        leaves, structure = jax.tree.flatten(
            value, is_leaf=lambda each: each is None or _is_whole(each)
        )
        whole: Any = structure
        return whole.unflatten(
            [
                static[position] if position in static else self._data(leaf, {})
                for position, leaf in enumerate(leaves)
            ]
        )


def update_object(value: Any, parts: ObjectParts, attributes: dict[str, Any]) -> None:
    """Gives an object the attributes that have changed, and takes away those that are gone."""
    own = vars(value)
    own.update(attributes)
    for name in parts.flags:
        own.pop(name, None)
    _note_data(value, parts)


def _note_data(value: Any, parts: ObjectParts) -> None:
    """Tells nnx which attributes are data."""
    if not type(value)._pytree__is_pytree:
        return
    nodes = vars(value)[_NODES]
    given = {**dict.fromkeys(parts.statics[::2], False), **dict.fromkeys(parts.names, True)}
    if any(nodes.get(name) is not data for name, data in given.items()):
        vars(value)[_NODES] = nodes.update(given)


def _is_numbered(value: Any) -> bool:
    return type(value) is dict and NUMBERED in value


def _is_whole(value: Any) -> bool:
    kind = type(value)
    return kind is ObjectParts or _is_numbered(value) or kind_of(value) >= VARIABLE


def received_parts(cls: type, state: dict[Any, Any]) -> ObjectParts:
    """The parts of an object that a server has sent as an instance of its class.

    Raises:
        ProtocolError: when they do not fit.
    """
    try:
        names, statics, rest, flags = map(tuple, state[NNX_PARTS])
        fits = {*names, *statics, NNX_PARTS} == set(state) and not _OWN & set(state)
        fits = (
            fits and all(len(each) == 3 for each in rest) and issubclass(cls, loaded_nnx().Pytree)
        )
    except (AttributeError, TypeError, ValueError):
        fits = False
    if not fits:
        raise ProtocolError("a result has an object in it whose parts are not its attributes.")
    items = [item for name in statics for item in (name, state[name])]
    values = tuple(state[name] for name in names)
    return ObjectParts(cls, names, tuple(items), rest, flags, values)
