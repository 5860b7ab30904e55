"""Runs the corpus: other people's programs and test suites, under jaxd and under plain jax."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.corpus.comparing import summary
from tests.corpus.data import make_data
from tests.corpus.places import Corpus, MissingError, corpus_directory
from tests.corpus.programs import PROGRAMS
from tests.corpus.running import Program, Runner


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit status is 1 where a program did not complete or gave other results."""
    options = _options(arguments)
    corpus = Corpus(corpus_directory())
    chosen = [p for p in in_turns(PROGRAMS) if not options.only or _is_named(p, options.only)]
    if options.list:
        for program in chosen:
            print(f"{program.project.name:24} {program.title} {' '.join(program.arguments)}")
        return 0
    make_data()
    bad = 0
    for number, program in enumerate(chosen, 1):
        print(
            f"[{number}/{len(chosen)}] {program.project.name}: {program.title}",
            end=" … ",
            flush=True,
        )
        found = run_program(corpus, program, again=options.again, plain=options.plain)
        print(_said(found), flush=True)
        bad += found["verdict"] in ("fails", "differs")
    return int(bad > 0)


def in_turns(programs: Sequence[Program]) -> list[Program]:
    """The first of each project, then the second of each: a run that is ended early has seen all."""
    turns: dict[str, int] = {}
    numbered = []
    for program in programs:
        turn = turns[program.project.name] = turns.get(program.project.name, -1) + 1
        numbered.append((turn, program))
    return [program for _, program in sorted(numbered, key=lambda pair: pair[0])]


def run_program(
    corpus: Corpus, program: Program, *, again: bool, plain: bool = False
) -> dict[str, Any]:
    """What there is to report of a program; runs what has not been run yet.

    Args:
        corpus: where results are kept.
        program: the program.
        again: whether it is run under jaxd again; runs in plain jax are never repeated.
        plain: whether to run it in plain jax only.
    """
    file = corpus.results / f"{program.project.name}-{program.title}.json".replace("/", "+")
    kept = json.loads(file.read_text()) if file.exists() else {}
    runs = kept.get("runs", {}) if kept.get("row") == repr(program) else {}
    try:
        runner = Runner(corpus, program)
    except MissingError as error:
        return {"verdict": "skipped", "error": str(error)}
    if "plain" not in runs:
        runs |= runner.in_plain_jax()
        _save(file, program, runs, {})
    ran = runs["plain"]["status"] == 0 and runs["plain_again"]["status"] == 0
    if ran and plain:
        return {"verdict": "plain", "cpu_s": runs["plain"]["cpu_s"]}
    if ran and (again or "cold" not in runs):
        runs |= runner.on_a_server()
    found = summary(runs)
    _save(file, program, runs, found)
    return found


def _save(file: Path, program: Program, runs: dict[str, Any], found: dict[str, Any]) -> None:
    file.write_text(json.dumps({"row": repr(program), "runs": runs, "summary": found}))


def _said(found: dict[str, Any]) -> str:
    if "functions" not in found:
        return f"{found['verdict']}: {found.get('error') or found.get('cpu_s')}"
    calls = found["calls"]
    text = (
        f"{found['verdict']}: functions {found['functions_served']}/{found['functions']}, "
        f"calls {calls['served']}/{calls['served'] + calls['local']}, "
        f"results {found['results']['cold']['worst']}/{found['results']['warm']['worst']}, "
        f"traces {found['traces']['cold']} then {found['traces']['warm']}, CPU {found['cpu_s']}"
    )
    for reason in [*found["local_reasons"], *found["not_served"], found.get("error")]:
        text += f"\n      {reason}" if reason else ""
    return text


def _is_named(program: Program, words: list[str]) -> bool:
    return any(word in f"{program.project.name} {program.title}" for word in words)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.corpus", description=__doc__)
    parser.add_argument("only", nargs="*", help="words of projects or programs; else all")
    parser.add_argument("--list", action="store_true", help="list them and run nothing")
    parser.add_argument("--again", action="store_true", help="run under jaxd what has been run")
    parser.add_argument("--plain", action="store_true", help="run in plain jax only")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
