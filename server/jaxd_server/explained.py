"""jax's errors about arguments and results, with what to do about them."""

from __future__ import annotations

from jaxd_protocol.errors import ArgumentError, ResultError

__all__ = ["explained"]


def explained(error: TypeError) -> TypeError:
    """jax's own complaint about arguments and results, with what to do about it."""
    text = str(error)
    if "not a valid JAX type" in text and "returned a value" in text:
        return ResultError(
            f"{text}\nReturn arrays and numbers (in dicts, lists, tuples) from the function, and "
            "make text and other objects from them after the call."
        )
    if "as an abstract array" in text or "not a valid JAX type" in text:
        return ArgumentError(
            f"{text}\nPass arrays and numbers, or declare the argument in static_argnames."
        )
    return error
