"""Keys of static values: what is made anew of the same is the same, and nothing else is."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import jax
import pytest

from jaxd.request.static_keys import hashable, static_key

T = TypeVar("T")


@dataclass
class Plain:
    a: Any = 1
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Slotted(Generic[T]):
    a: Any = 1
    b: Any = 2


class Value:
    """Says when two are equal."""

    def __init__(self, a: Any) -> None:
        self.a = a

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


class Reduced(Value):
    """Has a state of its own."""

    def __reduce__(self) -> Any:
        return Reduced, (1,)


class Same:
    """One object is no other."""


class Changing(Value):
    """Cannot be hashed."""

    __hash__ = None  # type: ignore[assignment]


@jax.tree_util.register_static
class Held(Value):
    """In the structure of a tree."""


Pair = namedtuple("Pair", "a b")  # noqa: PYI024  users have them


def key_of(value: Any) -> Any:
    """Its key, and what keeps that good."""
    kept: list[Any] = []
    return hashable(static_key(value, kept)), (value, kept)


ANEW: list[Callable[[Any], Any]] = [
    lambda a: (a, [a], {"k": a}),
    lambda a: Pair(a, 2),
    lambda a: Plain(a, {"k": [a]}),
    lambda a: Slotted(a, [a]),
    lambda a: Value(Value(a)),
    lambda a: jax.tree.structure({"a": [1, Held(a)]}),
]


@pytest.mark.parametrize("make", ANEW, ids=lambda make: str(ANEW.index(make)))
def test_what_is_made_anew_of_the_same_has_the_same_key(make: Callable[[Any], Any]) -> None:
    """And what is made of something else, or of a number of another kind, has another one."""
    one, other = key_of(make(1)), key_of(make(1))
    assert one[0] == other[0]
    keys = [key_of(make(a)) for a in (2, True, 1.0, 0.0, -0.0, "1", b"1", None, Same(), Same())]
    differing = {key for key, _ in keys}
    assert one[0] not in differing
    assert len(differing) == len(keys)


@pytest.mark.parametrize("cls", [Same, Reduced, Changing], ids=lambda cls: cls.__name__)
def test_what_may_be_more_than_its_attributes_counts_by_identity(cls: Any) -> None:
    """Two are different, and one is the same as long as it lives."""
    one, other = (cls(1) if cls is not Same else cls() for _ in range(2))
    assert key_of(one)[0] == key_of(one)[0] != key_of(other)[0]


def test_kinds_are_told_apart() -> None:
    """Containers and classes with equal contents."""
    made = [
        (1, 2),
        [1, 2],
        {1: 2},
        Pair(1, 2),
        Slotted(1, 2),
        Plain(1),
        Value(1),
        jax.tree.structure([1, 2]),
    ]
    keys = [key_of(value) for value in made]
    assert len({key for key, _ in keys}) == len(made)


def test_what_holds_itself_has_a_key() -> None:
    """It ends somewhere in it."""
    plain = Plain()
    plain.more["self"] = plain
    assert key_of(plain)[0] == key_of(plain)[0]
    deep: Any = ()
    for _ in range(2000):
        deep = (deep,)
    assert key_of(deep)[0] == key_of(deep)[0]


def test_what_is_held_twice_is_looked_at_once() -> None:
    """So are values that hold each other: the time is that of their number."""
    shared: Any = ("a",)
    for _ in range(30):
        shared = (shared, shared)
    nodes = [Plain(number, {"parent": None}) for number in range(20)]
    for node in nodes:
        node.more |= {"parent": nodes[0], "children": nodes}
    for value in (shared, nodes):
        first, _kept = key_of(value)
        assert first == key_of(value)[0]


def test_one_value_twice_is_not_two_values() -> None:
    """The function may ask whether they are the same."""
    one, other = [1], [1]
    assert key_of([one, one])[0] != key_of([one, other])[0]
