"""Which builds go to a builder."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxd_protocol.errors import InternalError
from jaxd_protocol.jax_objects.program_bytes import Serialized
from jaxd_protocol.packages.distributions import Package
from jaxd_server.compilation.compiling.compiler import Compiled, Compiler
from jaxd_server.compilation.executable_source import ExecutableSource
from jaxd_server.compilation.remote_build import policy
from jaxd_server.compilation.remote_build.messages import Built, Ended, Lowered, Outdated
from jaxd_server.compilation.remote_build.policy import BuildIn, LearnedSize
from tests.server.fake_builder import NOTHING, BuildScenario, FakeBuilder, X, refused
from tests.server.in_process import Source


@pytest.fixture
def source() -> Source:
    """Something to call."""
    return Source(lambda x: x * 2 + 1)


@pytest.mark.parametrize(
    ("build_in", "shared", "goes"),
    [
        ("worker", True, False),
        ("auto", False, False),
        ("auto", True, True),
        ("builder", False, True),
    ],
)
def test_where_a_function_is_traced(
    build_in: BuildIn, shared: bool, goes: bool, source: Source
) -> None:
    """A client that is alone would only wait for itself."""
    scenario = BuildScenario(build_in, shared=shared)
    assert (scenario.remote_build(source) is not None) is goes


def test_one_that_is_wanted_whoever_comes_is_started_at_once() -> None:
    """The first build need not wait for it."""
    scenario = BuildScenario("builder")
    scenario.building.start()
    assert len(scenario.builders) == 1
    waits = BuildScenario("auto")
    waits.building.start()
    assert waits.builders == []


@pytest.mark.parametrize(("shared", "spares"), [(True, 1), (False, 0)])
def test_one_is_started_before_it_is_needed(shared: bool, spares: int) -> None:
    """When a second client comes: its builds need not be made in the worker, or wait for long."""
    scenario = BuildScenario("auto", shared=shared)
    for _ in range(3):
        scenario.building.poll()
    assert len(scenario.builders) == spares


def test_a_single_client_that_has_built_has_one_ready_for_the_next(source: Source) -> None:
    """Not beside its first result, nor where all is there; not any longer when it works no more."""
    scenario = BuildScenario("auto", shared=False)
    scenario.in_use = True
    for now in (0.0, 50.0):
        scenario.now = now
        scenario.building.poll()
    scenario.in_use = False
    scenario.building.compiled_there(*scenario.lowered_here(source))
    scenario.building.poll()  # its first result is yet to come
    scenario.in_use = True
    for now, count in ((100.0, 0), (109.9, 0), (110.1, 1), (200.0, 1)):
        scenario.now = now
        scenario.building.poll()
        assert len(scenario.builders) == count
    assert scenario.builders[0].state == "ready"
    scenario.in_use = False
    scenario.building.poll()
    assert scenario.builders[0].state == "ended"
    scenario.in_use = True
    for now in (201.0, 299.0):  # what it needs now was built before
        scenario.now = now
        scenario.building.poll()
    assert len(scenario.builders) == 1


@pytest.mark.parametrize(("shared", "count"), [(True, 2), (False, 1)])
def test_a_single_client_has_no_second_one_started(
    shared: bool, count: int, source: Source
) -> None:
    """While its builder is at work, it waits for that; others would wait for nothing of theirs."""
    scenario = BuildScenario("auto", shared=shared)
    scenario.in_use = True
    scenario.building.compiled_there(*scenario.lowered_here(source))
    for now in (100.0, 113.0):
        scenario.now = now
        scenario.building.poll()
    scenario.building.builders.lend()
    scenario.now = 120.0
    scenario.building.poll()
    assert len(scenario.builders) == count


def test_a_build_waits_for_a_builder_that_starts(source: Source) -> None:
    """What crashes while it is traced takes no values of others along."""
    scenario = BuildScenario("auto")
    scenario.next = [FakeBuilder("starting")]
    scenario.will_answer(refused(always=False))
    remote_build = scenario.remote_build(source)
    assert remote_build is not None
    assert remote_build.lower() is None
    assert scenario.builders[0].waited == 1


def _chain(length: int) -> Any:
    def chain(x: Any) -> Any:
        for _ in range(length):
            x = jnp.sin(x) * 2
        return x

    return chain


@pytest.mark.parametrize(
    ("length", "state", "shared", "build_in", "goes"),
    [
        (1, "ready", False, "auto", False),
        (200, "ready", False, "auto", True),
        (200, "starting", False, "auto", False),
        (1000, "starting", False, "auto", True),
        (1, "starting", True, "auto", True),
        (1, "starting", False, "builder", True),
        (1000, "ready", True, "worker", False),
    ],
)
def test_what_this_process_has_lowered_may_be_compiled_elsewhere(
    length: int, state: str, shared: bool, build_in: BuildIn, goes: bool
) -> None:
    """For a single client when it is worth it, and does not wait for a builder without need."""
    scenario = BuildScenario(build_in, shared=shared)
    scenario.next = [FakeBuilder(state)]
    scenario.building.builders.start_spare()
    request, lowered = scenario.lowered_here(Source(_chain(length)))
    found = scenario.building.compiled_there(request, lowered)
    assert (found.elsewhere is not None) is goes


def test_the_size_from_which_that_is_worth_it_is_learned() -> None:
    """What cost too much is compiled here from then on; what cost little brings smaller ones."""
    size = LearnedSize()
    size.learn(150, 1.0, 0.5)
    assert size.least == 151
    size.learn(500, 1.0, 0.01)  # says nothing of small ones
    assert size.least == 151
    for _ in range(100):
        size.learn(size.least, 1.0, 0.1)
    assert size.least == 25
    size.learn(5000, 1.0, 0.5)
    assert size.least == 1000


def test_what_cost_too_much_elsewhere_is_compiled_here_after_that() -> None:
    """For a single client, who would only wait longer."""
    scenario = BuildScenario("auto", shared=False)
    scenario.building.builders.start_spare()
    request, lowered = scenario.lowered_here(Source(_chain(200)))
    there = scenario.building.compiled_there(request, lowered).elsewhere
    assert there is not None
    written = Compiled(Serialized(b"", 0, 0, ()), 1e-6, is_bound=False)
    scenario.builders[0].replies = [Built(1, written, NOTHING)]
    assert there.compile(0) == written
    there.loaded(0.5)
    assert scenario.building.compiled_there(request, lowered).elsewhere is None


def test_what_calls_back_is_compiled_here() -> None:
    """The builder has nobody to call."""
    scenario = BuildScenario("builder")

    def prints(x: Any) -> Any:
        jax.debug.callback(lambda: None)
        return x

    request, lowered = scenario.lowered_here(Source(prints))
    assert scenario.building.compiled_there(request, lowered).elsewhere is None


def test_functions_that_mean_something_only_here_stay_here(source: Source) -> None:
    """Those of stock clients, and those that hold what has no content."""
    scenario = BuildScenario()
    source.manifest = source.manifest._replace(shared=False)
    assert scenario.remote_build(source) is None
    assert scenario.builders == []


def test_a_call_that_another_process_cannot_name_stays_here(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one with a static argument that has no content."""
    monkeypatch.setattr(policy, "call_name", lambda function, arguments: None)
    scenario = BuildScenario()
    assert scenario.remote_build(source) is None
    assert scenario.builders == []


