"""Lists, tuples, dicts and sets."""

from __future__ import annotations

from typing import Any

import pytest

from tests.shared.fingerprint.defining import digest_of, function, part_names, walk_of


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1, 2], [2, 1]),
        ([1, 2], (1, 2)),
        ([[1], 2], [[1, 2]]),
        ([], ()),
        ([None], []),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": 1}, {"a": 1.0}),
        ({"a": 1}, {"b": 1}),
        ({1: "a"}, {True: "a"}),
        ({}, []),
        ({1}, frozenset({1})),
        ({1}, {True}),
        (set(), {None}),
    ],
)
def test_two_containers_have_two_digests(one: Any, other: Any) -> None:
    """Kind, order, keys and the types of what is in them."""
    assert digest_of(one) != digest_of(other)


@pytest.mark.parametrize(
    ("value", "change"),
    [
        ([1], lambda v: v.append(2)),
        ({"a": 1}, lambda v: v.update(b=2)),
        ({1}, lambda v: v.add(2)),
        ([{"a": [1]}], lambda v: v[0]["a"].append(2)),
        (([1],), lambda v: v[0].append(2)),
    ],
)
def test_a_change_is_noticed(value: Any, change: Any) -> None:
    """At any depth."""
    walked = walk_of(value)
    assert walked.guards.hold()
    change(value)
    assert not walked.guards.hold()
    assert digest_of(value) != walked.fingerprint.digest


def test_what_is_inside_is_named_by_the_way_there() -> None:
    """As code would write it."""
    config = {"layers": [(8, {"act": "relu"})], 1: 2.5}
    assert part_names(function("return CONFIG", CONFIG=config))[1:] == [
        "value: global CONFIG[1]",
        "value: global CONFIG['layers'][0][0]",
        "value: global CONFIG['layers'][0][1]['act']",
    ]


@pytest.mark.parametrize("value", [[1], {"a": 1}])
def test_a_container_that_is_a_value_counts_whole(value: Any) -> None:
    """Whatever else is read of it."""
    reach = walk_of(function("return C[0] if x else C['a'] if y else C", C=value)).reach
    assert reach.part_of(value) is None


def test_keys_may_be_anything_that_a_dict_takes() -> None:
    """They count as values do."""

    def key(x: Any) -> Any:
        return x

    def other(x: Any) -> Any:
        return -x

    assert digest_of({key: 1}) != digest_of({other: 1})
    assert digest_of({(1, "a"): 1}) != digest_of({(1, "b"): 1})
