"""What an installed library itself gives to be called back runs in the client's process."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fake_packages import FakeSite
from tests.live_server import ROOT, LiveServer, run_client, source_environment

pytestmark = pytest.mark.own_server

LIBRARY = """
import functools, os
import jax
from reports_back.log import note

CALLS = []

def _check(x, limit=10):
    CALLS.append((os.getpid(), float(x)))
    if x > limit:
        raise ValueError("more than the limit")

def _scaled(x, factor):
    return x * factor

def solve(x):
    jax.debug.callback(_check, x)
    jax.debug.callback(note, x)
    shape = jax.ShapeDtypeStruct((), x.dtype)
    return jax.experimental.io_callback(functools.partial(_scaled, factor=3), shape, x)

class Solver:
    def __init__(self, x):
        jax.debug.callback(_check, x)
        self.x = x

def unused(x):
    raise AssertionError

def report(log, x):
    jax.debug.callback(log, x)
"""
LOG = "SEEN = []\ndef note(x):\n    SEEN.append(float(x))\n"
USE = """
import os, numpy as np
import reports_back
from jaxd import persistent_call
from jaxd.errors import CallbackError
from reports_back import log

@persistent_call
def f(x):
    return reports_back.solve(x) + reports_back.Solver(x).x

@persistent_call
def g(x):
    reports_back.report(reports_back.unused, x)
    return x

print(float(f(np.float32(2))), float(f(np.float32(4))))
print(sorted(reports_back.CALLS) == [(os.getpid(), v) for v in (2.0, 2.0, 4.0, 4.0)], log.SEEN)
try:
    f(np.float32(11))
except Exception as error:
    print(repr(error.__cause__))
try:
    g(np.float32(1))
except CallbackError as error:
    print("gives unused to" in str(error))
"""
LATE = """
import numpy as np
from jaxd import persistent_call
from jaxd.errors import CallbackError

@persistent_call
def f(x):
    import reports_back
    return reports_back.solve(x)

try:
    f(np.float32(2))
except Exception as error:
    print("Import it at the top of the file" in f"{error} {error.__cause__}")
import reports_back
print(float(f(np.float32(2))))
"""


@pytest.fixture
def environment(start_live: Callable[..., LiveServer], runtime: Path) -> dict[str, str]:
    """Of a client whose server has the same installed package."""
    site = FakeSite(runtime)
    files = {"reports_back/__init__.py": LIBRARY, "reports_back/log.py": LOG}
    site.install("reports-back", "1.0", files)
    folders = [str(site.path), *(str(ROOT / name) for name in ("client", "server", "shared"))]
    path = os.pathsep.join(folders)
    server = start_live(PYTHONPATH=path)
    return source_environment(runtime, PYTHONPATH=path, JAXD_SERVER=server.unix)


@pytest.mark.slow
def test_a_library_s_own_callbacks(environment: dict[str, str]) -> None:
    """Its functions and those that it imports, in a partial too; what a helper is given is not."""
    done = run_client(USE, environment=environment)
    assert done.stdout.splitlines() == [
        "8.0 16.0",
        "True [2.0, 4.0]",
        "ValueError('more than the limit')",
        "True",
    ], done.stderr


@pytest.mark.slow
def test_nothing_is_imported_for_a_callback(environment: dict[str, str]) -> None:
    """The error says what to do; then it is called."""
    done = run_client(LATE, environment=environment)
    assert done.stdout.splitlines() == ["True", "6.0"], done.stderr
