"""A skeleton in words: what the arguments of a call look like, for people.

Nothing that the skeleton names is imported, unpickled or run.
"""

from __future__ import annotations

import hashlib
import struct
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.pytree.decoder import Build, SkeletonReader
from jaxd_protocol.pytree.leaves import Leaf
from jaxd_protocol.pytree.literals import dump_literal

_MAX_SHOWN: Final = 60
_UNREADABLE: Final = (struct.error, LookupError, RecursionError, ValueError)
_MISSHAPEN: Final = (TypeError, AttributeError, StopIteration)
_SCALARS: Final = {"F": "float", "I": "int", "B": "bool", "C": "complex", "P": "pickled object"}


class ArgumentShape(NamedTuple):
    """One node of a tree. Equal forms are equal to jax as well.

    Attributes:
        kind: `leaf`, `static`, or `dict`, `list`, `tuple` or a class's name for what has children.
        text: a leaf's dtype and shape, such as ``float32[3,4]``; in short a static value, or the
            plain ones of an object.
        identity: bytes that identify the whole static value: `text` may be cut off.
        children: each with its step from here: ``['w']``, ``[0]``, ``.w``.
    """

    kind: str
    text: str = ""
    identity: bytes = b""
    children: tuple[tuple[str, ArgumentShape], ...] = ()

    def leaves(self, path: str = "") -> Iterator[tuple[str, ArgumentShape]]:
        """All leaves and static values below, each with the path from here."""
        if self.kind in ("leaf", "static"):
            yield path, self
        for step, child in self.children:
            yield from child.leaves(path + step)

    def __str__(self) -> str:
        """The leaf itself, or what kind of container it is, and how much is in it."""
        if self.kind in ("leaf", "static"):
            return self.text
        return f"{self.kind} of {len(self.children)}"


class Argument(NamedTuple):
    """One argument of a call.

    Attributes:
        form: what it looks like.
        by_name: whether it was given as a keyword.
    """

    form: ArgumentShape
    by_name: bool = False


def argument_shapes(skeleton: bytes, parameters: Sequence[str] = ()) -> dict[str, Argument]:
    """The arguments of a call by name.

    Args:
        skeleton: that of (args, kwargs).
        parameters: names of the parameters that can be given by position; the last one may begin
            with a star, as in ``*rest``. Arguments without a name are called by their position.

    Raises:
        ProtocolError: when it is not the skeleton of a call.
    """
    reader = _ShapeReader(skeleton, _stub_class, _no_unpickling)
    try:
        build = reader.node()
        args, kwargs = build(iter([_leaf(leaf) for leaf in reader.leaves]))
        if isinstance(args, ArgumentShape) and isinstance(kwargs, ArgumentShape):
            # of a stock client
            return {"arguments": Argument(ArgumentShape("leaf", "pickled objects"))}
        named = {
            _name(i, parameters): Argument(form)
            for i, (_, form) in enumerate(_shape(args).children)
        }
        for name, value in kwargs.items():
            named[str(name)] = Argument(_shape(value), by_name=True)
    except (*_UNREADABLE, *_MISSHAPEN) as error:
        raise ProtocolError("the skeleton of a call cannot be read.") from error
    return named


def shortened(text: str) -> str:
    """One line of a few characters."""
    line = " ".join(text.split())
    return line if len(line) <= _MAX_SHOWN else f"{line[:_MAX_SHOWN]}…"


def _name(position: int, parameters: Sequence[str]) -> str:
    if position < len(parameters) and not parameters[position].startswith("*"):
        return parameters[position]
    if parameters and parameters[-1].startswith("*"):
        return f"{parameters[-1][1:]}[{position - len(parameters) + 1}]"
    return str(position)


