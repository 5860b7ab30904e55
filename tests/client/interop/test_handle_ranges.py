"""What the arrays of one call have in common."""

from __future__ import annotations

import random
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from jaxd.interop.remote_array import RemoteArray, ResultBatch
from jaxd.request.arguments import ArgumentEncoder, encode_arguments
from jaxd_protocol.jit.static_args import NO_STATIC_ARGS
from jaxd_protocol.messages.data_locations import VALUE, DataLocation
from jaxd_protocol.pytree import Leaf
from tests.client.fake_fetcher import FakeFetcher, watched_arrays

if TYPE_CHECKING:
    import pytest

LEAVES = [Leaf("A", "float32", (n,)) for n in range(9)]


def arrays(fetcher: FakeFetcher, first: int = 100) -> list[RemoteArray]:
    """The arrays of one call that returned nine."""
    return watched_arrays(ResultBatch(fetcher, first, LEAVES))


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
    encoded((fetcher.keep(np.ones(3)),))  # its class is known from now on
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
    assert [array.is_deleted() for array in one] == [True] + [False] * 7
    one.clear()
    assert sorted(fetcher.told) == [("drop", 100 + number) for number in range(9)]


def test_arrays_are_doubtful_when_one_is_gone_or_their_call_has_failed() -> None:
    """Only then they are looked at one by one."""
    flights = [None, SimpleNamespace(error=None), SimpleNamespace(error=ValueError())]
    origins = [ResultBatch(FakeFetcher(), 0, LEAVES, flight) for flight in flights]
    assert [origin.may_be_unusable(range(9)) for origin in origins] == [False, False, True]
    origins[0].donate(range(2, 4), "step")
    numbers = (range(2), range(1, 3), range(3, 4), range(4, 9))
    assert [origins[0].may_be_unusable(each) for each in numbers] == [False, True, True, False]
    origins[1].deleted.add(1)
    assert origins[1].may_be_unusable(range(9))


# who holds them -------------------------------------------------------------------------------


class Watcher:
    """Notes which arrays went."""

    def __init__(self, batch: ResultBatch) -> None:
        self.batch = batch
        self.notices = 0
        self.is_watching = batch.watch(self)

    def __call__(self, _: object) -> None:
        self.notices += 1

    def gone(self) -> list[int]:
        """The ids of those that went since the last time."""
        return [id_ for ids in self.batch.take_gone()[0] for id_ in ids]


def test_a_batch_holds_its_arrays_until_they_are_watched() -> None:
    """Then each that nobody holds goes, and is told of once."""
    batch = ResultBatch(FakeFetcher(), 100, LEAVES)
    made = batch.make(range(9))
    del made[2:4]
    assert len(batch.arrays) == 9
    watcher = Watcher(batch)
    assert (watcher.is_watching, watcher.notices, watcher.gone()) == (True, 2, [102, 103])
    assert [array.number for array in batch.arrays] == [0, 1, 4, 5, 6, 7, 8]
    del made[0]
    assert batch.take_gone() == ([range(100, 101)], True)
    made.clear()
    assert batch.take_gone() == ([range(101, 102), range(104, 109)], False)
    assert watcher.gone() == []


def test_what_was_donated_by_then_is_not_watched() -> None:
    """A loop makes hundreds in each step that need no weak reference."""
    batch = ResultBatch(FakeFetcher(), 100, LEAVES)
    made = batch.make(range(9))
    batch.donate(range(1, 8), "step")
    watcher = Watcher(batch)
    assert [weakref.getweakrefcount(array) for array in made] == [1, 0, 0, 0, 0, 0, 0, 0, 1]
    made.clear()
    assert watcher.gone() == [100, 108]


def test_all_are_donated() -> None:
    """There is nothing to watch."""
    batch = ResultBatch(FakeFetcher(), 100, LEAVES)
    held = batch.make(range(9))
    batch.donate(range(9), "step")
    assert not Watcher(batch).is_watching
    assert batch.arrays == []
    assert len(held) == 9


def test_what_a_call_did_not_take_is_watched_again() -> None:
    """It was refused; those that another has taken stay as they are."""
    batch = ResultBatch(FakeFetcher(), 100, LEAVES)
    made = batch.make(range(9))
    batch.donate(range(1, 8), "step")
    batch.donate(range(5, 6), "other")
    watcher = Watcher(batch)
    batch.take_back(range(1, 8), "step", made)
    assert [array.donated_to for array in made] == [None] * 5 + ["other"] + [None] * 3
    made.clear()
    assert watcher.gone() == [100, 101, 102, 103, 104, 106, 107, 108]


def test_some_of_a_result_are_made() -> None:
    """The others came with the reply; the numbers of these have gaps."""
    batch = ResultBatch(FakeFetcher(), 100, LEAVES)
    made = batch.make((1, 4, 5, 8))
    batch.donate(range(2, 6), "step")
    watcher = Watcher(batch)
    assert [weakref.getweakrefcount(array) for array in made] == [1, 0, 0, 1]
    batch.forget(range(8, 9))
    made.clear()
    assert watcher.gone() == [101]


def test_a_tree_that_goes_round_is_known_by_its_arrays() -> None:
    """As long as the batch holds them; none is compared by what is in it."""
    fetcher = FakeFetcher()
    batch = ResultBatch(fetcher, 100, LEAVES)
    made = batch.make(range(9))
    other = arrays(fetcher)
    assert batch.begins_with(0, made)
    assert batch.begins_with(3, made[3:7])
    assert not batch.begins_with(0, made[1:])
    assert not batch.begins_with(0, [*made[:4], other[4], *made[5:]])
    assert not batch.begins_with(0, [*made, made[0]])
    batch.watch(lambda _: None)
    assert not batch.begins_with(0, made)
    assert fetcher.told == []
