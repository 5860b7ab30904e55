"""Runs the corpus: other people's programs and test suites, under jaxd and in plain jax."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from jaxd.api.launch.summary import described
from tests.corpus import report
from tests.corpus.comparing import run_summary, summary, verification_of_all, verified_summary
from tests.corpus.data import make_data
from tests.corpus.places import Corpus, MissingError, corpus_directory
from tests.corpus.programs import PROGRAMS, QUICK
from tests.corpus.running import Program, Runner
from tests.corpus.suites import SUITES, Suite, SuiteRunner, comparison

Row = Program | Suite


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit status is 1 where a program fails, or results or programs differ."""
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
            print(f"{row.project.name:24} {row.title} {' '.join(row.arguments)}")
        return 0
    if options.report:
        report.write(corpus)
        return 0
    if options.patience:
        chosen = [replace(row, patience_s=options.patience) for row in chosen]
    if table is PROGRAMS:
        make_data()
    bad = 0
    compared: list[dict[str, Any]] = []
    for number, row in enumerate(chosen, 1):
        print(f"[{number}/{len(chosen)}] {row.project.name}: {row.title}", end=" … ", flush=True)
        found = _run(corpus, row, options)
        print(_said(found), flush=True)
        bad += found.get("verdict") in ("fails", "differs", "stale")
        compared.append(found)
    if options.verify:
        together = verification_of_all(compared)
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


def _run(corpus: Corpus, row: Row, options: argparse.Namespace) -> dict[str, Any]:
    try:
        if isinstance(row, Suite):
            return run_suite(corpus, row, again=options.again)
        if options.verify:
            return verify_program(corpus, row, again=options.again)
        return run_program(corpus, row, again=options.again, by_command=options.run)
    except MissingError as error:
        found = {"verdict": "skipped", "error": str(error)}
        kind = "suite" if isinstance(row, Suite) else "program"
        _Kept(corpus, row, kind).save({}, found)
        return found


class _Kept:
    """What is known of a row from earlier runs.

    Args:
        corpus: where it is kept.
        row: the row; what was found with another one is forgotten.
        kind: of the row.
    """

    def __init__(self, corpus: Corpus, row: Row, kind: str) -> None:
        name = f"{kind}-{row.project.name}-{row.title}.json".replace("/", "+")
        self._file: Path = corpus.results / name
        self._row = row
        self._kind = kind
        found = json.loads(self._file.read_text()) if self._file.exists() else {}
        self.runs: dict[str, Any] = found.get("runs", {}) if found.get("row") == repr(row) else {}

    def save(self, runs: dict[str, Any], found: dict[str, Any]) -> None:
        """Keeps the runs and what they say."""
        about = {
            "kind": self._kind,
            "row": repr(self._row),
            "project": self._row.project.name,
            "version": self._row.project.version,
            "title": self._row.title,
            "note": getattr(self._row, "note", ""),
        }
        self._file.write_text(json.dumps({**about, "runs": runs, "summary": found}))


class _Way(NamedTuple):
    """How a program is run under jaxd, beside its runs in plain jax.

    Attributes:
        kind: names what is kept of it.
        mode: of the runs in plain jax, see `Runner.in_plain_jax`.
        last: the last of its runs under jaxd.
        serve: makes those.
        summary: what is reported of all.
    """

    kind: str
    mode: str
    last: str
    serve: Callable[[Runner], dict[str, dict[str, Any]]]
    summary: Callable[[dict[str, Any]], dict[str, Any]]


_HOOKED: Final = _Way("program", "plain", "verified", Runner.on_a_server, summary)
_BY_COMMAND: Final = _Way("run", "", "warm", Runner.by_jaxd_run, run_summary)


def run_program(
    corpus: Corpus, program: Program, *, again: bool, by_command: bool = False
) -> dict[str, Any]:
    """What there is to report of a program; runs what has not been run yet.

    Args:
        corpus: where results are kept.
        program: the program.
        again: whether it is run under jaxd again; runs in plain jax are never repeated.
        by_command: whether `jaxd run` runs it, beside `python`; else its `jax.jit` is hooked.

    Raises:
        MissingError: when something is not there that it needs.
    """
    way = _BY_COMMAND if by_command else _HOOKED
    kept = _Kept(corpus, program, way.kind)
    runner = Runner(corpus, program)
    runs = kept.runs
    if "plain" not in runs:
        runs |= runner.in_plain_jax(way.mode)
        kept.save(runs, {})
    ran = runs["plain"]["status"] == 0 and runs["plain_again"]["status"] == 0
    if ran and (again or way.last not in runs):
        runs |= way.serve(runner)
    found = way.summary(runs)
    kept.save(runs, found)
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
    kept = _Kept(corpus, program, "verified")
    if again or not kept.runs:
        kept.runs |= Runner(corpus, program).verified_on_a_server()
    found = verified_summary(kept.runs)
    kept.save(kept.runs, found)
    return found


