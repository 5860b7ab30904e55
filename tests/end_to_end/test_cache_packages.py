"""A program is good for the packages that it was built with, also those that no key names."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxd import connect
from tests.end_to_end.counting import BUILT, LOADED, costs, warnings_of
from tests.fake_packages import FakeSite
from tests.live_server import ROOT, LiveServer

OUTER = "import deeplib\n\ndef scale(x):\n    return deeplib.factor(x)\n"
INNER = "def factor(x):\n    return x * {number}\n"
CALL = """
from jaxd import persistent_call
import outerlib

@persistent_call
def step(x):
    return outerlib.scale(x)

print(float(step(2.0)))
"""


@pytest.mark.soak
def test_a_package_below_a_package(tmp_path: Path, start_live: Callable[..., LiveServer]) -> None:
    """The function names the upper one only; its program is not loaded with another lower one."""
    site = FakeSite(tmp_path / "installed")
    site.install("outerlib", "1.0", {"outerlib/__init__.py": OUTER})
    folders = [str(site.path), *(str(ROOT / name) for name in ("client", "server", "shared"))]
    path = os.pathsep.join(folders)
    for turn, (version, value, cost) in enumerate(
        (("1.0", 6.0, BUILT), ("1.0", 6.0, LOADED), ("2.0", 10.0, BUILT), ("2.0", 10.0, LOADED))
    ):
        number = 3 if version == "1.0" else 5
        site.install(
            "deeplib", version, {"deeplib/__init__.py": INNER.replace("{number}", str(number))}
        )
        server = start_live(name=f"s{turn}", PYTHONPATH=path)
        with connect(server.unix) as client, costs(client) as spent:
            done = server.run(CALL, PYTHONPATH=path, PYTHONDONTWRITEBYTECODE="1")
        assert (done.stderr, done.stdout) == ("", f"{value}\n")
        assert (turn, spent) == (turn, cost)
        assert server.close() == 0
        assert warnings_of(server) == []
