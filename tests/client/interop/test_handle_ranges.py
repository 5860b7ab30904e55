"""What the arrays of one call have in common."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from jaxd.interop.handle_ranges import HandleRange
from jaxd.interop.remote_array import DELETED, RemoteArray, ResultBatch
from jaxd.request.arguments import ArgumentEncoder, encode_arguments
from jaxd_protocol.jit.static_args import NO_STATIC_ARGS
from jaxd_protocol.messages.data_locations import VALUE, DataLocation
from jaxd_protocol.pytree import Leaf
from tests.client.fake_fetcher import FakeFetcher

if TYPE_CHECKING:
    import pytest

LEAVES = [Leaf("A", "float32", (n,)) for n in range(9)]


def arrays(fetcher: FakeFetcher, first: int = 100) -> list[RemoteArray]:
    """The arrays of one call that returned nine."""
    origin = ResultBatch(fetcher, first, LEAVES)
    return [RemoteArray.kind()(origin, number) for number in range(9)]


def rows(fetcher: FakeFetcher, *args: Any) -> list[DataLocation]:
    """How a call with these arguments says where its data lies."""
    return [each.row for each in encode_arguments(args, {}, NO_STATIC_ARGS, {}, fetcher).values]


def test_what_stays_together_is_said_at_once() -> None:
    """However it is spread over the arguments, as long as nothing comes in between."""
    fetcher = FakeFetcher()
    one = arrays(fetcher)
    assert rows(fetcher, {"a": one[0], "b": tuple(one[1:8])}, one[8]) == [
        DataLocation(0, VALUE, 100, 8)
    ]
    assert rows(fetcher, one[:2], 1.0, one[2:]) == [
        DataLocation(0, VALUE, 100, 1),
        DataLocation(3, VALUE, 102, 6),
    ]


def test_what_does_not_follow_is_said_by_itself() -> None:
    """Another order, a gap, the same array twice, and arrays of another call with the next ids."""
    fetcher = FakeFetcher()
    one, other = arrays(fetcher), arrays(fetcher, 109)
    assert rows(fetcher, one[1], one[0]) == [
        DataLocation(0, VALUE, 101),
        DataLocation(1, VALUE, 100),
    ]
    assert rows(fetcher, one[0], one[2]) == [
        DataLocation(0, VALUE, 100),
        DataLocation(1, VALUE, 102),
    ]
    assert rows(fetcher, one[3], one[3]) == [
        DataLocation(0, VALUE, 103),
        DataLocation(1, VALUE, 103),
    ]
    assert rows(fetcher, one[8], other[0]) == [
        DataLocation(0, VALUE, 108),
        DataLocation(1, VALUE, 109),
    ]


@jax.tree_util.register_pytree_node_class
class State:
    """What a loop carries on, as libraries write it: jax takes it apart."""

    def __init__(self, *leaves: Any) -> None:
        self.leaves = leaves

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        """Its leaves."""
        return self.leaves, None

    @classmethod
    def tree_unflatten(cls, _: None, leaves: tuple[Any, ...]) -> State:
        """Another one."""
        return cls(*leaves)


def states(fetcher: FakeFetcher) -> Iterator[tuple[Any, ...]]:
    """Arguments of calls that take some, most of which are not quite what a call has returned."""
    one, other, stranger = arrays(fetcher), arrays(fetcher, 109), FakeFetcher().keep(np.ones(3))
    yield (State(*one),)
    yield (State(*one[2:5]), State(*one[5:]))  # goes on
    yield one[0], State(*one[1:3]), one[3], 1.0, State(*one[4:])
    yield State(one[1], one[0]), State(one[0], one[2]), State(one[3], one[3])
    yield State(one[7], one[8], *other[:2]), State(one[0], 1.0, one[1]), State(*one[:2], "static")
    yield State(stranger), State(one[0], stranger), State()


def test_the_state_of_a_loop_is_said_as_its_arrays_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once where it is what a call returned, in its order; otherwise one by one."""
    fetcher, at_once = FakeFetcher(), ArgumentEncoder._consecutive_results

    def encoded(args: tuple[Any, ...]) -> tuple[Any, ...]:
        found = encode_arguments(args, {}, NO_STATIC_ARGS, {}, fetcher)
        arrays = [handle_range.arrays for handle_range in found.values]
        return (
            found.skeleton,
            found.blob,
            found.buffer_leaves,
            [each.row for each in found.values],
            arrays,
        )

    seen: list[bool] = []

    def noting(encoder: ArgumentEncoder, leaves: list[Any]) -> bool:
        seen.append(at_once(encoder, leaves))
        return seen[-1]

    cases = list(states(fetcher))
    monkeypatch.setattr(ArgumentEncoder, "_consecutive_results", noting)
    found = list(map(encoded, cases))
    monkeypatch.setattr(ArgumentEncoder, "_consecutive_results", lambda *_: False)
    assert found == list(map(encoded, cases))
    assert seen == [True] * 5 + [False] * 9


