from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.lib import guard_lib

from jaxd_protocol.jax_objects import arrays
from jaxd_protocol.jax_objects.arrays import (
    exact_array,
    is_key_array,
    key_array,
    key_data,
    key_impl,
    key_spec,
    weak_array,
)

IMPLS = ["threefry2x32", "rbg", "unsafe_rbg"]


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("count", [None, 3])
def test_keys_are_read_as_the_public_api_reads_them(impl: str, count: int | None) -> None:
    """Their implementation by name, and their numbers."""
    key = jax.random.key(7, impl=impl)
    keys = key if count is None else jax.random.split(key, count)
    data = key_data(keys)
    assert key_spec(keys.aval) == (impl, data.dtype.name, data.shape)
    assert impl == key_impl(keys) == str(jax.random.key_impl(keys))
    assert type(data) is np.ndarray
    assert data.dtype == np.uint32
    np.testing.assert_array_equal(data, jax.random.key_data(keys))


@pytest.mark.parametrize("impl", IMPLS)
def test_keys_are_made_as_the_public_api_makes_them(impl: str) -> None:
    """Type, shape and what is drawn with them."""
    key = jax.random.key(7, impl=impl)
    ours = key_array(impl, np.asarray(jax.random.key_data(key)))
    theirs = jax.random.wrap_key_data(jax.random.key_data(key), impl=impl)
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape) == (key.dtype, ())
    assert ours.aval == theirs.aval
    np.testing.assert_array_equal(jax.random.uniform(ours, (4,)), jax.random.uniform(key, (4,)))


def test_keys_go_through_jit_like_others() -> None:
    """With the same entry in its cache."""
    traces = []

    @jax.jit
    def draw(key: Any) -> Any:
        traces.append(1)
        return jax.random.uniform(key)

    key = jax.random.key(3)
    assert draw(key) == draw(key_array("threefry2x32", key_data(key)))
    assert traces == [1]


def test_only_typed_keys_are_keys() -> None:
    """Their numbers are ordinary arrays."""
    assert is_key_array(jax.random.key(0))
    assert is_key_array(jax.random.split(jax.random.key(0)))
    for other in (jax.random.PRNGKey(0), jnp.ones(2), np.ones(2), 1.0, None):
        assert not is_key_array(other)


def test_what_will_be_keys_is_known_while_it_is_traced() -> None:
    """Nothing else is taken for them."""
    avals = jax.eval_shape(lambda: {"key": jax.random.key(0, impl="rbg"), "x": jnp.ones((3, 2))})
    assert key_spec(avals["key"]) == ("rbg", "uint32", (4,))
    assert key_spec(avals["x"]) is None
    for value in (jax.random.PRNGKey(0), jnp.ones(2, jnp.bfloat16)):
        assert key_spec(value.aval) is None


def test_an_unknown_implementation_is_an_error() -> None:
    """A client may have one that the server does not."""
    with pytest.raises(KeyError, match="xoshiro"):
        key_array("xoshiro", np.zeros(2, np.uint32))


def test_weak_arrays_are_those_of_jax() -> None:
    """The same type to `jax.jit`, and the same outcome of a promotion."""
    theirs = jnp.full((3,), 2.0)
    assert theirs.weak_type
    ours = weak_array(np.asarray(theirs))
    assert ours.aval == theirs.aval
    assert ours.sharding == theirs.sharding
    half = jnp.ones(3, jnp.bfloat16)
    assert (ours * half).dtype == (theirs * half).dtype == jnp.bfloat16
    assert ours.committed == theirs.committed


# what is made of plain data -----------------------------------------------------------------------


def _made_twice(data: Any, *, weak: bool = False) -> list[Any]:
    """The first of a kind, which jax makes, and one that is made like it."""
    make = weak_array if weak else exact_array
    return [make(np.copy(data)) for _ in range(2)]


@pytest.mark.parametrize("weak", [False, True])
@pytest.mark.parametrize("shape", [(), (3,), (0, 2)])
@pytest.mark.parametrize(
    "dtype", [np.float32, np.float64, np.int8, np.int64, np.bool_, np.complex128, jnp.bfloat16]
)
def test_arrays_are_those_of_device_put(dtype: Any, shape: tuple[int, ...], weak: bool) -> None:
    """Type, place and content, of 64 bits as well; a function that was traced for one takes all."""
    data = np.full(shape, 1, dtype)
    with jax.enable_x64(True):
        theirs = jax.device_put(data)
    for ours in _made_twice(data, weak=weak):
        assert type(ours) is type(theirs)
        assert ours.aval == theirs.aval.update(weak_type=weak)
        assert (ours.sharding, ours.committed) == (theirs.sharding, False)
        np.testing.assert_array_equal(np.asarray(ours), data)


def test_the_second_array_of_a_kind_takes_no_way_through_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a private name has moved: arrays are right, and take ten times as long."""
    exact_array(np.ones((3, 5), np.int16))
    monkeypatch.setattr(jax, "device_put", None)
    assert exact_array(np.full((3, 5), 4, np.int16)).tolist() == [[4] * 5] * 3
    with pytest.raises(TypeError):
        exact_array(np.ones((5, 3), np.int16))


def test_jit_takes_them_for_its_own() -> None:
    """With the same entry in its cache."""
    double: Any = jax.jit(lambda x: x * 2)
    data = np.full((2, 7), 3, np.float32)
    for array in (jax.device_put(data), *_made_twice(data)):
        double(array)
    assert double._cache_size() == 1


def test_arrays_are_made_where_the_thread_wants_them() -> None:
    """On its default device, however often that changes."""
    data = np.ones((2, 3, 1), np.float32)
    for device in (*jax.devices()[:2], None, jax.devices()[-1], "cpu"):
        with jax.default_device(device):
            expected = jax.device_put(data).devices()
            assert [array.devices() for array in _made_twice(data)] == [expected] * 2


def test_an_array_is_none_of_a_trace() -> None:
    """It may be made while jax traces the caller, and outlives that."""
    data = np.ones((4, 3), np.float32)
    made: list[Any] = []

    @jax.jit
    def traced(x: Any) -> Any:
        made.extend((*_made_twice(data), weak_array(data), key_array(*_key_parts())))
        return x + made[0].sum()

    assert traced(1.0) == 13
    assert not any(isinstance(array, jax.core.Tracer) for array in made)
    assert float(made[1][0, 0]) == 1


def _key_parts() -> tuple[str, Any]:
    return "threefry2x32", np.zeros(2, np.uint32)


def test_a_guard_against_transfers_lets_them_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does with `jax.device_put`: somebody asked for them, though a CPU is not guarded."""
    exact_array(np.ones((1, 9), np.float32))
    asked: list[bool] = []
    monkeypatch.setattr(
        arrays._put,
        "_batched",
        lambda *_, **__: asked.append(guard_lib.thread_local_state().explicit_device_put),
    )
    exact_array(np.ones((1, 9), np.float32))
    assert asked == [True]
    assert not guard_lib.thread_local_state().explicit_device_put


def test_arrays_of_jax_stay_what_they_are() -> None:
    """Their place as well."""
    array = jnp.ones(3)
    assert exact_array(array) is array
