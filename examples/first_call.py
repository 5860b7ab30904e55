"""A function that is compiled once, however often this program is started."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import jaxd


@jaxd.persistent_call
def smoothed(signal: Any, width: Any) -> Any:
    """The signal under a Gaussian window of `width` samples."""
    import jax.numpy as jnp  # here, so that this process never imports jax

    distance = jnp.arange(-64, 65)
    window = jnp.exp(-0.5 * (distance / width) ** 2)
    return jnp.convolve(signal, window / window.sum(), mode="same")


started = time.perf_counter()
noisy = np.random.default_rng(0).normal(size=10_000).astype(np.float32)
smooth = smoothed(noisy, 8.0)
print(f"standard deviation {np.std(noisy):.3f} before, {np.std(smooth):.3f} after")
print(f"{time.perf_counter() - started:.3f} s for data and call")

counters = jaxd.statistics()
print(f"the server so far: {counters.calls} calls, {counters.compiles} compilations")