class Moments(NamedTuple):
    """Part of a tree."""

    mu: Any
    nu: Any


def random_tree(numbers: random.Random, leaves: Iterator[Any], depth: int = 0) -> Any:
    """Containers of all kinds around these leaves, and now and then something else."""
    kind = numbers.randrange(5 if depth < 4 else 1)
    if kind == 0:
        other = numbers.choice([None, 1.5, True, np.ones(2), "text", {1: 2.0}, State(), b""])
        return other if numbers.random() < 0.15 else next(leaves, None)
    children = [random_tree(numbers, leaves, depth + 1) for _ in range(numbers.randrange(1, 4))]
    if kind == 1:
        return dict(zip(numbers.sample("abcd", len(children)), children, strict=True))
    if kind == 2:
        return Moments(children[0], children[-1] if len(children) > 1 else None)
    return children if kind == 3 else tuple(children)


def test_a_tree_that_a_call_returned_is_encoded_as_any_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever stands between its arrays, also when its structure was met before."""
    fetcher, stranger = FakeFetcher(), FakeFetcher().keep(np.ones(3))
    at_once, seen = ArgumentEncoder._result_tree, []

    def noting(encoder: ArgumentEncoder, value: Any) -> bool:
        seen.append(at_once(encoder, value))
        return seen[-1]

    def encoded(args: tuple[Any, ...]) -> tuple[Any, ...]:
        found = encode_arguments(args, {}, NO_STATIC_ARGS, {}, fetcher)
        places = [(each.row, each.arrays) for each in found.values]
        return found.skeleton, found.blob, found.buffer_leaves, found.count, places

    def drawn(seed: int) -> tuple[Any, ...]:
        numbers = random.Random(seed)
        known = arrays(fetcher, numbers.choice([100, 200]))
        if numbers.random() < 0.2:
            known[numbers.randrange(9)] = numbers.choice([known[0], stranger])
        leaves = iter(known)
        return random_tree(numbers, leaves), random_tree(numbers, leaves)

    cases = [drawn(seed % 200) for seed in range(400)]
    monkeypatch.setattr(ArgumentEncoder, "_result_tree", noting)
    found = list(map(encoded, cases))
    assert seen.count(True) > 100 < seen.count(False)
    monkeypatch.setattr(ArgumentEncoder, "_result_tree", lambda *_: False)
    assert found == list(map(encoded, cases))


def test_each_array_goes_when_nobody_holds_it() -> None:
    """Once, though it was deleted before; not with the others."""
    fetcher = FakeFetcher()
    one = arrays(fetcher)
    del one[4]
    one[0].delete()
    assert fetcher.told == [("drop", 104), ("drop", 100)]
    assert one[0].origin.unusable == {0: DELETED}
    one.clear()
    assert sorted(fetcher.told) == [("drop", 100 + number) for number in range(9)]


def test_some_of_a_handle_range_are_given_away() -> None:
    """By the numbers that they have as leaves of the call."""
    origin = ResultBatch(FakeFetcher(), 100, LEAVES)
    handle_range = HandleRange(
        3, origin, 5, [RemoteArray.kind()(origin, number) for number in (5, 6, 7)]
    )
    handle_range.mark_donated((2, 4, 5, 6), "step")
    assert origin.unusable == {6: "step", 7: "step"}
    handle_range.unmark_donated((4, 9))
    assert origin.unusable == {7: "step"}
    handle_range.mark_released((5,))
    assert origin.released == {7}


def test_arrays_are_doubtful_when_one_is_gone_or_their_call_has_failed() -> None:
    """Only then they are looked at one by one."""
    flights = [None, SimpleNamespace(error=None), SimpleNamespace(error=ValueError())]
    origins = [ResultBatch(FakeFetcher(), 0, LEAVES, flight) for flight in flights]
    assert [origin.has_unusable for origin in origins] == [False, False, True]
    origins[0].unusable[1] = DELETED
    assert origins[0].has_unusable
