"""A regression in flax nnx: objects that a step changes."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx


class Network(nnx.Module):
    def __init__(self, width: int, *, rngs: nnx.Rngs):
        self.first = nnx.Linear(2, width, rngs=rngs)
        self.norm = nnx.BatchNorm(width, rngs=rngs)
        self.second = nnx.Linear(width, 1, rngs=rngs)

    def __call__(self, x):
        return self.second(nnx.relu(self.norm(self.first(x))))


@nnx.jit
def train_step(model, optimizer, x, y):
    def loss_of(model):
        return jnp.mean((model(x) - y) ** 2)

    loss, gradients = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradients)
    return loss


@nnx.jit
def predict(model, x):
    return model(x)


model = Network(16, rngs=nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
x = jax.random.normal(jax.random.key(1), (64, 2))
y = (x[:, :1] * x[:, 1:]) + 1
for step in range(30):
    loss = train_step(model, optimizer, x, y)
    if step % 10 == 0:
        print(step, float(loss))
model.eval()
print(float(predict(model, x).sum()))
