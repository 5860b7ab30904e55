"""What becomes of what a tracer says."""

from __future__ import annotations

import numpy as np
import pytest

from jaxd_protocol.errors import InternalError
from jaxd_protocol.messages.failures import ForwardedFailure, encode_failure
from jaxd_protocol.packages.distributions import package_of
from jaxd_server.codec.arguments import structure_of
from jaxd_server.compilation.compiling.builds import Build, as_current_build
from jaxd_server.compilation.compiling.compiler import Compiler
from jaxd_server.compilation.remote_trace import trace_job as module
from jaxd_server.compilation.remote_trace.messages import (
    Ended,
    Failed,
    Lowered,
    Outdated,
    Refused,
    SideEffects,
)
from jaxd_server.jax_compat import lowered_transfer
from jaxd_server.runtime.counters import Counters
from jaxd_server.runtime.events import SILENT
from tests.server.fake_tracer import NOTHING, FakeTracer, TracingScenario, X, refused
from tests.server.in_process import Source


@pytest.fixture
def source() -> Source:
    """Something to call."""
    return Source(lambda x: x * 2 + 1)


def test_the_code_is_sent_once(source: Source) -> None:
    """The next order for the function finds it there."""
    scenario = TracingScenario()
    scenario.answered(source, refused(always=False))
    assert scenario.tracers[0].orders[-1].code == bytes(source.code_)
    remote_trace = scenario.remote_trace(source)
    assert remote_trace is not None
    scenario.tracers[0].replies = [Failed(1, encode_failure(KeyError("it")), NOTHING)]
    with pytest.raises(ForwardedFailure):
        remote_trace.lower()
    asked = source.asked.count("code")
    again = scenario.remote_trace(source)
    assert again is not None
    assert again.order.code is None
    assert source.asked.count("code") == asked


