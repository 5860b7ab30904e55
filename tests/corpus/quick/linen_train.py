"""A classifier in flax linen, trained as its guides do it."""

import functools

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.training import train_state


class Classifier(nn.Module):
    hidden: int

    @nn.compact
    def __call__(self, x, *, train):
        x = nn.relu(nn.Dense(self.hidden)(x))
        x = nn.Dropout(0.1, deterministic=not train)(x)
        return nn.Dense(3)(x)


class TrainState(train_state.TrainState):
    key: jax.Array


def cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@jax.jit
def train_step(state, batch):
    key = jax.random.fold_in(state.key, state.step)

    def loss_of(params):
        logits = state.apply_fn({"params": params}, batch["x"], train=True, rngs={"dropout": key})
        return cross_entropy(logits, batch["y"])

    loss, gradients = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=gradients), loss


@functools.partial(jax.jit, static_argnames=("metric",))
def evaluate(state, batch, metric="accuracy"):
    logits = state.apply_fn({"params": state.params}, batch["x"], train=False)
    if metric == "accuracy":
        return (logits.argmax(-1) == batch["y"]).mean()
    return cross_entropy(logits, batch["y"])


def main():
    model = Classifier(16)
    key = jax.random.key(0)
    x = jax.random.normal(key, (96, 4))
    batch = {"x": x, "y": jnp.argmax(x[:, :3], axis=-1)}
    params = model.init(key, x, train=False)["params"]
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(1e-2), key=key)
    for step in range(40):
        state, loss = train_step(state, batch)
        if step % 10 == 0:
            print(step, float(loss))
    print(float(evaluate(state, batch)), float(evaluate(state, batch, metric="loss")))


if __name__ == "__main__":
    main()
