from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd_protocol.jit.transforms.transformed_function import Batched

X = np.arange(12.0, dtype=np.float32).reshape(6, 2)
W = np.array([1.0, 2.0], np.float32)


def dot(x: Any, w: Any, *, b: Any = 0.0) -> Any:
    return jnp.dot(x, w) + b


def test_each_example_has_its_result() -> None:
    """As by `jax.vmap`, also when there are more than fit in a batch."""
    theirs = jax.vmap(dot, (0, None))(X, W)
    for size in (8, 6, 4, 1):
        found = Batched(dot, size)((True, False), (X, W), {})
        np.testing.assert_array_equal(found, theirs)


def test_no_more_than_a_batch_is_worked_on_at_once() -> None:
    """The program has arrays of that size, and a loop."""
    batched = Batched(lambda x: jnp.outer(x, x), 2)
    text = str(jax.make_jaxpr(lambda x: batched((True,), (x,), {}))(X))
    assert "scan" in text
    assert "f32[2,2,2]" in text
    assert "f32[6,2]" in text


def test_axes_as_for_vmap() -> None:
    """Arguments by name along the first axis."""
    found = Batched(dot, 6, [1, None])(None, (X.T, W), {"b": np.arange(6.0)})
    np.testing.assert_array_equal(found, jax.vmap(dot, (0, None))(X, W) + np.arange(6.0))
    with pytest.raises(ValueError, match="inconsistent sizes"):
        Batched(dot, 6, 0)(None, (X, W), {})


def test_it_has_the_name_of_the_function() -> None:
    """By which the server calls it."""
    assert Batched(dot, 2).__qualname__ == "dot"
