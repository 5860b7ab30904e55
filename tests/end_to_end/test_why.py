"""Why something is compiled: the sentences that users read, from a real server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fake_packages import FakeSite
from tests.live_server import ROOT, LiveServer
from tests.warm_clients import run_light

pytestmark = pytest.mark.counts_builds

UTILS = "def normalize(x):\n    return x / 2\n"
TRAIN = """
import numpy as np
from jaxd import persistent_call
from utils import normalize

LR = 0.1

@persistent_call(static_argnames="steps")
def {name}(x, steps=10):
    return normalize(x) * LR * steps
"""
CALL = """
import sys, json
sys.dont_write_bytecode = True
import numpy as np
import train
step = train.{name}
x = np.zeros(({rows}, 8), np.float32)
why = step.why(x, steps={steps})
if "call" in sys.argv:
    step(x, steps={steps})
print(json.dumps(why.to_dict()))
"""


class Project:
    """A folder with a module and its helper; each call of it runs in a fresh process."""

    def __init__(self, folder: Path, server: LiveServer, name: str) -> None:
        self.folder = folder
        self._server = server
        self._name = name
        self.write("utils.py", UTILS)
        self.write("train.py", TRAIN.replace("{name}", name))

    def write(self, file: str, text: str) -> None:
        """Replaces a file."""
        (self.folder / file).write_text(text)

    def edit(self, file: str, old: str, new: str) -> None:
        """Replaces a piece of a file."""
        text = (self.folder / file).read_text()
        assert old in text
        self.write(file, text.replace(old, new))

    def why(self, rows: int = 128, steps: int = 10, *, call: bool = False, **more: str) -> Any:
        """What a fresh process is told; it also makes the call where that is asked for."""
        program = CALL.replace("{rows}", str(rows)).replace("{steps}", str(steps))
        program = program.replace("{name}", self._name)
        words = ["call"] if call else []
        if more:
            done = self._run("-c", program, *words, **more)
        else:
            done = run_light(self._server, program, *words, folder=self.folder)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def command(self, *words: str) -> str:
        """What `jaxd why` says in this folder."""
        done = self._run("-m", "jaxd.cli", "why", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _run(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words],
            env=self._server.environment | more | {"PYTHONDONTWRITEBYTECODE": "1"},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )


@pytest.fixture
def project(tmp_path: Path, live: LiveServer, request: pytest.FixtureRequest) -> Project:
    """One whose function nobody else has, called once."""
    name = "step_" + "".join(c if c.isalnum() else "_" for c in request.node.name)
    project = Project(tmp_path, live, name)
    first = project.why(call=True)
    assert (first["verdict"], first["nearest"]) == ("compile", None)
    assert first["reason"] == "first call of this function on this server"
    return project


def sentences(answer: Any) -> list[str]:
    """What differs, in words."""
    assert answer["verdict"] == "compile"
    return [difference["text"] for difference in answer["differences"]]


@pytest.mark.slow
def test_after_the_call_it_is_a_hit(project: Project) -> None:
    """In another process, after a blank line, and for the whole function as well."""
    project.edit("utils.py", "def normalize", "\n\n# a remark\ndef normalize")
    answer = project.why()
    assert (answer["verdict"], answer["differences"]) == ("hit", [])
    (program,) = answer["programs"]
    assert program["arguments"] == {"x": "float32[128,8]", "steps": "10 (static)"}
    assert ": hit\n" in project.command(f"train:{project._name}")


def test_a_helper_that_changed_is_named(project: Project) -> None:
    """With its place."""
    project.edit("utils.py", "x / 2", "x / 3")
    project.edit("utils.py", "def normalize", "\n\ndef normalize")
    assert sentences(project.why()) == ["helper normalize (utils.py:3): code changed"]


@pytest.mark.slow
def test_a_global_that_changed_is_named(project: Project) -> None:
    """With both values; the nearest key is the one before, and the command says the same."""
    project.edit("train.py", "LR = 0.1", "LR = 0.01")
    assert sentences(project.why()) == ["global LR: 0.1 → 0.01"]
    assert "\n  global LR: 0.1 → 0.01\n" in project.command(f"train:{project._name}")
    project.why(call=True)
    assert "s: global LR: 0.1 → 0.01\n" in project.command("--recent", "1")
    told = json.loads(project.command("--recent", "1", "--json"))["decisions"][0]
    assert (told["verdict"], told["differences"][0]["name"]) == ("compile", "global LR")


@pytest.mark.slow
def test_an_argument_that_changed_is_named(project: Project) -> None:
    """By shape, or by its static value."""
    assert sentences(project.why(129)) == ["argument x: float32[128,8] → float32[129,8]"]
    assert sentences(project.why(steps=12)) == ["argument steps (static): 10 → 12"]


def test_a_setting_that_changed_is_named(project: Project) -> None:
    """As jax calls it."""
    assert sentences(project.why(JAX_ENABLE_X64="1")) == ["jax_enable_x64: False → True"]


def test_an_option_that_changed_is_named(project: Project) -> None:
    """As jax.jit calls it."""
    project.edit("train.py", 'static_argnames="steps"', 'static_argnames="steps", keep_unused=True')
    assert sentences(project.why()) == ["keep_unused: False → True"]


def test_what_is_new_and_what_is_gone_is_named(project: Project) -> None:
    """Beside the code that makes it so."""
    project.edit("train.py", "* LR *", "* SCALE *")
    project.edit("train.py", "LR = 0.1", "SCALE = 3")
    name = project._name
    assert sentences(project.why()) == [
        f"function {name} (train.py:8): code changed",
        "now reads global SCALE (3)",
        "no longer reads global LR (0.1)",
    ]


@pytest.mark.slow
def test_a_package_that_changed_is_named(
    tmp_path: Path, start_live: Callable[..., LiveServer]
) -> None:
    """With both versions."""
    site = FakeSite(tmp_path / "installed")
    site.install("tinylib", "0.2.7", {"tinylib/__init__.py": "def scale(x):\n    return 2 * x\n"})
    folders = [str(site.path), *(str(ROOT / name) for name in ("client", "server", "shared"))]
    path = os.pathsep.join(folders)
    (tmp_path / "project").mkdir()
    project = Project(tmp_path / "project", start_live(PYTHONPATH=path), "packaged_step")
    project.edit("train.py", "from utils", "import tinylib\nfrom utils")
    project.edit("train.py", "normalize(x) *", "tinylib.scale(normalize(x)) *")
    project.why(call=True, PYTHONPATH=path)
    site.install("tinylib", "0.2.8", {"tinylib/__init__.py": "def scale(x):\n    return 3 * x\n"})
    assert sentences(project.why(PYTHONPATH=path)) == ["package tinylib 0.2.7 → 0.2.8"]


@pytest.mark.slow
def test_a_scalar_with_many_values_is_told_once(project: Project) -> None:
    """To the call that brings the fifth, as a warning."""
    program = (
        "import warnings, train\n"
        "warnings.simplefilter('always')\n"
        "with warnings.catch_warnings(record=True) as heard:\n"
        "    for n in range(7):\n"
        "        train.LR = n + 0.5\n"
        f"        train.{project._name}(1.0)\n"
        "print([(w.category.__name__, str(w.message)) for w in heard])"
    )
    done = project._run("-c", program)
    assert done.stdout.count("CompileAdvice") == 1, done.stderr
    assert "global LR has had 5 values in 5 keys of" in done.stdout
