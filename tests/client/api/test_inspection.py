"""What is asked of a function without calling it; `why` and `warm` have tests of their own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxd import Client
from tests.end_to_end.counting import costs

X = np.ones((2, 3), np.float32)
SPEC = jax.ShapeDtypeStruct((3, 2), np.float32)


def layer(x: Any, w: Any, mode: str = "plus") -> Any:
    """One that has something to count."""
    return jnp.dot(x, w) + 1 if mode == "plus" else x


def test_nothing_is_called(client: Client) -> None:
    """Not even once, and a name is asked of nobody."""
    function = client.persistent_call(layer, extra_key="inspected")
    with costs(client) as spent:
        assert len(bytes.fromhex(function.fingerprint)) == 16
        assert function.why(X, X.T).verdict == "compile"
        assert "dot_general" in function.jaxpr(X, SPEC)
        assert function.clear() == 0
    assert spent == {"traces": 1}
