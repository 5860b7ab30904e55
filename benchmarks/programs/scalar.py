"""A whole client without arrays: start, one reply, exit."""

from __future__ import annotations

from jaxd import persistent_call


@persistent_call
def square_plus_one(x: float) -> float:
    """A scalar function of a Python float."""
    return x * x + 1.0


print(f"value {float(square_plus_one(3.0)):.9g}")
