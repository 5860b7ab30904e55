"""Inference with numpyro, which jits on behalf of the program."""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal


def model(x, y=None):
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    noise = numpyro.sample("noise", dist.HalfNormal(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(slope * x, noise), obs=y)


def main():
    x = jnp.linspace(-1, 1, 50)
    y = 0.7 * x + 0.1 * jax.random.normal(jax.random.PRNGKey(0), (50,))
    mcmc = MCMC(NUTS(model), num_warmup=100, num_samples=100, progress_bar=False)
    mcmc.run(jax.random.PRNGKey(1), x, y)
    print(float(mcmc.get_samples()["slope"].mean()))
    guide = AutoNormal(model)
    svi = SVI(model, guide, numpyro.optim.Adam(0.05), Trace_ELBO())
    result = svi.run(jax.random.PRNGKey(2), 200, x, y, progress_bar=False)
    print(float(result.losses[-1]))
    state = svi.init(jax.random.PRNGKey(3), x, y)
    update = jax.jit(svi.update)
    for _ in range(5):
        state, loss = update(state, x, y)
    print(float(loss))


if __name__ == "__main__":
    main()