def test_what_is_refused_for_good_is_not_asked_again(source: Source) -> None:
    """For any signature of it."""
    scenario = BuildScenario()
    assert scenario.answered(source, refused(always=True)) is None
    assert scenario.remote_build(source) is None
    assert scenario.remote_build(source, X[:2]) is None


def test_what_ended_two_builders_is_never_traced_here_after_that(source: Source) -> None:
    """It would end the worker; and it is not forgiven once more."""
    scenario = BuildScenario()
    for _ in range(2):
        scenario.next.append(FakeBuilder())
        scenario.next[-1].replies = [Ended("signal 11", "died")]
    remote_build = scenario.remote_build(source)
    assert remote_build is not None
    with pytest.raises(InternalError):
        remote_build.lower()
    scenario.shared = False
    scenario.next = [FakeBuilder("starting")]
    scenario.next[-1].replies = [Ended("signal 11", "died")]
    remote_build = scenario.remote_build(source)
    assert remote_build is not None
    with pytest.raises(InternalError):
        remote_build.lower()
    assert len(scenario.builders) == 3


@pytest.mark.parametrize(
    "case", ["no builder", "refused", "outdated", "no name", "refused to compile", "not loaded"]
)
def test_what_ended_two_builders_is_never_built_here_whatever_a_builder_says(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller is told; the worker does not even trace it."""
    scenario, source = BuildScenario("auto", shared=False), Source(lambda x: x * 2 + 1)
    request, mine = scenario.lowered_here(source)
    form = mine.form.skeleton, mine.form.order, mine.form.inputs
    lowered = Lowered(1, mine.program, *form, 0.25, (), (), NOTHING)
    written = Compiled(Serialized(b"", 0, 0, ()), 0.5, is_bound=False)
    replies: dict[str, list[Any]] = {
        "refused": [refused(always=True)],
        "outdated": [Outdated(1, ["numpy was changed"])],
        "refused to compile": [lowered, refused(always=False)],
        "not loaded": [lowered, Built(1, written, NOTHING)],
    }
    scenario.next = [FakeBuilder("ended" if case == "no builder" else "ready") for _ in range(3)]
    scenario.next[0].replies = replies.get(case, [])
    if case == "no name":
        monkeypatch.setattr(policy, "call_name", lambda function, arguments: None)
    scenario.functions.deadly.add(source.describe(source.key))
    compiler = Compiler(scenario.counters, 1)
    maker = ExecutableSource(
        scenario.functions, compiler, scenario.counters, building=scenario.building
    )
    with pytest.raises(InternalError, match="built only in a process of its own"):
        maker.make(request)
    compiler.close()
    counts = scenario.counters.snapshot()
    assert (counts["traces"], counts["compiles"]) == (0, 0)


@pytest.mark.parametrize(("build_in", "goes"), [("auto", True), ("worker", False)])
def test_a_worker_of_old_packages_has_functions_traced_elsewhere(
    build_in: BuildIn, goes: bool, source: Source
) -> None:
    """Also for a single client."""
    scenario = BuildScenario(build_in, shared=False)
    old = Package("lowlib", "1.0", b"")
    scenario.packages.adopt([("not_installed_here", old)])
    assert scenario.packages.have_changed
    assert (scenario.remote_build(source) is not None) is goes
