"""Decodes a skeleton: which leaves a tree has, and how to rebuild it.

    N                              None
    T L count children             tuple, list
    D M count (key child)*         dict, OrderedDict; keys are literals
    U class fields children        a named tuple; class and fields are literals
    O class state                  an object: its class by name, its attributes as a dict
                                   (only towards a client)
    G class aux count children     a node as jax's registry of classes knows it
                                   (only towards a client)
    J child                        jax's structure of a tree (only towards a client)
    S literal                      a static value
    R literal                      a reference to something that is no data, see `references`
                                   (only towards a client)
    Q length bytes                 a pickled static value (only towards a server)
    X name static                  a part of an argument that jax cannot trace, static without being
                                   declared: its name, a literal; then S or Q (only towards a
                                   server)
    V outline length bytes count children
                                   an object that jax flattens: a literal that describes it, see
                                   `explain.argument_shapes`; the rest of it, packed; its leaves
                                   in jax's order (only towards a server)
    Z spec                         an array of `float0`, which jax gives for what has no derivative;
                                   as that of a leaf, but there is no data
    A K F I B C P …                leaves, see `leaves`

A class is a literal of module and qualified name; towards a client its content id follows when
it is the user's own, and its numbers in functions (see `references`). Reading a skeleton runs no
code that it names: classes and references are looked up by the caller's functions.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from types import MemberDescriptorType
from typing import Any, Final, Protocol, TypeVar

from jaxd_protocol.errors import ProtocolError, ResultError
from jaxd_protocol.pytree.leaves import Leaf, load_spec, no_derivative
from jaxd_protocol.pytree.literals import load_literal
from jaxd_protocol.pytree.references import Reference, load_reference

NNX_PARTS: Final = "jaxd: parts"
"""Attribute of an object of flax nnx which is sent in parts: names of its data and of its other
attributes, and the rest and the flags of its `ObjectParts`."""

FLAX_MAPPINGS: Final = frozenset(
    {("flax.typing", "HashableMapping"), ("flax.core.frozen_dict", "FrozenDict")}
)
"""Classes of flax, by module and name, whose instances are sent as keys and values."""

COUNT: Final = struct.Struct("!I")
T = TypeVar("T")

Build = Callable[[Iterator[Any]], Any]
FindClass = Callable[..., type]
Unpickle = Callable[[bytes], Any]
Unflatten = Callable[[list[Any]], Any]


class ObjectResolver(Protocol):
    """The local objects of which a peer's tree may be made."""

    def getter(
        self, reference: Reference, holders: tuple[type, ...], field: str
    ) -> Callable[[], Any]:
        """A function that returns the object of a reference, each time a tree is built.

        The reference is part of instances of the `holders`, outermost first, and is in the
        attribute `field` of the last one if that has attributes.
        """

    def instance(self, cls: type, state: dict[Any, Any], *, is_own: bool) -> Any:
        """An object with these attributes: as a rule what `restore_instance` makes."""

    def unflattener(self, cls: type) -> Callable[[Any, list[Any]], Any]:
        """A function that makes an instance of a class registered with jax: of aux and children."""

    def structure(self, tree: Any) -> Any:
        """The structure of a tree, as jax has it."""


class OutlineLeaves(Iterator[Any]):
    """Leaves of which no object can be made, because its class may inspect them."""

    def __init__(self, leaves: Sequence[Any]) -> None:
        self._leaves = iter(leaves)

    def __next__(self) -> Any:
        return next(self._leaves)


