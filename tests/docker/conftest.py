"""One engine and one image for all tests of a run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docker.container import Container
from tests.docker.engine import ROOT, Engine, NoEngine, an_engine

IMAGE = "jaxd:test"


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """Docker's, or one that is set up here; without either the tests are skipped."""
    try:
        with an_engine() as engine:
            yield engine
    except NoEngine as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def image(engine: Engine) -> str:
    """The image of this checkout, on the CPU."""
    engine.build(IMAGE)
    return IMAGE


@pytest.fixture(scope="session")
def client_python(engine: Engine) -> Iterator[str]:
    """The interpreter of an environment with the client and no jax, of the image's Python."""
    directory = Path(tempfile.mkdtemp(prefix="jaxd-client-", dir="/var/tmp"))
    python = _interpreter(engine.python)
    subprocess.run([python, "-m", "venv", str(directory)], check=True)
    pip = [str(directory / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    constraints = ["--disable-pip-version-check", "-c", "constraints.txt"]
    subprocess.run([*pip, *constraints, str(ROOT)], cwd=ROOT, check=True, capture_output=True)
    yield str(directory / "bin" / "python")
    shutil.rmtree(directory)


def _interpreter(minor: str) -> str:
    """A Python of this minor version that can make environments."""
    versions = Path.home() / ".pyenv" / "versions"
    candidates = [
        *([sys.executable] if minor == ".".join(map(str, sys.version_info[:2])) else []),
        *map(str, versions.glob(f"{minor}.*/bin/python3")),
        *filter(None, [shutil.which(f"python{minor}", path=f"/usr/bin:{os.environ['PATH']}")]),
    ]
    for python in candidates:
        asks = [python, "-c", "import sys, ensurepip; print(*sys.version_info[:2], sep='.')"]
        said = subprocess.run(asks, capture_output=True, text=True, check=False).stdout.strip()
        if said == minor:
            return python
    pytest.skip(f"no Python {minor} for a client beside the image")


@pytest.fixture(scope="module")
def container(engine: Engine, image: str, client_python: str) -> Iterator[Container]:
    """A server in a container that may write nowhere but to its volume, and is healthy."""
    one = Container.run(engine, image, client_python)
    yield one
    one.remove()
