from __future__ import annotations

import threading
from typing import Any

import pytest

from jaxd_server.execution.memory_room import MemoryReservations
from tests.end_to_end.gates import in_thread

GB = 1 << 30


class Array:
    """A result that is there when somebody says so."""

    def __init__(self) -> None:
        self.is_there, self.is_awaited = threading.Event(), threading.Event()

    def is_deleted(self) -> bool:
        return False

    def block_until_ready(self) -> None:
        self.is_awaited.set()
        assert self.is_there.wait(30)


class Large:
    """A run, as far as is looked at."""

    def __init__(self) -> None:
        self.array = Array()
        self.results: Any = ()


def test_what_fits_beside_others_does_not_wait() -> None:
    """Nor does the first one, however large it is: whether it fits is somebody else's question."""
    runs, first, second = MemoryReservations(lambda: 4 * GB), Large(), Large()
    with runs.beside(first, 2 * GB):
        first.results = [first.array]
    with runs.beside(second, 2 * GB):
        second.results = [second.array]
    assert not first.array.is_awaited.is_set()
    alone = MemoryReservations(lambda: 0)
    with alone.beside(first, GB):
        pass


def test_what_does_not_fit_waits_for_the_device() -> None:
    """It is dispatched when the one before it is done, not before."""
    runs, first, second = MemoryReservations(lambda: 3 * GB), Large(), Large()
    order = []

    def follow() -> None:
        with runs.beside(second, 2 * GB):
            order.append("second")

    with runs.beside(first, 2 * GB):
        following = in_thread(follow)
        first.results = [first.array]
    assert first.array.is_awaited.wait(30)
    order.append("first is done")
    first.array.is_there.set()
    following.result(30)
    assert order == ["first is done", "second"]


def test_one_that_failed_is_not_waited_for() -> None:
    """Neither where it could not be dispatched nor where its result says so."""
    runs, first, second = MemoryReservations(lambda: 3 * GB), Large(), Large()
    with pytest.raises(ValueError, match="mine"), runs.beside(first, 2 * GB):
        raise ValueError("mine")
    with runs.beside(second, 2 * GB):
        second.results = [second]  # which is no array
    with runs.beside(first, 2 * GB):
        pass


def test_one_that_nobody_has_any_more_is_done() -> None:
    """Its arrays are gone with it."""
    runs, first = MemoryReservations(lambda: 3 * GB), Large()
    with runs.beside(first, 2 * GB):
        first.results = [first.array]
    del first
    with runs.beside(Large(), 2 * GB):
        pass


def test_nobody_waits_for_one_that_calls_back() -> None:
    """It may wait for what its client calls meanwhile."""
    runs, outer, inner = MemoryReservations(lambda: 3 * GB), Large(), Large()
    with runs.beside(outer, 2 * GB, calls_python=True):
        outer.results = [outer.array]
    with runs.beside(inner, 2 * GB):
        inner.results = [inner.array]
    assert not outer.array.is_awaited.is_set()