def run_suite(corpus: Corpus, suite: Suite, *, again: bool) -> dict[str, Any]:
    """What there is to report of a test suite; runs what has not been run yet.

    Args:
        corpus: where results are kept.
        suite: the suite.
        again: whether it is run under jaxd again; the run in plain jax is never repeated.

    Raises:
        MissingError: when something is not there that it needs.
    """
    kept = _Kept(corpus, suite, "suite")
    runner = SuiteRunner(corpus, suite)
    _once(kept.runs, "plain", runner.in_plain_jax, again=False)
    kept.save(kept.runs, {})
    _once(kept.runs, "served", runner.under_jaxd, again=again)
    found = comparison(kept.runs["plain"], kept.runs["served"])
    kept.save(kept.runs, found)
    return found


def _once(
    runs: dict[str, Any], name: str, run: Callable[[], dict[str, Any]], *, again: bool
) -> None:
    if again or name not in runs:
        runs[name] = run()


def _said(found: dict[str, Any]) -> str:
    if "tests" in found:
        failed = [f"\n      {name}: {text[:160]}" for name, text in found["failed"].items()]
        return (
            f"{found['pass']} of {found['reached']} pass ({found['pass_in_plain_jax']} in plain "
            f"jax), calls {found['calls']}, CPU {found['cpu_s']}{''.join(failed[:40])}"
        )
    if "said" in found:
        return _said_by_command(found)
    if "functions" not in found:
        text = f"{found['verdict']}: {found.get('error') or ''}"
        if "traces" in found:
            text += f"traces {found['traces']}\n      {described(found['verification'])}"
        return text
    calls = found["calls"]
    text = (
        f"{found['verdict']}: functions {found['functions_served']}/{found['functions']}, "
        f"calls {calls['served']}/{calls['served'] + calls['local']}, "
        f"results {found['results']['cold']['worst']}/{found['results']['warm']['worst']}, "
        f"traces {found['traces']['cold']} then {found['traces']['warm']}, CPU {found['cpu_s']}"
    )
    if found["verification"]:
        text += f"\n      {described(found['verification'])}"
    for reason in [*found["local_reasons"], *found["not_served"], found.get("error")]:
        text += f"\n      {reason}" if reason else ""
    return text


def _said_by_command(found: dict[str, Any]) -> str:
    output = [found["output"][kind] for kind in ("cold", "warm")]
    text = (
        f"{found['verdict']}: of {output[0]['lines']} lines {output[0]['missing']} and "
        f"{output[1]['missing']} missing, traces {found['traces']['cold']} then "
        f"{found['traces']['warm']}, CPU {found['cpu_s']}"
    )
    said = [line for lines in found["said"].values() for line in lines]
    examples = [f"missing: {each['example']}" for each in output if each["missing"]]
    return "\n      ".join([text, *said, *examples, *filter(None, [found["error"]])])


def _is_named(row: Row, words: list[str]) -> bool:
    return any(word in f"{row.project.name} {row.title}" for word in words)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m tests.corpus",
        description=__doc__,
        epilog="CORPUS_DIR holds clones (repositories/owner+name), environments and results; what "
        "is not there is skipped. A run that was ended goes on where it was.",
    )
    parser.add_argument("only", nargs="*", help="words of projects or programs; else all")
    parser.add_argument("--suites", action="store_true", help="test suites instead of programs")
    parser.add_argument("--quick", action="store_true", help="what needs no downloads")
    parser.add_argument("--list", action="store_true", help="list them and run nothing")
    parser.add_argument("--patience", type=float, help="seconds after which a run is given up")
    parser.add_argument(
        "--verify",
        action="store_true",
        help="only compare the programs that answer with those that plain jax makes, under two "
        "hash seeds",
    )
    parser.add_argument(
        "--run", action="store_true", help="run them by `jaxd run`, and compare what they print"
    )
    parser.add_argument("--again", action="store_true", help="run under jaxd what has been run")
    parser.add_argument("--scratch", action="store_true", help="keep and use no earlier results")
    parser.add_argument("--report", action="store_true", help="write docs/compatibility.md")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
