"""What is simulated: pools of several sizes, and one thing varied at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from benchmarks.simulation.parameters import Parameters
from benchmarks.simulation.run import UNSPREAD, VARIANTS, Outcome, Simulation, Variant


@dataclass(frozen=True, slots=True)
class Study:
    """One thing varied, with all else as it is.

    Attributes:
        name: how the command line calls it.
        title: above its table.
        varied: in words.
        settings: by what stands in the table, the parameters that differ.
        variants: the routing, where that differs as well.
        members: sizes of the pools.
    """

    name: str
    title: str
    varied: str
    members: Sequence[int]
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    variants: Mapping[str, Variant] = field(default_factory=dict)


def _ages(*ages: float) -> dict[str, dict[str, float]]:
    return {f"{age:g} s": {"view_s": age, "heartbeat_s": min(age, 0.5)} for age in ages}


_REFUSING: Final = replace(UNSPREAD, refuses=True)
_TAKE: Final = "take every call"
_PASS_ON: Final = "pass calls on when full"

STUDIES: Final = (
    Study(
        "stale",
        "How often clients are told",
        "loads told every",
        (64, 256),
        _ages(0.03, 0.1, 0.3, 1.0),
    ),
    Study(
        "bound",
        "The bound of the load",
        "bound",
        (64,),
        {f"{bound:g}": {"bound": bound} for bound in (1.05, 1.25, 2.0, 4.0)},
    ),
    Study(
        "refusing",
        "Members that pass calls on",
        "what members do",
        (64,),
        {_TAKE: {}, _PASS_ON: {}, f"{_PASS_ON}, 4 calls within every limit": {"least": 4}},
        {
            _PASS_ON: _REFUSING,
            f"{_PASS_ON}, 4 calls within every limit": _REFUSING,
        },
    ),
)

SIZES: Final = (4, 16, 64, 256, 1000)

Task = tuple[int, Variant, Parameters, int]
Run = Callable[[Sequence[Task]], Iterable[Outcome]]
"""Simulates each of the tasks, in their order."""


def simulate(task: Task) -> Outcome:
    """One of them, in a process of its own or in this one."""
    return Simulation(*task).run()


def simulate_sizes(
    sizes: Iterable[int],
    seeds: Sequence[int],
    parameters: Parameters,
    run: Run,
    variants: Sequence[Variant] = VARIANTS,
) -> list[Outcome]:
    """Each way to route, at every size, with every seed."""
    tasks = [
        (members, variant, parameters, seed)
        for members in sizes
        for variant in variants
        for seed in seeds
    ]
    return list(run(tasks))


def added(before: Iterable[Outcome], now: Iterable[Outcome]) -> list[Outcome]:
    """Those of an earlier run that were not simulated again, and those of this run, in order."""
    names = [variant.name for variant in VARIANTS]
    found = {(each.members, each.variant, each.seed): each for each in (*before, *now)}
    return [
        found[key] for key in sorted(found, key=lambda key: (key[0], names.index(key[1]), key[2]))
    ]


def simulate_study(
    study: Study, sizes: Iterable[int], seeds: Sequence[int], parameters: Parameters, run: Run
) -> dict[str, list[Outcome]]:
    """By setting, what came out at each size, with every seed."""
    found: dict[str, list[Outcome]] = {}
    for name, changes in study.settings.items():
        variant = study.variants.get(name, UNSPREAD)
        changed = replace(parameters, **changes)
        tasks = [(members, variant, changed, seed) for members in sizes for seed in seeds]
        found[name] = list(run(tasks))
    return found
