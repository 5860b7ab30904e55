"""Seeded parts of test suites: `pytest --jaxd` beside plain pytest and jax's own cache on disk.

    CORPUS_DIR=… python -m tests.corpus.parts optax haiku --seed 22 --tests 25 --workers 0 2

Each part is run without a cache, twice with jax's cache on disk (an empty one, a warm one), and
twice with `--jaxd` on a server that knows nothing of it. Counted is the processor time of all
processes, the server's among them, from the start of pytest to its end. Folders of tests that
import each other are run as they are; of the others, single files.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.corpus import programs, running
from tests.corpus.places import INSIDE, Corpus, Project, corpus_directory
from tests.corpus.suites import SUITES, Suite, SuiteRunner
from tests.live_server import LiveServer, source_environment

_PLUGINS: Final = ("-p", "no:cacheprovider", "-p", "corpus_outcomes")
_PATIENCE_S: Final = 600.0
_FOLDERS: Final = tuple(
    Suite(project, (folder,))
    for project, folder in (
        (programs.EQUINOX, "tests"),
        (programs.DIFFRAX, "test"),
        (programs.LINEAX, "tests"),
        (programs.OPTIMISTIX, "tests"),
        (programs.FLOWJAX, "tests"),
        (programs.GPJAX, "tests"),
        (programs.JAX_MD, "tests"),
        (programs.NUMPYRO, "test"),
    )
)
"""Tests that lie in one folder, whose files import each other."""


class Part:
    """Some tests of a suite.

    Args:
        corpus: where its files lie.
        suite: the suite.
        seed: of the choice.
        tests: how many are chosen.
        workers: of xdist; 0 for a run in one process.
        place: a folder for the run.
    """

    def __init__(
        self, corpus: Corpus, suite: Suite, seed: int, tests: int, workers: int, place: Path
    ) -> None:
        self._python = corpus.python(suite.project)
        self._place = place
        self._suite = suite
        self._checkout = corpus.checkout(suite.project)
        self._workers = ("-p", "no:xdist") if workers == 0 else ("-n", str(workers))
        if suite in _FOLDERS:
            shutil.copytree(self._checkout / suite.files[0], place / "tests")
            self._modes: tuple[str, ...] = ("--rootdir", str(place))
            names = [str(place / "tests")]
        else:
            SuiteRunner(corpus, suite).copy_files(place)
            self._modes = ("--import-mode=importlib", "--rootdir", str(place / "tests"))
            files = sorted((place / "tests").glob("*.py"))
            names = [str(file) for file in files if "conftest" not in file.name]
        collected = self._collected(names)
        self._names = random.Random(seed).sample(collected, min(tests, len(collected)))

    def _collected(self, files: Sequence[str]) -> list[str]:
        done = self._run("collect", [*files, "--collect-only"], {})
        lines = done["stdout"].splitlines()
        found = sorted(line for line in lines if re.match(r"[^ ]+\.py::", line))
        root = self._place if self._suite in _FOLDERS else self._place / "tests"
        return [str(root / name) for name in found]

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
        command = [str(self._python), "-m", "pytest", "-q", *self._modes, "-o", "addopts="]
        command += ["-W", "ignore", *self._workers, *_PLUGINS, *words]
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
    parser.add_argument("--workers", type=int, nargs="+", default=[0], help="of xdist; 0: none")
    options = parser.parse_args(arguments)
    corpus = Corpus(corpus_directory())
    bad = 0
    for suite in _chosen(options.only):
        for workers in options.workers:
            with running.working_directory() as place:
                part = Part(corpus, suite, options.seed, options.tests, workers, place)
                runs = {**part.in_plain_jax(), **part.served()}
            bad += _print(suite.project, workers, runs)
    return int(bad > 0)


def _chosen(names: Sequence[str]) -> list[Suite]:
    """The suites of these projects; of one that is in both lists, its folder."""
    found = {suite.project.name: suite for suite in (*SUITES, *_FOLDERS)}
    return [found[name] for name in names]


def _print(project: Project, workers: int, runs: Mapping[str, dict[str, Any]]) -> int:
    outcomes = runs["plain"]["outcomes"]
    passed = {name for name, how in outcomes.items() if how == "passed"}
    print(
        f"{project.name} {project.version}, -n {workers}: {len(outcomes)} tests, {len(passed)} pass"
    )
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
