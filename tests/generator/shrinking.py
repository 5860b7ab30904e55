"""Makes a finding small, and writes it as a script that shows it without any of this."""

from __future__ import annotations

import pprint
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.generator.plans import Plan, Session, Step, smaller
from tests.generator.running import Finding
from tests.generator.worlds import plain, world

_MOST: Final = 80
"""Smaller plans that are tried."""


def shrunk(finding: Finding, again: Callable[[Plan], list[Finding]], most: int = _MOST) -> Finding:
    """The smallest finding of that sort that was found in what is left of its plan.

    Args:
        finding: what was found.
        again: runs a plan and says what it finds.
        most: of how many runs.
    """
    left = most
    best = finding

    def holds(plan: Plan) -> bool:
        nonlocal best, left
        left -= 1
        found = next((one for one in again(plan) if one.describes(finding)), None)
        best = found or best
        return found is not None

    first = _up_to(finding)
    plan = first if holds(first) else finding.plan
    while left > 0:
        for candidate in smaller(plan):
            if left > 0 and holds(candidate):
                plan = candidate
                break
        else:
            break
    return best


def _up_to(finding: Finding) -> Plan:
    """Without what comes after it, and where it is of one function without all others."""
    plan = finding.plan
    sessions = [*plan.sessions[: finding.process + 1]]
    sessions[-1] = Session(sessions[-1].steps[: finding.act + 1])
    if finding.function < 0:
        return replace(plan, sessions=tuple(sessions))

    def kept(step: Step) -> Step:
        return Step(
            tuple(choice for choice in step.choices if choice.function == finding.function),
            tuple(call for call in step.calls if call == finding.function),
        )

    return replace(
        plan,
        functions=tuple(one for one in plan.functions if one.number == finding.function),
        sessions=tuple(Session(tuple(map(kept, each.steps))) for each in sessions),
    )


def script(finding: Finding) -> str:
    """A program that needs nothing but jax and jaxd."""
    source = Path(__file__).with_name("reproduction.py").read_text()
    made = plain(world(finding.plan))
    name = made["name"]
    text = pprint.pformat(made, width=96, sort_dicts=False).replace(name, "project")
    empty = "WORLD: dict[str, Any] = {}\n"
    assert empty in source
    return source.replace(empty, f"WORLD: dict[str, Any] = {text}\n")
