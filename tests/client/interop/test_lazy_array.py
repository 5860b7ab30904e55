"""LazyArray is as good as the numpy array that it becomes."""

from __future__ import annotations

import operator
import pickle
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxd import LazyArray
from jaxd.interop.lazy_array import BINARY as OPERATORS
from jaxd.interop.lazy_array import ArrayLike, materialized
from tests.client.array_operations import ANY, NUMPY, outcome
from tests.client.fresh_process import in_a_fresh_process
from tests.ids import row


def lazy(array: Any) -> Any:
    """The same array, untouched so far."""
    array = np.asarray(array)
    return LazyArray(array.dtype.name, array.shape, memoryview(array.tobytes()))


def same(one: Any, other: Any) -> None:
    """Both are equal, in dtype as well."""
    if isinstance(other, dict):
        one, other = list(one.items()), list(other.items())
    if isinstance(other, tuple | list):
        assert type(one) is type(other)
        for a, b in zip(one, other, strict=True):
            same(a, b)
        return
    assert np.asarray(one).dtype == np.asarray(other).dtype
    np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


FLOATS = np.arange(1, 7, dtype=np.float32).reshape(2, 3)


def test_operations_in_place() -> None:
    """Whoever else holds the array sees the change, as with numpy."""
    rows: list[Callable[[Any, Any], Any]] = [
        operator.iadd,
        operator.isub,
        operator.imul,
        operator.itruediv,
        operator.ifloordiv,
        operator.imod,
        operator.ipow,
    ]
    for function in rows:
        with row(function):
            first, expected = lazy(FLOATS), FLOATS.copy()
            held, changed = first, function(first, 2)
            function(expected, 2)
            same(changed, expected)
            same(held, expected)


def test_a_changed_element_stays_changed() -> None:
    """Also on the way back to a server, and through a pickle."""
    array = lazy(FLOATS)
    array[0, 0] = 99
    assert np.frombuffer(array.raw[2], np.float32)[0] == 99
    assert pickle.loads(pickle.dumps(array))[0, 0] == 99


def test_the_bytes_that_arrived_are_not_changed() -> None:
    """They may be shared with other arrays of the same message."""
    data = bytearray(FLOATS.tobytes())
    array: Any = LazyArray("float32", (2, 3), memoryview(data).toreadonly())
    array += 1
    assert data == FLOATS.tobytes()


def test_a_single_number_converts() -> None:
    """To Python's numbers."""
    rows: list[tuple[int, ...]] = [(), (1,), (1, 1)]
    others: list[Any] = [3, 2.5, True, False, -1]
    for shape in rows:
        for value in others:
            with row((shape, value)):
                array = np.full(shape, value)
                assert int(lazy(array)) == int(value)
                assert float(lazy(array)) == float(value)
                assert complex(lazy(array)) == complex(value)
                assert bool(lazy(array)) is bool(value)
                assert lazy(array).item() == value


def test_an_integer_indexes() -> None:
    """A 0-d integer counts and indexes; a float does not."""
    assert [10, 20, 30][lazy(np.int32(1))] == 20
    assert list(range(lazy(np.int64(2)))) == [0, 1]
    with pytest.raises(TypeError):
        operator.index(lazy(np.float32(1)))


@pytest.mark.parametrize("convert", [bool, float, int])
def test_many_numbers_do_not_convert(convert: Any) -> None:
    """As with numpy."""
    with pytest.raises((ValueError, TypeError)):
        convert(lazy(FLOATS))


def test_it_has_no_hash_and_no_other_attributes() -> None:
    """As numpy's arrays have none."""
    with pytest.raises(TypeError):
        hash(lazy(FLOATS))
    with pytest.raises(AttributeError):
        _ = lazy(FLOATS).no_such_thing
    with pytest.raises(TypeError):
        iter(lazy(np.float32(1)))


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4])
def test_unusual_dtypes(dtype: Any) -> None:
    """Those of ml_dtypes."""
    array = np.array([1, 2, 3], dtype)
    same(lazy(array) + lazy(array), array + array)
    assert float(lazy(array[0])) == 1.0


def test_jax_takes_it() -> None:
    """In every place where it takes a numpy array."""
    import jax
    import jax.numpy as jnp

    np.testing.assert_array_equal(jnp.sin(jnp.asarray(lazy(FLOATS))), jnp.sin(FLOATS))
    np.testing.assert_array_equal(jax.device_put(np.asarray(lazy(FLOATS))), FLOATS)


