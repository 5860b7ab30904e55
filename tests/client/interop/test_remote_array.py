"""A RemoteArray is as good as the array that it stands for, and moves no more than it must."""

from __future__ import annotations

import copy
import operator
import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxd import PRNGKeys
from jaxd.interop.remote_array import basic_index, handle_reducer
from jaxd_protocol.errors import ValueDeleted
from tests.client.array_operations import ANY, JAX, NUMPY, WITH_JAX, outcome
from tests.client.fake_fetcher import FakeFetcher
from tests.client.fresh_process import in_a_fresh_process
from tests.ids import row

wait: Any = jax.block_until_ready
MATRIX = np.arange(12, dtype=np.float32).reshape(3, 4)
MATRIX[0, 0] = -0.5


@pytest.fixture
def fetcher() -> FakeFetcher:
    """Nothing kept so far."""
    return FakeFetcher()


@pytest.fixture
def without_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process seems not to have imported jax."""
    for module in ("interop.remote_array", "interop.jax_runtime"):
        monkeypatch.setattr(f"jaxd.{module}.loaded_jax", lambda: None)


def same(one: Any, other: Any) -> None:
    """Both are equal, of one type and of one dtype."""
    assert type(one) is type(other)
    if isinstance(other, list | tuple):
        for a, b in zip(one, other, strict=True):
            same(a, b)
    elif isinstance(other, dict):
        same(list(one.items()), list(other.items()))
    elif isinstance(other, np.ndarray | np.generic | jax.Array):
        assert (one.dtype, getattr(one, "weak_type", 0)) == (
            other.dtype,
            getattr(other, "weak_type", 0),
        )
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    else:
        assert one == other


def test_every_operation_is_that_of_the_jax_array() -> None:
    """In a process that has imported jax."""
    for name, operation in ({name: ANY[name] for name in WITH_JAX} | JAX).items():
        with row(name):
            expected = outcome(operation, jnp.asarray(MATRIX), jnp)
            same(outcome(operation, FakeFetcher().keep(MATRIX), jnp), expected)


@pytest.mark.usefixtures("without_jax")
def test_every_operation_is_that_of_the_numpy_array() -> None:
    """In a process without jax."""
    for name, operation in (ANY | NUMPY).items():
        with row(name):
            found = outcome(operation, FakeFetcher().keep(MATRIX), np)
            same(found, outcome(operation, MATRIX, np))


@pytest.mark.parametrize("dtype", ["int8", "uint16", "bool", "float16", "bfloat16", "complex64"])
@pytest.mark.parametrize("shape", [(), (1,), (0, 3)], ids=str)
def test_other_dtypes_and_shapes(dtype: str, shape: tuple[int, ...], fetcher: FakeFetcher) -> None:
    """Empty arrays and single numbers, small floats and complex numbers."""
    array = jnp.ones(shape, dtype)
    for operation in (lambda x: x + x, str, np.asarray, lambda x: x.tolist(), lambda x: x.nbytes):
        same(operation(fetcher.keep(array)), operation(array))


def test_wide_and_weak_numbers_stay_what_they_are(fetcher: FakeFetcher) -> None:
    """float64 without jax_enable_x64, and weak types."""
    wide, weak = fetcher.keep(np.arange(3.0)), fetcher.keep(np.float32(2), weak=True)
    assert wide.fetch().dtype == np.float64
    assert (weak + jnp.ones(2, "bfloat16")).dtype == ml_dtypes.bfloat16
    assert jax.jit(lambda x: x + jnp.ones(2, "bfloat16"))(weak).dtype == ml_dtypes.bfloat16


# what moves

STILL: dict[str, Callable[[Any], Any]] = {
    "repr": repr,
    "len": len,
    "shape": lambda h: (h.shape, h.dtype, h.ndim, h.size, h.nbytes, h.itemsize, h.weak_type),
    "isinstance": lambda h: (isinstance(h, jax.Array), isinstance(h, np.ndarray)),
    "hasattr": lambda h: (hasattr(h, "unbox"), hasattr(h, "_value"), hasattr(h, "__len__")),
    "tree": lambda h: jax.tree.map(np.shape, {"a": [h]}),
    "block": lambda h: wait([h]),
    "typeof": jax.typeof,
    "zeros_like": jnp.zeros_like,
    "result_type": jnp.result_type,
    "delete": lambda h: h.delete(),
    "is_deleted": lambda h: h.is_deleted(),
}


def test_what_is_known_here_moves_nothing(fetcher: FakeFetcher) -> None:
    """Shape, dtype, place."""
    for name, look in STILL.items():
        look(fetcher.keep(MATRIX))
        assert fetcher.moved == 0, name


def test_it_says_where_it_lives(fetcher: FakeFetcher) -> None:
    """And whether it is still there."""
    array, key = fetcher.keep(MATRIX), fetcher.keep(jax.random.key(0))
    assert repr(array) == "<jaxd.RemoteArray float32[3,4] on unix:///run/jaxd>"
    assert repr(key) == "<jaxd.RemoteArray key<threefry2x32>[] on unix:///run/jaxd>"
    array.delete()
    assert repr(array) == "<jaxd.RemoteArray float32[3,4] on unix:///run/jaxd, deleted>"


def test_what_came_home_is_kept(fetcher: FakeFetcher) -> None:
    """The second touch moves nothing, nor does a part of what is here."""
    array = fetcher.keep(MATRIX)
    for touch in (np.asarray, jnp.sin, str, lambda h: h[1], lambda h: h.fetch(), list):
        touch(array)
    assert fetcher.told == ["bring"]


def test_a_part_moves_alone(fetcher: FakeFetcher) -> None:
    """Where nothing has come home."""
    array = fetcher.keep(np.arange(1000, dtype=np.float32))
    np.testing.assert_array_equal(array[10:20], np.arange(10, 20))
    assert float(array[-1]) == 999.0
    assert fetcher.told == [("part", (slice(10, 20, None),)), ("part", (-1,))]
    assert fetcher.moved == 44
    np.testing.assert_array_equal(array[array > 997], [998, 999])
    assert fetcher.told[2:] == ["bring"]


@pytest.mark.usefixtures("without_jax")
def test_a_copy_is_the_callers_own(fetcher: FakeFetcher) -> None:
    """What is kept here, or lies in shared memory, nobody can change."""
    array = fetcher.keep(MATRIX)
    mine, view = array.fetch(), array.fetch(copy=False)
    mine[0] = 99
    assert not view.flags.writeable
    assert not np.asarray(array).flags.writeable
    np.testing.assert_array_equal(array, MATRIX)
    assert fetcher.told == ["bring"]


def test_fetch_gives_jax_arrays(fetcher: FakeFetcher) -> None:
    """And `block_until_ready` the array itself, still there."""
    array = fetcher.keep(MATRIX)
    assert array.block_until_ready() is array
    same(array.fetch(), jnp.asarray(MATRIX))
    assert fetcher.told == ["wait", "bring"]


# it cannot be changed


def test_it_cannot_be_changed(fetcher: FakeFetcher) -> None:
    """The message says what to do; `+=` makes another array."""
    array = first = fetcher.keep(MATRIX)
    with pytest.raises(TypeError, match=r"\.at\[index\]\.set\(value\).*np\.array"):
        array[0] = 1
    array += 1
    same(array, jnp.asarray(MATRIX) + 1)
    same(first.fetch(), jnp.asarray(MATRIX))
    with pytest.raises(TypeError, match="cannot be changed"):
        first.__class__ = int


# keys


def test_keys_are_jaxs_own(fetcher: FakeFetcher) -> None:
    """In jax.random, one or many, whatever the implementation."""
    for key in (jax.random.key(7), jax.random.split(jax.random.key(1, impl="rbg"), 3)):
        handle = fetcher.keep(key)
        assert (handle.dtype, handle.shape, handle.ndim) == (key.dtype, key.shape, key.ndim)
        assert (handle.size, handle.nbytes, handle.itemsize) == (key.size, key.nbytes, key.itemsize)
        for function in (jax.random.key_data, jax.random.key_impl, lambda k: operator.eq(k, k)):
            same(function(handle), function(key))
        for copied in (pickle.loads(pickle.dumps(handle)), copy.deepcopy(handle)):
            same(jax.random.key_data(copied), jax.random.key_data(key))
    key, one = jax.random.key(7), fetcher.keep(jax.random.key(7))
    same(jax.random.normal(one, (3,)), jax.random.normal(key, (3,)))
    same(jax.jit(jax.random.uniform)(one), jax.random.uniform(key))
    same(jax.random.key_data(jax.random.split(one)), jax.random.key_data(jax.random.split(key)))
    with pytest.raises(TypeError):
        bool(one)


@pytest.mark.usefixtures("without_jax")
def test_keys_without_jax_are_opaque(fetcher: FakeFetcher) -> None:
    """As results are."""
    key = fetcher.keep(jax.random.key(7))
    found = key.fetch()
    assert type(found) is PRNGKeys
    assert found.impl == "threefry2x32"
    np.testing.assert_array_equal(found.data, [0, 7])
    assert (key.shape, key.dtype) == ((), np.uint32)
    with pytest.raises(TypeError):
        _ = key + 1


# deleted

TOUCHES: dict[str, Callable[[Any], Any]] = {
    "fetch": lambda h: h.fetch(),
    "view": lambda h: h.fetch(copy=False),
    "block_until_ready": lambda h: h.block_until_ready(),
    "operator": lambda h: h + 1,
    "other side": lambda h: np.ones(4) + h,
    "matmul": lambda h: h @ h.T,
    "comparison": lambda h: operator.eq(h, h),
    "part": lambda h: h[0],
    "mask": lambda h: h[[True, False, True]],
    "method": lambda h: h.sum(),
    "attribute": lambda h: h.T,
    "iter": list,
    "in": lambda h: 3 in h,
    "float": float,
    "str": str,
    "format": lambda h: f"{h}",
    "np.asarray": np.asarray,
    "np.sin": np.sin,
    "np.concatenate": lambda h: np.concatenate([h, h]),
    "np.sum": np.sum,
    "dlpack": np.from_dlpack,
    "pickle": pickle.dumps,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}
JAX_TOUCHES: dict[str, Callable[[Any], Any]] = {
    "jnp.asarray": jnp.asarray,
    "jnp.sin": jnp.sin,
    "lax": jax.lax.sin,
    "jit": jax.jit(lambda x: x + 1),
    "grad": jax.grad(lambda x: x.sum()),
    "vmap": jax.vmap(jnp.sin),
    "device_put": jax.device_put,
    "device_get": jax.device_get,
    "block_until_ready of jax": lambda h: wait([h]),
    "at": lambda h: h.at[0].set(1),
    "shards": lambda h: h.addressable_shards,
}


def each_touch_raises(
    touches: dict[str, Any], make: Callable[[], Any], error: type[Exception], match: str
) -> None:
    """The same error comes out of every kind of touch."""
    for name, touch in touches.items():
        with pytest.raises(error, match=match):
            pytest.fail(f"{name}: {touch(make())!r}")


def test_a_deleted_array_says_so(fetcher: FakeFetcher) -> None:
    """Also when it had come home before."""

    def deleted() -> Any:
        array = fetcher.keep(MATRIX)
        np.asarray(array)
        array.delete()
        return array

    each_touch_raises(TOUCHES | JAX_TOUCHES, deleted, ValueDeleted, r"delete\(\)")
    assert deleted().is_deleted()
    assert deleted().shape == (3, 4)


def test_a_donated_array_says_to_whom(fetcher: FakeFetcher) -> None:
    """And nothing is asked of the server."""

    def donated() -> Any:
        array = fetcher.keep(MATRIX)
        array.origin.donate(range(1), "train_step")
        return array

    each_touch_raises(TOUCHES | JAX_TOUCHES, donated, ValueDeleted, "donated to train_step")
    array = donated()
    array.delete()
    assert array.is_deleted()
    assert array.donated_to == "train_step"
    assert fetcher.moved == 0


@pytest.mark.usefixtures("without_jax")
def test_a_deleted_array_says_so_without_jax(fetcher: FakeFetcher) -> None:
    """The same."""

    def deleted() -> Any:
        array = fetcher.keep(MATRIX)
        array.delete()
        array.delete()
        return array

    each_touch_raises(TOUCHES, deleted, ValueDeleted, r"delete\(\)")
    assert [told[0] for told in fetcher.told] == ["drop"] * len(TOUCHES)


# errors of the call


def test_the_error_of_its_call_comes_out_of_every_touch(fetcher: FakeFetcher) -> None:
    """With jax."""
    array = fetcher.keep(MATRIX)
    fetcher.failure = ZeroDivisionError("in step 7")
    each_touch_raises(TOUCHES | JAX_TOUCHES, lambda: array, ZeroDivisionError, "in step 7")


@pytest.mark.usefixtures("without_jax")
def test_the_error_comes_out_without_jax(fetcher: FakeFetcher) -> None:
    """The same, and a later touch may succeed."""
    array = fetcher.keep(MATRIX)
    fetcher.failure = ConnectionError("no network")
    each_touch_raises(TOUCHES, lambda: array, ConnectionError, "no network")
    fetcher.failure = None
    np.testing.assert_array_equal(array, MATRIX)


# pickles


def test_a_pickle_holds_the_array(fetcher: FakeFetcher) -> None:
    """Which anyone can read who has numpy or jax."""
    array = fetcher.keep(MATRIX)
    assert b"jaxd" not in pickle.dumps(array)
    assert pickle.loads(pickle.dumps([array, array]))[1].dtype == np.float32


def test_a_pickle_by_handle_moves_nothing(fetcher: FakeFetcher) -> None:
    """Where someone says what to write in place of the array."""
    array = fetcher.keep(MATRIX)
    token = handle_reducer.set(lambda one: (operator.neg, (one.id + 5,)))
    try:
        assert pickle.loads(pickle.dumps(array)) == -5
    finally:
        handle_reducer.reset(token)
    assert fetcher.moved == 0


# processes without numpy, and those that import jax late

PRELUDE = """
import struct, sys
from jaxd.interop.remote_array import ResultBatch
from jaxd.interop.remote_array import RemoteArray
from jaxd_protocol.pytree import Leaf

