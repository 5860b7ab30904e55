from __future__ import annotations

import logging
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd_protocol.errors import OutOfMemory
from jaxd_server.compilation.compiling.executable import Executable
from jaxd_server.execution import memory_room as large_runs
from jaxd_server.execution.memory_room import MemoryReservations, OutOfMemoryHandler, wanted_bytes
from jaxd_server.runtime.memory_reclaimer import Reclaimer
from tests.end_to_end.gates import in_thread
from tests.server.in_process import PipelineHarness, Source, read_reply
from tests.server.runtime.test_memory_reclaimer import Pool

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
    """Nor the first one, however large; nobody waits for one that calls back."""
    runs, first, second = MemoryReservations(lambda: 4 * GB), Large(), Large()
    with runs.beside(first, 2 * GB):
        first.results = [first.array]
    with runs.beside(second, 2 * GB):
        second.results = [second.array]
    assert not first.array.is_awaited.is_set()
    alone = MemoryReservations(lambda: 0)
    with alone.beside(first, GB):
        pass
    runs, outer, inner = MemoryReservations(lambda: 3 * GB), Large(), Large()
    with runs.beside(outer, 2 * GB, calls_python=True):
        outer.results = [outer.array]
    with runs.beside(inner, 2 * GB):
        inner.results = [inner.array]
    assert not outer.array.is_awaited.is_set()


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
    """Neither where its result says so, nor one of which nobody has the arrays any more."""
    runs, first, second = MemoryReservations(lambda: 3 * GB), Large(), Large()
    with pytest.raises(ValueError, match="mine"), runs.beside(first, 2 * GB):
        raise ValueError("mine")
    with runs.beside(second, 2 * GB):
        second.results = [second]  # which is no array
    with runs.beside(first, 2 * GB):
        pass
    runs, first = MemoryReservations(lambda: 3 * GB), Large()
    with runs.beside(first, 2 * GB):
        first.results = [first.array]
    del first
    with runs.beside(Large(), 2 * GB):
        pass


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
    """And costs nobody anything; another error is not ours."""
    relief, pool = oom_handler()
    work = Attempts()
    assert relief.retried_on_oom(work) == "done"
    assert (work.made, pool.held) == (1, 3)
    relief, pool = oom_handler()
    with pytest.raises(ValueError, match="mine"):
        relief.retried_on_oom(Attempts(ValueError("mine")))
    assert pool.held == 3
    with pytest.raises(ValueError, match="mine"):
        relief.retried_on_oom(Attempts(full(), ValueError("mine")))


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
    """The error says what was tried and what to do; what never fits costs nobody a program."""
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


def test_room_is_made_before_the_system_ends_the_process() -> None:
    """A call that asks too much is refused before it runs; where it is hopeless, without a loss."""
    room = Room(spare=100, freed=0)
    room.relief.make_room_for(100)
    assert room.pool.held == 3
    room = Room(spare=100, freed=50)
    room.relief.make_room_for(150)
    assert room.pool.held == 0
    room = Room(spare=100, freed=50)
    with pytest.raises(OutOfMemory, match=r"150 B are left.*did not help.*crumbs"):
        room.relief.make_room_for(500)
    assert room.pool.held == 0
    room = Room(spare=100, freed=50)
    with pytest.raises(OutOfMemory, match=r"whatever is dropped.*crumbs"):
        room.relief.make_room_for(5000)
    assert room.pool.held == 3


def test_a_call_that_no_machine_has_room_for(harness: PipelineHarness) -> None:
    """With a real device: the caller gets the typed error, and the next call works."""

    def enormous(x: Any) -> Any:
        return jnp.zeros(1 << 44, jnp.float32) + x

    source = Source(enormous)
    with pytest.raises(OutOfMemory, match="allocating 70368744177664 bytes"):
        harness.value(source, np.float32(1))
    fine = Source(lambda x: x + 1)
    assert harness.value(fine, np.float32(1)) == 2


def test_a_call_for_which_room_is_made_is_answered(harness: PipelineHarness) -> None:
    """It runs twice and its caller sees only the result."""
    source = Source(lambda x: x * 2)
    harness.value(source, np.float32(1))
    (executable,) = harness.executables.all()
    real = executable.program.call
    attempts: list[None] = []

    def scarce(*leaves: Any) -> list[Any]:
        attempts.append(None)
        if len(attempts) == 1:
            raise full()
        return real(*leaves)

    executable.program.call = scarce
    assert harness.value(source, np.float32(4)) == 8
    assert len(attempts) == 2


def without_room(executable: Executable) -> list[None]:
    """Has the device never find room for a program; grows with each attempt."""
    attempts: list[None] = []

    def scarce(*leaves: Any) -> list[Any]:
        attempts.append(None)
        raise full()

    executable.program.call = scarce
    return attempts


@pytest.mark.parametrize("why", ["arguments are gone", "effects"])
def test_a_call_that_cannot_be_repeated_is_not(
    harness: PipelineHarness, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Its arguments are gone, or its effects would happen once more; the error is jax's own."""
    source = Source(lambda x: x * 3)
    harness.value(source, np.float32(1))
    (executable,) = harness.executables.all()
    attempts = without_room(executable)
    if why == "effects":
        executable.program.calls_back = True
    else:
        monkeypatch.setattr(OutOfMemoryHandler, "are_gone", staticmethod(lambda _: True))
    with pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED"):
        harness.value(source, np.float32(1))
    assert len(attempts) == 1


def test_a_program_says_what_it_takes_when_that_is_much(harness: PipelineHarness) -> None:
    """And its call is refused where the machine does not have that."""
    large = Source(lambda x: jnp.zeros(1 << 27, jnp.float32) + x)
    harness.pipeline.oom_handler.spare = lambda: 1 << 28
    with pytest.raises(OutOfMemory, match=r"allocating 536870912 bytes; 256\.0 MiB are left"):
        harness.value(large, np.float32(1))
    small = Source(lambda x: jnp.zeros(1 << 10, jnp.float32) + x)
    harness.pipeline.oom_handler.spare = lambda: 0
    assert harness.value(small, np.float32(1))[0] == 1.0


def test_two_large_calls_for_which_there_is_no_room_run_in_turn(
    harness: PipelineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second is dispatched when the device is done with the first; both are answered."""
    source = Source(lambda x: x * 7)
    harness.value(source, np.float32(1))
    (executable,) = harness.executables.all()
    executable.program.run_bytes = 2 << 30
    executor = harness.pipeline._executor
    executor._oom_handler.spare = executor._memory_reservations._spare = lambda: 3 << 30
    awaited: list[Any] = []
    monkeypatch.setattr(large_runs, "wait_for", awaited.append)
    first, second = (harness.pipeline.start(source.call([np.float32(number)])) for number in (2, 3))
    assert [float(array) for (array,) in awaited] == [14.0]
    answers = [read_reply(finish(), source) for finish in (first, second)]
    assert [float(answer) for answer in answers] == [14.0, 21.0]
