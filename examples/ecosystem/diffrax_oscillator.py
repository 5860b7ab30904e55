"""diffrax: the constants of a damped oscillator, found again through the solver of its equation.

The data follow the exact solution, so the right answer is known.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxd import persistent_call

STEPS = 100
TIMES = np.linspace(0.0, 6.0, 40, dtype=np.float32)


class Constants(NamedTuple):
    stiffness: Any
    damping: Any


TRUTH = Constants(4.0, 0.3)


class Oscillator:
    """x'' = -stiffness x - 2 damping x', as two equations of the first order."""

    def __init__(self, constants: Constants) -> None:
        self.constants = constants

    def __call__(self, time: Any, state: Any, _: Any) -> Any:
        place, speed = state
        pull = -self.constants.stiffness * place - 2 * self.constants.damping * speed
        return speed, pull


def exact(constants: Constants) -> Any:
    """Let go at 1, at rest."""
    beat = np.sqrt(constants.stiffness - constants.damping**2)
    phase = beat * TIMES
    swing = np.cos(phase) + constants.damping / beat * np.sin(phase)
    return (np.exp(-constants.damping * TIMES) * swing).astype(np.float32)


def solved(constants: Constants) -> Any:
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(Oscillator(constants)),
        diffrax.Tsit5(),
        t0=0.0,
        t1=float(TIMES[-1]),
        dt0=0.05,
        y0=(jnp.array(1.0), jnp.array(0.0)),
        saveat=diffrax.SaveAt(ts=jnp.asarray(TIMES)),
        stepsize_controller=diffrax.PIDController(rtol=1e-4, atol=1e-6),
        max_steps=512,
    )
    return solution.ys[0], solution.stats["num_steps"]


places = persistent_call(solved)
optimizer = optax.adam(0.1)


@persistent_call(donate_argnums=(0, 1))
def step(constants: Constants, state: Any, seen: Any) -> Any:
    def loss_of(constants: Constants) -> Any:
        return jnp.mean((solved(constants)[0] - seen) ** 2)

    loss, slopes = jax.value_and_grad(loss_of)(constants)
    updates, state = optimizer.update(slopes, state)
    return optax.apply_updates(constants, updates), state, loss


def fit() -> dict[str, Any]:
    seen = exact(TRUTH)
    found = Constants(np.float32(2.0), np.float32(0.8))
    state = optimizer.init(found)
    losses = []
    for _ in range(STEPS):
        found, state, loss = step(found, state, seen)
        losses.append(float(loss))
    return {"losses": np.array(losses), "constants": found, "solution": places(found)}


if __name__ == "__main__":
    RESULTS = fit()
    print(f"loss {RESULTS['losses'][0]:.4f} to {RESULTS['losses'][-1]:.2e}")
    found = [round(float(each), 3) for each in RESULTS["constants"]]
    print(f"stiffness and damping {found}, in truth {list(TRUTH)}")
