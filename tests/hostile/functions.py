"""What the hostile server's victim calls, as users write it.

Each function has arguments, and what an honest server returns looks like `honest`: the victim uses
every result as somebody would who expects that.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

SECRET = "jaxd-hostile-canary-5f0c2a"
"""Stands in this module and in the environment; nothing that a client sends may have it in it."""

SEEN: list[Any] = []


class Function(NamedTuple):
    """One function of the victim's.

    Attributes:
        function: what is made persistent.
        args: what it is called with.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]


@dataclass
class Point:
    """A class of the user's own."""

    x: Any
    label: str = "point"

    def norm(self) -> Any:
        """Not called by anybody but users."""
        return np.abs(self.x)


class Pair(NamedTuple):
    """A named tuple of the user's own."""

    first: Any
    second: Any


class Counter:
    """An object whose method is called back."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, value: Any) -> None:
        """Called back."""
        self.total += 1


def named(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator as there are many."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


COUNTER = Counter()


@named
def told(value: Any) -> None:
    """Called back, through a decorator."""
    SEEN.append(value)
    del SEEN[:-3]


def doubled(value: Any) -> Any:
    """Called back for its result."""
    return np.asarray(value) * 2


def points(x: Any) -> Any:
    """Returns instances of the user's own classes."""
    return {"points": [Point(x), Point(x + 1)], "pair": Pair(x, Point(x))}


def calls_back(x: Any) -> Any:
    """Has functions of the user's called back."""
    import jax

    jax.debug.callback(told, x)
    jax.debug.callback(COUNTER.add, x)
    jax.debug.callback(functools.partial(told), x)
    jax.debug.callback(lambda value: told([value]), x)
    return jax.experimental.io_callback(doubled, x, x)


def optimizes(x: Any) -> Any:
    """Returns the state of an optimizer."""
    import optax  # type: ignore[import-untyped,unused-ignore]

    return optax.adam(1e-3).init({"w": x})


def trains(x: Any) -> Any:
    """Returns what holds callables: an optimizer's functions, and a model's."""
    import optax
    from flax.training.train_state import TrainState

    create: Any = TrainState.create
    return create(apply_fn=doubled, params={"w": x}, tx=optax.sgd(0.1))


def models(x: Any) -> Any:
    """Returns a model."""
    import equinox
    import jax

    return equinox.nn.MLP(2, 2, 4, 1, key=jax.random.key(0)), x


def functions(*, libraries: bool) -> dict[str, Function]:
    """By name; those of libraries where they are wanted and installed."""
    x = np.arange(3, dtype=np.float32)
    found = {
        "plain": Function(lambda x: x + 1, (x,)),
        "points": Function(points, (x,)),
        "points in": Function(lambda p, x: p.x + x, (Point(x), x)),
        "calls back": Function(calls_back, (x,)),
    }
    if libraries:
        for name, function in {"optax": optimizes, "flax": trains, "equinox": models}.items():
            if importlib.util.find_spec(name) is not None:
                found[name] = Function(function, (x,))
    return found
