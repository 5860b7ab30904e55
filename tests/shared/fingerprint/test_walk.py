"""The walk itself: numbers, paths, parts and what was found on the way."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint import walk
from jaxd_protocol.fingerprint import walk as package_walk
from jaxd_protocol.fingerprint.there import There
from jaxd_protocol.fingerprint.walk import Walk
from jaxd_protocol.fingerprint.world import SALT, Here
from tests.shared.fingerprint.defining import define, digest_of, function, seen

LIST = [1]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ([LIST, LIST], [[1], [1]], False),
        ((LIST, LIST), ([1], [1]), False),
        (((1,), (1,)), ((1,), (1,)), True),
        ([(1,), (1,)], [(1,), (1,)], True),
        ({"a": LIST, "b": LIST}, {"a": [1], "b": [1]}, False),
    ],
)
def test_what_can_change_has_a_number_and_a_value_has_none(
    one: Any, other: Any, same: bool
) -> None:
    """One list that is reached twice is not two equal ones; tuples are."""
    assert (digest_of(one) == digest_of(other)) is same


def test_a_circle_ends() -> None:
    """Each member is taken apart once."""
    items: list[Any] = []
    items.append(items)
    table = {"items": items}
    walked = seen([items, table])
    assert sum(value is items for value in walked.reach.numbered) == 1


@pytest.mark.parametrize("wrap", [lambda v: (v,), lambda v: [v], lambda v: {"a": v}])
def test_a_nest_may_be_deep(wrap: Callable[[Any], Any]) -> None:
    """Deeper than Python's stack; what lies at the bottom counts."""

    def nest(bottom: int) -> Any:
        value: Any = bottom
        for _ in range(5000):
            value = wrap(value)
        return value

    assert digest_of(nest(1)) == digest_of(nest(1)) != digest_of(nest(2))


def test_what_is_nested_too_deeply_in_sets_is_refused() -> None:
    """Their elements have to be taken apart on top of each other."""
    value: Any = frozenset()
    for _ in range(5000):
        value = frozenset({value})
    with pytest.raises(PackingError, match="f reaches objects that are nested too deeply"):
        package_walk(value, "f")


def test_the_order_of_a_set_does_not_count() -> None:
    """And each element does."""
    names = [f"n{number}" for number in range(100)]
    assert digest_of(set(names)) == digest_of({*names[::-1]}) != digest_of(set(names[1:]))


def test_a_set_that_leads_back_to_itself_ends() -> None:
    """Through an element that holds it."""

    class Holder:
        def __init__(self) -> None:
            self.inside: Any = None

    def make() -> set[Any]:
        holder = Holder()
        elements = {holder, 1}
        holder.inside = elements
        return elements

    assert digest_of(make()) == digest_of(make())


def test_the_salt_is_in_every_digest() -> None:
    """Another version of Python, or of this algorithm, has other keys."""
    here = Here()
    assert seen(1, here).fingerprint.digest == seen(1).fingerprint.digest

    def world(salt: bytes) -> There:
        return There(salt, {}, {}, frozenset())

    assert seen(1, world(SALT)).fingerprint.digest == seen(1).fingerprint.digest
    assert seen(1, world(b"other")).fingerprint.digest != seen(1).fingerprint.digest


def numbers() -> Any:
    """Something without a content."""
    return (number for number in [1])


def test_what_has_no_content_makes_the_digest_like_no_other() -> None:
    """And is named by the path that leads there."""
    module = define(
        """
        def helper(x): return next(CONFIG["stream"])
        def f(x): return helper(x)
        """,
        CONFIG={"stream": numbers()},
    )
    first, again = seen(module.f), seen(module.f)
    assert first.fingerprint.digest != again.fingerprint.digest
    (found,) = first.fingerprint.unshared
    assert found.path == "f → helper → CONFIG['stream']"
    assert found.type_name == "generator"
    assert first.reach.untravelable[id(module.CONFIG["stream"])] == found


@pytest.mark.parametrize(
    ("body", "ignored"),
    [
        ("return NAME", "NAME"),
        ("return CONFIG['a']", "CONFIG['a']"),
        ("return CONFIG.a", "CONFIG.a"),
        ("return CONFIG['a'].b['c']", "CONFIG['a']"),
    ],
)
def test_what_is_ignored_does_not_count(body: str, ignored: str) -> None:
    """By the text that reads it; it travels all the same."""

    def made(value: Any) -> Any:
        config: Any = {"a": value}
        if "CONFIG.a" in body:
            config = SimpleNamespace(a=value)
        return function(body, CONFIG=config, NAME=value)

    one, other = (seen(made(value), None, (ignored,)) for value in ([1], [2]))
    assert one.fingerprint.digest == other.fingerprint.digest
    assert one.fingerprint.unshared == ()
    assert one.reach.untravelable == {}


def test_what_is_ignored_takes_no_numbers_from_the_rest() -> None:
    """Two clients with the same key must mean the same object by a number."""
    source = "def helper(x): return x\nCONFIG = {}\ndef f(x): return CONFIG, helper(x)"
    places = []
    for config in ("[[]]", "[[], [], []]"):
        module = define(source.format(config))
        found = seen(module.f, None, ["CONFIG"]).reach.numbered
        places.append([value is module.helper for value in found].index(True))
    assert places[0] == places[1]


def test_what_is_ignored_and_has_no_content_is_shared() -> None:
    """This is what it is for."""
    made = function("return next(STREAM)", STREAM=numbers())
    assert seen(made, None, ["STREAM"]).fingerprint.unshared == ()
    assert seen(made, None, ["OTHER"]).fingerprint.unshared != ()


def test_a_walk_can_be_told_from_where() -> None:
    """The path begins with the name that it is given."""
    made = function("return STREAM", STREAM=numbers())
    (found,) = walk(made, "step").fingerprint.unshared
    assert found.path == "step → f → STREAM"
    assert Walk(Here()).run(1, "one").fingerprint.digest == digest_of(1)
