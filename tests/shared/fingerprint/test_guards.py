"""Whether everything that a walk saw is still as it was."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jaxd_protocol.fingerprint.guards import ARRAY_LIMIT, MISSING, Guards
from tests.ids import stable_id


def taken(take: Callable[[Guards], Any]) -> Guards:
    """Guards of which the taking has ended."""
    guards = Guards()
    take(guards)
    guards.settle()
    return guards


def check(guards: Guards, change: Callable[[], Any], undo: Callable[[], Any]) -> None:
    """They hold before, not after a change, and again when it is undone."""
    assert guards.hold()
    change()
    assert not guards.hold()
    undo()
    assert guards.hold()
    assert guards.complete


ONE, OTHER = object(), object()


@pytest.mark.parametrize("name", ["__getattribute__", "__getattr__"])
def test_how_attributes_of_an_object_are_found(name: str) -> None:
    """Its class, or one above it, may be given a method for that."""

    class Parent:
        pass

    class Child(Parent):
        pass

    guards = taken(lambda g: g.access(Child))
    check(guards, lambda: setattr(Parent, name, lambda *_: 1), lambda: delattr(Parent, name))


def test_an_array_that_is_too_large_is_not_looked_at() -> None:
    """The guards say that they are not complete then."""
    small, large = np.zeros(ARRAY_LIMIT, np.uint8), np.zeros(ARRAY_LIMIT + 1, np.uint8)
    assert taken(lambda g: g.array(small)).complete
    guards = taken(lambda g: g.array(large))
    large[0] = 1
    assert guards.hold()
    assert not guards.complete


def test_an_answer() -> None:
    """Whatever somebody else says; compared with `==`."""
    state = SimpleNamespace(value=[1])
    guards = taken(lambda g: g.answer(lambda: state.value, [1]))
    check(guards, lambda: state.value.append(2), state.value.pop)


@pytest.mark.parametrize(
    "take",
    [
        lambda g, v: g.mapping(v),
        lambda g, v: g.item(v, "a", v["a"]),
        lambda g, v: g.attribute(v, "missing", MISSING),
    ],
    ids=["whole", "entry", "another way"],
)
@pytest.mark.parametrize("first", [True, False], ids=["pinned before", "pinned after"])
def test_what_is_pinned_is_not_looked_at(take: Any, first: bool) -> None:
    """Whichever is said first; the guards say that they are not complete."""
    table: dict[str, Any] = {"a": ONE}
    guards = Guards()
    steps = [lambda: guards.pin(table), lambda: take(guards, table)]
    for step in steps if first else reversed(steps):
        step()
    guards.settle()
    table["a"] = OTHER
    assert guards.hold()
    assert not guards.complete


def test_what_is_watched_is_looked_at_although_it_is_pinned() -> None:
    """Also when it is another part of the walk that pins it."""
    table: dict[str, Any] = {"a": ONE}
    part = Guards()
    part.mapping(table)
    part.pin(table)
    part.settle()
    assert not part.complete
    guards = Guards()
    guards.watch(table)
    guards.mapping(table)
    guards.absorb(part)
    guards.settle()
    assert guards.complete
    table["a"] = OTHER
    assert not guards.hold()


def test_pinning_one_container_leaves_the_others() -> None:
    """A list that is filled, beside one that is read."""
    memo: list[Any] = []
    other: list[Any] = []
    guards = Guards()
    guards.sequence(memo)
    guards.sequence(other)
    guards.pin(memo)
    guards.settle()
    memo.append(1)
    assert guards.hold()
    other.append(1)
    assert not guards.hold()


class Moving(dict[str, Any]):
    """A dict that another thread changes while it is looked at."""

    def values(self) -> Any:
        """As Python says it then."""
        raise RuntimeError("dictionary changed size during iteration")


def test_what_changes_while_it_is_looked_at_has_changed() -> None:
    """No exception reaches the caller."""
    table: Any = Moving(a=1)
    guards = Guards()
    guards._dicts[0] = (table, ("a",), (1,))
    assert not guards.hold()


ALIKE: list[tuple[Any, Any]] = [
    *((1, True), (1, 1.0), (0.0, -0.0), (0, False), ("a", b"a"), ((1,), [1]), ([1], [True])),
    *(((1, (2.0,)), (1, (2,))), ({"a": 1}, {"a": True}), ({1: 2}, {True: 2}), ({1}, {1.0})),
    *(({"a": 1, "b": 2}, {"b": 2, "a": 1}), (frozenset({0.0}), frozenset({-0.0}))),
    *((np.float32(1), np.float64(1)), (np.float32(0), np.float32(-0.0)), (1.0, np.float64(1))),
    *(
        (np.arange(2.0), np.arange(2)),
        (np.zeros(2), -np.zeros(2)),
        (complex(0, 0.0), complex(0, -0.0)),
    ),
]
"""Pairs that `==` does not tell apart, or not as a key does."""


@pytest.mark.parametrize("one", [each for pair in ALIKE for each in pair], ids=stable_id)
def test_an_answer_that_is_made_anew_is_the_same(one: Any) -> None:
    """By its content, whatever it is."""
    assert taken(lambda g: g.answer(lambda: deepcopy(one), one)).hold()


@pytest.mark.parametrize(("one", "other"), [*ALIKE, *[pair[::-1] for pair in ALIKE]], ids=stable_id)
def test_an_answer_of_another_type_or_sign_is_another_one(one: Any, other: Any) -> None:
    """As it is in the key: a program is made for one of them only."""
    assert not taken(lambda g: g.answer(lambda: other, one)).hold()


class Odd(dict[str, Any]):
    """A dict that says of itself that it is empty."""

    def __bool__(self) -> bool:
        return False


@pytest.mark.parametrize("kind", [dict, Odd])
def test_an_empty_mapping(kind: Callable[..., Any]) -> None:
    """Until there is something in it."""
    table = kind()
    guards = taken(lambda g: g.mapping(table))
    check(guards, lambda: table.update(a=1), lambda: table.pop("a"))


@pytest.mark.parametrize(
    "take",
    [lambda g, state: g.answer(lambda: state[0], 1), lambda g, _: g.variable("GUARDED", "1")],
)
def test_what_is_taken_after_the_walk_counts(take: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As what a function has read while it was traced."""
    monkeypatch.setenv("GUARDED", "1")
    state = [1]
    guards = taken(lambda g: None)
    take(guards, state)
    assert guards.hold()
    state[0] = 2
    monkeypatch.setenv("GUARDED", "2")
    assert not guards.hold()