class _ShapeReader(SkeletonReader):
    """Puts forms in the place of static values; literals and pickles alike stay closed."""

    def node(self) -> Build:
        tag = self.data[self.at : self.at + 1]
        if tag not in (b"S", b"Q", b"X", b"V"):
            return super().node()
        self.at += 1
        if tag == b"S":
            value = self.literal()
            return _constant(ArgumentShape("static", shortened(repr(value)), dump_literal(value)))
        if tag == b"Q":
            digest = hashlib.blake2b(self.packed(), digest_size=8).digest()
            return _constant(ArgumentShape("static", "an object", digest))
        if tag == b"X":
            name = self.literal()
            static: ArgumentShape = self.node()(iter(()))
            return _constant(static._replace(text=shortened(name)) if name else static)
        outline, content = self.literal()
        self.packed()
        children = [self.node() for _ in range(self.count())]
        return lambda leaves: _object(
            outline, iter([_shape(child(leaves)) for child in children]), content
        )


def _no_unpickling(_: bytes) -> Any:
    """Takes the place of unpickling; never called, since `_ShapeReader` takes such nodes first."""
    raise ProtocolError("a pickle was about to be opened only to describe it.")


def _constant(form: ArgumentShape) -> Build:
    return lambda leaves: form


def _leaf(leaf: Leaf) -> ArgumentShape:
    if leaf.tag not in "AK":
        return ArgumentShape("leaf", _SCALARS[leaf.tag])
    dimensions = ",".join(map(str, leaf.shape))
    if leaf.tag == "K":
        return ArgumentShape("leaf", f"{leaf.impl} keys, {leaf.dtype}[{dimensions}]")
    kind = " (weak)" if leaf.weak else " (of jax)" if leaf.exact else ""
    return ArgumentShape("leaf", f"{leaf.dtype}[{dimensions}]{kind}")


def _object(outline: Any, leaves: Iterator[ArgumentShape], content: bytes = b"") -> ArgumentShape:
    """An object that jax takes apart.

    Args:
        outline: its kind, the steps to its children with their outlines, and those of its static
            values that are plain; None for a leaf.
        leaves: those of it.
        content: bytes that identify all that is static in it.
    """
    if outline is None:
        return next(leaves)
    kind, children, literals = outline
    forms = tuple([(step, _object(child, leaves)) for step, child in children])
    text = shortened(repr(literals)) if literals else ""
    return ArgumentShape(kind, text, content or dump_literal(literals), forms)


class _ObjectStub:
    """Stands for an instance of a class that the skeleton names."""


class _NamedTupleStub(NamedTuple):
    """Stands for a named tuple: its class, and children by field."""

    cls: str
    fields: dict[str, Any]


class _NamedTupleClassStub:
    """Stands for the class of a named tuple."""

    def __init__(self, name: str, fields: Sequence[str]) -> None:
        self._name = name
        self._fields = fields

    def _make(self, children: Sequence[Any]) -> _NamedTupleStub:
        return _NamedTupleStub(self._name, dict(zip(self._fields, children, strict=True)))


def _stub_class(_: str, name: str, fields: tuple[str, ...] | None) -> Any:
    return type(name, (_ObjectStub,), {}) if fields is None else _NamedTupleClassStub(name, fields)


def _shape(value: Any) -> ArgumentShape:
    if isinstance(value, ArgumentShape):
        return value
    if value is None:
        return ArgumentShape("leaf", "None")
    if isinstance(value, dict):
        kind = "OrderedDict" if isinstance(value, OrderedDict) else "dict"
        pairs = [(f"[{key!r}]", child) for key, child in value.items()]
        # jax sorts the keys of a dict: in which order they come makes no other program
        if kind == "dict":
            pairs.sort(key=lambda pair: pair[0])
        return _container(kind, pairs)
    if isinstance(value, _NamedTupleStub):
        return _container(value.cls, [(f".{name}", each) for name, each in value.fields.items()])
    if isinstance(value, _ObjectStub):
        attributes = vars(value).items()
        return _container(type(value).__name__, [(f".{name}", each) for name, each in attributes])
    kind = "list" if isinstance(value, list) else "tuple"
    return _container(kind, [(f"[{i}]", child) for i, child in enumerate(value)])


def _container(kind: str, children: Sequence[tuple[str, Any]]) -> ArgumentShape:
    return ArgumentShape(kind, children=tuple((step, _shape(child)) for step, child in children))
