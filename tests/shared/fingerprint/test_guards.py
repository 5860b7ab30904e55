"""Whether everything that a walk saw is still as it was."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jaxd_protocol.fingerprint.guards import ARRAY_LIMIT, MISSING, Guards
from tests.ids import stable_id

Change = tuple[Callable[[], Any], Callable[[], Any]]
"""What changes something, and what undoes that."""


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


def test_an_entry() -> None:
    """Another object, though an equal one, is a change; other entries are none."""
    table: dict[str, Any] = {"a": [1], "b": 1}
    kept = table["a"]
    guards = taken(lambda g: g.item(table, "a", kept))
    table["b"] = 2
    check(guards, lambda: table.update(a=[1]), lambda: table.update(a=kept))
    check(guards, lambda: table.pop("a"), lambda: table.update(a=kept))


def test_an_entry_that_is_not_there() -> None:
    """Until it is."""
    table: dict[str, Any] = {"a": None}
    guards = taken(lambda g: g.item(table, "b"))
    check(guards, lambda: table.update(b=None), lambda: table.pop("b"))


def test_a_function() -> None:
    """Its code, its defaults and its attributes."""

    def one(x: Any, a: int = 1, *, b: int = 2) -> Any:
        return x, a, b

    def other(x: Any, a: int = 1, *, b: int = 2) -> Any:
        return b, a, x

    made: Any = one
    guards = taken(lambda g: g.function(made))
    code, defaults, keywords = made.__code__, made.__defaults__, made.__kwdefaults__

    def assign(name: str, value: Any) -> Callable[[], None]:
        return lambda: setattr(made, name, value)

    check(guards, assign("__code__", other.__code__), assign("__code__", code))
    check(guards, assign("__defaults__", (2,)), assign("__defaults__", defaults))
    check(guards, assign("__kwdefaults__", {"b": 3}), assign("__kwdefaults__", keywords))
    check(guards, lambda: keywords.update(b=3), lambda: keywords.update(b=2))
    check(guards, lambda: vars(one).update(a=1), lambda: vars(one).clear())


def test_a_closure() -> None:
    """What a cell holds, and whether it holds anything."""
    held: Any = ONE

    def inner() -> Any:
        return held

    (cell,) = inner.__closure__ or ()
    guards = taken(lambda g: g.cell(cell))

    def hold(value: Any) -> None:
        cell.cell_contents = value

    def empty() -> None:
        del cell.cell_contents

    check(guards, lambda: hold(OTHER), lambda: hold(ONE))
    check(guards, empty, lambda: hold(ONE))
    empty()
    guards = taken(lambda g: g.cell(cell))
    check(guards, lambda: hold(ONE), empty)


class First:
    """A class."""


class Second:
    """One with the same layout."""


def test_the_class_of_an_object() -> None:
    """Python lets it be assigned."""
    value: Any = First()
    guards = taken(lambda g: g.instance(value))
    check(
        guards,
        lambda: setattr(value, "__class__", Second),
        lambda: setattr(value, "__class__", First),
    )


def test_the_bases_of_a_class() -> None:
    """As they are when a module is reloaded by hand."""

    class Child(First):
        pass

    bases = Child.__bases__
    guards = taken(lambda g: g.attribute(Child, "__bases__", bases))
    check(
        guards,
        lambda: setattr(Child, "__bases__", (Second,)),
        lambda: setattr(Child, "__bases__", bases),
    )


@pytest.mark.parametrize("name", ["__getattribute__", "__getattr__"])
def test_how_attributes_of_an_object_are_found(name: str) -> None:
    """Its class, or one above it, may be given a method for that."""

    class Parent:
        pass

    class Child(Parent):
        pass

    guards = taken(lambda g: g.access(Child))
    check(guards, lambda: setattr(Parent, name, lambda *_: 1), lambda: delattr(Parent, name))


def test_an_attribute_without_a_dict() -> None:
    """A slot; also one that is empty."""

    class Slotted:
        __slots__ = ("a",)

    value = Slotted()
    guards = taken(lambda g: g.attribute(value, "a", MISSING))
    check(guards, lambda: setattr(value, "a", 1), lambda: delattr(value, "a"))


@pytest.mark.parametrize("kind", [dict, OrderedDict])
def test_all_of_a_mapping(kind: Callable[..., Any]) -> None:
    """Keys, values and their order."""
    table = kind(a=ONE, b=OTHER)
    guards = taken(lambda g: g.mapping(table))
    check(guards, lambda: table.update(a=OTHER), lambda: table.update(a=ONE))
    check(guards, lambda: table.update(c=1), lambda: table.pop("c"))

    def rotate() -> None:
        first = next(iter(table))
        table[first] = table.pop(first)

    check(guards, rotate, rotate)


@pytest.mark.parametrize("kind", [list, deque])
def test_all_of_a_sequence(kind: Callable[..., Any]) -> None:
    """Items, their number and their order."""
    items = kind([ONE, OTHER])
    guards = taken(lambda g: g.sequence(items))
    check(guards, lambda: items.append(1), items.pop)
    check(guards, items.reverse, items.reverse)


def test_all_of_a_set() -> None:
    """An element more, and another one instead."""
    elements = {"a", "b"}
    guards = taken(lambda g: g.sequence(elements))
    check(guards, lambda: elements.add("c"), lambda: elements.remove("c"))
    elements.remove("a")
    elements.add("d")
    assert not guards.hold()


def test_an_array() -> None:
    """Its bytes, as the object stays the same."""
    array = np.zeros(4)
    guards = taken(lambda g: g.array(array))
    check(guards, lambda: array.fill(1.0), lambda: array.fill(0.0))


def test_an_array_that_is_too_large_is_not_looked_at() -> None:
    """The guards say that they are not complete then."""
    small, large = np.zeros(ARRAY_LIMIT, np.uint8), np.zeros(ARRAY_LIMIT + 1, np.uint8)
    assert taken(lambda g: g.array(small)).complete
    guards = taken(lambda g: g.array(large))
    large[0] = 1
    assert guards.hold()
    assert not guards.complete


def test_a_variable_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set, changed and deleted; it is compared as text."""
    monkeypatch.setenv("GUARDED", "a")
    guards = taken(lambda g: g.variable("GUARDED", "a"))
    check(
        guards,
        lambda: monkeypatch.setenv("GUARDED", "b"),
        lambda: monkeypatch.setenv("GUARDED", str(b"a", "ascii")),
    )
    check(
        guards,
        lambda: monkeypatch.delenv("GUARDED"),
        lambda: monkeypatch.setenv("GUARDED", "a"),
    )


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


def test_without_anything_to_look_at_they_hold() -> None:
    """And notice every change."""
    guards = taken(lambda g: None)
    assert guards.hold()
    assert guards.complete


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
