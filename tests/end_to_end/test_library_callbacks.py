"""What an installed library itself gives to be called back runs in the client's process."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.unchanged import JAXD_RUN, PYTHON, counts_in, run
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

READS = """
import functools
import jax, numpy as np
from jax.experimental import io_callback

class Reader:
    def __init__(self, rate):
        self.rate, self.calls, self.seen = rate, 0, set()

    def noted(self, x):
        self.calls += 1
        self.seen.add(float(x))
        return np.float32(x * self.rate)

    def inside(self, x):
        def read(x):
            return self.noted(x)
        return io_callback(read, x, x)

    def method(self, x):
        return io_callback(self.noted, x, x)

    def partial(self, x):
        return io_callback(functools.partial(note, self), x, x)

    def debug(self, x):
        jax.debug.callback(lambda x: self.noted(x), x)
        return x

def note(reader, x):
    return reader.noted(x)

def counted(x, calls):
    jax.debug.callback(lambda x: calls.append(float(x)), x)
    return x

def scaled(x):
    seen = []
    def scale(x):
        seen.append(x)
        return np.float32(x * 2)
    return io_callback(scale, x, x)
"""
UNCHANGED = """
import functools
import jax, numpy as np
import reports_back.reads as reads

class Own(reads.Reader):
    pass

calls = []
for kind in (reads.Reader, Own):
    jax.tree_util.register_static(kind)
    for name in ("inside", "method", "partial", "debug"):
        reader, captured = kind(3), kind(4)
        of_argument = jax.jit(getattr(kind, name))
        of_static = jax.jit(getattr(kind, name), static_argnums=0)
        of_variable = jax.jit(lambda x: getattr(captured, name)(x))
        for x in (1, 2):
            found = of_argument(reader, np.float32(x)), of_static(reader, np.float32(x + 4))
            found += (of_variable(np.float32(x)),)
            jax.effects_barrier()
            reader.rate += 1
            print(name, *map(float, found), reader.calls, sorted(reader.seen), captured.calls)
print(jax.jit(lambda x: reads.counted(x, calls))(1.0), jax.effects_barrier(), calls)
print([float(jax.jit(reads.scaled)(np.float32(x))) for x in (1, 2)])
"""


@pytest.fixture
def environment(start_live: Callable[..., LiveServer], runtime: Path) -> dict[str, str]:
    """Of a client whose server has the same installed package."""
    site = FakeSite(runtime)
    parts = {"__init__": LIBRARY, "log": LOG, "reads": READS}
    files = {f"reports_back/{name}.py": text for name, text in parts.items()}
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


@pytest.mark.slow
def test_what_a_library_calls_back_is_as_under_jit(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """What holds an object of the program, or cannot be found there, is called in the program."""
    (tmp_path / "unchanged.py").write_text(UNCHANGED)
    environment["JAXD_FALLBACK"] = "local"
    plain = run((*PYTHON, "unchanged.py"), environment, tmp_path)
    served = [run((*JAXD_RUN, "--report", "unchanged.py"), environment, tmp_path) for _ in "12"]
    assert len(plain.stdout.splitlines()) == 18, plain.stderr
    assert [each.stdout for each in served] == [plain.stdout] * 2, served[0].stderr
    assert counts_in(served[1].stderr)["calls"] == 2  # those of `scaled`
