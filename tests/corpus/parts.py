"""Seeded parts of test suites: `pytest --jaxd` beside plain pytest and jax's own cache on disk.

    CORPUS_DIR=… python -m tests.corpus.parts --seed 22 --tests 25 optax haiku

Each part is run without a cache, twice with jax's cache on disk (an empty one, a warm one), and
twice with `--jaxd` on a server that knows nothing of it. Counted is the processor time of all
processes, the server's among them, from the start of pytest to its end.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.corpus import running
from tests.corpus.places import INSIDE, Corpus, corpus_directory
from tests.corpus.suites import SUITES, Suite, SuiteRunner
from tests.live_server import LiveServer, source_environment

_LEFT_OUT: Final = ("-p", "no:xdist", "-p", "no:cacheprovider", "-p", "corpus_outcomes")
_PATIENCE_S: Final = 600.0


class Part:
    """Some tests of a suite.

    Args:
        corpus: where its files lie.
        suite: the suite.
        seed: of the choice.
        tests: how many are chosen.
        place: a folder for the run.
    """

    def __init__(self, corpus: Corpus, suite: Suite, seed: int, tests: int, place: Path) -> None:
        self._python = corpus.python(suite.project)
        self._place = place
        self._suite = suite
        self._checkout = corpus.checkout(suite.project)
        SuiteRunner(corpus, suite).copy_files(place)
        files = sorted((place / "tests").glob("*.py"))
        names = [str(file) for file in files if "conftest" not in file.name]
        self._names = random.Random(seed).sample(self._collected(names), tests)

    def _collected(self, files: Sequence[str]) -> list[str]:
        done = self._run("collect", [*files, "--collect-only"], {})
        lines = done["stdout"].splitlines()
        found = sorted(line for line in lines if re.match(r"[^ ]+\.py::", line))
        return [str(self._place / "tests" / name) for name in found]

    def in_plain_jax(self) -> dict[str, Any]:
        """Without a cache, with an empty one, with a warm one."""
        cache = {
            "JAX_COMPILATION_CACHE_DIR": str(self._place / "jax-cache"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        modes: dict[str, Mapping[str, str]] = {
            "plain": {},
            "cache cold": cache,
            "cache warm": cache,
        }
        return {mode: self._run(mode, self._names, more) for mode, more in modes.items()}

    def served(self) -> dict[str, Any]:
        """Twice, on a server of its own."""
        server = LiveServer(self._place, executable=str(self._python))
        more = {"JAXD_SERVER": server.unix, "JAXD_FALLBACK": "local"}
        found = {}
        try:
            for mode in ("jaxd first", "jaxd second"):
                before = running.cpu_of_tree(server.process.pid)
                run = self._run(mode, ["--jaxd", *self._names], more)
                run["cpu_s"] += running.cpu_of_tree(server.process.pid) - before
                found[mode] = run
        finally:
            server.close()
        return found

    def _run(self, mode: str, words: Sequence[str], more: Mapping[str, str]) -> dict[str, Any]:
        place = self._place / mode.replace(" ", "-")
        (place / "work").mkdir(parents=True)
        environment = source_environment(self._place, **self._suite.environment)
        paths = [environment["PYTHONPATH"], str(INSIDE), str(self._checkout)]
        environment |= {"PYTHONPATH": os.pathsep.join(paths), "CORPUS_MODE": ""}
        environment |= {"CORPUS_OUTCOMES": str(place / "outcomes"), **more}
        tests = str(self._place / "tests")
        command = [str(self._python), "-m", "pytest", "-q", "--import-mode=importlib"]
        command += ["--rootdir", tests, "-o", "addopts=", "-W", "ignore", *_LEFT_OUT, *words]
        cwd = place / "work"
        ended = running.run_measured(command, environment, cwd, _PATIENCE_S)
        lines = place / "outcomes"
        outcomes = dict(map(json.loads, lines.read_text().splitlines() if lines.exists() else ()))
        said = [line for line in ended["stdout"].splitlines() if line.startswith("jaxd: ")]
        return {**ended, "outcomes": outcomes, "said": said}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit status is 1 where a test that passes in plain jax fails elsewhere."""
    parser = argparse.ArgumentParser("python -m tests.corpus.parts", description=__doc__)
    parser.add_argument("only", nargs="+", help="projects")
    parser.add_argument("--seed", type=int, default=22)
    parser.add_argument("--tests", type=int, default=25)
    options = parser.parse_args(arguments)
    corpus = Corpus(corpus_directory())
    bad = 0
    for suite in SUITES:
        if suite.project.name in options.only:
            with running.working_directory() as place:
                part = Part(corpus, suite, options.seed, options.tests, place)
                runs = {**part.in_plain_jax(), **part.served()}
            bad += _print(suite, runs)
    return int(bad > 0)


def _print(suite: Suite, runs: Mapping[str, dict[str, Any]]) -> int:
    passed = {name for name, how in runs["plain"]["outcomes"].items() if how == "passed"}
    print(f"{suite.project.name} {suite.project.version}: {len(runs['plain']['outcomes'])} tests")
    for mode, run in runs.items():
        print(f"  {mode:12} {run['wall_s']:7.1f} s  CPU {run['cpu_s']:7.1f} s  {run['said']}")
    lost = {
        f"{mode}: {name}: {run['outcomes'].get(name)}"
        for mode, run in runs.items()
        for name in passed
        if run["outcomes"].get(name) != "passed"
    }
    print(*sorted(f"    {each}" for each in lost), sep="\n", flush=True)
    return len(lost)


if __name__ == "__main__":
    sys.exit(main())
