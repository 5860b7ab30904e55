"""Parts of arguments that jax cannot trace, and that are static without being declared.

Text, members of enums, configurations, functions: wherever in the arguments one stands, it is
*wrapped* in a node without children, which jax takes for a part of the tree's structure, and which
is compared by content. It is *unwrapped* when the function is traced.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from jaxd_protocol.errors import ArgumentError
from jaxd_protocol.fingerprint import walk
from jaxd_protocol.jit.static_args import StaticArgs, map_arguments
from jaxd_protocol.packages.bare_objects import bare_object_name, own_object_name
from jaxd_protocol.pickling.unpack.content_table import content_table
from jaxd_protocol.pytree import dump_literal, is_literal
from jaxd_protocol.pytree.literals import plain_number


class StaticLeaf:
    """A node without children. Two are equal when the contents are, whatever the values define.

    Attributes:
        value: what stands there.
        content: bytes that are the same in every process.

    Raises:
        ArgumentError: when the content of the value cannot be read.
    """

    __slots__ = ("content", "value")

    def __init__(self, value: Any) -> None:
        _register()
        self.value = value
        try:
            self.content = content_of(value)
        except ValueError as error:
            raise ArgumentError(
                f"an argument, or a part of one, is of type {type(value).__name__}, which jax "
                f"cannot trace, and which cannot be static by its content ({error}). Pass arrays "
                "and numbers, or declare the argument in static_argnames."
            ) from error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StaticLeaf) and self.content == other.content

    def __hash__(self) -> int:
        return hash(self.content)

    def __repr__(self) -> str:
        return repr(self.value)


@functools.cache
def _register() -> None:
    import jax

    jax.tree_util.register_pytree_node(StaticLeaf, lambda leaf: ((), leaf), lambda leaf, _: leaf)


def content_of(value: Any) -> bytes:
    """Bytes for a value, the same in every process, equal exactly for equal types and contents.

    Raises:
        ValueError: when its content cannot be read.
    """
    if is_literal(value):
        return b"L" + dump_literal(value)
    if type(value) is object:
        name = bare_object_name(value)
        if name is not None:
            return b"N" + dump_literal(name)
        name = own_object_name(value)
        if name is not None:
            return b"O" + dump_literal(name)
        raise ValueError("a bare object differs from others only by its identity")
    # In a tuple: of an object that can be called, a walk that starts there sees only what it calls.
    walked = walk((value,), type(value).__qualname__)
    found, reach = walked.fingerprint, walked.reach
    if found.unshared:
        raise ValueError(f"a value of type {type(value).__qualname__} has no content")
    # On a server these also have what only the code of the called function reads of them.
    ids = map(content_table.content_id_of, (*reach.classes, *reach.functions))
    return b"C" + found.digest + b"".join(filter(None, ids))


def wrap_untraceable(tree: Any, *, strict: bool) -> Any:
    """The tree as jax can take it.

    Args:
        tree: with leaves of any type.
        strict: whether what jax cannot trace stays, and so is refused.

    Raises:
        ArgumentError: when something that jax cannot trace has no content.
    """
    import jax

    return jax.tree.map(lambda leaf: _wrap(leaf, strict=strict), tree)


def _wrap(leaf: Any, *, strict: bool) -> Any:
    import numpy as np

    is_array = hasattr(type(leaf), "__array__") and not isinstance(leaf, str | bytes)
    if not (strict or is_array or is_traceable(leaf)):
        return StaticLeaf(leaf)
    number = None if isinstance(leaf, bool | np.generic) else plain_number(leaf)
    return leaf if number is None else number


def is_traceable(leaf: Any) -> bool:
    """Whether jax takes a leaf of an argument for data, and not for a static value."""
    import jax
    import numpy as np

    if isinstance(leaf, str | bytes):  # numpy's own text among them
        return False
    if isinstance(leaf, bool | int | float | complex | np.ndarray | np.generic | jax.Array):
        return True
    return hasattr(type(leaf), "__jax_array__") or (
        hasattr(leaf, "dtype") and not isinstance(leaf, type)
    )


def wrap_untraceable_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any], statics: StaticArgs
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """All arguments of a call as jax can take them; those that are declared static stay.

    Raises:
        ArgumentError: when something that jax cannot trace has no content.
    """
    wrapped = functools.partial(wrap_untraceable, strict=statics.strict)
    return map_arguments((args, kwargs), statics, wrapped)


def unwrapping_arguments(function: Callable[..., Any], statics: StaticArgs) -> Callable[..., Any]:
    """The function for arguments with wrapped parts, which it gets unwrapped.

    Args:
        function: takes its arguments unwrapped.
        statics: which of them are static as a whole, and so have nothing wrapped in them.
    """

    @functools.wraps(function)
    def unwrapped(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = map_arguments((args, kwargs), statics, _unwrap)
        return function(*args, **kwargs)

    return unwrapped


def _unwrap(value: Any) -> Any:
    """The value itself where nothing in it is wrapped."""
    import jax

    if not any(map(_is_wrapped, jax.tree.leaves(value, is_leaf=_is_wrapped))):
        return value
    return jax.tree.map(
        lambda leaf: leaf.value if type(leaf) is StaticLeaf else leaf, value, is_leaf=_is_wrapped
    )


def _is_wrapped(value: Any) -> bool:
    return type(value) is StaticLeaf
