"""What stands for an array hands everything to it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jaxd.array_like import BINARY, ArrayLike, touched


class Stand(ArrayLike):
    """Stands for a numpy array, and counts how often it is touched."""

    def __init__(self, array: Any) -> None:
        self.array = np.asarray(array)
        self.shape = self.array.shape
        self.touches = 0

    def _touched(self) -> Any:
        self.touches += 1
        return self.array


class Foreign:
    """Adds itself from the right."""

    __array_priority__ = 1000

    def __radd__(self, other: Any) -> str:
        return f"{type(other).__name__} + Foreign"


@pytest.mark.parametrize("name", BINARY)
def test_operators_work_on_either_side(name: str) -> None:
    """With numbers, arrays, and what else stands for one."""
    function, array = BINARY[name], np.array([[3, 1], [2, 5]])
    for other in (2, array) if name != "matmul" else (array,):
        np.testing.assert_array_equal(function(Stand(array), other), function(array, other))
        np.testing.assert_array_equal(function(other, Stand(array)), function(other, array))
    np.testing.assert_array_equal(function(Stand(array), Stand(array)), function(array, array))


def test_operators_of_other_classes_are_asked() -> None:
    """They see the array itself."""
    stand: Any = Stand([1])
    assert stand + Foreign() == "ndarray + Foreign"
    with pytest.raises(TypeError):
        _ = stand + object()


@pytest.mark.parametrize(
    "ask", [len, np.ndim, np.shape, lambda x: x.ndim, lambda x: x.shape, lambda x: hasattr(x, "_x")]
)
def test_the_shape_is_known_without_a_touch(ask: Callable[[Any], Any]) -> None:
    """Length and number of dimensions too; private names belong to nobody."""
    stand = Stand(np.zeros((2, 3)))
    ask(stand)
    assert stand.touches == 0


def test_it_converts_and_writes_itself_as_the_array() -> None:
    """Numbers, texts, formats."""
    number = Stand(np.float32(2.5))
    assert (float(number), int(number), bool(number), complex(number)) == (2.5, 2, True, 2.5 + 0j)
    assert (str(number), repr(number), f"{number:.3f}") == (
        "2.5",
        "array(2.5, dtype=float32)",
        "2.500",
    )
    assert operator.index(Stand(3)) == 3
    with pytest.raises(TypeError, match="unsized"):
        len(number)


def test_it_indexes_and_is_indexed_by_its_kind() -> None:
    """Also inside a tuple of indices."""
    array: Any = np.arange(4).reshape(2, 2)
    rows: Any = Stand([1, 0])
    stand: Any = Stand(array)
    np.testing.assert_array_equal(stand[rows], array[::-1])
    np.testing.assert_array_equal(stand[rows, 0], [2, 0])
    np.testing.assert_array_equal(array[rows], array[::-1])
    assert [list(row) for row in reversed(stand)] == [[2, 3], [0, 1]]


def test_touched_leaves_everything_else_alone() -> None:
    """Lists and numbers are what they were."""
    value = [Stand([1])]
    assert touched(value) is value
    assert touched((1, value)) == (1, value)
    assert isinstance(touched((Stand([1]),))[0], np.ndarray)


def test_a_subclass_must_say_how_the_array_is_made() -> None:
    """There is no default."""
    with pytest.raises(NotImplementedError):
        ArrayLike()._touched()


def test_dlpack_and_the_array_api_are_the_arrays() -> None:
    """Both go to the array."""
    np.testing.assert_array_equal(np.from_dlpack(Stand([1.0, 2.0])), [1.0, 2.0])
    assert Stand([1]).__array_namespace__() is np
