"""The client's only access to jax."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxd.interop.jax_runtime import (
    current_config,
    encode_jax,
    loaded_jax,
    to_jax,
    to_jax_keys,
)
from jaxd_protocol.errors import TracerError
from jaxd_protocol.pytree import TreeEncoder
from tests.ids import stable_id


def in_a_fresh_process(program: str, **more: str) -> Any:
    """What a program prints, as JSON, in a process that has not imported jax."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)} | more
    return json.loads(
        subprocess.run(
            [sys.executable, "-c", program], env=env, capture_output=True, check=True
        ).stdout
    )


def test_jax_is_found_when_it_is_there_and_not_imported() -> None:
    """A half-imported one, as another thread sees it, does not count."""
    assert loaded_jax() is jax
    program = (
        "import json, sys, types; from jaxd.interop.jax_runtime import loaded_jax, current_config\n"
        "found = [loaded_jax() is None, current_config(), 'jax' in sys.modules]\n"
        "sys.modules['jax'] = types.ModuleType('jax')\n"
        "print(json.dumps(found + [loaded_jax() is None]))"
    )
    assert in_a_fresh_process(program) == [True, [], False, True]


def test_settings_of_this_thread_travel() -> None:
    """As they are at the moment of the call."""
    assert current_config() == ()
    with jax.enable_x64(True), jax.numpy_rank_promotion("raise"):
        assert current_config() == (
            ("jax_enable_x64", True),
            ("jax_numpy_rank_promotion", "raise"),
        )
    assert current_config() == ()


def test_without_jax_the_settings_of_the_environment_travel() -> None:
    """Those that jax would have read from it."""
    program = (
        "import json; from jaxd.interop.jax_runtime import current_config as c; "
        "print(json.dumps(c()))"
    )
    assert in_a_fresh_process(program, JAX_ENABLE_X64="1") == [["jax_enable_x64", True]]
    assert in_a_fresh_process(program, JAX_ENABLE_X64="0") == []
    assert in_a_fresh_process(program, JAX_NUMPY_RANK_PROMOTION="raise") == [
        ["jax_numpy_rank_promotion", "raise"]
    ]
    assert in_a_fresh_process(program, JAX_RANDOM_SEED_OFFSET="3") == [
        ["jax_random_seed_offset", 3]
    ]
    assert in_a_fresh_process(program, JAX_PLATFORMS="cpu", JAX_NUM_CPU_DEVICES="2") == []


@pytest.mark.parametrize("value", [1.0, "text", np.ones(3), object(), None], ids=stable_id)
def test_other_values_are_left_to_others(value: Any) -> None:
    """Only jax's own arrays are encoded here."""
    assert encode_jax(TreeEncoder(), value) is False


@pytest.mark.parametrize("wrap", [jax.jit, jax.vmap, jax.grad, jax.make_jaxpr])
def test_tracers_of_all_kinds_are_refused(wrap: Any) -> None:
    """Whatever the transformation."""

    def traced(x: Any) -> Any:
        encode_jax(TreeEncoder(), x)
        return x

    with pytest.raises(TracerError):
        wrap(traced)(jnp.ones(3) if wrap is jax.vmap else 1.0)


@pytest.mark.parametrize(
    "dtype",
    [np.float32, np.int64, np.float64, np.uint64, np.complex128, np.bool_, np.int8,
     ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn],
)  # fmt: skip
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)], ids=str)
def test_results_become_arrays_of_the_same_dtype(dtype: Any, shape: tuple[int, ...]) -> None:
    """Also those of 64 bits, which jax would otherwise cut in half."""
    array = np.ones(shape, dtype)
    found = to_jax(array, weak=False)
    assert isinstance(found, jax.Array)
    assert (found.dtype, found.shape) == (array.dtype, shape)
    np.testing.assert_array_equal(np.asarray(found), array)


@pytest.mark.parametrize("value", [1.5, 2, 1j], ids=str)
def test_weak_types_come_home(value: Any) -> None:
    """So that the next operation promotes as it would without a server."""
    array = np.asarray(jnp.asarray(value))
    found = to_jax(array, weak=True)
    assert found.weak_type
    assert found.dtype == array.dtype


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_keys_keep_their_implementation(impl: str) -> None:
    """They draw the same numbers as before."""
    keys = jax.random.split(jax.random.key(3, impl=impl), 2)
    found = to_jax_keys(np.asarray(jax.random.key_data(keys)), impl)
    assert found.dtype == keys.dtype
    np.testing.assert_array_equal(jax.random.uniform(found[0]), jax.random.uniform(keys[0]))


@pytest.mark.parametrize(
    "make",
    [
        lambda: to_jax(np.ones(3, np.float32), weak=False),
        lambda: to_jax(np.ones(3), weak=False),
        lambda: to_jax(np.ones((), np.float32), weak=True),
        lambda: to_jax_keys(np.zeros(2, np.uint32), "threefry2x32"),
    ],
    ids=["strong", "of 64 bits", "weak", "keys"],
)
def test_what_comes_home_is_there_although_jax_traces_whoever_calls(make: Any) -> None:
    """A tracer in its place would be kept, and be of no use later."""
    made = []

    def traced(x: Any) -> Any:
        made.append(make())
        return x

    jax.jit(traced)(1.0)
    assert not isinstance(made[0], jax.core.Tracer)
    assert made[0].dtype == make().dtype


def test_keys_are_encoded_although_jax_traces_whoever_calls() -> None:
    """Their numbers are known."""
    key = jax.random.key(1)
    written = []

    def traced(x: Any) -> Any:
        encoder = TreeEncoder()
        encode_jax(encoder, key)
        written.append(encoder.blob)
        return x

    traced(0)
    jax.jit(traced)(1.0)
    assert written[0] == written[1]
