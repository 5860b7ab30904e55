"""Small faults in the product, each against the tests that run its line.

    python -m tests.mutants draw --seed 27 --count 60 --to mutants.json
    python -m tests.mutants reach mutants.json --to reach.json    (the whole suite, once)
    python -m tests.mutants run mutants.json reach.json --to caught.json

Each runs in clones of the commit that is checked out. A mutant is caught when one of its tests
fails, or does not end, within so many seconds of tests; where its tests are gone, that is said. To
compare two states of the tests, apply the mutants that were drawn from the first to both: they name
text, and are refused where it is another.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tests.live_server import ROOT
from tests.mutants import reach
from tests.mutants.drawing import Mutant, drawn

_PYTEST: Final = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
_MOST_TESTS: Final = 200
_CAUGHT: Final = "caught", "timed out"
"""A test that hangs shows a fault as well, if the machine has nothing else to do."""


def main() -> int:
    """1 where a mutant was not caught."""
    parser = argparse.ArgumentParser(
        "python -m tests.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    draw = commands.add_parser("draw", help="write a list of mutants")
    draw.add_argument("--seed", type=int, default=27)
    draw.add_argument("--count", type=int, default=60)
    reached = commands.add_parser("reach", help="find the tests that run their lines")
    reached.add_argument("mutants", type=Path)
    reached.add_argument("tests", nargs="*", help="of pytest (default: all that `make test` runs)")
    run = commands.add_parser("run", help="try each against its tests")
    run.add_argument("mutants", type=Path)
    run.add_argument("reach", type=Path)
    run.add_argument("--seconds", type=float, default=20, help="of tests for each (default: 20)")
    for command in (draw, reached, run):
        command.add_argument("--to", type=Path, required=True, help="the file that is written")
    options = parser.parse_args()
    return {"draw": _draw, "reach": _reach, "run": _run}[options.command](options)


def _draw(options: argparse.Namespace) -> int:
    mutants = drawn(ROOT, options.seed, options.count)
    _write(options.to, [asdict(mutant) for mutant in mutants])
    print(f"seed {options.seed}: {len(mutants)} mutants")
    return 0


def _reach(options: argparse.Namespace) -> int:
    mutants = _mutants(options.mutants)
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        clone, notes = _clone(Path(place)), Path(place) / "reach"
        notes.mkdir()
        reach.prepare(clone, mutants)
        command = [*_PYTEST, "-p", "mutant_tests", "-n", "2", "--dist=worksteal", *options.tests]
        environment = _environment(clone, **{reach.FOLDER_VARIABLE: str(notes)})
        subprocess.run(command, cwd=clone, env=environment, check=False)
        found = reach.tests_by_mutant(notes)
    _write(options.to, found)
    print(f"{len(found)} of {len(mutants)} mutants are reached by tests")
    return 0


def _run(options: argparse.Namespace) -> int:
    mutants = _mutants(options.mutants)
    tests = {int(number): each for number, each in json.loads(options.reach.read_text()).items()}
    outcomes: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        clone = _clone(Path(place))
        for number, mutant in enumerate(mutants):
            begun = time.monotonic()
            names = _chosen(_nearest(mutant.file, tests.get(number, [])), options.seconds)
            outcome = _outcome(clone, mutant, names, options.seconds)
            outcomes.append({"mutant": asdict(mutant), "outcome": outcome, "tests": len(names)})
            where = f"{mutant.file}:{mutant.line} {mutant.function}"
            print(f"{number:3} {outcome:13} {time.monotonic() - begun:5.1f} s  {where}", flush=True)
            print(f"                           {mutant.what}", flush=True)
            _write(options.to, outcomes)
    missed = sum(each["outcome"] not in _CAUGHT for each in outcomes)
    print(f"{len(outcomes) - missed} of {len(outcomes)} caught")
    return int(missed > 0)


def _outcome(clone: Path, mutant: Mutant, names: Sequence[str], seconds: float) -> str:
    file = clone / mutant.file
    source = file.read_bytes()
    if not names:
        return "not reached"
    file.write_bytes(mutant.applied(source))
    command = [*_PYTEST, "-x", "-n", "0", "-o", "timeout=30", *names]
    try:
        environment = _environment(clone)
        # Starting pytest, jax and a server takes ten seconds more; a test that hangs catches it.
        done = subprocess.run(
            command,
            cwd=clone,
            env=environment,
            capture_output=True,
            check=False,
            timeout=seconds * 4 + 60,
        )
    except subprocess.TimeoutExpired:
        return "timed out"
    finally:
        file.write_bytes(source)
    if b"ERROR: not found: " in done.stderr + done.stdout:
        return "tests gone"
    return "escaped" if done.returncode == 0 else "caught"


def _nearest(file: str, tests: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """The tests, those first whose folders and file have the most names in common with a source."""
    names = {*Path(file).with_suffix("").parts[2:]}

    def common(test: Sequence[Any]) -> int:
        path = Path(test[0].partition("::")[0]).with_suffix("")
        return len(names & {*path.parts, path.name.removeprefix("test_")})

    return sorted(tests, key=common, reverse=True)


def _chosen(tests: Sequence[Sequence[Any]], seconds: float) -> list[str]:
    """The first of these tests, as many as these seconds allow."""
    names: list[str] = []
    for name, takes in tests[:_MOST_TESTS]:
        if takes <= seconds or not names:
            names.append(name)
            seconds -= takes
    return names


def _clone(place: Path) -> Path:
    clone = place / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    return clone


def _environment(clone: Path, **more: str) -> Mapping[str, str]:
    folders = (str(clone / name) for name in ("client", "server", "shared"))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return {**kept, "PYTHONPATH": os.pathsep.join(folders), "PYTHONDONTWRITEBYTECODE": "1", **more}


def _mutants(file: Path) -> list[Mutant]:
    return [Mutant(**each) for each in json.loads(file.read_text())]


def _write(file: Path, value: Any) -> None:
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")
    shutil.move(partial, file)


if __name__ == "__main__":
    sys.exit(main())
