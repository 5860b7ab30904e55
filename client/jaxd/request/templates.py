"""Pytrees: their leaves, and a template that the server fills with them.

The template is all that is not a leaf: classes, static fields, functions. It is packed once for as
long as nothing in it changes. Data is compared by content and exact type in each call, everything
else by identity; whether that has changed inside, the guards of a walk over it say.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Final

from jaxd.interop.jax_runtime import loaded_jax
from jaxd.request.packing_cache import guard_content
from jaxd.request.static_keys import node_keys
from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.fingerprint import Guards, current_packing, one_moment
from jaxd_protocol.pickling.pack.arguments import pack
from jaxd_protocol.pickling.pack.functions import Packed
from jaxd_protocol.pytree import dump_literal, is_literal
from jaxd_protocol.pytree.decoder import COUNT

_MAX_TEMPLATES: Final = 256
_MAX_SIMILAR: Final = 16
"""Templates that differ only in what is static or in names."""


class PytreeTemplate:
    """A pytree without its leaves.

    Attributes:
        head: what stands in the skeleton ahead of the leaves.
        packed: it, with the classes and callables that were met on the way.
        guards: detect changes inside of it; None where they would not detect each.
        structure_key: equal for structures that are made of the same.
        is_used: whether it served another call than the one that it was made for.
    """

    __slots__ = ("_kept_alive", "guards", "head", "is_used", "packed", "structure_key")

    def __init__(
        self, head: bytes, packed: Packed, guards: Guards | None, marks: Any, kept: list[Any]
    ) -> None:
        self.head = head
        self.packed = packed
        self.guards = guards
        self.structure_key = marks
        self._kept_alive = kept  # so that nothing else gets their ids
        self.is_used = False


_templates = BoundedDict[int, list[PytreeTemplate]](_MAX_TEMPLATES)


def flatten_object(value: Any) -> tuple[PytreeTemplate, list[Any]] | None:
    """An object's template and its leaves, in jax's order.

    None when jax takes it for a leaf, when it cannot take it apart, when its template cannot travel
    (as part of a pickle it fails with a better message). jax is imported.
    """
    try:
        leaves, structure = loaded_jax().tree.flatten(value)
        if len(leaves) == 1 and leaves[0] is value:
            return None
        return _template_of(value, structure), leaves
    except Exception:  # noqa: BLE001  of a class's own methods; or it cannot travel
        return None


def _template_of(value: Any, structure: Any) -> PytreeTemplate:
    marks, kept = _structure_key(structure)
    name = hash(structure)
    alike = _templates.get(name)
    if alike is None:
        alike = _templates[name] = []
    # When none of many served twice, what is static is new in each call: it would never be met.
    worth_it = len(alike) < _MAX_SIMILAR or any(known.is_used for known in alike)
    for known in tuple(alike):
        if known.structure_key == marks:
            if known.guards is not None and known.guards.hold():
                known.is_used = True
                return known
            if worth_it := known.guards is not None:
                with suppress(ValueError):  # another thread was faster
                    alike.remove(known)
    from jaxd_protocol.jax_objects.structures import structure_nodes  # needs jax

    guarded = None
    with one_moment():
        packed = pack(structure_nodes(structure), f"an argument of type {type(value).__name__}")
        # of what is static, the same in every process; None where a change would not be noticed
        if worth_it:
            guarded = guard_content(tuple(_statics(structure)), type(value).__qualname__)
    content, guards = guarded or (None, None)
    outline = _outline(value, structure), content or blake2b(packed, digest_size=16).digest()
    size, count = COUNT.pack(len(packed)), COUNT.pack(structure.num_leaves)
    head = b"".join((b"V", dump_literal(outline), size, packed, count))
    made = PytreeTemplate(head, packed, guards, marks, kept)
    if worth_it:
        alike.append(made)
        del alike[:-_MAX_SIMILAR]
    return made


# has anything changed? ---------------------------------------------------------------------------


def _structure_key(structure: Any) -> tuple[Any, list[Any]]:
    """What is equal for two structures exactly when they are made of the same.

    With the objects in it that count by identity.
    """
    kept: list[Any] = []
    return (current_packing().mark, node_keys(structure, kept)), kept


def _statics(structure: Any) -> Iterator[tuple[type, Any]]:
    """Classes and aux data of all nodes that are no plain containers."""
    node = structure.node_data()
    if node is not None:
        if node[0] not in _CONTAINERS:
            yield node
        for child in structure.children():
            yield from _statics(child)


_CONTAINERS: Final = frozenset({dict, list, tuple, type(None)})

# for people --------------------------------------------------------------------------------------


def _outline(value: Any, structure: Any) -> Any:
    """Kind, steps to children with their outlines, and static values; None for a leaf."""
    tools = loaded_jax().tree_util
    paths = [path for path, _ in tools.tree_flatten_with_path(value)[0]]

    def outline(structure: Any, first: int, depth: int) -> Any:
        node = structure.node_data()
        if node is None:
            return None
        children = []
        for child in structure.children():
            if child.num_leaves:
                step = tools.keystr(paths[first][depth : depth + 1])
                children.append((step, outline(child, first, depth + 1)))
                first += child.num_leaves
        cls, aux = node
        literals = () if cls in _CONTAINERS else tuple(_literals(aux))
        shown = [one for one in literals if f"[{one!r}]" not in dict(children)]
        return cls.__qualname__, tuple(children), tuple(shown)

    return outline(structure, 0, 0)


def _literals(aux: Any) -> Iterator[Any]:
    if type(aux) is tuple:
        for item in aux:
            yield from _literals(item)
    elif aux is not None and is_literal(aux):
        yield aux
