"""A training step whose state is spread over all devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def spread(x: Any) -> Any:
    """On all devices, some rows on each."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("i",))
    where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))
    return jax.lax.with_sharding_constraint(x, where)


def first_of(side: int, parts: int) -> Callable[[Any], Any]:
    """Makes the first state: so many square matrices, and as many for the momentum."""

    def begin(n: Any) -> Any:
        w = [spread(jnp.ones((side, side)) * n + part) for part in range(parts)]
        return {"w": w, "m": [spread(jnp.zeros((side, side)) * n) for _ in range(parts)]}

    return begin


def sharded_step(state: Any, n: Any) -> Any:
    """Momentum, element by element, so that it does not depend on how many devices there are."""
    momentum = [
        spread(m) * 0.5 + (spread(w) - n) * 0.25
        for w, m in zip(state["w"], state["m"], strict=True)
    ]
    weights = [spread(w) - m * 0.5 for w, m in zip(state["w"], momentum, strict=True)]
    return {"w": weights, "m": momentum}, sum(w[7, 9] for w in weights)
