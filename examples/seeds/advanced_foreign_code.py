"""What the tutorial "JAX Advanced Techniques" teaches of code that is not jax's own.

The other half of it is in advanced_techniques.py.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.spatial import KDTree
from scipy.special import log_softmax, softmax

from jaxd import persistent_call

# ── objects that do not travel by themselves ─────────────────────────────────────────────────────


class Nearest(KDTree):  # type: ignore[misc]
    """The nearest of some points; differentiable although scipy's tree is not.

    The tree gives only a number; the distance is computed anew, by jax.
    """

    def __init__(self, points: Any, kept: int = 5) -> None:
        super().__init__(points)
        self.kept = kept

    def nearest(self, x: Any) -> Any:
        """Distance and number of the point nearest to x, which has shape (..., dimensions)."""
        one = jax.ShapeDtypeStruct(x.shape[:-1], jnp.int32)
        number = jax.pure_callback(
            lambda x: np.asarray(self.query(x)[1], np.int32),
            one,
            jax.lax.stop_gradient(x),
            vmap_method="expand_dims",
        )
        return jnp.linalg.norm(x - jnp.asarray(self.data, x.dtype)[number], axis=-1), number

    def around(self, x: Any, radius: Any) -> Any:
        """The numbers of the points within a radius, nearest first, -1 where there are no more."""
        some = jax.ShapeDtypeStruct((self.kept,), jnp.int32)
        return jax.pure_callback(self._around, some, x, radius, vmap_method="sequential")

    def _around(self, x: Any, radius: Any) -> Any:
        found = self.query_ball_point(np.asarray(x), float(radius))
        nearest_first = sorted(found, key=lambda i: float(np.linalg.norm(self.data[i] - x)))
        return np.array([*nearest_first, *[-1] * self.kept][: self.kept], np.int32)


# scipy's own pickle of a tree holds addresses of memory, which are others in each process: no key
# can be made of it. The points are what it means.
copyreg.pickle(Nearest, lambda tree: (Nearest, (np.asarray(tree.data), tree.kept)))
POINTS = Nearest(np.random.default_rng(3).normal(size=(50, 3)))


@persistent_call
def nearest(x: Any) -> Any:
    return POINTS.nearest(x)


@persistent_call
def away_from_nearest(xs: Any) -> Any:
    return jax.vmap(jax.grad(lambda x: POINTS.nearest(x)[0]))(xs)


@persistent_call
def around(x: Any, radius: Any) -> Any:
    return POINTS.around(x, radius)


def search_trees() -> Any:
    """scipy's KDTree runs on the server, in the middle of a compiled program."""
    xs = np.random.default_rng(4).normal(size=(4, 3)).astype("f4")
    return nearest(xs[0]), nearest(xs), away_from_nearest(xs), around(xs[0], 0.9)


# ── a function of another library, with its gradient ─────────────────────────────────────────────


def _loss(scores: Any, labels: Any) -> Any:
    """Mean cross entropy, by scipy."""
    logs = log_softmax(np.asarray(scores), axis=1)
    return np.float32(-np.mean(logs[np.arange(len(logs)), labels]))


def _slopes(scores: Any, labels: Any, scale: Any) -> Any:
    scores = np.asarray(scores)
    apart = softmax(scores, axis=1) - np.eye(scores.shape[1])[np.asarray(labels)]
    return (apart * float(scale) / len(scores)).astype("f4")


def _torch_loss(scores: Any, labels: Any) -> Any:
    import torch

    scores, labels = (torch.tensor(np.asarray(each)) for each in (scores, labels))
    return torch.nn.functional.cross_entropy(scores, labels.long()).numpy()


def _torch_slopes(scores: Any, labels: Any, scale: Any) -> Any:
    import torch

    scores, labels, scale = (torch.tensor(np.asarray(each)) for each in (scores, labels, scale))
    loss = torch.nn.functional.cross_entropy(scores.requires_grad_(), labels.long())
    return torch.autograd.grad(loss, scores, scale)[0].numpy()


def differentiable(value: Callable[..., Any], slopes: Callable[..., Any]) -> Callable[..., Any]:
    """A function of jax, from a function and its gradient that know nothing of jax."""

    @jax.custom_vjp
    def wrapped(scores: Any, labels: Any) -> Any:
        return jax.pure_callback(value, jax.ShapeDtypeStruct((), jnp.float32), scores, labels)

    def forward(scores: Any, labels: Any) -> Any:
        return wrapped(scores, labels), (scores, labels)

    def backward(kept: Any, scale: Any) -> Any:
        shape = jax.ShapeDtypeStruct(kept[0].shape, jnp.float32)
        return jax.pure_callback(slopes, shape, *kept, scale), None

    wrapped.defvjp(forward, backward)
    return wrapped


def loss_and_slopes(loss: Callable[..., Any], scores: Any, labels: Any) -> Any:
    return jax.value_and_grad(lambda scores: 3 * loss(scores, labels))(scores)


by_scipy = persistent_call(partial(loss_and_slopes, differentiable(_loss, _slopes)))
by_torch = persistent_call(partial(loss_and_slopes, differentiable(_torch_loss, _torch_slopes)))


def foreign_functions() -> Any:
    """A loss in scipy; where torch is installed, torch's as well. Its gradient comes along."""
    scores = np.random.default_rng(5).normal(size=(6, 4)).astype("f4")
    labels = np.arange(6, dtype="i4") % 4
    return by_scipy(scores, labels), by_torch(scores, labels) if find_spec("torch") else None


TECHNIQUES = (search_trees, foreign_functions)

if __name__ == "__main__":
    for technique in TECHNIQUES:
        print(f"{technique.__name__}: {technique.__doc__}\n{technique()}\n")