class Keeper:
    address = "unix:///run/jaxd"
    def fetch_bytes(self, array): return memoryview(self.data)
    def part(self, array, index): return "part"
    def drop(self, ids): pass

def keep(shape, *numbers):
    keeper = Keeper()
    keeper.data = struct.pack(f"<{len(numbers)}f", *numbers)
    return ResultBatch(keeper, 1, [Leaf("A", "float32", shape)]).make(range(1))[0]
"""


def test_a_single_number_needs_no_numpy() -> None:
    """Nor does what is known without moving it."""
    in_a_fresh_process(
        PRELUDE
        + """
x = keep((), 0.1)
assert (str(x), f"{x:.3f}", int(x), bool(x)) == ("0.1", "0.100", 0, True), str(x)
assert abs(float(x) - 0.1) < 1e-8 and str(x.fetch()) == "0.1"
y = keep((3,), 1, 2, 3)
assert (len(y), y.nbytes, y.ndim, y[1:], repr(y)[-4:]) == (3, 12, 1, "part", "axd>")
assert "numpy" not in sys.modules
import numpy as np
assert not np.asarray(y).flags.writeable and (y + 1).tolist() == [2, 3, 4]
assert "jax" not in sys.modules
"""
    )


@pytest.mark.slow
def test_an_array_that_is_older_than_the_import_of_jax() -> None:
    """Is a jax array as soon as jax is there."""
    in_a_fresh_process(
        PRELUDE
        + """
