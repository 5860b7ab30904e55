"""The exception that jax has put into another one."""

from __future__ import annotations

import pytest

from jaxd.tracing.last_error import last_error, record_last_error


def test_it_is_that_of_the_call_that_failed_last() -> None:
    """Itself, whatever thread asks."""
    first, second = ValueError("a"), LookupError("b")
    record_last_error(first)
    assert last_error() is first
    record_last_error(second)
    assert last_error() is second


def test_it_holds_nothing_of_the_program() -> None:
    """Frames hold arrays, whose memory was the program's."""
    with pytest.raises(ValueError, match="c") as caught:
        int("c")
    assert caught.value.__traceback__ is not None
    record_last_error(caught.value)
    found = last_error()
    assert found is not None
    assert found.__traceback__ is None
