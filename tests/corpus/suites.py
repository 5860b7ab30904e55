"""Test suites of other projects, run as they are and with `jax.jit` as `persistent_call`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.corpus import programs
from tests.corpus.places import Corpus, Project
from tests.corpus.running import Program, Runner, working_directory


@dataclass(frozen=True)
class Suite:
    """Tests of a project.

    Attributes:
        project: whose they are.
        files: patterns of names in its checkout.
        arguments: of pytest, to choose among the tests.
        environment: variables that they need.
        path: folders of the checkout whose modules are importable.
        patience_s: after so many seconds the run ends with the tests that it has done.
        name: of these tests.
    """

    project: Project
    files: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    path: tuple[str, ...] = ()
    patience_s: float = field(default=1800, repr=False)
    name: str = "tests"

    @property
    def title(self) -> str:
        """How it is named in lists."""
        return self.name


class SuiteRunner:
    """Runs one suite in either mode.

    Args:
        corpus: where its files lie.
        suite: the suite.

    Raises:
        MissingError: when something is not there that it needs.
    """

    def __init__(self, corpus: Corpus, suite: Suite) -> None:
        self._suite = suite
        self._checkout = corpus.checkout(suite.project)
        self._corpus = corpus

    def in_plain_jax(self) -> dict[str, Any]:
        """What becomes of each test in plain jax."""
        with working_directory() as place:
            return self._outcomes(place, self._runner(place).run_unhooked(place / "plain"))

    def under_jaxd(self) -> dict[str, Any]:
        """The same on a server."""
        with working_directory() as place:
            return self._outcomes(place, self._runner(place).on_a_server_once(place))

    def copy_files(self, place: Path) -> Path:
        """Copies its tests, which do not lie beside the package then, into a new folder there."""
        flat = place / "tests"
        flat.mkdir()
        for pattern in self._suite.files:
            for file in sorted(self._checkout.glob(pattern)):
                name = str(file.relative_to(self._checkout)).replace("/", "__")
                shutil.copyfile(file, flat / name)
        return flat

    def _runner(self, place: Path) -> Runner:
        flat, suite = self.copy_files(place), self._suite
        arguments = ["-q", "-p", "corpus_outcomes", "-p", "no:cacheprovider", "-p", "no:xdist"]
        arguments += ["--continue-on-collection-errors"]
        arguments += ["--import-mode=importlib", "--rootdir", str(flat), "-o", "addopts="]
        arguments += ["-W", "ignore", "--tb=native", *suite.arguments]
        arguments += sorted(str(file) for file in flat.glob("*.py") if "conftest" not in file.name)
        environment = {**suite.environment, "CORPUS_OUTCOMES": str(place / "outcomes")}
        launcher = "import sys, pytest\nsys.exit(pytest.main(sys.argv[1:]))\n"
        program = Program(
            suite.project,
            "",
            tuple(arguments),
            environment,
            suite.path,
            launcher=launcher,
            patience_s=suite.patience_s,
        )
        return Runner(self._corpus, program)

    def _outcomes(self, place: Path, run: dict[str, Any]) -> dict[str, Any]:
        file = place / "outcomes"
        lines = file.read_text().splitlines() if file.exists() else []
        return {
            "outcomes": dict(json.loads(line) for line in lines),
            "status": run["status"],
            "cpu_s": run["cpu_s"] + run.get("cpu_server_s", 0),
            "tail": run["stdout"][-1500:] + run["stderr"][-1500:],
            "records": run["records"],
        }


def comparison(plain: Mapping[str, Any], served: Mapping[str, Any]) -> dict[str, Any]:
    """How many of the tests that pass in plain jax pass under jaxd, and which do not."""
    passed = {name for name, outcome in plain["outcomes"].items() if outcome == "passed"}
    reached = {name: served["outcomes"][name] for name in passed & served["outcomes"].keys()}
    failed = {name: outcome for name, outcome in reached.items() if outcome != "passed"}
    functions = [f for record in served["records"] for f in record["functions"].values()]
    return {
        "tests": len(plain["outcomes"]),
        "pass_in_plain_jax": len(passed),
        "reached": len(reached),
        "pass": len(reached) - len(failed),
        "failed": dict(sorted(failed.items())),
        "calls": {name: sum(f[name] for f in functions) for name in ("served", "local")},
        "cpu_s": {"plain": round(plain["cpu_s"]), "served": round(served["cpu_s"])},
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
    Suite(programs.JAXOPT, ("tests/*_test.py",), path=("tests",)),
    Suite(programs.DYNAMAX, ("dynamax/**/*test*.py",)),
    Suite(
        programs.FLAX,
        ("tests/*_test.py", "tests/linen/*_test.py", "tests/nnx/*_test.py"),
    ),
    Suite(
        programs.NUMPYRO,
        (
            "test/test_handlers.py",
            "test/test_optimizers.py",
            "test/test_transforms.py",
            "test/test_constraints.py",
            "test/test_flows.py",
            "test/test_nn.py",
            "test/infer/test_svi.py",
            "test/infer/test_gradient.py",
            "test/infer/test_hmc_util.py",
            "test/infer/test_infer_util.py",
            "test/contrib/test_control_flow.py",
        ),
    ),
)
