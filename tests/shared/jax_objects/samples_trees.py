"""A user's module with classes that are nodes of trees, registered in all of jax's ways."""

# mypy: ignore-errors
# What a user writes, around libraries without types.

from __future__ import annotations

import dataclasses
import functools
import typing
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

DATA = np.ones((2, 3), np.float32)
T = typing.TypeVar("T")


class Hook:
    """A base that keeps a list of its subclasses, and demands an argument."""

    registry: typing.ClassVar[list[str]] = []

    def __init_subclass__(cls, *, tag: str, **more: Any) -> None:
        super().__init_subclass__(**more)
        Hook.registry.append(tag)


class Hooked(Hook, tag="one"):
    pass


class Meta(type):
    """A metaclass with side effects."""

    made: typing.ClassVar[list[str]] = []

    def __new__(cls, name: str, bases: Any, namespace: Any, **more: Any) -> Any:
        Meta.made.append(name)
        return super().__new__(cls, name, bases, namespace)


class Made(metaclass=Meta):
    pass


@jax.tree_util.register_pytree_node_class
class Node:
    def __init__(self, a: Any) -> None:
        self.a = a

    def tree_flatten(self) -> Any:
        return (self.a,), None

    @classmethod
    def tree_unflatten(cls, _: Any, children: Any) -> Any:
        return cls(*children)


@jax.tree_util.register_pytree_with_keys_class
class KeyedClass(Node):
    def tree_flatten_with_keys(self) -> Any:
        return ((jax.tree_util.GetAttrKey("a"), self.a),), None


class Keyed:
    def __init__(self, a: Any) -> None:
        self.a = a


jax.tree_util.register_pytree_with_keys(
    Keyed,
    lambda value: (((jax.tree_util.GetAttrKey("named"), value.a),), None),
    lambda _, children: Keyed(*children),
)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["a"], meta_fields=["m"])
@dataclasses.dataclass
class Data:
    a: Any
    m: str = "q"


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["a"], meta_fields=[], drop_fields=["b"]
)
@dataclasses.dataclass
class Dropped:
    a: Any
    b: int = 3


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Static:
    m: int = 1


class Pair(typing.NamedTuple):
    a: Any
    b: int = 2


class Box(typing.Generic[T]):
    def __init__(self, a: T) -> None:
        self.a = a


jax.tree_util.register_pytree_node(
    Box, lambda value: ((value.a,), None), lambda _, children: Box(*children)
)


def check() -> Any:
    """What a program finds that uses all of the classes."""
    values = (Node(DATA), KeyedClass(DATA), Keyed(DATA), Data(DATA), Dropped(DATA), Static())
    found: list[Any] = [_facts(value) for value in (*values, Pair(DATA), Box[int](DATA))]  # type: ignore[arg-type]
    hooks = [Hook.registry, Hooked in Hook.__subclasses__(), Meta.made, type(Made).__name__]
    return [found, hooks, str(Box[int])[-8:]]


def _facts(value: Any) -> Any:
    leaves, _ = jax.tree_util.tree_flatten_with_path(value)
    total = jax.jit(lambda tree: sum(jnp.sum(leaf) for leaf in jax.tree.leaves(tree)))(value)
    again = jax.tree.map(lambda leaf: leaf, value)
    names = [jax.tree_util.keystr(path) for path, _ in leaves]
    return [type(value).__name__, names, float(total), type(again) is type(value)]
