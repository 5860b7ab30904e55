"""A user's module with a haiku model, inside the transformed function and outside."""

# mypy: ignore-errors
# What a user writes, around libraries without types.

from typing import Any

import haiku as hk
import jax
import numpy as np

DATA = np.ones((2, 3), np.float32)


class Mlp(hk.Module):
    def __init__(self, size: int, name: Any = None) -> None:
        super().__init__(name=name)
        self.size = size

    @property
    def double(self) -> int:
        return self.size * 2

    def __call__(self, x: Any) -> Any:
        return hk.Linear(self.double)(x)


OUTSIDE = hk.without_apply_rng(hk.transform(lambda x: Mlp(3)(x).sum()))


def check() -> Any:
    """What a program finds that runs both."""
    inside = hk.without_apply_rng(hk.transform(lambda x: Mlp(2)(x).sum()))
    found = []
    for function in (inside, OUTSIDE):
        parameters = function.init(jax.random.key(0), DATA)
        found.append([sorted(parameters), float(jax.jit(function.apply)(parameters, DATA))])
    return found