class SkeletonReader:
    """Walks a skeleton once; `leaves` fills up as `node` goes."""

    def __init__(
        self,
        data: bytes,
        find_class: FindClass,
        unpickle: Unpickle | None = None,
        own: ObjectResolver | None = None,
        open_template: Callable[[bytes], Unflatten] = lambda _: list,
        close: Callable[[Any], Any] = lambda value: value,
        take_note: Callable[[Any], None] = lambda value: None,
    ) -> None:
        self.data = data
        self.at = 0
        self.leaves: list[Leaf] = []
        self._find_class = find_class
        self._unpickle = unpickle
        self._own = own
        self._holders: tuple[type, ...] = ()
        self._field = ""
        self._open_template = open_template
        self._close = close
        self._take_note = take_note

    def node(self) -> Build:
        """The function that rebuilds the node beginning here."""
        tag = chr(self.data[self.at])
        self.at += 1
        read = _NODES.get(tag)
        if read is None:
            raise ProtocolError(f"a tree's skeleton has an unknown tag {tag!r}.")
        return read(self, tag)

    def literal(self) -> Any:
        """The plain value that stands here."""
        value, self.at = load_literal(self.data, self.at)
        return value

    def _value(self) -> Any:
        """The plain value that stands here, which becomes part of the tree."""
        value = self.literal()
        self._take_note(value)
        return value

    def count(self) -> int:
        """The number that stands here, which is less than what is left to read."""
        (count,) = COUNT.unpack_from(self.data, self.at)
        self.at += COUNT.size
        if count > len(self.data) - self.at:
            raise ProtocolError("a tree's skeleton announces more than it holds.")
        return int(count)

    def packed(self) -> bytes:
        """The bytes that stand here, behind their number."""
        end = self.at + COUNT.size + self.count()
        data, self.at = self.data[self.at : end], end
        return data

    def _names(self) -> tuple[str, ...]:
        names = self.literal()
        if type(names) is not tuple or not all(type(name) is str for name in names):
            raise ProtocolError("a tree's skeleton has something else where names belong.")
        return names

    def _class(self) -> tuple[str, str, tuple[Any, ...]]:
        """Module and qualified name; of one of the user's own, what follows these."""
        name = self.literal()
        if type(name) is not tuple or tuple(map(type, name)) not in _CLASS_NAMES:
            raise ProtocolError("a tree's skeleton has something else where a class belongs.")
        return name[0], name[1], name[2:]

    def _none(self, tag: str) -> Build:
        return lambda leaves: None

    def _sequence(self, tag: str) -> Build:
        children = [self.node() for _ in range(self.count())]
        if all(child is next for child in children):
            made, count = (list if tag == "L" else tuple), len(children)
            return lambda leaves: made(islice(leaves, count))
        if tag == "L":
            return lambda leaves: [child(leaves) for child in children]
        return lambda leaves: tuple([child(leaves) for child in children])

    def _mapping(self, tag: str) -> Build:
        pairs = [(self._value(), self.node()) for _ in range(self.count())]
        if tag == "D" and all(child is next for _, child in pairs):
            keys = [key for key, _ in pairs]
            return lambda leaves: dict(zip(keys, leaves, strict=False))
        if tag == "D":
            return lambda leaves: {key: child(leaves) for key, child in pairs}
        return lambda leaves: OrderedDict([(key, child(leaves)) for key, child in pairs])

    def _named_tuple(self, tag: str) -> Build:
        module, name, content = self._class()
        fields = self._names()
        cls: Any = self._find_class(module, name, fields, *content)
        children = [self.node() for _ in fields]
        return lambda leaves: cls._make([child(leaves) for child in children])

    def _object(self, tag: str) -> Build:
        own = _allowed(self._own, "an object")
        module, name, content = self._class()
        cls = self._find_class(module, name, None, *content)
        if self.data[self.at : self.at + 1] != b"D":
            raise ProtocolError("a tree's skeleton has an object without attributes.")
        self.at += 1
        state, is_own = {}, bool(content)
        for _ in range(self.count()):
            name = self._value()
            state[name] = self._within(cls, str(name))
        return lambda leaves: own.instance(
            cls, {name: child(leaves) for name, child in state.items()}, is_own=is_own
        )

    def _within(self, holder: type, field: str = "") -> Build:
        """A node that is part of an object."""
        before = self._holders, self._field
        self._holders, self._field = (*self._holders, holder), field
        try:
            return self.node()
        finally:
            self._holders, self._field = before

    def _static(self, tag: str) -> Build:
        value = self._value()
        return lambda leaves: value

    def _reference(self, tag: str) -> Build:
        own = _allowed(self._own, "a reference")
        get = own.getter(load_reference(self.literal()), self._holders, self._field)
        return lambda leaves: get()

    def _registered(self, tag: str) -> Build:
        own = _allowed(self._own, "a registered node")
        module, name, content = self._class()
        cls = self._find_class(module, name, None, *content)
        unflatten = own.unflattener(cls)
        aux = self._within(cls)
        children = [self._within(cls) for _ in range(self.count())]
        return lambda leaves: unflatten(aux(leaves), [child(leaves) for child in children])

    def _structure(self, tag: str) -> Build:
        own = _allowed(self._own, "a structure")
        child = self.node()
        return lambda leaves: own.structure(child(leaves))

    def _pickled_static(self, tag: str) -> Build:
        value = _allowed(self._unpickle, "code")(self.packed())
        return lambda leaves: value

    def _static_leaf(self, tag: str) -> Build:
        self.literal()
        if self.data[self.at : self.at + 1] not in (b"S", b"Q"):
            raise ProtocolError(
                "a tree's skeleton has something else where a static value belongs."
            )
        value = self._close(self.node()(iter(())))
        return lambda leaves: value

    def _template(self, tag: str) -> Build:
        _allowed(self._unpickle, "code")
        self.literal()
        unflatten = self._open_template(self.packed())
        children = [self.node() for _ in range(self.count())]

        def build(leaves: Iterator[Any]) -> Any:
            found = [child(leaves) for child in children]
            return found if type(leaves) is OutlineLeaves else unflatten(found)

        return build

    def _scalar(self, tag: str) -> Build:
        return self._leaf(Leaf(tag))

    def _array(self, tag: str) -> Build:
        impl = self.literal() if tag == "K" else ""
        dtype, shape, weak, exact, self.at = load_spec(self.data, self.at)
        return self._leaf(Leaf(tag, dtype, shape, weak, impl, exact=exact))

    def _without_data(self, tag: str) -> Build:
        _, shape, _, _, self.at = load_spec(self.data, self.at)

        return lambda leaves: no_derivative(shape)

    def _pickled(self, tag: str) -> Build:
        _allowed(self._unpickle, "code")
        (buffers,) = COUNT.unpack_from(self.data, self.at)
        self.at += COUNT.size
        return self._leaf(Leaf(tag, buffers=buffers))

    def _leaf(self, leaf: Leaf) -> Build:
        self.leaves.append(leaf)
        return next


