"""When a tracer is started, and when none is any more."""

from __future__ import annotations

import pytest

from tests.server.fake_tracer import FakeTracer, TracingScenario
from tests.server.in_process import Source


@pytest.fixture
def source() -> Source:
    """Something to call."""
    return Source(lambda x: x * 2 + 1)


def test_a_tracer_that_never_comes_up_is_given_up(source: Source) -> None:
    """After three times all is traced here."""
    scenario = TracingScenario("tracer")
    scenario.next = [FakeTracer("ended") for _ in range(9)]
    assert [scenario.remote_trace(source) for _ in range(6)] == [None] * 6
    assert len(scenario.tracers) == 3


def test_closing_ends_the_tracer_for_good(source: Source) -> None:
    """Nothing starts another one."""
    scenario = TracingScenario("tracer")
    scenario.remote_trace(source)
    scenario.tracing.close()
    assert scenario.tracers[0].state == "closed"
    assert scenario.remote_trace(source) is None
    assert len(scenario.tracers) == 1
