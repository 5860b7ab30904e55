"""optimistix: a least-squares fit and a root, each as one call, of a known law."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx

from jaxd import persistent_call

TIMES = np.linspace(0.0, 4.0, 50, dtype=np.float32)


class Decay(eqx.Module):
    """height * exp(-rate * time) + floor"""

    height: Any
    rate: Any
    floor: Any

    def __call__(self, time: Any) -> Any:
        return self.height * jnp.exp(-self.rate * time) + self.floor


TRUTH = Decay(2.0, 1.3, 0.5)


@persistent_call
def fitted(guess: Decay, times: Any, seen: Any) -> Any:
    """Levenberg and Marquardt's way down; the model is the tree that is varied."""
    solver = optx.LevenbergMarquardt(rtol=1e-6, atol=1e-6)
    found = optx.least_squares(lambda model, _: jax.vmap(model)(times) - seen, solver, guess)
    return found.value, found.stats["num_steps"]


@persistent_call
def time_of(model: Decay, height: Any) -> Any:
    """When the model has fallen to a height, and how that depends on the model."""

    def time(model: Decay) -> Any:
        solver = optx.Newton(rtol=1e-6, atol=1e-6)
        return optx.root_find(lambda t, _: model(t) - height, solver, jnp.array(0.5)).value

    return jax.value_and_grad(time)(model)


def solve() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    law = TRUTH.height * np.exp(-TRUTH.rate * TIMES) + TRUTH.floor
    seen = (law + 0.01 * rng.normal(size=len(TIMES))).astype(np.float32)
    guess = Decay(np.float32(1.0), np.float32(1.0), np.float32(0.0))
    model, steps = fitted(guess, TIMES, seen)
    return {"model": model, "steps": steps, "time": time_of(model, 1.0)}


if __name__ == "__main__":
    RESULTS = solve()
    found = [round(float(each), 2) for each in jax.tree.leaves(RESULTS["model"])]
    print(f"{found} after {int(RESULTS['steps'])} steps, in truth {jax.tree.leaves(TRUTH)}")
    print(f"falls to 1 at {float(RESULTS['time'][0]):.3f}, in truth {np.log(4) / 1.3:.3f}")
