"""Arrays that lie in blocks: what they are, and that the block is theirs while they live."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from jaxd.transfer.shared_arrays import block_view, empty, shared_copy
from jaxd.transfer.shared_memory import MIN_BLOCK_BYTES, BlockPool, SharedBlock
from jaxd_protocol.base import shared_memory
from tests.client.fresh_process import in_a_fresh_process

pytestmark = pytest.mark.skipif(
    not shared_memory.available(), reason="this system has no files in memory"
)

SMALL = MIN_BLOCK_BYTES


class Pair(NamedTuple):
    """A node of a tree that is a tuple and more."""

    left: Any
    right: Any


@pytest.fixture
def pool() -> Iterator[BlockPool]:
    pool = BlockPool(1 << 24)
    yield pool
    pool.after_fork()


def block_of(pool: BlockPool, array: Any) -> SharedBlock | None:
    """The block that the array lies in."""
    place = pool.find(array.__array_interface__["data"][0], array.nbytes)
    if place is None:
        return None
    place[0].release()
    return place[0]


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [(100_000, "f4"), ((100, 1000), "i8"), ((3, 0, 5), "f8"), ((50_000,), ml_dtypes.bfloat16),
     ((1 << 16,), bool), ((5, 7), "f4"), ((), "f8")],
)  # fmt: skip
def test_an_empty_array_is_as_numpy_would_make_it(pool: BlockPool, shape: Any, dtype: Any) -> None:
    """A large one lies in a block."""
    array, expected = empty(pool, shape, dtype), np.empty(shape, dtype)
    assert (array.shape, array.dtype) == (expected.shape, expected.dtype)
    assert array.flags.writeable
    assert array.flags.c_contiguous
    array[...] = 1
    assert (array == 1).all()
    assert (block_of(pool, array) is not None) == (array.nbytes >= 1 << 16)


def test_objects_and_what_is_over_the_limit_lie_elsewhere(pool: BlockPool) -> None:
    """As if there were no blocks."""
    for array in (empty(pool, 1 << 17, object), empty(pool, 1 << 25, "u1")):
        assert block_of(pool, array) is None


VIEWS: dict[str, Callable[[Any], Any]] = {
    "the array": lambda array: array,
    "a slice": lambda array: array[5:9],
    "a slice of a slice": lambda array: array[5:90][::-1][2:],
    "another shape and dtype": lambda array: array.reshape(2, -1).view("u1")[1],
    "a memoryview": lambda array: memoryview(array)[3:],
    "an array of a memoryview": lambda array: np.frombuffer(memoryview(array), "u1"),
    "the base": lambda array: array.base,
}


@pytest.mark.parametrize("make", VIEWS.values(), ids=list(VIEWS))
def test_the_block_belongs_to_the_array_while_any_view_of_it_exists(
    pool: BlockPool, make: Callable[[Any], Any]
) -> None:
    """And is used again when the last one is gone."""
    array = empty(pool, 100_000, "f4")
    block = block_of(pool, array)
    view = make(array)
    del array
    gc.collect()
    assert pool.lease(400_000) is not block
    del view
    gc.collect()
    assert pool.lease(400_000) is block


def test_a_view_is_read_only_for_good(pool: BlockPool) -> None:
    """It shows what the block has, and nobody can be talked into writing there."""
    block = pool.lease(SMALL)
    assert block is not None
    block.view[10:13] = b"abc"
    view = block_view(block, 10, 3)
    assert bytes(view) == b"abc"
    for array in (view, view[1:], view.base):
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True


def tree() -> Any:
    large = np.arange(50_000, dtype="f4")
    return {
        "list": [large, large.reshape(100, 500).T, np.arange(3)],
        "pair": Pair(np.arange(40_000, dtype="i8")[::2], None),
        "rest": (1, "text", np.float32(2), np.array(["x"], object)),
    }


def test_a_copy_of_a_tree_is_equal_and_its_large_arrays_lie_in_one_block(pool: BlockPool) -> None:
    """What is not an array stays what it is."""
    original = tree()
    copy = shared_copy(pool, original)
    assert type(copy["pair"]) is Pair
    assert copy["rest"][:3] == original["rest"][:3]
    pairs = [
        *zip(original["list"], copy["list"], strict=True),
        (original["pair"].left, copy["pair"].left),
        (original["rest"][3], copy["rest"][3]),
    ]
    for array, mine in pairs:
        assert (mine.shape, mine.dtype) == (array.shape, array.dtype)
        assert not np.shares_memory(array, mine)
        np.testing.assert_array_equal(array, mine)
    found = {block_of(pool, mine) for _, mine in pairs if mine.nbytes > 1 << 16}
    assert len(found) == 1
    assert None not in found


def test_a_copy_can_be_written_and_its_block_is_free_when_all_of_it_is_gone(
    pool: BlockPool,
) -> None:
    """Each array has a share."""
    one, other = shared_copy(pool, [np.zeros(20_000), np.zeros(20_000)])
    one[:] = 1
    assert not other.any()
    block = block_of(pool, one)
    del one
    gc.collect()
    assert pool.lease(SMALL * 2) is not block
    del other
    gc.collect()
    assert pool.lease(SMALL * 2) is block


def test_a_tree_that_finds_no_block_is_copied_all_the_same() -> None:
    """By numpy."""
    array = np.zeros(20_000)
    copy = shared_copy(BlockPool(0), {"a": array, "b": 1})
    assert copy["b"] == 1
    assert not np.shares_memory(copy["a"], array)
    np.testing.assert_array_equal(copy["a"], array)


JAX_TREE = """
import jax, jax.numpy as jnp, numpy as np
from jaxd.transfer.shared_arrays import shared_copy
from jaxd.transfer.shared_memory import BlockPool

@jax.tree_util.register_dataclass
@__import__("dataclasses").dataclass
class State:
    weights: object
    key: object

state = State(jnp.ones((200, 200), jnp.bfloat16), jax.random.key(0))
pool = BlockPool(1 << 24)
copy = shared_copy(pool, state)
assert type(copy) is State and copy.key is state.key
assert type(copy.weights) is np.ndarray and copy.weights.dtype == jnp.bfloat16
assert (copy.weights == 1).all() and copy.weights.shape == (200, 200)
assert pool.find(copy.weights.ctypes.data, copy.weights.nbytes)
"""


@pytest.mark.slow
def test_once_jax_is_imported_its_trees_and_arrays_are_copied_too() -> None:
    """Into numpy arrays; PRNG keys stay what they are."""
    in_a_fresh_process(JAX_TREE, JAX_PLATFORMS="cpu")
