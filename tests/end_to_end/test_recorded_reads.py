"""What a function reads of its process while it is traced: its client's, recorded and counted."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd import Client, connect
from tests.live_server import LiveServer
from tests.server.staging import at_once

LATE = {
    "variable": "import os; K = float(os.environ.get('RR_VARIABLE', '1'))",
    "another": "import os; K = float('RR_ANOTHER' in os.environ)",
    "getenv": "import os\ndef get(n): return os.getenv(n, '3')\nK = float(get('RR_GETENV'))",
    "indirect": "import os; K = float(getattr(os, 'environ')['RR_INDIRECT'])",
    "as_bytes": "import os; K = float(os.environb[b'RR_BYTES'])",
    "expanded": "import os; K = float(os.path.expandvars('${RR_EXPANDED}1'))",
    "home": "import os; K = float(len(os.path.expanduser('~/a')))",
    "arguments": "import sys; K = float(len(sys.argv))",
    "parsed": """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float, default=1.5)
K = parser.parse_known_args()[0].rate
""",
    "folder": "import os; K = float(os.path.basename(os.getcwd())[-1])",
    "in_folder": "from os.path import abspath; K = float(abspath('x').split('/')[-2][-1])",
    "opened": "with open('table.txt') as file: K = float(file.read())",
    "beside": """
import pathlib
K = float((pathlib.Path(__file__).resolve().parent / "beside.txt").read_text())
""",
    "loaded": """
import os, numpy
K = float(numpy.load(os.path.join(os.path.dirname(__file__), "data", "table.npy")).sum())
""",
    "exists": "import os; K = 1.0 + os.path.exists('flag.txt') + 2 * os.path.isdir('data')",
    "level": "import logging; K = float(logging.getLogger('rr.level').getEffectiveLevel())",
    "own_level": "import logging; K = float(logging.getLogger('rr').level)",
    "disabled": "import logging; K = 1.0 + logging.getLogger('rr.disabled').disabled",
    "below": "import logging; K = float(logging.root.manager.disable)",
    "enabled": "import logging; K = 1.0 + logging.getLogger('rr.enabled').isEnabledFor(10)",
    "recursion": "import sys; K = float(sys.getrecursionlimit())",
    "localized": "import locale; K = float(len(locale.setlocale(locale.LC_NUMERIC)))",
}
"""Modules that are imported while a function is traced: what each reads when it runs."""

IN_PLACE = {
    "here_variable": "float(os.environ.get('RR_VARIABLE', '1'))",
    "here_computed": "sum(float(os.environ.get(name, '1')) for name in NAMES)",
    "here_expanded": "float(os.path.expandvars('${RR_EXPANDED}1'))",
    "here_folder": "float(os.path.basename(os.getcwd())[-1])",
    "here_path": "float(os.path.basename(pathlib.Path.cwd())[-1])",
    "here_opened": "float(open('table.txt').read())",
    "here_read": "float(pathlib.Path('table.txt').read_text())",
    "here_loaded": "float(np.load('data/table.npy').sum())",
    "here_level": "float(logging.getLogger('rr.level').getEffectiveLevel())",
    "here_own_level": "float(logging.getLogger('rr').level)",
    "here_disabled": "1.0 + logging.getLogger('rr.disabled').disabled",
    "here_logger": "float(LOGGER.level)",
    "here_recursion": "float(sys.getrecursionlimit())",
    "here_library": "float(len(textwrap.fill(os.environ.get('RR_VARIABLE', '1'))))",
}
"""What functions read themselves."""

HEAD = """
import locale, logging, os, pathlib, sys, textwrap
import numpy as np
NAMES = ["RR_VARIABLE", "RR_GETENV"]
LOGGER = logging.getLogger("rr")
"""

PROGRAM = """
import importlib, json, logging, os, sys, locale
work = json.loads(sys.argv.pop(1))
os.chdir(work["folder"])
sys.path.insert(0, work["project"])
logging.getLogger("rr").setLevel(work["level"])
logging.getLogger("rr.disabled").disabled = work["level"] == 30
logging.disable(work["level"] - 5)
sys.setrecursionlimit(work["recursion"])
locale.setlocale(locale.LC_NUMERIC, work["locale"])
import jaxd, functions
found, traces = {}, {}
for name in work["names"]:
    before = jaxd.statistics().traces
    call = jaxd.persistent_call(getattr(functions, name), fallback="error")
    found[name] = float(call(1.0))
    traces[name] = jaxd.statistics().traces - before
