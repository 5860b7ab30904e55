"""What becomes of what a builder says."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import pytest

from jaxd_protocol.errors import DeadlineExceeded, InternalError
from jaxd_protocol.jax_objects.lowered_bytes import NotTransferable
from jaxd_protocol.jit.options import Options
from jaxd_protocol.messages.failures import ForwardedFailure, encode_failure
from jaxd_protocol.packages.distributions import package_of
from jaxd_server.compilation.compiling import builds
from jaxd_server.compilation.compiling.compiler import Compiled, Compiler, LoweredFunction
from jaxd_server.compilation.remote_build import build_job as module
from jaxd_server.compilation.remote_build.messages import (
    BuildOrder,
    Built,
    CompileLowered,
    CompileOrder,
    Ended,
    Failed,
    Lowered,
    Outdated,
    Packed,
    Refused,
    SideEffects,
)
from jaxd_server.jax_compat.programs import serialized
from jaxd_server.runtime.counters import Counters
from jaxd_server.runtime.events import SILENT
from jaxd_server.user_code.interrupt import Interrupted
from tests.end_to_end.test_builders import compiles_for_ever
from tests.server.fake_builder import NOTHING, BuildScenario, FakeBuilder, X, refused
from tests.server.in_process import InProcessServer, Source
from tests.server.staging import until


def orders(builder: FakeBuilder) -> list[BuildOrder]:
    """The builds that it was asked for."""
    return [one for one in builder.requests if isinstance(one, BuildOrder)]


@pytest.fixture
def source() -> Source:
    """Something to call."""
    return Source(lambda x: x * 2 + 1)


def test_the_code_is_sent_once(source: Source) -> None:
    """The next order for the function finds it there."""
    scenario = BuildScenario()
    failed = Failed(1, encode_failure(KeyError("it")), NOTHING)
    with pytest.raises(ForwardedFailure):
        scenario.answered(source, failed)
    assert orders(scenario.builders[0])[-1].code == bytes(source.code_)
    asked = source.asked.count("code")
    with pytest.raises(ForwardedFailure):
        scenario.answered(source, failed)
    assert orders(scenario.builders[0])[-1].code is None
    assert source.asked.count("code") == asked


def test_the_code_is_fetched_before_the_build_has_its_turn(source: Source) -> None:
    """Its client may take a while, and others would wait; but not where each builder has it."""
    scenario = BuildScenario()
    pool = scenario.building.builders
    for builder in [pool.lend(), pool.lend()]:
        assert builder is not None
        pool.give_back(builder)
    scenario.builders[0].known.add(source.fingerprint)
    scenario.request(source)
    asked = source.asked.count("code")
    remote_build = scenario.remote_build(source)
    assert source.asked.count("code") == asked + 1
    assert remote_build is not None
    scenario.builders[0].replies = [refused(always=False)]
    assert remote_build.lower() is None  # by the one that has it, and is not sent it again
    remote_build.close()
    assert [order.code for order in orders(scenario.builders[0])] == [None]
    for one in scenario.builders:
        one.known.add(source.fingerprint)
    assert scenario.remote_build(source) is not None
    assert source.asked.count("code") == asked + 1


def test_large_pickled_arguments_are_not_sent_twice(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker has them."""
    monkeypatch.setattr(module, "_MAX_PICKLED_BYTES", -1)
    assert BuildScenario().remote_build(source) is None


def test_what_is_refused_once_is_tried_again(source: Source) -> None:
    """With its code, in case that was forgotten."""
    scenario = BuildScenario()
    scenario.will_answer().known.add(source.fingerprint)
    assert scenario.answered(source, refused(always=False)) is None
    assert scenario.answered(source, refused(always=False)) is None
    assert [order.code is None for order in orders(scenario.builders[0])] == [True, False]


