"""The exception that jax has put into another one."""

from __future__ import annotations

from jaxd.last_error import keep_error, last_error


def test_it_is_that_of_the_call_that_failed_last() -> None:
    """Itself, whatever thread asks."""
    first, second = ValueError("a"), LookupError("b")
    keep_error(first)
    assert last_error() is first
    keep_error(second)
    assert last_error() is second
