"""A part of `make identity`, with another seed each time; and its tables."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import pytest

from tests.generator.kinds import FEATURES, REFUSED
from tests.generator.mechanisms import SWITCHES
from tests.generator.plans import (
    Choice,
    Function,
    Piece,
    Plan,
    Session,
    Step,
    drawn,
    smaller,
)
from tests.generator.processes import Processes
from tests.generator.running import run_plan, run_plans
from tests.generator.shrinking import script, shrunk
from tests.generator.worlds import plain, world
from tests.ids import row

_MOST = 6
_SECONDS = 10.0


def _alone(name: str, *choices: Choice) -> Plan:
    function = Function(0, (Piece(name, 0, (3, 4)),), ())
    steps = (Step((), (0,)), Step(choices, (0,)))
    return Plan(1, (function,), (Session(steps),))


@pytest.mark.slow
def test_random_programs_are_answered_as_jax_answers_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """From a seed that is printed, and counts on with each project, as time allows."""
    seed = int(time.time())
    with capsys.disabled():
        print(f"\npython -m tests.generator --seed {seed}")
    with Processes() as processes:
        report = run_plans(processes, _in_time(seed))
        for finding in report.findings[:1]:
            small = shrunk(finding, lambda plan: run_plan(processes, plan).findings, most=10)
            says = f"seed {seed}: {small.what}, {small.features}: {small.text}"
            pytest.fail(f"{says}\n{script(small)}")
    assert report.calls


def _in_time(seed: int) -> Iterator[Plan]:
    ends = time.monotonic() + _SECONDS
    for number in range(_MOST):
        if number == 0 or time.monotonic() < ends:
            yield drawn(seed + number)


_IS_ABOUT: Final = {
    "registrations": ("register(", "__subclasses__"),
    "unwatched": ("decimal.Context(",),
}
"""Mechanisms that matter to few features, and what these have in their code."""


def _features_about(name: str) -> list[str]:
    """Those that a mechanism may matter to, where these are few; else none, for all."""
    words = _IS_ABOUT.get(name, ())
    return [each for each, made in FEATURES.items() if any(word in str(made) for word in words)]


@pytest.mark.soak
@pytest.mark.timeout(500)
@pytest.mark.parametrize("name", SWITCHES)
def test_what_a_mechanism_is_for_is_found_without_it(name: str) -> None:
    """Within 2,000 programs, of which the first few hundred have to do here."""
    seed = int(time.time())
    with Processes((name,)) as processes:
        only = _features_about(name)
        few = (drawn(number, only=only) for number in range(seed, seed + 300))
        report = run_plans(processes, few, until=lambda finding: finding.what == "wrong")
    assert report.shown, f"seed {seed}"


def test_each_piece_can_be_written_and_edited() -> None:
    """Its code compiles, before and after each edit; text that is replaced is there, once."""
    for name, feature in FEATURES.items():
        for number, edit in enumerate(feature.edits):
            with row(f"{name}: {edit}"):
                made = world(_alone(name, Choice(0, 0, number, (5, 6))))
                act = made.processes[0].acts[1]
                for path, text in [*made.files.items(), *act.writes.items()]:
                    if path.endswith(".py"):
                        compile(text, path, "exec")
                for code in act.edits:
                    compile(code, name, "exec")
                assert bool(act.writes) == bool(edit.swap or edit.write)


def test_a_seed_says_all_of_a_plan() -> None:
    """So that what was found is found again."""
    assert drawn(5) == drawn(5)
    assert drawn(5) != drawn(6)


def test_smaller_plans_are_plans() -> None:
    """Whatever is left out, what is left can be written and run."""
    for plan in smaller(drawn(7)):
        assert plain(world(plan))["processes"]


def test_a_finding_is_made_small() -> None:
    """Down to one function, one piece, and the edit after which it is there."""
    from tests.generator.running import Finding

    plan = drawn(8, only=["constant", "dict", "closure"])

    def has_closure_edit(plan: Plan) -> list[Finding]:
        found = [
            Finding("wrong", plan, choice.function, at, number, "")
            for at, session in enumerate(plan.sessions)
            for number, step in enumerate(session.steps)
            for choice in step.choices
            for function in plan.functions
            if function.number == choice.function
            and function.pieces[choice.piece].feature == "closure"
        ]
        return found[:1]

    small = shrunk(has_closure_edit(plan)[0], has_closure_edit, most=1000).plan
    assert [
        piece.feature for f in small.functions for piece in f.pieces if piece.feature != "nothing"
    ] == ["closure"]
    assert sum(len(step.choices) for session in small.sessions for step in session.steps) == 1


def test_kinds_are_those_of_features() -> None:
    """A kind that nothing reads any more would hide nothing and mean nothing."""
    kinds = {feature.kind for feature in FEATURES.values()}
    assert kinds >= {*REFUSED}
