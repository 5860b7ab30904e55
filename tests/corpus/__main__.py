"""Runs the corpus: other people's programs by `jaxd run`, and their tests by `pytest --jaxd`.

Each program runs three times by `python` (without jax's cache on disk, with an empty one, with a
warm one) and twice by `jaxd run`, on a server of its own that knows nothing of it.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxd.api.launch.summary import described
from tests.corpus import report
from tests.corpus.comparing import summary, verification_of_all, verified_summary
from tests.corpus.data import make_data
from tests.corpus.places import Corpus, MissingError, corpus_directory
from tests.corpus.programs import PROGRAMS, QUICK
from tests.corpus.running import Program, Runner, working_directory
from tests.corpus.suites import SUITES, Part, Suite, part_summary

Row = Program | Suite


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit status is 1 where a program or a test fails, or output differs."""
    options = _options(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers are ended on the way
    if options.scratch:
        with tempfile.TemporaryDirectory(prefix="jaxd-corpus-") as directory:
            return _run_all(Corpus(Path(directory)), options)
    return _run_all(Corpus(corpus_directory()), options)


def _run_all(corpus: Corpus, options: argparse.Namespace) -> int:
    table: Sequence[Row] = QUICK if options.quick else SUITES if options.suites else PROGRAMS
    chosen = [row for row in in_turns(table) if not options.only or _is_named(row, options.only)]
    if options.list:
        for row in chosen:
            arguments = row.arguments if isinstance(row, Program) else ()
            print(f"{row.project.name:24} {row.title} {' '.join(arguments)}")
        return 0
    if options.report:
        report.write(corpus)
        return 0
    if table is PROGRAMS:
        make_data()
    bad = 0
    found_all: list[dict[str, Any]] = []
    for number, row in enumerate(chosen, 1):
        print(f"[{number}/{len(chosen)}] {row.project.name}: {row.title}", end=" … ", flush=True)
        for found in _run(corpus, row, options):
            print(_said(found), flush=True)
            bad += found.get("verdict") in ("fails", "differs", "stale")
            found_all.append(found)
    if options.verify:
        together = verification_of_all(found_all)
        print(described(together))
        bad += not together["verified"]
    return int(bad > 0)


def in_turns(rows: Sequence[Row]) -> list[Row]:
    """The first of each project, then the second of each: one that is ended early has seen all."""
    turns: dict[str, int] = {}
    numbered = []
    for row in rows:
        turn = turns[row.project.name] = turns.get(row.project.name, -1) + 1
        numbered.append((turn, row))
    return [row for _, row in sorted(numbered, key=lambda pair: pair[0])]


def _run(corpus: Corpus, row: Row, options: argparse.Namespace) -> list[dict[str, Any]]:
    try:
        if isinstance(row, Suite):
            return [_run_part(corpus, row, options, each) for each in options.workers]
        if options.patience:
            row = replace(row, patience_s=options.patience)
        run = verify_program if options.verify else run_program
        return [run(corpus, row, again=options.again)]
    except MissingError as error:
        found = {"verdict": "skipped", "error": str(error)}
        corpus.kept("part" if isinstance(row, Suite) else "run", row).save(found)
        return [found]


def run_program(corpus: Corpus, program: Program, *, again: bool) -> dict[str, Any]:
    """What there is to report of a program; runs what has not been run yet.

    Args:
        corpus: where results are kept.
        program: the program.
        again: whether it is run by `jaxd run` again; runs by `python` are never repeated.

    Raises:
        MissingError: when something is not there that it needs.
    """
    kept = corpus.kept("run", program)
    runner = Runner(corpus, program)
    runs = kept.runs
    if "plain" not in runs:
        runs |= runner.in_plain_jax()
        kept.save({})
    ran = runs["plain"]["status"] == 0 and runs["plain_again"]["status"] == 0
    if ran and (again or "warm" not in runs):
        runs |= runner.by_jaxd_run()
    found = summary(runs)
    kept.save(found)
    return found


def verify_program(corpus: Corpus, program: Program, *, again: bool) -> dict[str, Any]:
    """Whether the programs that answer it are those that its own jax makes, under two hash seeds.

    Args:
        corpus: where results are kept.
        program: the program.
        again: whether it is compared again.

    Raises:
        MissingError: when something is not there that it needs.
    """
    kept = corpus.kept("verified", program)
    if again or not kept.runs:
        kept.runs |= Runner(corpus, program).verified()
    found = verified_summary(kept.runs)
    kept.save(found)
    return found


def _run_part(
    corpus: Corpus, suite: Suite, options: argparse.Namespace, workers: int
) -> dict[str, Any]:
    seed, tests = options.seed, options.tests
    kept = corpus.kept("part", suite, f"-{tests} of seed {seed}, -n {workers}")
    if options.again or not kept.runs:
        with working_directory() as place:
            part = Part(corpus, suite, seed, tests, workers, place)
            kept.runs = {**part.in_plain_jax(), **part.served()}
    found = part_summary(kept.runs, workers)
    kept.save(found)
    return found


def _said(found: dict[str, Any]) -> str:
    if "lost" in found:
        return _said_of_part(found)
    if "said" not in found:
        text = f"{found['verdict']}: {found.get('error') or ''}"
        if "traces" in found:
            text += f"traces {found['traces']}\n      {described(found['verification'])}"
        return text
    output = [found["output"][kind] for kind in ("cold", "warm")]
    text = (
        f"{found['verdict']}: of {output[0]['lines']} lines {output[0]['missing']} and "
        f"{output[1]['missing']} missing, traces {found['traces']['cold']} then "
        f"{found['traces']['warm']}, CPU {found['cpu_s']}"
    )
    said = [line for lines in found["said"].values() for line in lines]
    examples = [f"missing: {each['example']}" for each in output if each["missing"]]
    return "\n      ".join([text, *said, *examples, *filter(None, [found["error"]])])


def _said_of_part(found: dict[str, Any]) -> str:
    lines = [
        f"-n {found['workers']}: {found['tests']} tests, {found['pass_in_plain_jax']} pass",
        *(
            f"{mode:7} {found['wall_s'][mode]:7.1f} s  CPU {found['cpu_s'][mode]:7.1f} s  "
            f"{' '.join(found['said'].get(mode, ()))}"
            for mode in found["wall_s"]
        ),
        *(f"{name}: {how}" for name, how in found["lost"].items()),
    ]
    return "\n      ".join(lines)


def _is_named(row: Row, words: list[str]) -> bool:
    return any(word in f"{row.project.name} {row.title}" for word in words)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m tests.corpus",
        description=__doc__,
        epilog="CORPUS_DIR holds clones (repositories/owner+name), environments and results; what "
        "is not there is skipped. A run that was ended goes on where it was.",
    )
    add = parser.add_argument
    add("only", nargs="*", help="words of projects or programs; else all")
    add("--quick", action="store_true", help="what needs no downloads")
    add("--list", action="store_true", help="list them and run nothing")
    add("--patience", type=float, help="seconds after which a program is given up")
    add(
        "--verify",
        action="store_true",
        help="only compare the compiled programs that answer with those that plain jax makes, "
        "under two hash seeds",
    )
    add("--again", action="store_true", help="run under jaxd what has been run")
    add("--scratch", action="store_true", help="keep and use no earlier results")
    add("--report", action="store_true", help="write docs/compatibility.md")
    add("--suites", action="store_true", help="parts of test suites instead of programs")
    add("--seed", type=int, default=22, help="of what is drawn of a suite (default: 22)")
    add("--tests", type=int, default=25, help="how many are drawn (default: 25)")
    add("--workers", type=int, nargs="+", default=[0], help="of xdist; 0 for none, the default")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
