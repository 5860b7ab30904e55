"""Functions as people write them first: one alone, and one that calls ten helpers."""

from __future__ import annotations

from typing import Any

SCALE = 2.0
SHIFT = 1.0


def affine(x: Any) -> Any:
    """A function that reads two numbers of its module."""
    return x * SCALE + SHIFT


def center(x: Any) -> Any:
    """1 of 10."""
    return x - x.mean()


def spread(x: Any) -> Any:
    """2 of 10."""
    return (x * x).mean() ** 0.5


def standard(x: Any) -> Any:
    """3 of 10."""
    return center(x) / (spread(x) + EPSILON)


def clip(x: Any, limit: float = 3.0) -> Any:
    """4 of 10."""
    return x.clip(-limit, limit)


def soft(x: Any) -> Any:
    """5 of 10."""
    return x / (1.0 + abs(x))


def gate(x: Any) -> Any:
    """6 of 10."""
    return soft(x) * RATES["gate"]


def mix(x: Any, y: Any) -> Any:
    """7 of 10."""
    return x * RATES["mix"] + y * (1.0 - RATES["mix"])


def step(x: Any) -> Any:
    """8 of 10."""
    return mix(gate(x), affine(x))


def repeat(x: Any) -> Any:
    """9 of 10."""
    for _ in range(STEPS):
        x = step(x)
    return x


def loss(x: Any) -> Any:
    """10 of 10."""
    return (clip(x) ** 2).sum()


def ten_helpers(x: Any) -> Any:
    """A function that calls the ten."""
    return loss(repeat(standard(x)))


EPSILON = 1e-6
STEPS = 4
RATES = {"gate": 0.5, "mix": 0.25}
