"""What of a result stays, and what comes home."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from jaxd_protocol.messages.data_locations import (
    INLINE_RESULT_BYTES,
    KEEP_ALL,
    KEEP_NONE,
    ResultPolicy,
)
from jaxd_protocol.pytree import Layout, Leaf
from jaxd_server.codec.results import retained_leaves
from tests.spans import leaves_in

LOSS = Leaf("A", "float32")
COUNT = Leaf("A", "int32")
BIAS = Leaf("A", "float32", (64,))
WEIGHTS = Leaf("A", "float32", (64, 1024))
STATE = (COUNT, BIAS, WEIGHTS)


def numbers(
    leaves: Sequence[Leaf], above: int, home: int = INLINE_RESULT_BYTES, taken: Sequence[Leaf] = ()
) -> tuple[list[int], list[int]]:
    """What stays, and what does not come home."""
    found = retained_leaves(Layout(leaves, tuple), ResultPolicy(1, above, home), taken)
    away = list(leaves_in(found.packed_away))
    assert sorted((*found.home, *found.away)) == list(range(len(leaves)))
    kept = [number for number, stays in enumerate(found.present) if stays]
    assert found.nbytes == sum(leaves[number].nbytes for number in kept)
    gone = [i for i, place in enumerate(found.placement.places) if place.buffer == place.offset]
    assert gone == away
    return kept, away


def test_nothing_stays() -> None:
    """All of it comes home, whatever its size, and whatever it looks like."""
    assert numbers((*STATE, LOSS), KEEP_NONE, KEEP_NONE, STATE) == ([], [])


def test_what_is_large_stays() -> None:
    """The rest comes home."""
    assert numbers((*STATE, LOSS), INLINE_RESULT_BYTES) == ([2], [2])


def test_what_looks_like_an_argument_stays_with_it() -> None:
    """It is the state of a loop; the loss is not."""
    assert numbers((*STATE, LOSS), INLINE_RESULT_BYTES, taken=STATE) == ([0, 1, 2], [0, 1, 2])


def test_many_small_arrays_that_look_like_arguments_stay() -> None:
    """None is large, but all together are."""
    small = [Leaf("A", "float32", (8, 1024))] * 3
    assert numbers((*small, LOSS), INLINE_RESULT_BYTES, taken=small) == ([0, 1, 2], [0, 1, 2])
    assert numbers((*small, LOSS), INLINE_RESULT_BYTES) == ([], [])


def test_a_small_result_comes_home() -> None:
    """Also when it looks like the argument."""
    assert numbers((BIAS, LOSS), INLINE_RESULT_BYTES, taken=(BIAS, LOSS)) == ([], [])


def test_everything_stays() -> None:
    """And nothing comes home when nothing is to."""
    assert numbers((*STATE, LOSS), KEEP_ALL, -1) == ([0, 1, 2, 3], [0, 1, 2, 3])


def test_the_state_of_a_loop_does_not_come_home() -> None:
    """However small it is; what is new does, and stays as well."""
    assert numbers((*STATE, LOSS), KEEP_ALL, taken=STATE) == ([0, 1, 2, 3], [0, 1, 2])
    assert numbers((BIAS, LOSS), KEEP_ALL, taken=(BIAS,)) == ([0, 1], [0])


@pytest.mark.parametrize(
    ("taken", "away"), [((), []), ((LOSS,), [0]), ((LOSS, LOSS), [0, 1]), ((COUNT,), [])]
)
def test_each_value_that_was_taken_stands_for_one_leaf(
    taken: Sequence[Leaf], away: list[int]
) -> None:
    """A loss is not taken for the state because there is a number of its kind in the state."""
    assert numbers((LOSS, LOSS), KEEP_ALL, taken=taken)[1] == away
