"""What a machine with a GPU and no network lacks: fetched here as wheels, installed there.

`python -m tests.gpu.carried FOLDER` fetches (`make gpu-wheels`): jaxd itself, what its tests and
benchmarks import, and of what these need all that is pure Python, in the versions of
constraints.txt for the Python of that machine. jax, numpy and their kind are its own.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent

PYTHON: Final = "3.12"
MOST_BYTES: Final = 64 << 20

_WANTED: Final = (
    *("rpyc", "plumbum", "cloudpickle", "flax", "optax", "chex", "equinox", "dm-haiku"),
    *("pytest", "pytest-timeout", "pytest-xdist", "hypothesis"),
)
_ITS_OWN: Final = ("jax", "jaxlib", "numpy", "scipy", "ml-dtypes", "pip", "setuptools")


def _name(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


def install_missing(wheels: Path) -> None:
    """Installs into the environment of this interpreter what it has no package of.

    Nothing is installed over what is there, nor anything that a package needs besides: the
    machine's jax stays what it is.
    """
    there = {_name(each.metadata["Name"]) for each in metadata.distributions()}
    missing = [
        str(file)
        for file in sorted(wheels.glob("*.whl"))
        if _name(file.name.partition("-")[0]) not in there
    ]
    if missing:
        command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        command += ["--no-index", "--find-links", str(wheels), "--no-deps", *missing]
        subprocess.run(command, check=True)
        importlib.invalidate_caches()


def _pure(name: str) -> bool:
    """Whether the package that is installed here has no code for one kind of processor."""
    text = metadata.distribution(name).read_text("WHEEL") or ""
    return "Root-Is-Purelib: true" in text


def _needs(name: str, environment: Mapping[str, str]) -> Iterator[str]:
    from packaging.requirements import Requirement

    for text in metadata.distribution(name).requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({**environment, "extra": ""}):
            yield _name(requirement.name)


def closure(environment: Mapping[str, str]) -> set[str]:
    """The packages to fetch: those that are wanted, with what they need, if that is pure Python."""
    found: set[str] = set()
    left = [_name(name) for name in _WANTED]
    while left:
        name = left.pop()
        if name in found or name in _ITS_OWN:
            continue
        try:
            is_pure = _pure(name)
        except metadata.PackageNotFoundError:
            continue  # not needed by this Python
        if is_pure:
            found.add(name)
            left += _needs(name, environment)
    return found


def pinned(environment: Mapping[str, str]) -> dict[str, str]:
    """The versions of constraints.txt for that Python."""
    from packaging.requirements import Requirement

    found = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        text = line.partition("#")[0].strip()
        if text:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate(dict(environment)):
                found[_name(requirement.name)] = str(requirement.specifier)
    return found


def fetch(folder: Path) -> None:
    """Fills the folder, which is emptied of other wheels.

    Raises:
        RuntimeError: when they are more than may be carried.
        CalledProcessError: when one cannot be had.
    """
    environment = {"python_version": PYTHON, "python_full_version": f"{PYTHON}.0"}
    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.glob("*.whl"):
        file.unlink()
    pins = pinned(environment)
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(folder), str(ROOT)], check=True)
    names = [f"{name}{pins.get(name, '')}" for name in sorted(closure(environment))]
    command = [*pip, "download", "--no-deps", "--only-binary=:all:", "--platform", "any"]
    command += ["--python-version", PYTHON, "--implementation", "py", "--abi", "none"]
    subprocess.run([*command, "-d", str(folder), *names], check=True)
    sizes = [file.stat().st_size for file in folder.glob("*.whl")]
    if sum(sizes) > MOST_BYTES:
        raise RuntimeError(f"{sum(sizes) >> 20} MiB, more than {MOST_BYTES >> 20}")
    print(f"{folder}: {len(sizes)} wheels, {sum(sizes) / (1 << 20):.1f} MiB")


if __name__ == "__main__":
    fetch(Path(sys.argv[1]))