def test_a_failure_goes_to_the_client_as_it_is(source: Source) -> None:
    """Described once, where it was raised. What happened beside the work is taken over."""
    scenario, package = BuildScenario(), package_of("pytest")
    assert package is not None
    side = SideEffects({"traces": 1, "trace_s": 0.5}, [("im_elsewhere", package)])
    failure = encode_failure(ValueError("the user's"))
    with pytest.raises(ForwardedFailure) as caught:
        scenario.answered(source, Failed(1, failure, side))
    assert encode_failure(caught.value) == failure
    scenario.answered(source, Refused(1, "a reason", True, side))  # a trace that was in vain
    counts = scenario.counters.snapshot()
    assert (counts["traces"], counts["lowers"], counts["trace_s"]) == (2, 0, 1.0)
    assert ("im_elsewhere", package) in scenario.packages.imported()


def lowered_reply(lowered: LoweredFunction) -> Lowered:
    """What a builder says of it."""
    form = lowered.form
    how = form.skeleton, form.order, form.inputs
    return Lowered(1, lowered.program, *how, 0.25, (), (), NOTHING)


def built(lowered: LoweredFunction) -> Built:
    """What a builder says when it has compiled it."""
    compiler = Compiler(Counters(), 1)
    program = compiler.compile(lowered, "it", Options(), SILENT)
    compiler.close()
    written = serialized(program.compiled, program.devices)
    side = SideEffects({"compiles": 1}, [])
    return Built(1, Compiled(written, 2.5, is_bound=False), side)


def test_the_program_is_compiled_there(source: Source) -> None:
    """Its bytes arrive as they were made, and what it counted is added."""
    scenario = BuildScenario()
    _, mine = scenario.lowered_here(source)
    remote_build = scenario.remote_build(source)
    assert remote_build is not None
    reply = built(mine)
    builder = scenario.will_answer(lowered_reply(mine), reply)
    lowered = remote_build.lower()
    assert lowered is not None
    assert lowered.elsewhere is not None
    assert (lowered.program, lowered.obstacle, lowered.trace_s) == (mine.program, None, 0.25)
    assert lowered.form == mine.form
    assert lowered.elsewhere.compile(0) is reply.compiled
    assert isinstance(builder.requests[-1], CompileLowered)
    assert scenario.counters.snapshot()["compiles"] == 1
    remote_build.close()


def test_a_builder_that_cannot_write_a_program_hands_it_over(source: Source) -> None:
    """And this process compiles it."""
    scenario = BuildScenario()
    _, mine = scenario.lowered_here(source)
    remote_build = scenario.remote_build(source)
    assert remote_build is not None
    scenario.will_answer(lowered_reply(mine), refused(always=False), Packed(1, b"packed"))
    lowered = remote_build.lower()
    assert lowered is not None
    assert lowered.elsewhere is not None
    assert lowered.elsewhere.compile(0) is None
    assert lowered.elsewhere.hand_over() == b"packed"


def test_what_was_lowered_here_is_compiled_there(source: Source) -> None:
    """In a second builder when the first one ends."""
    scenario = BuildScenario("builder")
    request, mine = scenario.lowered_here(source)
    found = scenario.building.compiled_there(request, mine)
    reply = built(mine)
    scenario.next = [FakeBuilder(), FakeBuilder()]
    scenario.next[0].replies = [Ended("signal 9", "died")]
    scenario.next[1].replies = [reply]
    assert found.elsewhere is not None
    assert found.elsewhere.compile(0) is reply.compiled
    (order,) = scenario.builders[1].requests
    assert isinstance(order, CompileOrder)
    assert order.program == mine.program


