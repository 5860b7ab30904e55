"""A recurrent network in equinox, with `eqx.filter_jit`."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax


class Recurrent(eqx.Module):
    cell: eqx.nn.GRUCell
    head: eqx.nn.Linear
    scale: float = eqx.field(static=True)

    def __init__(self, key):
        one, two = jax.random.split(key)
        self.cell = eqx.nn.GRUCell(2, 8, key=one)
        self.head = eqx.nn.Linear(8, 1, key=two)
        self.scale = 0.5

    def __call__(self, sequence):
        def step(state, x):
            return self.cell(x, state), None

        state, _ = jax.lax.scan(step, jnp.zeros(8), sequence)
        return self.scale * self.head(state)


@eqx.filter_value_and_grad
def loss_of(model, x, y):
    return jnp.mean((jax.vmap(model)(x)[:, 0] - y) ** 2)


def main():
    model = Recurrent(jax.random.key(0))
    optimizer = optax.adam(1e-2)
    state = optimizer.init(eqx.filter(model, eqx.is_array))

    @eqx.filter_jit
    def step(model, state, x, y):
        loss, gradients = loss_of(model, x, y)
        updates, state = optimizer.update(gradients, state)
        return eqx.apply_updates(model, updates), state, loss

    x = jax.random.normal(jax.random.key(1), (32, 12, 2))
    y = x[:, :, 0].sum(-1)
    for number in range(20):
        model, state, loss = step(model, state, x, y)
        if number % 5 == 0:
            print(number, loss.item())
    print(eqx.filter_jit(lambda m, n, x: m(x) * n)(model, 3, x[0]))


if __name__ == "__main__":
    main()
