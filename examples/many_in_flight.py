"""Many calls at once: futures, `map`, and asyncio."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from jaxd import persistent_call


@persistent_call
def energy(positions: Any) -> Any:
    """The sum of 1 / distance over all pairs of points; positions has shape (n, 3)."""
    import jax.numpy as jnp

    apart = jnp.linalg.norm(positions[:, None] - positions[None], axis=-1)
    return jnp.sum(jnp.triu(1 / jnp.where(apart > 0, apart, jnp.inf)))


rng = np.random.default_rng(0)
clouds = [rng.normal(size=(100, 3)).astype(np.float32) for _ in range(20)]

future = energy.submit(clouds[0])
print(f"one, later:        {float(future.result()):.1f}")

energies = [float(value) for value in energy.map(clouds)]
print(f"twenty, in order:  lowest {min(energies):.1f}, highest {max(energies):.1f}")


async def both() -> None:
    first, second = await asyncio.gather(energy.call_async(clouds[0]), energy.call_async(clouds[1]))
    print(f"two, with asyncio: {float(first):.1f} and {float(second):.1f}")


asyncio.run(both())