def test_large_pickled_arguments_are_not_sent_twice(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker has them."""
    monkeypatch.setattr(module, "_MAX_PICKLED_BYTES", -1)
    assert TracingScenario().remote_trace(source) is None


def test_what_is_refused_once_is_tried_again(source: Source) -> None:
    """With its code, in case that was forgotten."""
    scenario = TracingScenario()
    scenario.remote_trace(source)
    scenario.tracers[0].known.add(source.fingerprint)
    assert scenario.answered(source, refused(always=False)) is None
    remote_trace = scenario.remote_trace(source)
    assert remote_trace is not None
    assert remote_trace.order.code is not None


def test_a_failure_goes_to_the_client_as_it_is(source: Source) -> None:
    """Described once, where it was raised."""
    failure = encode_failure(ValueError("the user's"))
    with pytest.raises(ForwardedFailure) as caught:
        TracingScenario().answered(source, Failed(1, failure, NOTHING))
    assert encode_failure(caught.value) == failure


def test_what_happened_beside_the_work_is_taken_over(source: Source) -> None:
    """Counts, and packages that this process may not have imported."""
    scenario = TracingScenario()
    package = package_of("pytest")
    assert package is not None
    side = SideEffects({"traces": 1, "trace_s": 0.5}, [("im_elsewhere", package)])
    with pytest.raises(ForwardedFailure):
        scenario.answered(source, Failed(1, encode_failure(KeyError()), side))
    counts = scenario.counters.snapshot()
    assert (counts["traces"], counts["lowers"], counts["trace_s"]) == (1, 0, 0.5)
    assert ("im_elsewhere", package) in scenario.packages.imported()


def test_a_trace_that_was_in_vain_is_counted(source: Source) -> None:
    """The function ran, and runs once more in this process."""
    scenario = TracingScenario()
    scenario.answered(source, Refused(1, "a reason", True, SideEffects({"traces": 1}, [])))
    assert scenario.counters.snapshot()["traces"] == 1


def test_the_lowered_program_is_compiled_here(source: Source) -> None:
    """It gives the results of the function, and its form travels."""
    compiler = Compiler(Counters(), 1)
    scenario = TracingScenario()
    function = scenario.functions.obtain(source.key, source)
    mine = compiler.lower(
        function.function, "it", source.options, ((X,), {}), structure_of(((X,), {})), SILENT
    )
    data = lowered_transfer.pack_lowered(mine.lowered, mine.obstacle)
    form = mine.form
    reply = Lowered(1, mine.program, data, form.skeleton, form.order, 0.25, (), (), NOTHING)
    lowered = scenario.answered(source, reply)
    assert (lowered.program, lowered.obstacle, lowered.trace_s) == (mine.program, None, 0.25)
    assert lowered.form == form
    program = compiler.compile(lowered, "it", source.options, SILENT)
    assert np.asarray(program.call(X)[0]).tolist() == [3.0] * 3
    compiler.close()


def test_a_function_that_ends_the_tracer_says_so(source: Source) -> None:
    """And the next tracer is started at once, for others."""
    scenario = TracingScenario()
    remote_trace = scenario.remote_trace(source)
    assert remote_trace is not None
    scenario.tracers[0].state = "ended"
    scenario.tracers[0].replies = [Ended("signal 9", 1)]
    scenario.next = [FakeTracer()]
    scenario.next[0].replies = [Ended("signal 11", 1)]
    with pytest.raises(InternalError, match=r"ended the process that traced it \(signal 11\)"):
        remote_trace.lower()
    assert len(scenario.tracers) == 3


@pytest.mark.parametrize("orders", [1, 2])
@pytest.mark.parametrize("guilty", [True, False])
def test_only_what_ends_a_tracer_again_is_guilty(guilty: bool, orders: int, source: Source) -> None:
    """Each is traced once more, alone: another one, or somebody, may have ended the first."""
    scenario = TracingScenario()
    remote_trace = scenario.remote_trace(source)
    assert remote_trace is not None
    scenario.tracers[0].replies = [Ended("signal 11", orders)]
    alone = FakeTracer()
    alone.replies = [Ended("signal 11", 1) if guilty else refused(always=False)]
    scenario.next = [alone]
    if guilty:
        with pytest.raises(InternalError):
            remote_trace.lower()
    else:
        assert remote_trace.lower() is None
    assert alone.orders[0].code is not None


def test_a_trace_can_be_given_up_also_when_it_is_made_once_more(source: Source) -> None:
    """By ending the process that does it: one that hangs would keep its turn for good."""
    scenario = TracingScenario()
    remote_trace = scenario.remote_trace(source)
    assert remote_trace is not None
    first, alone = scenario.tracers[0], FakeTracer()
    first.replies = [Ended("signal 9", 1)]
    alone.replies = [refused(always=False)]
    scenario.next = [alone]
    build = Build()
    with as_current_build(build):
        assert remote_trace.lower() is None
    assert (first.ended_by, alone.ended_by) == ([first.kill], [alone.kill])
    assert build.end_by_force is None
    assert alone.state == "closed"


def test_one_that_could_not_be_asked_alone_is_not_cleared(source: Source) -> None:
    """It may be the one that ended the tracer, and must not end the worker."""
    scenario = TracingScenario()
    remote_trace = scenario.remote_trace(source)
    assert remote_trace is not None
    scenario.tracers[0].replies = [Ended("signal 11", 2)]
    alone = FakeTracer("ended")
    alone.replies = [Ended("it was not running", 0)]
    scenario.next = [alone]
    with pytest.raises(InternalError, match="signal 11"):
        remote_trace.lower()


def test_an_order_that_was_not_taken_is_done_here(source: Source) -> None:
    """Nothing is known against it."""
    assert TracingScenario().answered(source, Ended("it was not running", 0)) is None


def test_a_tracer_that_is_out_of_date_is_replaced(source: Source) -> None:
    """This build is done here; the next one has the new tracer; others keep the old one."""
    scenario = TracingScenario()
    assert scenario.answered(source, Outdated(1, ["numpy was changed"])) is None
    assert scenario.tracers[0].state == "retired"
    remote_trace = scenario.remote_trace(source)
    assert remote_trace is not None
    assert remote_trace.tracer is scenario.tracers[1]  # type: ignore[comparison-overlap]
