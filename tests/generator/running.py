"""Runs projects, and compares each answer with that of plain jax."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.generator.kinds import REFUSED
from tests.generator.plans import Function, Plan, features_of, is_refused
from tests.generator.processes import Broken, Processes, Session
from tests.generator.worlds import FOLDERS, Act, Process, World, world

LANES: Final = 3
UNSOUND: Final = ("SkewWarning", "UnsharedWarning")
"""Warnings after which nothing is shared: what a function of the tables never deserves."""


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
        """Of the function."""
        for function in self.plan.functions:
            if function.number == self.function:
                return ", ".join(piece.feature for piece in function.pieces)
        return "-"

    def describes(self, other: Finding) -> bool:
        """Whether both are of one sort."""
        return self.what == other.what and self._error == other._error

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


def run_plans(
    processes: Processes, plans: Iterable[Plan], *, until: int | None = None
) -> Report:
    """Runs them, some at once, until so many findings are there."""
    report = Report()
    left = iter(plans)
    with ThreadPoolExecutor(LANES) as executor:
        futures: set[Future[Report]] = set()

        def more() -> None:
            if until is None or sum(one.what == "wrong" for one in report.findings) < until:
                for plan in left:
                    futures.add(executor.submit(run_plan, processes, plan))
                    return

        for _ in range(LANES):
            more()
        while futures:
            done, _ = wait(futures, return_when=FIRST_COMPLETED)
            futures -= done
            for future in done:
                _add(report, future.result())
                more()
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
    made = world(plan)
    folder = processes.folder / made.name
    try:
        for name in FOLDERS:
            (folder / name).mkdir(parents=True)
        _write(folder, made.files)
        _install(processes, made.installs)
        for number, process in enumerate(made.processes):
            _Run(processes, plan, folder, report).process(number, process)
    except Broken as error:
        report.findings.append(Finding("broken", plan, -1, 0, 0, str(error)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _uninstall(processes, made)
    return report


def _write(folder: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def _install(processes: Processes, installs: list[dict[str, Any]]) -> None:
    for one in installs:
        processes.site.install(one["name"], one["version"], one["files"])


def _uninstall(processes: Processes, made: World) -> None:
    pass  # the worker would be replaced, for nothing


class _Run:
    """The processes of one project."""

    def __init__(self, processes: Processes, plan: Plan, folder: Path, report: Report) -> None:
        self._processes = processes
        self._plan = plan
        self._folder = folder
        self._report = report
        self._functions = {f"f{each.number}": each for each in plan.functions}

    def process(self, number: int, process: Process) -> None:
        """One process, beside one with plain jax."""
        _install(self._processes, process.installs)
        client = self._processes.client(jax=self._plan.has_jax)
        oracle = self._processes.oracle()
        try:
            for at, act in enumerate(process.acts):
                self._act(number, at, act, process, (client, oracle))
        finally:
            client.close()
            oracle.close()

    def _act(
        self, number: int, at: int, act: Act, process: Process, ends: tuple[Session, Session]
    ) -> None:
        _write(self._folder, act.writes)
        message: dict[str, Any] = {"edits": act.edits, "calls": act.calls}
        if at == 0:
            message["start"] = {
                "environment": process.environment,
                "argv": process.argv,
                "folder": str(self._folder / process.folder),
                "path": str(self._folder),
            }
        for end in ends:
            end.send(message)
        got, right = (end.answer() for end in ends)
        self._processes.learn(right.pop("learned", []))
        for answer in (got, right):
            if "broken" in answer:
                self._find("broken", -1, number, at, answer["broken"])
                return
        self._compare(number, at, got, right)

    def _compare(self, number: int, at: int, got: dict[str, Any], right: dict[str, Any]) -> None:
        for name, outcomes in got["outcomes"].items():
            function = self._functions[name.rpartition(".")[2]]
            for mine, true in zip(outcomes, right["outcomes"][name], strict=True):
                self._report.calls += 1
                self._one(function, (number, at), mine, true)
        for category, text in got["warnings"]:
            if category in UNSOUND:
                self._find("unshared", -1, number, at, f"{category}: {text}")

    def _one(self, function: Function, when: tuple[int, int], mine: Any, true: Any) -> None:
        kinds = [feature.kind for feature in features_of(function) if feature.kind in REFUSED]
        if mine[0] == "value":
            self._report.answered.update(kinds)
            if mine != true:
                self._find("wrong", function.number, *when, f"{_shown(mine)}, and jax: {_shown(true)}")
        elif true[0] == "value":
            if is_refused(function):
                self._report.refused.update(kinds)
            else:
                self._find("refused", function.number, *when, f"{_shown(mine)}, and jax: {_shown(true)}")

    def _find(self, what: str, function: int, number: int, at: int, text: str) -> None:
        self._report.findings.append(Finding(what, self._plan, function, number, at, text))


def _shown(outcome: Any) -> str:
    if outcome[0] == "raised":
        return f"{outcome[1]}: {outcome[2]}"
    import numpy as np

    _, dtype, shape, content = outcome
    return f"{np.frombuffer(bytes.fromhex(content), dtype).reshape(shape).tolist()} {dtype}"
