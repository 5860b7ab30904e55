from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jaxd_protocol.errors import OutOfMemory
from jaxd_server.compilation.compiling.executable import Executable
from jaxd_server.execution import memory_room as large_runs
from jaxd_server.execution.memory_room import OutOfMemoryHandler
from tests.server.execution.test_memory_room_oom_handler import full
from tests.server.in_process import PipelineHarness, Source, read_reply


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


def test_a_call_whose_arguments_are_gone_is_not_repeated(
    harness: PipelineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is then jax's own."""
    source = Source(lambda x: x * 3)
    harness.value(source, np.float32(1))
    attempts = without_room(*harness.executables.all())
    monkeypatch.setattr(OutOfMemoryHandler, "are_gone", staticmethod(lambda _: True))
    with pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED"):
        harness.value(source, np.float32(1))
    assert len(attempts) == 1


def test_a_call_with_effects_is_not_repeated(harness: PipelineHarness) -> None:
    """They would happen once more; the error is then jax's own."""
    source = Source(lambda x: x * 5)
    harness.value(source, np.float32(1))
    (executable,) = harness.executables.all()
    attempts = without_room(executable)
    executable.program.calls_back = True
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