TEXTS = """
import json, random, struct, sys
from jaxd import LazyArray

CODES = {"float64": "d", "float32": "f", "int8": "b", "int16": "h", "int32": "i", "int64": "q",
         "uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q", "bool": "?"}
FLOATS = ("float32", "float64")
chance = random.Random(1)

def random_bits(dtype, count):
    code = CODES[dtype]
    if code == "?":
        return [(dtype, b"\\0"), (dtype, b"\\1")]
    return [(dtype, chance.randbytes(struct.calcsize(code))) for _ in range(count)]

def floats(*values):
    return [(dtype, struct.pack("<" + CODES[dtype], value)) for value in values for dtype in FLOATS]

usual = floats(0.0, -0.0, 1.0, 0.1, -2.5, 1000.0, 0.0625, 3e-4, 65536.0, 123456.5)
usual += [case for dtype in CODES if dtype not in FLOATS for case in random_bits(dtype, 20)]
unusual = floats(1e-4, 9.9e-5, 1e15, 1e16, 123456789.0, 1e10, 16777216.0, 1e-45, 3.4e38, 1 / 3,
                 1e22, 9999999.5, 12345.678901, float("inf"), float("-inf"), float("nan"))
unusual += floats(*(chance.uniform(-2, 2) for _ in range(100)))
unusual += [case for dtype in FLOATS for case in random_bits(dtype, 200)]

def texts(x, dtype):
    found = [str(x), repr(x), format(x), f"{x}", float(x), bool(x)]
    return found + ([f"{x:.3f}", f"{x:>12.2e}"] if dtype in FLOATS else [f"{x:5d}"])

def ours(cases):
    return [texts(LazyArray(dtype, (), memoryview(data)), dtype) for dtype, data in cases]

written = ours(usual)
loaded = "numpy" in sys.modules
written += ours(unusual)
import numpy
arrays = [numpy.frombuffer(data, dtype).reshape(()) for dtype, data in usual + unusual]
theirs = [texts(array, array.dtype.name) for array in arrays]
different = [[a, b] for a, b in zip(written, theirs, strict=True) if repr(a) != repr(b)]
print(json.dumps([loaded, different]))
"""


def test_single_numbers_are_written_as_numpy_writes_them() -> None:
    """str, repr, format and conversions of 0-d arrays; the usual ones without importing numpy."""
    loaded, different = in_a_fresh_process(TEXTS)
    assert loaded is False
    assert different == []


def test_threads_touch_it_together() -> None:
    """All of them see one and the same content."""
    from concurrent.futures import ThreadPoolExecutor

    for _ in range(20):
        array = lazy(FLOATS)
        with ThreadPoolExecutor(8) as threads:
            results = list(threads.map(operator.add, [array] * 16, range(16)))
        assert [float(result.sum()) for result in results] == [21.0 + 6 * i for i in range(16)]


class CountingArray(ArrayLike):
    """Stands for a numpy array, and counts how often it is touched."""

    def __init__(self, array: Any) -> None:
        self.array = np.asarray(array)
        self.shape = self.array.shape
        self.touches = 0

    def _materialized(self) -> Any:
        self.touches += 1
        return self.array


class Foreign:
    """Adds itself from the right."""

    __array_priority__ = 1000

    def __radd__(self, other: Any) -> str:
        return f"{type(other).__name__} + Foreign"


def test_operators_work_on_either_side() -> None:
    """With numbers, arrays, and what else stands for one."""
    for name in OPERATORS:
        with row(name):
            function, array = OPERATORS[name], np.array([[3, 1], [2, 5]])
            equal, stands = np.testing.assert_array_equal, CountingArray(array)
            for other in (2, array) if name != "matmul" else (array,):
                equal(function(stands, other), function(array, other))
                equal(function(other, stands), function(other, array))
            equal(function(stands, stands), function(array, array))


def test_operators_of_other_classes_are_asked() -> None:
    """They see the array itself."""
    stand: Any = CountingArray([1])
    assert stand + Foreign() == "ndarray + Foreign"
    with pytest.raises(TypeError):
        _ = stand + object()


@pytest.mark.parametrize(
    "ask", [len, np.ndim, np.shape, lambda x: x.ndim, lambda x: x.shape, lambda x: hasattr(x, "_x")]
)
def test_the_shape_is_known_without_a_touch(ask: Callable[[Any], Any]) -> None:
    """Length and number of dimensions too; private names belong to nobody."""
    stand = CountingArray(np.zeros((2, 3)))
    ask(stand)
    assert stand.touches == 0


def test_touched_leaves_everything_else_alone() -> None:
    """Lists and numbers are what they were."""
    value = [CountingArray([1])]
    assert materialized(value) is value
    assert materialized((1, value)) == (1, value)
    assert isinstance(materialized((CountingArray([1]),))[0], np.ndarray)


MATRIX = np.arange(12, dtype=np.float32).reshape(3, 4)
MATRIX[0, 0] = -0.5


def test_every_operation_is_that_of_the_numpy_array() -> None:
    """Operators, indices, attributes, methods and functions of numpy."""
    rows: list[str] = [name for name in ANY | NUMPY if name != "float of many"]
    for name in rows:
        with row(name):
            operation = (ANY | NUMPY)[name]
            same(outcome(operation, lazy(MATRIX), np), outcome(operation, MATRIX, np))
