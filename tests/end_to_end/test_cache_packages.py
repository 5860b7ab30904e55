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
from tests.server.staging import until

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
def test_a_package_below_a_package_that_changes_while_the_server_runs(
    tmp_path: Path, start_live: Callable[..., LiveServer]
) -> None:
    """A hit is none any more within seconds, whether this worker has built it or loaded it."""
    site = FakeSite(tmp_path / "installed")
    site.install("outerlib", "1.0", {"outerlib/__init__.py": OUTER})
    folders = [str(site.path), *(str(ROOT / name) for name in ("client", "server", "shared"))]
    environment = {"PYTHONPATH": os.pathsep.join(folders), "PYTHONDONTWRITEBYTECODE": "1"}

    def install(number: int) -> None:
        site.install(
            "deeplib",
            f"{number}.0",
            {"deeplib/__init__.py": INNER.replace("{number}", str(number))},
        )

    def value() -> float:
        done = server.run(CALL, **environment)
        assert done.returncode == 0, done.stderr
        return float(done.stdout)

    install(3)
    for number, name in ((5, "built"), (7, "loaded")):
        server = start_live(name=name, **environment)
        before = value()
        install(number)
        until(lambda before=before: value() != before)  # type: ignore[misc]
        assert (before, value()) == ({5: 6.0, 7: 10.0}[number], 2.0 * number)
        assert server.close() == 0


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
