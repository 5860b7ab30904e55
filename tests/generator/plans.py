"""Random plans: which pieces each function has, and what happens when, all from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from tests.generator.features import Feature
from tests.generator.kinds import FEATURES, REFUSED
from tests.identity.random_projects import LINKS

FUNCTIONS: Final = 10
_SESSIONS: Final = (2, 3)
_STEPS: Final = (1, 3)
_EDITED: Final = 0.7
"""Of the functions, at each step."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A feature, the module of the function's chain that it stands in, and its two numbers."""

    feature: str
    module: int
    numbers: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Function:
    """One program: pieces in a chain of modules that reach each other by these links."""

    number: int
    pieces: tuple[Piece, ...]
    links: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One edit of one piece; `numbers` take the place of the piece's own."""

    function: int
    piece: int
    edit: int
    numbers: tuple[int, int]
    reloads: str = "all"
    """`all` modules of the chain from the edited one on upwards, `one`, or `none`."""


@dataclass(frozen=True, slots=True)
class Step:
    """What happens, then each function in `calls` is called."""

    choices: tuple[Choice, ...]
    calls: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Session:
    """One process. The choices of its first step are made before it starts."""

    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Programs that live in one project, and the processes that run them."""

    seed: int
    functions: tuple[Function, ...]
    sessions: tuple[Session, ...]

    @property
    def has_jax(self) -> bool:
        """Whether the clients have to have jax."""
        return any(feature.jax for function in self.functions for feature in features_of(function))


def features_of(function: Function) -> list[Feature]:
    """Those of its pieces."""
    return [FEATURES[piece.feature] for piece in function.pieces]


def is_refused(function: Function) -> bool:
    """Whether it may be refused."""
    return any(feature.kind in REFUSED for feature in features_of(function))


def drawn(seed: int, *, only: Sequence[str] = ()) -> Plan:
    """The plan of a seed.

    Args:
        seed: from which all follows.
        only: features to draw from, instead of all.
    """
    rng = random.Random(seed)
    names = list(only) or [name for name in FEATURES if name != "nothing"]
    # few projects have what makes them slow: clients with jax, and workers that are replaced
    jax, packages = rng.random() < 0.15, rng.random() < 0.12
    if not only:
        names = [name for name in names if _may(FEATURES[name], jax=jax, packages=packages)]
        names += 10 * [
            name for name in names if not _may(FEATURES[name], jax=False, packages=False)
        ]
    functions = tuple(_function(rng, number, names) for number in range(FUNCTIONS))
    sessions = [
        Session(
            tuple(_step(rng, functions, between=not step) for step in range(rng.randint(*_STEPS)))
        )
        for _ in range(rng.randint(*_SESSIONS))
    ]
    everything = Step((), tuple(range(FUNCTIONS)))
    sessions[0] = Session((everything, *sessions[0].steps[1:]))
    return Plan(seed, functions, tuple(sessions))


def _may(feature: Feature, *, jax: bool, packages: bool) -> bool:
    upgraded = feature.kind in ("dependency", "package")
    return (jax or not feature.jax) and (packages or not upgraded)


def _function(rng: random.Random, number: int, names: Sequence[str]) -> Function:
    chain = rng.choice((1, 1, 2, 3))
    refused = [name for name in names if FEATURES[name].kind in REFUSED]
    sound = [name for name in names if FEATURES[name].kind not in REFUSED]
    if refused and (not sound or rng.random() < 0.08):
        chosen = [rng.choice(refused)]  # beside others it would hide what they do
    else:
        chosen = [*dict.fromkeys(rng.sample(sound, min(rng.randint(1, 3), len(sound))))]
        if any(FEATURES[name].threads for name in chosen):
            chosen = chosen[:2]
    pieces = tuple(
        Piece(name, 0 if _is_first(FEATURES[name]) else rng.randrange(chain), _numbers(rng))
        for name in chosen
    )
    links = tuple(rng.choice(sorted(LINKS)) for _ in range(chain - 1))
    return Function(number, pieces, links)


def _is_first(feature: Feature) -> bool:
    """Whether it stands in the module with the function that is called."""
    return feature.early or bool(feature.static)


def _numbers(rng: random.Random) -> tuple[int, int]:
    one, other = rng.sample(range(2, 10), 2)
    return one, other


def _step(rng: random.Random, functions: Sequence[Function], *, between: bool) -> Step:
    choices = []
    for function in functions:
        if rng.random() >= _EDITED:
            continue
        pairs = [
            (piece, number)
            for piece, each in enumerate(features_of(function))
            for number, edit in enumerate(each.edits)
            if (not edit.code if between else not edit.is_for_processes)
        ]
        if pairs:
            reloads = rng.choice(("all", "all", "one", "none"))
            choices.append(Choice(function.number, *rng.choice(pairs), _numbers(rng), reloads))
    touched = [choice.function for choice in choices]
    calls = range(len(functions)) if between else touched or [0]
    return Step(tuple(choices), tuple(calls))


def smaller(plan: Plan) -> list[Plan]:
    """Plans with less in them, those that leave out most first."""
    made: list[Plan] = []
    if len(plan.functions) > 1:
        half = len(plan.functions) // 2
        made += [_with_only(plan, (each,)) for each in plan.functions]
        made += [_with_only(plan, plan.functions[half:]), _with_only(plan, plan.functions[:half])]
        made += [
            _with_only(plan, tuple(each for each in plan.functions if each != one))
            for one in plan.functions
            if len(plan.functions) > 2
        ]
    for at in range(len(plan.sessions)):
        if len(plan.sessions) > 1:
            made.append(replace(plan, sessions=(*plan.sessions[:at], *plan.sessions[at + 1 :])))
        steps = plan.sessions[at].steps
        for number, step in enumerate(steps):
            if len(steps) > 1:
                made.append(_with(plan, at, (*steps[:number], *steps[number + 1 :])))
            made += [
                _with(plan, at, (*steps[:number], each, *steps[number + 1 :]))
                for each in _smaller_steps(step)
            ]
    for at, function in enumerate(plan.functions):
        made += [
            replace(plan, functions=(*plan.functions[:at], each, *plan.functions[at + 1 :]))
            for each in _smaller_functions(function)
        ]
    return made


def _with_only(plan: Plan, functions: tuple[Function, ...]) -> Plan:
    numbers = {function.number for function in functions}

    def kept(step: Step) -> Step:
        mine = tuple(choice for choice in step.choices if choice.function in numbers)
        return Step(mine, tuple(call for call in step.calls if call in numbers))

    sessions = tuple(Session(tuple(map(kept, each.steps))) for each in plan.sessions)
    return replace(plan, functions=functions, sessions=sessions)


def _with(plan: Plan, at: int, steps: tuple[Step, ...]) -> Plan:
    return replace(plan, sessions=(*plan.sessions[:at], Session(steps), *plan.sessions[at + 1 :]))


def _smaller_steps(step: Step) -> list[Step]:
    made = [
        replace(step, choices=(*step.choices[:at], *step.choices[at + 1 :]))
        for at in range(len(step.choices))
    ]
    if step.calls and step.choices:
        made.append(replace(step, calls=()))
    return made


def _smaller_functions(function: Function) -> list[Function]:
    """Without a piece, which keeps its place so that choices stay true; with a shorter chain."""
    made = [
        replace(function, pieces=(*function.pieces[:at], _NOTHING, *function.pieces[at + 1 :]))
        for at, piece in enumerate(function.pieces)
        if piece != _NOTHING
    ]
    if function.links:
        pieces = tuple(replace(piece, module=0) for piece in function.pieces)
        made.append(replace(function, pieces=pieces, links=()))
    return made


_NOTHING: Final = Piece("nothing", 0, (2, 3))
