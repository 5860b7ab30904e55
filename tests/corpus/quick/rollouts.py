"""Rollouts of an environment behind wrappers, as programs of reinforcement learning write them."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp


@partial(jax.tree_util.register_dataclass, data_fields=["position", "time"], meta_fields=[])
@dataclasses.dataclass
class State:
    position: jax.Array
    time: jax.Array


class Walk:
    goal = 3.0

    def __init__(self, size):
        self.size = size

    def reset(self, key):
        position = jax.random.normal(key, (self.size,))
        return position, State(position, jnp.int32(0))

    def step(self, state, action):
        position = state.position + action
        reward = -jnp.abs(position - self.goal).sum()
        return position, State(position, state.time + 1), reward


class Wrapper:
    def __init__(self, env):
        self._env = env

    def __getattr__(self, name):
        return getattr(self._env, name)


class Scaled(Wrapper):
    @partial(jax.jit, static_argnums=(0,))
    def step(self, state, action):
        position, state, reward = self._env.step(state, action)
        return position, state, reward / self.size


def make_train(config):
    env = Scaled(Walk(config["SIZE"]))

    def train(key):
        position, state = env.reset(key)

        def step(carry, _):
            weights, position, state = carry

            def objective(weights):
                _, after, reward = env.step(state, jnp.tanh(weights @ position))
                return reward, after

            (reward, after), slope = jax.value_and_grad(objective, has_aux=True)(weights)
            weights = weights + config["LR"] * slope
            return (weights, after.position, after), reward

        weights = jnp.zeros((config["SIZE"], config["SIZE"]))
        carry, rewards = jax.lax.scan(step, (weights, position, state), None, config["STEPS"])
        return {"rewards": rewards, "state": carry[2]}

    return train


if __name__ == "__main__":
    config = {"SIZE": 4, "LR": 0.01, "STEPS": 100, "NAME": "walk"}
    out = jax.jit(jax.vmap(make_train(config)))(jax.random.split(jax.random.PRNGKey(0), 3))
    print(out["rewards"][:, -1], out["state"].time)
    env = Scaled(Walk(4))
    _, state = env.reset(jax.random.PRNGKey(1))
    for _ in range(5):
        position, state, reward = env.step(state, jnp.ones(4))
    print(position, reward)
