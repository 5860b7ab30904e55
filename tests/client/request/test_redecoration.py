"""Functions that are made persistent anew for every call."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

from jaxd import Client
from jaxd.request import function_snapshot
from jaxd.request.function_snapshot import WARN_AFTER, RedecorationCounter
from jaxd_protocol.base import process
from jaxd_protocol.errors import CompileAdvice


def step(x: Any) -> Any:
    """Is made persistent often."""
    return x + 1


def test_different_functions_are_not_counted_together() -> None:
    """Nor those that have no code of their own."""
    counted = RedecorationCounter()
    for number in range(2 * WARN_AFTER):
        counted.record(step, str(number).encode())
        counted.record(print, b"key")


def test_it_remembers_the_last_ones_only() -> None:
    """A process that makes functions for days does not grow."""
    counted = RedecorationCounter()
    for number in range(function_snapshot._MAX_PLACES + 100):
        counted.record(step, str(number).encode())
    assert len(counted._counts) == function_snapshot._MAX_PLACES


def test_the_child_of_a_fork_does_not_wait_for_its_parent() -> None:
    """A lock that a thread of the parent held is not its own."""
    counted = RedecorationCounter()
    counted._lock.acquire()
    process._in_child()
    counted.record(step, b"key")


@pytest.mark.parametrize(
    ("number", "use"),
    [(1, lambda f: f(1.0)), (2, lambda f: f.submit(1.0).result())],
    ids=["call", "submit"],
)
def test_a_loop_that_decorates_is_told_so(
    client: Client, number: int, use: Callable[[Any], Any]
) -> None:
    """One that decorates once is not, however often it calls."""

    def add(x: Any) -> Any:
        return x + number

    once = client.persistent_call(add)
    for _ in range(2 * WARN_AFTER):
        use(once)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for _ in range(WARN_AFTER):
            use(client.persistent_call(add))
    (warning,) = heard
    assert warning.category is CompileAdvice
    if number == 1:
        assert warning.filename == __file__  # the line that calls
    assert "add (test_redecoration.py:" in str(warning.message)
