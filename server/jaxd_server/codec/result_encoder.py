"""The structure of a result, written for its client: data, the client's own objects, and tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final

import jax

from jaxd_protocol.errors import ResultError
from jaxd_protocol.jax_objects.arrays import key_spec
from jaxd_protocol.jax_objects.names import is_of_jax
from jaxd_protocol.jax_objects.structures import is_registered
from jaxd_protocol.jit.nnx_objects import ObjectParts, is_object, is_object_state
from jaxd_protocol.pickling.unpack.object_tokens import keep_object
from jaxd_protocol.pytree import TreeEncoder, dump_literal
from jaxd_protocol.pytree.decoder import COUNT, FLAX_MAPPINGS, NNX_PARTS, parameter_default
from jaxd_protocol.pytree.leaves import is_exact, spec_bytes
from jaxd_protocol.pytree.references import Reference
from jaxd_server.codec.object_references import (
    about,
    class_name,
    object_numbers,
    opaque,
    reference_to,
)


class LeafSlot:
    """Stands for leaf number `index` while a result's structure is walked.

    Attributes:
        index: among jax's leaves.
        shape, dtype, ndim: as the array has them, for classes that look at them when made.
    """

    __slots__ = ("dtype", "index", "ndim", "shape")

    def __init__(self, index: int, leaf: Any) -> None:
        self.index = index
        self.shape = leaf.shape
        self.dtype = leaf.dtype
        self.ndim = len(leaf.shape)


class _LeafPlaceholder:
    """Stands for a leaf of a structure that is itself part of a result."""


_LEAF_PLACEHOLDER: Final = _LeafPlaceholder()
_STATIC: Final = frozenset({bool, int, float, complex, type(...)})


class ResultEncoder(TreeEncoder):
    """Writes only the skeleton: leaves are slots, their data follows with each call.

    Args:
        leaves: the arrays that the slots stand for.

    Attributes:
        order: for each leaf on the wire, its index among jax's leaves.
        has_tokens: whether something is in it that only this process can have.
    """

    def __init__(self, leaves: Sequence[Any]) -> None:
        super().__init__()
        self.order: list[int] = []
        self.has_tokens = False
        self._leaves = leaves
        self._open: set[int] = set()

    def node(self, value: Any) -> None:
        """Appends one tree."""
        if type(value) in _STATIC:
            self.static(value)  # part of a class's structure: data is always in slots
        else:
            super().node(value)

    def other(self, value: Any) -> None:
        """Appends a leaf, a node of a class, or a reference to what is no data."""
        if type(value) is LeafSlot:
            self._slot(value)
        elif value is _LEAF_PLACEHOLDER:
            self.static(0)
        elif isinstance(value, tuple) and hasattr(type(value), "_fields"):
            self._named_tuple(value)
        elif isinstance(value, jax.tree_util.PyTreeDef):
            self._structure(value)
        elif type(value) is defaultdict or _is_mapping_of_flax(type(value)):
            self._keyed(value)
        elif type(value) is ObjectParts:
            self._object_parts(value)
        elif is_object(value):
            self._object(value)
        elif is_object_state(value):
            self._registered(value)
        elif _holds_data(value):
            self._object(value)
        else:
            self._static_object(value)

    def _slot(self, slot: LeafSlot) -> None:
        if slot.dtype == jax.dtypes.float0:
            self._skeleton.append(spec_bytes("Z", "float0", tuple(slot.shape)))
        else:
            self.order.append(slot.index)
            self._skeleton.append(_leaf_spec(self._leaves[slot.index]))

    def non_literal_keys(self, value: dict[Any, Any]) -> None:
        """Appends a token for a dict that holds no data, else keys that the client finds."""
        if _holds_data(value):
            self._keyed(value)
        else:
            self._refer(opaque(value))

    def _keyed(self, value: dict[Any, Any]) -> None:
        """A mapping as a node: its keys, and for a `defaultdict` what makes new values, are aux."""
        keys = tuple(value)
        aux = (value.default_factory, keys) if isinstance(value, defaultdict) else keys
        self._class_node(type(value), aux, [value[key] for key in keys])

    def _class_node(self, cls: type, aux: Any, children: Sequence[Any]) -> None:
        self._skeleton += (b"G", self.class_name(cls))
        self.node(aux)
        self._skeleton.append(COUNT.pack(len(children)))
        for child in children:
            self.node(child)

    def class_name(self, cls: type) -> bytes:
        """A class with its content id and its numbers, by which clients find their own."""
        name = class_name(cls) or (cls.__module__, cls.__qualname__, b"")
        return dump_literal((*name, object_numbers.of(cls)) if name[2] else name[:2])

    def _refer(self, reference: Reference) -> None:
        self.has_tokens = self.has_tokens or reference.kind == "o"
        self._skeleton += (b"R", dump_literal(reference.plain()))

    def _static_object(self, value: Any) -> None:
        """Something that came with the structure: the client's own, or a copy, or a token."""
        reference = reference_to(value)
        if reference is None and (id(value) in self._open or not _is_encodable(value)):
            reference = opaque(value)
        if reference is None:
            self._object(value)
        else:
            self._refer(reference)

    def _object(self, value: Any) -> None:
        """An object by its class and its attributes, or as jax's registry takes it apart."""
        if id(value) in self._open:
            raise _unencodable(value)
        state = _attributes(value)
        self._open.add(id(value))
        if state is None:
            self._registered(value)
        else:
            self._skeleton += (b"O", self.class_name(type(value)), b"D", COUNT.pack(len(state)))
            for name, attribute in state.items():
                self._skeleton.append(dump_literal(name))
                self._attribute(type(value), name, attribute)
        self._open.remove(id(value))

    def _object_parts(self, parts: ObjectParts) -> None:
        """An nnx object as one of its class: clients know these, and take nothing else of it."""
        statics = dict(parts.static_items())
        state = {**dict(zip(parts.names, parts.values, strict=True)), **statics}
        about = parts.names, tuple(statics), parts.rest, parts.flags
        self._skeleton += (b"O", self.class_name(parts.cls), b"D", COUNT.pack(len(state) + 1))
        for name, value in ((NNX_PARTS, about), *state.items()):
            self._skeleton.append(dump_literal(name))
            self._attribute(parts.cls, name, value)

    def _attribute(self, cls: type, name: str, value: Any) -> None:
        """One of an object: clients take a callable default from their own class."""
        if callable(value) and parameter_default(cls, name, None) is value:
            detail = cls.__module__, cls.__qualname__, name
            self._refer(Reference("p", detail, keep_object(value), about(value)))
        else:
            self.node(value)

    def _structure(self, structure: Any) -> None:
        self._skeleton.append(b"J")
        self.node(structure.unflatten([_LEAF_PLACEHOLDER] * structure.num_leaves))

    def _registered(self, value: Any) -> None:
        parts = jax.tree_util.default_registry.flatten_one_level(value)
        if parts is None:
            raise _unencodable(value)
        self._class_node(type(value), parts[1], list(parts[0]))