def _allowed(reader: T | None, what: str) -> T:
    if reader is None:
        raise ProtocolError(f"the peer sent {what} where only data is allowed.")
    return reader


_CLASS_NAMES: Final = ((str, str), (str, str, bytes), (str, str, bytes, tuple))

_NODES: Final[dict[str, Callable[[SkeletonReader, str], Build]]] = {
    "N": SkeletonReader._none,
    **dict.fromkeys("TL", SkeletonReader._sequence),
    **dict.fromkeys("DM", SkeletonReader._mapping),
    "U": SkeletonReader._named_tuple,
    "O": SkeletonReader._object,
    "S": SkeletonReader._static,
    "R": SkeletonReader._reference,
    "G": SkeletonReader._registered,
    "J": SkeletonReader._structure,
    "Q": SkeletonReader._pickled_static,
    "X": SkeletonReader._static_leaf,
    "V": SkeletonReader._template,
    "Z": SkeletonReader._without_data,
    **dict.fromkeys("AK", SkeletonReader._array),
    **dict.fromkeys("FIBC", SkeletonReader._scalar),
    "P": SkeletonReader._pickled,
}


def parameter_default(cls: Any, name: str, missing: Any) -> Any:
    """The default of a parameter of a class.

    Each end reads its own class, so that neither accepts a callable from the other. Parameters of
    a base class count where the class has no default of that name.

    Args:
        cls: a dataclass, or any class with a signature.
        name: of a parameter and of the attribute that it sets.
        missing: what is returned when there is none.
    """
    field = getattr(cls, "__dataclass_fields__", {}).get(name)
    if field is not None and type(field.default).__name__ != "_MISSING_TYPE":
        return field.default
    from inspect import Parameter, signature  # few results have such attributes

    for made_by in (cls, *(vars(base).get("__init__") for base in cls.__mro__)):
        try:  # a metaclass may hide parameters, as that of flax nnx, and a class those of its base
            parameter = signature(made_by).parameters.get(name)
        except (TypeError, ValueError):  # there is none, or it is written in C
            continue
        if parameter is not None and parameter.default is not Parameter.empty:
            return parameter.default
    return missing


def restore_instance(cls: Any, state: dict[Any, Any], *, by_new: bool = True) -> Any:
    """An instance with these attributes, made as `pickle` makes one: without `__init__`.

    Nothing but `__new__` of the class is run, and that only with `by_new`: no property, and no
    `__setattr__`.
    """
    try:
        instance = cls.__new__(cls) if by_new else object.__new__(cls)
    except Exception as error:
        raise ResultError(
            f"the result holds a {cls.__qualname__}, which cannot be made without arguments "
            f"({error}). Return dicts, lists and tuples from the function."
        ) from error
    own: Any = None
    with suppress(AttributeError):
        own = object.__getattribute__(instance, "__dict__")
    for name, value in state.items():
        slot = _slot(cls, name)
        if slot is not None:
            slot.__set__(instance, value)
        elif own is not None and type(name) is str:
            own[name] = value
        else:
            raise ProtocolError(f"a tree has an object whose class has no attribute {name!r}.")
    return instance


def _slot(cls: type, name: Any) -> MemberDescriptorType | None:
    for base in cls.__mro__:
        found = base.__dict__.get(name)
        if found is not None:
            return found if isinstance(found, MemberDescriptorType) else None
    return None