@pytest.mark.parametrize("stage", ["trace", "compile"])
@pytest.mark.parametrize("guilty", [True, False])
def test_only_what_ends_a_second_builder_is_guilty(
    guilty: bool, stage: str, source: Source
) -> None:
    """One that has built nothing else: somebody, or something, may have ended the first."""
    scenario = BuildScenario()
    _, mine = scenario.lowered_here(source)
    ended, before = Ended("signal 11", "died"), [lowered_reply(mine)] * (stage == "compile")
    reply = built(mine)
    scenario.next = [FakeBuilder(), FakeBuilder(), FakeBuilder()]
    scenario.next[0].replies = [*before, ended]
    scenario.next[1].replies = [*before, ended] if guilty else [lowered_reply(mine), reply]
    remote_build = scenario.remote_build(source)
    assert remote_build is not None

    def build() -> object:
        lowered = remote_build.lower()
        assert lowered is not None
        assert lowered.elsewhere is not None
        return lowered.elsewhere.compile(0)

    if guilty:
        with pytest.raises(InternalError, match=r"in another one \(signal 11\)"):
            build()
        assert source.describe(source.key) in scenario.functions.deadly
    else:
        assert build() is reply.compiled
    remote_build.close()
    assert len(scenario.builders) == 2
    assert orders(scenario.builders[1])[0].code is not None


@pytest.mark.parametrize("what", ["program", "skeleton", "order", "reads", "dependencies"])
def test_a_second_trace_that_differs_is_not_taken_for_the_first(what: str, source: Source) -> None:
    """Its program would be kept under the name of the first, for everybody."""
    scenario = BuildScenario()
    _, mine = scenario.lowered_here(source)
    first = lowered_reply(mine)
    others: dict[str, Any] = {"program": b"another", "skeleton": b"L", "order": (1, 0)}
    changed: Any = {what: others.get(what, ("another",))}
    again = first._replace(**changed)
    scenario.next = [FakeBuilder(), FakeBuilder()]
    scenario.next[0].replies = [first, Ended("signal 9", "died")]
    scenario.next[1].replies = [again, built(mine)]
    remote_build = scenario.remote_build(source)
    assert remote_build is not None
    lowered = remote_build.lower()
    assert lowered is not None
    assert lowered.elsewhere is not None
    with pytest.raises(NotTransferable, match="another program now"):
        lowered.elsewhere.compile(0)
    assert scenario.builders[1].state == "ended"
    remote_build.close()


def test_a_build_whose_builder_was_ended_for_it_is_given_up(source: Source) -> None:
    """No call waited for it; it is not made once more, and not blamed."""
    scenario = BuildScenario()
    with pytest.raises(Interrupted):
        scenario.answered(source, Ended("signal 9", "stopped"))
    assert source.describe(source.key) not in scenario.functions.deadly


@pytest.mark.slow
def test_a_builder_compiles_for_a_limited_time_although_no_call_may_wait(
    open_in_process_server: Callable[..., InProcessServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is done by then is kept; what takes longer would hold its place for ever."""
    monkeypatch.setattr(builds, "OVERDUE_FACTOR", 2)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    server = open_in_process_server(max_build_s=1.0, build_in="builder")
    pool = server.parts._building.builders
    pool.start_spare()
    until(lambda: pool.is_ready)
    (builder,) = pool._idle
    with pytest.raises(DeadlineExceeded, match="in a builder for up to 2 s"):
        server.client().persistent_call(compiles_for_ever)(X)
    assert builder.state == "ready"
    assert pool._lent == [builder]
    until(lambda: builder.state == "ended")
    until(lambda: not pool._lent)
    assert server.parts.status.now()["left_behind"] == []
    pool.close()


def test_an_order_that_was_not_taken_is_given_to_another_one(source: Source) -> None:
    """Nothing is known against it."""
    scenario = BuildScenario()
    scenario.next = [FakeBuilder(), FakeBuilder()]
    scenario.next[1].replies = [refused(always=False)]
    assert scenario.answered(source, Ended("it was not running", "away")) is None
    assert len(scenario.builders) == 2


def test_a_builder_that_is_out_of_date_is_replaced(source: Source) -> None:
    """This build is done here; the next one has the new builder."""
    scenario = BuildScenario()
    assert scenario.answered(source, Outdated(1, ["numpy was changed"])) is None
    assert scenario.builders[0].state == "ended"
    scenario.next = [FakeBuilder()]
    scenario.next[0].replies = [refused(always=False)]
    remote_build = scenario.remote_build(source)
    assert remote_build is not None
    assert remote_build.lower() is None
    assert len(scenario.builders[1].requests) == 1
