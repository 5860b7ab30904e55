"""Runs projects, and compares each answer with that of plain jax."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

from tests.generator.kinds import REFUSED
from tests.generator.plans import Plan, features_of, is_refused
from tests.generator.processes import Broken, Processes
from tests.generator.worlds import FOLDERS, Process, World, world

LANES: Final = 3
UNSOUND: Final = ("SkewWarning", "UnsharedWarning")
"""Warnings after which nothing is shared: what a function of the tables never deserves."""

_DESERVED: Final = ("the server's worker was restarted.", "or by `jaxd restart --force`.")
"""How warnings end that are right when a package is installed anew: while the worker may be
restarted, and while it holds arrays. Answers of the old one are findings all the same."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it has to be.

    Attributes:
        what: `wrong`, `refused`, `unshared` or `broken`.
        plan: the project.
        function: the number of the function; -1 where it is none.
        process, act: when.
        text: what came, and what had to come.
    """

    what: str
    plan: Plan
    function: int
    process: int
    act: int
    text: str

    @property
    def features(self) -> str:
        """Of the function, without those that were taken out."""
        return ", ".join(sorted(self.pieces)) or "-"

    @property
    def pieces(self) -> frozenset[str]:
        """The names of its function's features; of all functions where it is of none."""
        return frozenset(
            piece.feature
            for function in self.plan.functions
            if self.function in (function.number, -1)
            for piece in function.pieces
            if piece.feature != "nothing"
        )

    def describes(self, other: Finding) -> bool:
        """Whether both are of one sort, and of the same function."""
        same = (self.what, self.function, self._error)
        return same == (other.what, other.function, other._error)

    @property
    def _error(self) -> str:
        """The type that was raised."""
        return "" if self.what == "wrong" else self.text.partition(":")[0][:40]


@dataclass(slots=True)
class Report:
    """What a run has seen."""

    programs: int = 0
    calls: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    shown: Finding | None = None  # after which a run ended


def run_plans(
    processes: Processes,
    plans: Iterable[Plan],
    *,
    until: Callable[[Finding], bool] = lambda finding: False,
) -> Report:
    """Runs them, some at once, up to a finding that is asked for."""
    report = Report()
    left = iter(plans)
    with ThreadPoolExecutor(LANES) as executor:
        futures = {executor.submit(run_plan, processes, plan) for plan in islice(left, LANES)}
        while futures:
            done, _ = wait(futures, return_when=FIRST_COMPLETED)
            futures -= done
            for future in done:
                one = future.result()
                _add(report, one)
                report.shown = report.shown or next(filter(until, one.findings), None)
                if report.shown is None:
                    futures |= {
                        executor.submit(run_plan, processes, plan) for plan in islice(left, 1)
                    }
    return report


def _add(report: Report, one: Report) -> None:
    report.programs += one.programs
    report.calls += one.calls
    report.refused.update(one.refused)
    report.answered.update(one.answered)
    report.findings += one.findings


def run_plan(processes: Processes, plan: Plan) -> Report:
    """Runs one."""
    report = Report(programs=len(plan.functions))
    functions = {f"f{each.number}": each for each in plan.functions}

    def find(what: str, function: int, at: Compared, text: str) -> None:
        report.findings.append(Finding(what, plan, function, at.process, at.act, text))

    for each in compared(processes, world(plan), jax=plan.has_jax):
        if each.broken:
            find("broken", -1, each, each.broken)
        for name, mine, true in each.outcomes():
            function = functions[name.rpartition(".")[2]]
            report.calls += 1
            kinds = [feature.kind for feature in features_of(function) if feature.kind in REFUSED]
            if mine[0] == "value":
                report.answered.update(kinds)
            text = f"{_shown(mine)}, and jax: {_shown(true)}"
            if mine[0] == "value" and mine != true:
                find("wrong", function.number, each, text)
            elif mine[0] != "value" and true[0] == "value":
                report.refused.update(kinds)
                if not is_refused(function):
                    find("refused", function.number, each, text)
        for text in each.unsound():
            find("unshared", -1, each, text)
    return report


@dataclass(frozen=True, slots=True)
class Compared:
    """What both have said at one step.

    Attributes:
        process, act: when.
        got, right: the answers of a client, and of plain jax.
    """

    process: int
    act: int
    got: dict[str, Any]
    right: dict[str, Any]

    @property
    def broken(self) -> str:
        """Why there are no answers, if there are none."""
        found = [answer["broken"] for answer in (self.got, self.right) if "broken" in answer]
        return str(found[0]) if len(found) == 1 else ""

    @property
    def is_end(self) -> bool:
        """Whether nothing can follow; where both ends break, the program is at fault."""
        return "broken" in self.got or "broken" in self.right

    def outcomes(self) -> Iterator[tuple[str, Any, Any]]:
        """Each function, what the server says and what is right."""
        if not self.is_end:
            for name, mine in self.got["outcomes"].items():
                for one, true in zip(mine, self.right["outcomes"][name], strict=True):
                    yield name, one, true

    def unsound(self) -> list[str]:
        """Warnings that none of these programs deserves."""
        heard = self.got.get("warnings", ())
        unsound = [f"{name}: {text}" for name, text in heard if name in UNSOUND]
        return [text for text in unsound if not text.endswith(_DESERVED)]


def compared(processes: Processes, made: World, *, jax: bool = False) -> Iterator[Compared]:
    """Runs a project, up to where a process breaks."""
    folder = processes.folder / made.name
    try:
        for name in FOLDERS:
            (folder / name).mkdir(parents=True)
        _write(folder, made.files)
        _install(processes, made.installs)
        for number, process in enumerate(made.processes):
            for each in _of_process(processes, folder, number, process, jax=jax):
                yield each
                if each.is_end:
                    return
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _of_process(
    processes: Processes, folder: Path, number: int, process: Process, *, jax: bool
) -> Iterator[Compared]:
    """One process, beside one with plain jax."""
    _install(processes, process.installs)
    ends = (processes.client(jax=jax), processes.oracle())
    try:
        for at, act in enumerate(process.acts):
            _write(folder, act.writes)
            message: dict[str, Any] = {"edits": act.edits, "calls": act.calls}
            if at == 0:
                message["start"] = {
                    "environment": process.environment,
                    "argv": process.argv,
                    "folder": str(folder / process.folder),
                    "path": str(folder),
                }
            try:
                for end in ends:
                    end.send(message)
                got, right = (end.answer() for end in ends)
            except (Broken, OSError) as error:
                got, right = {"broken": str(error)}, {}
            processes.learn(right.pop("learned", []))
            yield Compared(number, at, got, right)
    finally:
        for end in ends:
            end.close()


def _write(folder: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def _install(processes: Processes, installs: list[dict[str, Any]]) -> None:
    for one in installs:
        processes.site.install(one["name"], one["version"], one["files"])


def _shown(outcome: Any) -> str:
    if outcome[0] == "raised":
        return f"{outcome[1]}: {outcome[2]}"
    import numpy as np

    _, dtype, shape, content = outcome
    return f"{np.frombuffer(bytes.fromhex(content), dtype).reshape(shape).tolist()} {dtype}"