def _is_mapping_of_flax(cls: type) -> bool:
    return (cls.__module__, cls.__qualname__) in FLAX_MAPPINGS


def _unencodable(value: Any) -> ResultError:
    cls = type(value)
    return ResultError(
        f"the function returned a {cls.__module__}.{cls.__qualname__}, which cannot be sent as "
        "data. Return dicts, lists, tuples, named tuples or dataclasses of arrays."
    )


def _holds_data(value: Any) -> bool:
    """Whether there are leaves of the result in it; then it is a node that jax has made."""
    try:
        return any(type(leaf) in (LeafSlot, _LeafPlaceholder) for leaf in jax.tree.leaves(value))
    except Exception:  # noqa: BLE001  a user's flattening, or keys that cannot be sorted
        return True


def _is_encodable(value: Any) -> bool:
    """Whether an object without data can be made again from its class and its attributes."""
    cls = type(value)
    if callable(value) and not is_dataclass(cls):
        return False
    if is_of_jax(cls) and not (is_dataclass(cls) or is_registered(cls)):
        return False  # a jaxpr, say: clients make none
    return class_name(cls) is not None and _attributes(value) is not None


_CUSTOM_STATE_METHODS: Final = frozenset({"__reduce__", "__reduce_ex__", "__getstate__"})


def _attributes(value: Any) -> dict[str, Any] | None:
    """The attributes that make up an instance, None when they are not the whole of it."""
    cls = type(value)
    if is_object(value):
        return dict(vars(value))
    if getattr(cls.__getstate__, "__module__", "") == "dataclasses":  # frozen, with slots
        return {f.name: getattr(value, f.name) for f in fields(value)}
    own = (name for base in cls.__mro__[:-1] for name in vars(base))
    if not _CUSTOM_STATE_METHODS.isdisjoint(own):
        return None
    try:
        _, arguments, state, items, pairs = value.__reduce_ex__(2)
    except TypeError:  # written in C, and not meant to be copied
        return None
    if arguments != (cls,) or items is not None or pairs is not None:
        return None  # a number, tuple, list or dict at heart: the attributes are not all of it
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    return {**(attributes or {}), **(slots or {})}


def _leaf_spec(leaf: Any) -> bytes:
    aval = getattr(leaf, "aval", leaf)
    key = key_spec(aval)
    if key is not None:
        spec = spec_bytes("K", key.dtype, key.shape)
        return spec[:1] + dump_literal(key.impl) + spec[1:]
    dtype, weak = aval.dtype.name, bool(aval.weak_type)
    return spec_bytes("A", dtype, aval.shape, weak, is_exact(dtype, weak))
