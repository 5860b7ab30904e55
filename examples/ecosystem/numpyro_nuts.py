"""numpyro: a NUTS run as one call, on data made by a known law."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS

from jaxd import persistent_call

SLOPES, NOISE = np.array([1.5, -2.0], np.float32), 0.5


def made_data() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 2)).astype(np.float32)
    return x, (x @ SLOPES + NOISE * rng.normal(size=80)).astype(np.float32)


def model(x: Any, y: Any = None) -> None:
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 5.0).expand([x.shape[1]]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(2.0))
    numpyro.sample("y", dist.Normal(x @ slopes, noise), obs=y)


@persistent_call(static_argnames=("warmup", "samples"))
def sampled(key: Any, x: Any, y: Any, warmup: int, samples: int) -> Any:
    """Warm-up and sampling are one compiled program; what comes home are the samples."""
    chain = MCMC(NUTS(model), num_warmup=warmup, num_samples=samples, progress_bar=False)
    chain.run(key, x, y)
    return chain.get_samples()


def infer() -> dict[str, Any]:
    return dict(sampled(jax.random.key(0), *made_data(), warmup=300, samples=500))


if __name__ == "__main__":
    RESULTS = infer()
    for name, truth in {"slopes": SLOPES, "noise": NOISE}.items():
        found = np.asarray(RESULTS[name])
        print(f"{name}: {found.mean(0)} ± {found.std(0)}, in truth {truth}")
