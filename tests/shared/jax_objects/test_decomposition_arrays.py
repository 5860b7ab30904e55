"""The content of jax arrays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd_protocol.errors import PackingError, TracerError
from jaxd_protocol.jax_objects.decomposition import array_content


def test_an_array_is_its_type_shape_and_elements() -> None:
    """Weak types are told apart, because they decide what the result's type is."""
    found = array_content(jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3))
    assert found is not None
    assert found[:4] == ("bfloat16", (2, 3), False, None)
    assert found.data.astype(float).sum() == 15
    weak = array_content(jnp.asarray(1.0))
    assert weak is not None
    assert weak.weak


def test_a_typed_key_is_its_data_and_its_generator() -> None:
    """Equal bits for two generators are two keys."""
    found = array_content(jax.random.key(3, impl="rbg"))
    assert found is not None
    assert found[:4] == ("uint32", (4,), False, "rbg")


@pytest.mark.parametrize("value", [1.0, np.ones(2), "x", None, jax.devices()[0]])
def test_anything_else_is_no_array(value: Any) -> None:
    """numpy's arrays are for whoever knows numpy."""
    assert array_content(value) is None


def test_a_tracer_has_no_content() -> None:
    """The message names the way out."""

    def inside(x: Any) -> Any:
        with pytest.raises(TracerError, match="Pass the value as an argument"):
            array_content(x)
        return x

    jax.jit(inside)(1.0)


def test_a_deleted_array_says_so() -> None:
    """Instead of jax's message, which does not know that the array was captured."""
    array = jnp.ones(3)
    array.delete()
    with pytest.raises(PackingError, match="deleted or donated"):
        array_content(array)


def test_captured_keys_are_read_although_jax_traces_whoever_asks() -> None:
    """A persistent function that captures one may first be called there."""
    key = jax.random.key(3)
    found: list[Any] = []

    def traced(x: Any) -> Any:
        found.append(array_content(key))
        return x

    traced(0)
    jax.jit(traced)(1.0)
    assert found[0].data.tolist() == found[1].data.tolist()