expected = {name: float(getattr(functions, name)(1.0)) for name in work["names"]}
print(json.dumps([found, traces, expected]))
"""

WORLD = {
    "RR_VARIABLE": "2",
    "RR_INDIRECT": "3",
    "RR_BYTES": "4",
    "RR_EXPANDED": "5",
    "HOME": "/home/one",
}
ANOTHER = {
    "RR_VARIABLE": "22",
    "RR_ANOTHER": "1",
    "RR_GETENV": "33",
    "RR_INDIRECT": "44",
    "RR_BYTES": "55",
    "RR_EXPANDED": "66",
    "HOME": "/home/three",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Modules, and functions that import them when they are called."""
    folder = tmp_path / "project"
    (folder / "data").mkdir(parents=True)
    text = HEAD
    for name, source in LATE.items():
        (folder / f"late_{name}.py").write_text(source)
        text += f"def {name}(x):\n    import late_{name}\n    return x * late_{name}.K\n"
    for name, source in IN_PLACE.items():
        text += f"def {name}(x):\n    return x * {source}\n"
    (folder / "functions.py").write_text(text)
    for last, number in (("1", 2.5), ("2", 3.5)):
        inner = tmp_path / f"folder{last}"
        (inner / "data").mkdir(parents=True)
        (inner / "table.txt").write_text(str(number))
        np.save(inner / "data" / "table.npy", np.arange(number))
    return folder


def _files(project: Path, number: float) -> None:
    (project / "beside.txt").write_text(str(number))
    np.save(project / "data" / "table.npy", np.arange(number))


NAMES = [*LATE, *IN_PLACE]


@pytest.mark.slow
@pytest.mark.parametrize("build_in", ["worker", "builder"])
def test_every_read_is_the_clients_and_decides_which_program_fits(
    start_live: Callable[..., LiveServer], project: Path, build_in: str
) -> None:
    """In fresh processes: nothing is traced again as long as what was read is the same."""
    server = start_live("--build-in", build_in)

    def run(world: dict[str, str], folder: str, level: int, *arguments: str) -> Any:
        work = {
            "folder": str(project.parent / folder),
            "project": str(project),
            "level": level,
            "recursion": 1000 + level,
            "locale": "C" if level == 30 else "C.UTF-8",
            "names": NAMES,
        }
        done = server.run(PROGRAM, json.dumps(work), *arguments, **world)
        assert done.returncode == 0, done.stderr
        found, traces, expected = json.loads(done.stdout)
        assert found == expected
        return traces, found

    none = dict.fromkeys(NAMES, 0)
    _files(project, 4.5)
    traces, first = run(WORLD, "folder1", 30)
    assert traces == dict.fromkeys(NAMES, 1)
    assert run({**WORLD, "UNREAD": "1"}, "folder1", 30)[0] == none
    (project.parent / "folder2" / "flag.txt").touch()
    _files(project, 6.5)
    traces, second = run(ANOTHER, "folder2", 10, "--rate", "9")
    same = {name for name in NAMES if first[name] == second[name]}
    assert not same - {"here_library"}
    assert traces == dict.fromkeys(NAMES, 1)
    assert run(ANOTHER, "folder2", 10, "--rate", "9") == (none, second)
    _files(project, 4.5)
    assert run(WORLD, "folder1", 30) == (none, first)


