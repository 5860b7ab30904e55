"""The signature of one call: what decides whether an executable fits its arguments."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any, Final

import jax
import numpy as np

from jaxd_protocol.errors import ArgumentError
from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.static_args import StaticArgs, map_arguments
from jaxd_protocol.jit.static_leaves import StaticLeaf, content_of
from jaxd_protocol.pytree import dump_literal, is_literal
from jaxd_server.codec.object_references import class_name
from jaxd_server.jax_compat.placement import are_several, place_name, place_of

_NARROW: Final = {
    "float64": "float32",
    "int64": "int32",
    "uint64": "uint32",
    "complex128": "complex64",
}
"""The dtypes that jax makes of numpy's where it has none of 64 bits."""


def keeps_64_bits(options: Options) -> bool:
    """Whether jax may trace a numpy array of 64 bits as one, under the settings of a function."""
    return any(name in _WIDE_SETTINGS for name, _ in options.config)


_WIDE_SETTINGS: Final = frozenset({"jax_enable_x64", "jax_explicit_x64_dtypes"})


def signature_of(
    args: tuple[Any, ...], kwargs: dict[str, Any], statics: StaticArgs, *, wide: bool = True
) -> Hashable:
    """Tree structure; shape, dtype and weak type of each leaf; type and content of what is static.

    Where there are several devices, also the place of each array that was put somewhere. What has
    no content counts by its own idea of equality. What has some does not: that leaves out fields
    which do not compare, and the function may read them in another process.

    Two calls with equal signatures run the same executable; unequal ones may as well be
    different programs.

    Args:
        args: those of the call that are given by position.
        kwargs: those that are given by name.
        statics: which of them are static.
        wide: what `keeps_64_bits` says of the function; if not, numpy's arrays have the dtype that
            jax makes of theirs.

    Raises:
        ValueError: when a static argument is not hashable.
        ArgumentError: when a leaf is not data and no static argument either.
    """
    of_leaf = _leaf_signature if wide else _narrow_leaf_signature

    def of_tree(tree: Any) -> Hashable:
        leaves, structure = jax.tree.flatten(tree)
        return structure, tuple(_contents_of(structure)), tuple(map(of_leaf, leaves))

    if not statics:
        return of_tree((args, kwargs))
    args, kwargs = map_arguments((args, kwargs), statics, of_tree, _static_signature)
    return args, tuple(sorted(kwargs.items()))


def _contents_of(structure: Any) -> Iterator[Hashable]:
    """Of keys and static fields, which jax compares only by `==`: 1 and True are the same to it."""
    node = structure.node_data()
    if node is None:
        return
    if node[0] is StaticLeaf:
        yield node[1].content
    elif node[1] is not None:
        yield _content_or_parts(node[1])
    for child in structure.children():
        yield from _contents_of(child)


def _content_or_parts(value: Any) -> Hashable:
    """The content; of a container that has none, that of what is in it."""
    found = _content_or(value, None)
    if found is None and isinstance(value, tuple | list):
        return type(value).__qualname__, tuple(map(_content_or_parts, value))
    return found


def _content_or(value: Any, otherwise: Hashable) -> Hashable:
    try:
        return content_of(value)
    except Exception:  # noqa: BLE001  what pickles an object of the user's may raise anything
        return otherwise


def _leaf_signature(leaf: Any) -> Hashable:
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.shape, leaf.dtype.name, False
    if isinstance(leaf, jax.Array):
        form = leaf.shape, str(leaf.dtype), leaf.aval.weak_type
        place = place_of(leaf) if are_several() else None
        return form if place is None else (*form, place)
    if type(leaf) in (bool, int, float, complex):
        # As the weakly typed array that jax makes of it, which is how it comes back from a call.
        return (), str(jax.dtypes.canonicalize_dtype(type(leaf))), type(leaf) is not bool
    if hasattr(type(leaf), "__jax_array__"):
        raise ValueError(
            "Triggering __jax_array__() during abstractification is no longer supported. To avoid "
            "this error, either explicitly convert your object using jax.numpy.array(), or "
            "register your object as a pytree."
        )
    raise ArgumentError(
        f"an argument, or a part of one, is of type {type(leaf).__name__}, which jax cannot "
        "trace. Pass arrays and numbers, or declare the argument in static_argnames."
    )


def _narrow_leaf_signature(leaf: Any) -> Hashable:
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.shape, _NARROW.get(leaf.dtype.name, leaf.dtype.name), False
    return _leaf_signature(leaf)


def _static_signature(value: Any) -> Hashable:
    if is_literal(value):
        return dump_literal(value)  # tells (1,) from (True,) and 0.0 from -0.0, which == does not
    try:
        hash(value)
    except TypeError as error:
        raise ValueError(
            f"Non-hashable static arguments are not supported: a value of type "
            f"{type(value).__name__} was passed for one. Make it hashable (a tuple for a list, "
            "a frozen dataclass), or pass it as an ordinary argument."
        ) from error
    return _content_or(value, (type(value), value))


def lasting_signature(
    args: tuple[Any, ...], kwargs: dict[str, Any], statics: StaticArgs, *, wide: bool = True
) -> bytes:
    """Sixteen bytes for a signature that are the same in every process.

    Unlike `signature_of`, it has nothing of what has no content.

    Raises:
        ValueError: when something in it, such as a static argument, has no content.
        ArgumentError: as `signature_of`.
    """
    of_leaf = _leaf_signature if wide else _narrow_leaf_signature
    of_tree = partial(_lasting, of_leaf)
    args, kwargs = map_arguments((args, kwargs), statics, of_tree, _lasting_static)
    named = [dump_literal(name) + kwargs[name] for name in sorted(kwargs)]
    return hashlib.blake2b(b"".join((*args, *named)), digest_size=16).digest()


def _lasting_static(value: Any) -> bytes:
    return b"S" + content_of(value)


def _lasting(of_leaf: Callable[[Any], Any], value: Any) -> bytes:
    leaves, structure = jax.tree.flatten(value)
    forms = tuple(_lasting_leaf(of_leaf(leaf)) for leaf in leaves)
    return b"T" + b"".join(_nodes(structure)) + dump_literal(forms)


def _lasting_leaf(form: Any) -> Any:
    return form if len(form) == _FORMAT else (*form[:_FORMAT], place_name(form[_FORMAT]))


_FORMAT: Final = 3
"""Shape, dtype and weak type; behind them the place of an array that was put somewhere."""


def _nodes(structure: Any) -> Iterator[bytes]:
    """The nodes of a tree, each before its children."""
    node, children = structure.node_data(), structure.children()
    if node is None:
        yield b"*"
    elif node[0] is StaticLeaf:
        yield b"V" + dump_literal(node[1].content)
    else:
        cls, aux = node
        yield _class_node(cls, aux, len(children))
    for child in children:
        yield from _nodes(child)


def _class_node(cls: type, aux: Any, count: int) -> bytes:
    """A node of a class, without its `count` children."""
    name = class_name(cls)
    if name is None:
        raise ValueError(f"the class {cls.__qualname__} is known only to one process")
    if cls is dict:
        aux = tuple(aux)
    elif aux is None:
        aux = getattr(cls, "_fields", None)  # of a named tuple
    # A class that came with a client is its content; equal ones come under either's name.
    return dump_literal((name[2] or name, count)) + content_of(aux)
