"""What the images install, by its hash."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from runpy import run_path

import pytest

from tests.docker.engine import ROOT

SCRIPT = ROOT / "docker" / "lock.py"
LOCKS = ROOT / "docker" / "locks"
NAMES = ("cpu", "cuda12", "cuda13", "tpu", "build")
_ENTRY = re.compile(r"^(\S+==\S+)( ; .*?)? \\\n((?:    .*\n)+)", re.MULTILINE)
MINORS = ("3.11", "3.12", "3.13")


def entries(name: str) -> dict[tuple[str, str], list[str]]:
    """By Python and `name==version` the hashes of a lock file."""
    text = (LOCKS / f"{name}.txt").read_text()
    found: dict[tuple[str, str], list[str]] = {}
    for pin, marker, rest in _ENTRY.findall(text):
        for minor in re.findall(r'python_version == "(.*?)"', marker) or MINORS:
            found[minor, pin] = re.findall(r"--hash=sha256:([0-9a-f]{64})\b", rest)
    return found


@cache
def pins(minor: str) -> frozenset[str]:
    """What constraints.txt says for a Python, spelled as an index does."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = set()
    for line in lines:
        pin, _, marker = line.partition(" ; ")
        is_old = minor == "3.11"
        if "==" in pin and ("<" in marker) <= is_old and (">=" in marker) <= (not is_old):
            found.add(_spelled(pin))
    return frozenset(found)


def _spelled(pin: str) -> str:
    name, _, version = pin.partition("==")
    return f"{re.sub(r'[-_.]+', '-', name).lower()}=={version}"


@pytest.mark.parametrize("name", NAMES)
def test_every_package_has_hashes_and_no_address(name: str) -> None:
    """Each line of a lock file is a version or a hash: no index, and no option."""
    lines = (LOCKS / f"{name}.txt").read_text().splitlines()
    python = r'python_version == "3\.\d+"'
    version = rf"[a-z0-9.-]+==[\w.]+( ; {python}( or {python})*)? \\"
    for line in lines[1:]:
        assert re.fullmatch(rf"{version}|    --hash=sha256:[0-9a-f]{{64}}( \\)?", line), line
    assert all(entries(name).values())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("minor", MINORS)
def test_the_locked_versions_are_those_of_the_constraints(name: str, minor: str) -> None:
    """One that was changed there alone would not be what is tested: make locks."""
    locked = {pin for each, pin in entries(name) if each == minor}
    assert locked
    assert locked - pins(minor) == set()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("minor", MINORS)
def test_what_a_server_needs_is_locked(name: str, minor: str) -> None:
    """What pyproject.toml asks for, for every Python."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = (
        project["project"]["dependencies"] + project["project"]["optional-dependencies"]["server"]
    )
    if name == "build":
        wanted = project["build-system"]["requires"]
    locked = {pin.partition("==")[0] for each, pin in entries(name) if each == minor}
    assert {re.match(r"[\w-]+", line)[0] for line in wanted} <= locked  # type: ignore[index]
    plugins = {"cuda12": "jax-cuda12-plugin", "cuda13": "jax-cuda13-plugin", "tpu": "libtpu"}
    assert plugins.get(name, "packaging" if name == "build" else "jaxlib") in locked


def test_every_lock_is_one_that_the_image_can_be_built_with() -> None:
    """And none is left over."""
    assert {path.stem for path in LOCKS.iterdir()} == set(NAMES)
    assert Path(ROOT, "docker", "Dockerfile").read_text().count("docker/locks/") >= 2


@pytest.mark.parametrize(("accelerator", "more"), [("cpu", []), ("cuda13", ["jax[cuda13]>=0.10"])])
def test_what_a_server_needs_comes_from_pyproject(accelerator: str, more: list[str]) -> None:
    """The client's packages, jax, and its plugin; jaxd itself is not among them."""
    requirements = run_path(str(SCRIPT))["requirements"]
    lines = requirements(Path(ROOT, "pyproject.toml").read_text(), accelerator)
    assert [line for line in lines if line.startswith(("rpyc", "jax"))] == [
        *("rpyc>=6.0.2", "jax>=0.10", "jaxlib>=0.10", *more)
    ]


def test_an_accelerator_that_is_none_is_refused() -> None:
    """Before anything is downloaded."""
    with pytest.raises(KeyError, match="cuda11"):
        run_path(str(SCRIPT))["requirements"](Path(ROOT, "pyproject.toml").read_text(), "cuda11")


@pytest.mark.variants
@pytest.mark.parametrize("image", ["cpu", "cuda12", "cuda13", "tpu", "build"])
def test_pip_installs_every_image_by_its_hashes(image: str) -> None:
    """For this Python and processor, and nothing is missing in the file; nothing is kept."""
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    options = ["--only-binary", ":all:", "--require-hashes", "-r", f"docker/locks/{image}.txt"]
    done = subprocess.run([*pip, *options], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("says", "code", "ends_with", "told"),
    [
        ("No known vulnerabilities found", 0, 0, "No known"),
        ("Found 2 known vulnerabilities in 1 package", 1, 2, "Found 2"),
        ("ERROR: the service does not answer", 1, 0, "NOT CHECKED"),
        ("ERROR: jax could not be audited", 1, 0, "NOT CHECKED"),
    ],
)
def test_only_what_is_known_ends_an_audit(
    tmp_path: Path, says: str, code: int, ends_with: int, told: str
) -> None:
    """Where nobody can be asked, it says so."""
    (tmp_path / "bin").mkdir()
    audit = tmp_path / "bin" / "pip-audit"
    audit.write_text(f"#!/bin/sh\necho '{says}'\nexit {code}\n")
    audit.chmod(0o755)
    for name in (".made", ".audit"):
        (tmp_path / name).touch()
    done = subprocess.run(
        ["make", "-s", "audit", f"VENV={tmp_path}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, told in done.stdout) == (ends_with, True), done.stdout + done.stderr