old = keep((3,), 0, 1, 2)
assert (old * 2).tolist() == [0, 2, 4]
import jax, jax.numpy as jnp
assert isinstance(old, jax.Array) and isinstance(old, RemoteArray)
assert type(old + 1) is type(jnp.ones(3) + old) is type(jnp.ones(1))
assert jax.jit(jnp.sum)(old) == 3 and jax.grad(lambda x: x.sum())(old)[0] == 1
assert type(keep((3,), 0, 1, 2)) is not RemoteArray
"""
    )


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


def test_basic_indices_become_plain_numbers() -> None:
    """They mean the same, and hold nothing but Python's own ints."""
    array = np.arange(120).reshape(SHAPE)
    for index in BASIC:
        with row(index):
            found = basic_index(index, SHAPE)
            assert found is not None
            np.testing.assert_array_equal(array[found], array[index])
            for item in found:
                parts = (item.start, item.stop, item.step) if type(item) is slice else (item,)
                assert all(part is None or part is ... or type(part) is int for part in parts)


def test_other_indices_are_left_to_the_array() -> None:
    """Masks, arrays, and what does not fit."""
    assert [index for index in OTHER if basic_index(index, SHAPE) is not None] == []


def test_an_empty_axis_has_no_elements() -> None:
    """Only slices fit."""
    assert basic_index(0, (0,)) is None
    assert basic_index(slice(0, 1), (0,)) == (slice(0, 1, None),)
    assert basic_index((), ()) == ()
    assert basic_index(0, ()) is None
