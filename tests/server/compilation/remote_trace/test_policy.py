"""Which builds go to a tracer."""

from __future__ import annotations

import pytest

from jaxd_protocol.errors import InternalError
from jaxd_protocol.packages.distributions import Package
from jaxd_server.compilation.remote_trace import policy
from jaxd_server.compilation.remote_trace.messages import Ended
from jaxd_server.compilation.remote_trace.policy import TraceIn
from tests.server.fake_tracer import FakeTracer, TracingScenario, X, refused
from tests.server.in_process import Source


@pytest.fixture
def source() -> Source:
    """Something to call."""
    return Source(lambda x: x * 2 + 1)


@pytest.mark.parametrize(
    ("trace_in", "shared", "goes"),
    [
        ("worker", True, False),
        ("auto", False, False),
        ("auto", True, True),
        ("tracer", False, True),
    ],
)
def test_where_a_function_is_traced(
    trace_in: TraceIn, shared: bool, goes: bool, source: Source
) -> None:
    """A client that is alone would only wait for itself."""
    scenario = TracingScenario(trace_in, shared=shared)
    assert (scenario.remote_trace(source) is not None) is goes
    assert len(scenario.tracers) == goes


def test_one_that_is_wanted_whoever_comes_is_started_at_once() -> None:
    """The first build need not wait for it."""
    scenario = TracingScenario("tracer")
    scenario.tracing.start()
    assert len(scenario.tracers) == 1
    waits = TracingScenario("auto")
    waits.tracing.start()
    assert waits.tracers == []


def test_a_build_does_not_wait_for_a_tracer_that_starts(source: Source) -> None:
    """Unless all of them are to be traced there."""
    scenario = TracingScenario("auto")
    scenario.next = [FakeTracer("starting")]
    assert scenario.remote_trace(source) is None
    assert scenario.tracers[0].waited == 0
    always = TracingScenario("tracer")
    always.next = [FakeTracer("starting")]
    assert always.remote_trace(source) is not None


def test_functions_that_mean_something_only_here_stay_here(source: Source) -> None:
    """Those of stock clients, and those that hold what has no content."""
    scenario = TracingScenario()
    source.manifest = source.manifest._replace(shared=False)
    assert scenario.remote_trace(source) is None
    assert scenario.tracers == []


def test_a_call_that_another_process_cannot_name_stays_here(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one with a static argument that has no content."""
    monkeypatch.setattr(policy, "call_name", lambda function, arguments: None)
    scenario = TracingScenario()
    assert scenario.remote_trace(source) is None
    assert scenario.tracers == []


def test_what_is_refused_for_good_is_not_asked_again(source: Source) -> None:
    """For any signature of it."""
    scenario = TracingScenario()
    assert scenario.answered(source, refused(always=True)) is None
    assert scenario.remote_trace(source) is None
    assert scenario.remote_trace(source, X[:2]) is None


def test_it_is_never_traced_here_after_that(source: Source) -> None:
    """It would end the worker: it waits for a tracer."""
    scenario = TracingScenario()
    remote_trace = scenario.remote_trace(source)
    assert remote_trace is not None
    scenario.tracers[0].state = "ended"
    scenario.tracers[0].replies = [Ended("signal 11", 1)]
    alone = FakeTracer()
    alone.replies = [Ended("signal 11", 1)]
    scenario.next = [alone, FakeTracer("starting")]
    with pytest.raises(InternalError):
        remote_trace.lower()
    assert scenario.remote_trace(source) is not None
    assert scenario.tracers[2].waited == 1


@pytest.mark.parametrize(("trace_in", "goes"), [("auto", True), ("worker", False)])
def test_a_worker_of_old_packages_has_functions_traced_elsewhere(
    trace_in: TraceIn, goes: bool, source: Source
) -> None:
    """Also for a single client, and it waits for a tracer that starts."""
    scenario = TracingScenario(trace_in, shared=False)
    scenario.next = [FakeTracer("starting")]
    old = Package("lowlib", "1.0", b"")
    scenario.packages.adopt([("not_installed_here", old)])
    assert scenario.packages.have_changed
    assert (scenario.remote_trace(source) is not None) is goes
