"""Environments beside a container, as laptops have them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docker.engine import ROOT


def client_environment(minor: str, directory: Path) -> str:
    """The interpreter of a new environment with the client and without jax."""
    subprocess.run([interpreter(minor), "-m", "venv", str(directory)], check=True)
    python = str(directory / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "-c", "constraints.txt", str(ROOT)], cwd=ROOT, check=True, capture_output=True
    )
    return python


def interpreter(minor: str) -> str:
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
