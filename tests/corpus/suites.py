"""Parts of other people's test suites: `pytest --jaxd` beside plain pytest."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.corpus import programs, running
from tests.corpus.places import PLUGINS, Corpus, Project
from tests.live_server import LiveServer, source_environment

_PATIENCE_S: Final = 600.0


@dataclass(frozen=True)
class Suite:
    """Tests of a project.

    Attributes:
        project: whose they are.
        files: patterns of names in its checkout; or one folder, whose files import each other.
        environment: variables that they need.
        name: of these tests.
    """

    project: Project
    files: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    name: str = "tests"

    @property
    def title(self) -> str:
        """How it is named in lists."""
        return self.name

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder as it is, rather than single files."""
        return not self.files[0].endswith(".py")


class Part:
    """Some tests of a suite, drawn with a seed.

    Each part is run without a cache, twice with jax's cache on disk (an empty one, a warm one), and
    twice with `--jaxd` on a server that knows nothing of it. Counted is the processor time of all
    processes, the server's among them, from the start of pytest to its end.

    Args:
        corpus: where its files lie.
        suite: the suite.
        seed: of the choice.
        tests: how many are chosen.
        workers: of xdist; 0 for a run in one process.
        place: a folder for the run.

    Raises:
        MissingError: when something is not there that it needs.
    """

    def __init__(
        self, corpus: Corpus, suite: Suite, seed: int, tests: int, workers: int, place: Path
    ) -> None:
        self._python = corpus.python(suite.project)
        self._place = place
        self._suite = suite
        self._checkout = corpus.checkout(suite.project)
        self._workers = ("-p", "no:xdist") if workers == 0 else ("-n", str(workers))
        if suite.is_folder:
            shutil.copytree(self._checkout / suite.files[0], place / "tests")
            self._modes: tuple[str, ...] = ("--rootdir", str(place))
            names = [str(place / "tests")]
        else:
            names = self._copy_files()
            self._modes = ("--import-mode=importlib", "--rootdir", str(place / "tests"))
        collected = self._collected(names)
        self._names = random.Random(seed).sample(collected, min(tests, len(collected)))

    def _copy_files(self) -> list[str]:
        """Copies its tests, which do not lie beside the package then; the names of their files."""
        flat = self._place / "tests"
        flat.mkdir()
        for pattern in self._suite.files:
            for file in sorted(self._checkout.glob(pattern)):
                name = str(file.relative_to(self._checkout)).replace("/", "__")
                shutil.copyfile(file, flat / name)
        return [str(file) for file in sorted(flat.glob("*.py")) if "conftest" not in file.name]

    def _collected(self, files: Sequence[str]) -> list[str]:
        done = self._run("collect", [*files, "--collect-only"], {})
        lines = done["stdout"].splitlines()
        found = sorted(line for line in lines if re.match(r"[^ ]+\.py::", line))
        root = self._place if self._suite.is_folder else self._place / "tests"
        return [str(root / name) for name in found]

    def in_plain_jax(self) -> dict[str, Any]:
        """Without a cache, with an empty one, with a warm one."""
        cache = {
            "JAX_COMPILATION_CACHE_DIR": str(self._place / "jax-cache"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        modes: dict[str, Mapping[str, str]] = {"plain": {}, "cold": cache, "warm": cache}
        return {mode: self._run(mode, self._names, more) for mode, more in modes.items()}

    def served(self) -> dict[str, Any]:
        """Twice, on a server of its own."""
        server = LiveServer(self._place, executable=str(self._python))
        more = {"JAXD_SERVER": server.unix, "JAXD_FALLBACK": "local"}
        found = {}
        try:
            for mode in ("first", "second"):
                before = running.cpu_of_tree(server.process.pid)
                run = self._run(mode, ["--jaxd", *self._names], more)
                run["cpu_s"] += running.cpu_of_tree(server.process.pid) - before
                found[mode] = run
        finally:
            server.close()
        return found

    def _run(self, mode: str, words: Sequence[str], more: Mapping[str, str]) -> dict[str, Any]:
        place = self._place / mode
        (place / "work").mkdir(parents=True)
        environment = source_environment(self._place, **self._suite.environment)
        paths = [environment["PYTHONPATH"], str(PLUGINS), str(self._checkout)]
        environment |= {"PYTHONPATH": os.pathsep.join(paths)}
        environment |= {"CORPUS_OUTCOMES": str(place / "outcomes"), **more}
        command = [str(self._python), "-m", "pytest", "-q", *self._modes, "-o", "addopts="]
        command += ["-W", "ignore", *self._workers, "-p", "no:cacheprovider"]
        command += ["-p", "corpus_outcomes", *words]
        ended = running.run_measured(command, environment, place / "work", _PATIENCE_S)
        lines = place / "outcomes"
        outcomes = dict(map(json.loads, lines.read_text().splitlines() if lines.exists() else ()))
        said = [line for line in ended["stdout"].splitlines() if line.startswith("jaxd: ")]
        return {**ended, "outcomes": outcomes, "said": said}


def part_summary(runs: Mapping[str, Mapping[str, Any]], workers: int) -> dict[str, Any]:
    """What is reported of a part.

    Args:
        runs: those in plain jax, `first` and `second`.
        workers: of xdist.
    """
    outcomes = runs["plain"]["outcomes"]
    passed = {name for name, how in outcomes.items() if how == "passed"}
    lost = {
        f"{mode}: {name}": str(run["outcomes"].get(name))
        for mode, run in runs.items()
        for name in passed
        if run["outcomes"].get(name) != "passed"
    }
    return {
        "tests": len(outcomes),
        "pass_in_plain_jax": len(passed),
        "workers": workers,
        "lost": dict(sorted(lost.items())),
        "said": {mode: runs[mode]["said"] for mode in ("first", "second")},
        **{
            kind: {mode: round(run[kind], 1) for mode, run in runs.items()}
            for kind in ("wall_s", "cpu_s")
        },
        "verdict": "fails" if lost else "passes",
    }


_JAX = Project("jax", ("matplotlib==3.11.2",), "jax-ml/jax", "refs/tags/jax-v0.10.2")
_ABSL: Final = {
    "JAX_NUM_GENERATED_CASES": "4",
    "JAX_SKIP_SLOW_TESTS": "1",
    "JAX_NUM_CPU_DEVICES": "8",  # which the tests ask for themselves
}
_OPTAX = Project("optax", (), "google-deepmind/optax", "refs/tags/v0.2.8")
_CHEX = Project("chex", ("chex==0.1.92",), "google-deepmind/chex", "refs/tags/v0.1.92")
_HAIKU = Project("haiku", ("dm-haiku==0.0.16",), "google-deepmind/dm-haiku", "refs/tags/v0.0.16")

SUITES: Final[tuple[Suite, ...]] = (
    Suite(_OPTAX, ("optax/**/*_test.py",)),
    *(
        Suite(_JAX, (f"tests/{name}.py",), environment=_ABSL, name=name)
        for name in (
            "api_test",
            "custom_root_test",
            "custom_linear_solve_test",
            "nn_test",
            "random_test",
            "lax_control_flow_test",
            "pjit_test",
            "custom_api_test",
            "custom_partitioning_test",
        )
    ),
    Suite(programs.JRAPH, ("jraph/_src/*_test.py",)),
    Suite(programs.MCTX, ("mctx/**/*test.py",)),
    Suite(programs.E3NN, ("tests/**/*_test.py",)),
    Suite(programs.RLAX, ("rlax/**/*_test.py",)),
    Suite(programs.DISTRAX, ("distrax/**/*_test.py",)),
    Suite(_CHEX, ("chex/**/*_test.py",)),
    Suite(_HAIKU, ("haiku/_src/*_test.py",)),
    Suite(programs.JAXOPT, ("tests/*_test.py",)),
    Suite(programs.DYNAMAX, ("dynamax/**/*test*.py",)),
    Suite(
        programs.FLAX,
        ("tests/*_test.py", "tests/linen/*_test.py", "tests/nnx/*_test.py"),
    ),
    *(
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
    ),
)
