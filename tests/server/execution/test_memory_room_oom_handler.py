from __future__ import annotations

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd_protocol.errors import OutOfMemory
from jaxd_server.execution.memory_room import OutOfMemoryHandler, wanted_bytes
from jaxd_server.runtime.memory_reclaimer import Reclaimer
from tests.server.runtime.test_memory_reclaimer import Pool

FULL = "RESOURCE_EXHAUSTED: Out of memory allocating 4096 bytes."


class Attempts:
    """Something that fails a number of times, as jax does it, and then returns."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.made = 0

    def __call__(self) -> str:
        self.made += 1
        if self.failures:
            raise self.failures.pop(0)
        return "done"


def full(text: str = FULL) -> Exception:
    """What jax raises."""
    error: Exception = jax.errors.JaxRuntimeError(text)
    return error


def oom_handler(capacity: int = 0) -> tuple[OutOfMemoryHandler, Pool]:
    """With three idle programs, and a device of that size."""
    reclaimer = Reclaimer()
    pool = Pool(3, 9)
    reclaimer.register(pool)
    return OutOfMemoryHandler(
        reclaimer, lambda: "The table is full of crumbs.", lambda: capacity
    ), pool


def test_what_finds_room_is_done_once() -> None:
    """And costs nobody anything."""
    relief, pool = oom_handler()
    work = Attempts()
    assert relief.retried_on_oom(work) == "done"
    assert (work.made, pool.held) == (1, 3)


def test_what_finds_none_is_done_again_after_some_was_made(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """All that is idle goes first, and the log says so."""
    relief, pool = oom_handler()
    work = Attempts(full())
    with caplog.at_level(logging.WARNING, "jaxd"):
        assert relief.retried_on_oom(work) == "done"
    assert (work.made, pool.held) == (2, 0)
    (line,) = caplog.records
    assert line.getMessage() == "out_of_memory"
    assert vars(line)["fields"] == {"reason": FULL, "dropped": 3}


def test_it_is_tried_exactly_twice() -> None:
    """The error then is typed, and says what failed, what was tried, what is there, what to do."""
    relief, _ = oom_handler()
    work = Attempts(full(), full("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes."))
    with pytest.raises(OutOfMemory) as caught:
        relief.retried_on_oom(work)
    assert work.made == 2
    assert str(caught.value) == (
        "RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes. "
        "Dropping what was idle (executables: 3) did not help. The table is full of crumbs. "
        "Use smaller arguments, split the call, or free what other clients hold."
    )


def test_another_error_is_not_ours() -> None:
    """Neither the first time nor the second."""
    relief, pool = oom_handler()
    with pytest.raises(ValueError, match="mine"):
        relief.retried_on_oom(Attempts(ValueError("mine")))
    assert pool.held == 3
    with pytest.raises(ValueError, match="mine"):
        relief.retried_on_oom(Attempts(full(), ValueError("mine")))


def test_what_never_fits_costs_nobody_a_program() -> None:
    """Asked for more than the device has, nothing is dropped and nothing is tried again."""
    relief, pool = oom_handler(capacity=4095)
    work = Attempts(full())
    with pytest.raises(OutOfMemory, match=r"4096 bytes\. That is more than there is"):
        relief.retried_on_oom(work)
    assert (work.made, pool.held) == (1, 3)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (FULL, 4096),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 123 bytes.", 123),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1.50GiB.", 3 << 29),
        ("RESOURCE_EXHAUSTED: Failed to allocate request for 2.0KiB (2048B) on device", 0),
        ("RESOURCE_EXHAUSTED: no words about it", 0),
        ("", 0),
    ],
)
def test_the_size_is_read_from_what_jax_says(text: str, size: int) -> None:
    """Where it says one in a way that is known."""
    assert wanted_bytes(text) == size


def test_donated_arguments_are_gone() -> None:
    """A call that has used them up cannot be repeated."""
    kept, donated = jnp.ones(3), jnp.ones(3)
    donated.delete()
    assert not OutOfMemoryHandler.are_gone([kept, np.ones(2), 1.0])
    assert OutOfMemoryHandler.are_gone([kept, donated])


class Room:
    """Memory of a machine, of which dropping programs frees some."""

    def __init__(self, spare: int, freed: int, capacity: int = 1000) -> None:
        self.pool = Pool(3, 9)
        reclaimer = Reclaimer()
        reclaimer.register(self.pool)
        self.relief = OutOfMemoryHandler(
            reclaimer,
            lambda: "The table is full of crumbs.",
            lambda: capacity,
            lambda: spare + (0 if self.pool.held else freed),
        )


def test_what_there_is_room_for_is_not_prevented() -> None:
    """And costs nobody anything."""
    room = Room(spare=100, freed=0)
    room.relief.make_room_for(100)
    assert room.pool.held == 3


def test_room_is_made_before_the_system_ends_the_process() -> None:
    """It gives more than it has, and then takes back everything."""
    room = Room(spare=100, freed=50)
    room.relief.make_room_for(150)
    assert room.pool.held == 0


def test_a_call_that_asks_too_much_is_refused_before_it_runs() -> None:
    """With what uses the memory; and where it is hopeless, without a loss to others."""
    room = Room(spare=100, freed=50)
    with pytest.raises(OutOfMemory, match=r"150 B are left.*did not help.*crumbs"):
        room.relief.make_room_for(500)
    assert room.pool.held == 0
    room = Room(spare=100, freed=50)
    with pytest.raises(OutOfMemory, match=r"whatever is dropped.*crumbs"):
        room.relief.make_room_for(5000)
    assert room.pool.held == 3
