"""Which indices can be answered where the array lies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxd.interop.remote_array import basic_index

SHAPE = (4, 5, 6)
BASIC: list[Any] = [
    0, -4, 3, np.int64(2), slice(None), slice(1, 3), slice(None, None, -1), slice(9, 99), ..., None,
    (), (1, 2, 3), (1, slice(2), -1), (..., 0), (0, ..., 5), (None, 1, None, ...), (..., None),
    (slice(np.int8(1), None), ...),
]  # fmt: skip
OTHER: list[Any] = [
    4, -5, (0, 5), (..., 6), (0, 0, 0, 0), (0, 0, 0, 0, ...), (..., ...), 1.0, True, np.True_, "x",
    [0, 1], np.array(1), np.array([0, 1]), (0, [1]), slice(0, 1, 0), slice(0.5), {},
    (0, slice(None, "a")), slice(np.array(1)),
]  # fmt: skip


@pytest.mark.parametrize("index", BASIC, ids=str)
def test_basic_indices_become_plain_numbers(index: Any) -> None:
    """They mean the same, and hold nothing but Python's own ints."""
    found = basic_index(index, SHAPE)
    assert found is not None
    array = np.arange(120).reshape(SHAPE)
    np.testing.assert_array_equal(array[found], array[index])
    for item in found:
        parts = (item.start, item.stop, item.step) if type(item) is slice else (item,)
        assert all(part is None or part is ... or type(part) is int for part in parts)


@pytest.mark.parametrize("index", OTHER, ids=str)
def test_other_indices_are_left_to_the_array(index: Any) -> None:
    """Masks, arrays, and what does not fit."""
    assert basic_index(index, SHAPE) is None


def test_an_empty_axis_has_no_elements() -> None:
    """Only slices fit."""
    assert basic_index(0, (0,)) is None
    assert basic_index(slice(0, 1), (0,)) == (slice(0, 1, None),)
    assert basic_index((), ()) == ()
    assert basic_index(0, ()) is None
