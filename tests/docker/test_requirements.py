"""The layer of an image that holds jax."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.docker.engine import ROOT

SCRIPT = ROOT / "docker" / "requirements.py"


def script() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("requirements", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("accelerator", "more"), [("cpu", []), ("cuda13", ["jax[cuda13]>=0.10"])])
def test_what_a_server_needs_comes_from_pyproject(accelerator: str, more: list[str]) -> None:
    """The client's packages, jax, and its plugin; jaxd itself is not among them."""
    said = subprocess.run(
        [sys.executable, str(SCRIPT), accelerator],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert [line for line in said if line.startswith(("rpyc", "jax"))] == [
        *("rpyc>=6.0.2", "jax>=0.10", "jaxlib>=0.10", *more)
    ]


def test_an_accelerator_that_is_none_is_refused() -> None:
    """Before anything is downloaded."""
    with pytest.raises(KeyError, match="cuda11"):
        script().requirements(Path(ROOT, "pyproject.toml").read_text(), "cuda11")


@pytest.mark.parametrize("accelerator", ["cuda12", "cuda13", "tpu"])
def test_every_package_of_a_plugin_is_pinned(accelerator: str) -> None:
    """An image that is built again is the same: jax's extras leave their versions open."""
    pins = (ROOT / "constraints.txt").read_text()
    section = pins.partition(f"# jaxd[{accelerator}]\n")[2].partition("\n\n")[0]
    names = [line.partition("==")[0] for line in section.splitlines()]
    wanted = {"cuda12": "jax-cuda12-plugin", "cuda13": "jax-cuda13-plugin", "tpu": "libtpu"}
    assert wanted[accelerator] in names


@pytest.mark.variants
@pytest.mark.parametrize("accelerator", ["cuda12", "cuda13", "tpu"])
def test_pip_resolves_every_plugin_with_its_pins(accelerator: str, tmp_path: Path) -> None:
    """To wheels for this Python, each of which a line of constraints.txt names; nothing is kept."""
    text = (ROOT / "pyproject.toml").read_text()
    lines = script().requirements(text, accelerator)
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    options = ["--only-binary", ":all:", "-c", "constraints.txt", "--report", str(tmp_path / "r")]
    done = subprocess.run(
        [*pip, *options, *lines], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    import json

    installed = json.loads((tmp_path / "r").read_text())["install"]
    pins = (ROOT / "constraints.txt").read_text()
    found = {f"{one['metadata']['name']}=={one['metadata']['version']}" for one in installed}
    assert {one for one in found if one not in pins} == set()
    assert any(("jax" in one and accelerator in one) or "libtpu" in one for one in found)