def late_module(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    """A module that can be imported, and has not been."""
    (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, name, raising=False)


def test_what_a_function_sets_of_a_logger_is_what_it_finds(client: Client) -> None:
    """While it is traced, as under jax.jit; the loggers of the server stay as they are."""

    def levels(x: Any) -> Any:
        import logging

        log, below = logging.getLogger("rr.set"), logging.getLogger("rr.set.below")
        found = [float(log.level), float(log.getEffectiveLevel())]
        log.setLevel(13)
        log.disabled = True
        logging.disable(7)
        found += [log.level, log.disabled, below.getEffectiveLevel(), below.isEnabledFor(9)]
        found += [logging.root.manager.disable]
        log.setLevel(0)
        log.disabled = False
        logging.disable(0)
        return x * np.array(found, np.float32)

    logger = logging.getLogger("rr.set")
    logger.setLevel(21)
    expected = [21, 21, 13, 1, 13, 0, 7]
    assert client.persistent_call(levels)(1.0).tolist() == expected
    logger.setLevel(22)
    assert client.persistent_call(levels)(1.0).tolist() == [22, 22, *expected[2:]]
    logger.setLevel(0)


def test_what_a_cached_helper_has_read_counts_for_every_signature(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second signature finds what the first has read."""
    text = """
import functools, os
@functools.lru_cache
def rate(): return float(os.environ.get("RR_CACHED", "1"))
"""
    late_module(tmp_path, monkeypatch, "late_cached", text)

    @client.persistent_call
    def step(x: Any) -> Any:
        import late_cached  # type: ignore[import-not-found]

        return x * late_cached.rate()

    small, large = np.ones(2, np.float32), np.ones(3, np.float32)
    assert (step(small)[0], step(large)[0]) == (1, 1)
    monkeypatch.setenv("RR_CACHED", "5")
    assert (step(large)[0], step(small)[0]) == (5, 5)
    monkeypatch.delenv("RR_CACHED")
    assert (step(small)[0], step(large)[0]) == (1, 1)


def test_a_file_that_is_written_twice_within_a_tick_of_the_clock_is_read_twice(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time and size are then what they were."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "rate.txt"
    tick = time.time_ns() + 10**12  # longer than this test takes

    def write(text: str) -> None:
        file.write_text(text)
        os.utime(file, ns=(tick, tick))

    @client.persistent_call
    def step(x: Any) -> Any:
        with open("rate.txt") as rate:
            return x * float(rate.read())

    for text in ("2", "3", "2", "5"):
        write(text)
        assert step(1.0) == float(text)


def test_what_only_one_signature_reads_counts_from_then_on(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The programs of before are found again, or are made again: none is another's."""
    text = """
import os
def rate(n): return float(os.environ.get("RR_ONE" if n == 2 else "RR_TWO", "1"))
"""
    late_module(tmp_path, monkeypatch, "late_by_shape", text)

    @client.persistent_call
    def step(x: Any) -> Any:
        import late_by_shape  # type: ignore[import-not-found]

        return x * late_by_shape.rate(x.shape[0])

    small, large = np.ones(2, np.float32), np.ones(3, np.float32)
    assert (step(small)[0], step(large)[0]) == (1, 1)
    monkeypatch.setenv("RR_TWO", "7")
    assert (step(small)[0], step(large)[0]) == (1, 7)
    monkeypatch.setenv("RR_ONE", "6")
    assert (step(small)[0], step(large)[0]) == (6, 7)


@pytest.mark.slow
def test_clients_that_begin_at_once_share_no_build_where_their_values_differ(
    start_live: Callable[..., LiveServer], tmp_path: Path
) -> None:
    """Before anybody knows what the function reads, each gets its own all the same."""
    (tmp_path / "late_shared.py").write_text("import os; K = float(os.environ['RR_SHARED'])")
    program = """
import sys
sys.path.insert(0, sys.argv[1])
import jaxd
@jaxd.persistent_call
def step(x):
    import late_shared
    return x * late_shared.K
print([float(step(1.0)) for _ in range(3)])
"""
    server = start_live()

    def run(index: int) -> Any:
        done = server.run(program, str(tmp_path), RR_SHARED=str(index))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    assert at_once(4, run) == [[float(index)] * 3 for index in range(4)]


PACKAGE = """
import os
K = float(open(os.path.join(os.path.dirname(__file__), "rate.txt")).read())
def one(x): return x * K
def two(x): return x + K
"""


@pytest.mark.slow
def test_a_package_that_two_functions_bring_runs_once_and_counts_for_both(
    start_live: Callable[..., LiveServer], tmp_path: Path
) -> None:
    """With `ship='source'`: the second finds what its import read for the first."""
    package = tmp_path / "rr_package"
    package.mkdir()
    (package / "__init__.py").write_text(PACKAGE)
    program = """
import sys
sys.path.insert(0, sys.argv[1])
import jaxd, rr_package
one, two = (jaxd.persistent_call(f, ship="source") for f in (rr_package.one, rr_package.two))
print([float(one(1.0)), float(two(1.0))])
"""
    server = start_live()

    def run(rate: str) -> Any:
        (package / "rate.txt").write_text(rate)
        done = server.run(program, str(tmp_path))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    assert run("2") == [2.0, 3.0]
    assert run("4") == [4.0, 5.0]
    assert run("2") == [2.0, 3.0]


def test_a_thread_of_the_functions_finds_the_same(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It belongs to the trace that starts it."""
    text = """
import os, threading
found = []
thread = threading.Thread(target=lambda: found.append(float(os.environ["RR_THREAD"])))
thread.start()
thread.join()
K = found[0]
"""
    late_module(tmp_path, monkeypatch, "late_thread", text)
    monkeypatch.setenv("RR_THREAD", "8")

    @client.persistent_call
    def step(x: Any) -> Any:
        import late_thread  # type: ignore[import-not-found]

        return x * late_thread.K

    assert float(step(1.0)) == 8.0


@pytest.mark.slow
def test_what_the_server_reads_for_itself_meanwhile_is_none_of_the_functions(
    start_live: Callable[..., LiveServer], tmp_path: Path
) -> None:
    """Such as the disk cache, where a constant is compiled: in a user's folder, as by default."""
    (tmp_path / "temporary").mkdir()  # what lies in there counts as nobody's
    server = start_live(TMPDIR=str(tmp_path / "temporary"))

    with connect(server.unix) as client:

        @client.persistent_call
        def step(x: Any) -> Any:
            with jax.ensure_compile_time_eval():
                return x * jnp.cumsum(jnp.arange(5.0))[-1]

        assert float(step(2.0)) == 20.0


def test_why_names_what_was_read(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable that differs, and no value that this process does not have."""
    late_module(tmp_path, monkeypatch, "late_why", "import os; K = float(os.environ['RR_WHY'])")
    monkeypatch.setenv("RR_WHY", "2")

    @client.persistent_call
    def step(x: Any) -> Any:
        import late_why  # type: ignore[import-not-found]

        return x * late_why.K

    assert float(step(1.0)) == 2.0
    assert step.why(1.0).verdict == "hit"
    monkeypatch.setenv("RR_WHY", "3")
    why = step.why(1.0)
    assert why.verdict == "compile"
    assert [each.text for each in why.differences] == ["environment RR_WHY: '2' → '3'"]
    assert float(step(1.0)) == 3.0


RECORDED = """
import sys
sys.path.insert(0, sys.argv[1])
import jaxd
@jaxd.persistent_call
def step(x):
    import late_recorded
    return x * late_recorded.K
before = jaxd.statistics().traces
print([float(step(1.0)), jaxd.statistics().traces - before])
"""
COMMAND = "import runpy; runpy.run_module('jaxd.cli', run_name='__main__')"


@pytest.mark.slow
def test_a_lockfile_has_what_was_read(
    start_live: Callable[..., LiveServer], tmp_path: Path
) -> None:
    """Another server is made ready by it where the process is the same, and says so elsewhere."""
    (tmp_path / "late_recorded.py").write_text(
        "import os; K = float(os.environ.get('RR_LOCKED', '1'))"
    )
    lock, program = str(tmp_path / "warm.lock"), str(tmp_path / "program.py")
    Path(program).write_text(RECORDED)
    first = start_live(name="first")
    words = ("warm", "--record", lock, "--", sys.executable, program, str(tmp_path))
    done = first.run(COMMAND, *words, RR_LOCKED="2")
    assert done.returncode == 0, done.stderr
    second = start_live(name="second", JAXD_CACHE_DIR=str(tmp_path / "cache"))
    other = second.run(COMMAND, "warm", lock, RR_LOCKED="3")
    assert other.returncode != 0
    assert "environment RR_LOCKED" in other.stderr
    done = second.run(COMMAND, "warm", lock, RR_LOCKED="2")
    assert done.returncode == 0, done.stderr
    found = [second.run(RECORDED, str(tmp_path), RR_LOCKED=value).stdout for value in "23"]
    assert [json.loads(each) for each in found] == [[2.0, 0], [3.0, 1]]
