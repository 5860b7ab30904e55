"""Programs that are there before anybody calls them: specs, lockfiles, and what is on disk."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd import Client, connect
from tests import chosen_platform
from tests.live_server import LiveServer

pytestmark = pytest.mark.soak

StartLive = Callable[..., LiveServer]

TRAIN = """
import json, sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
import jax, jax.numpy as jnp, numpy as np
from jaxd import persistent_call, statistics

@jax.tree_util.register_dataclass
@dataclass
class State:
    w: Any
    key: Any

@persistent_call(static_argnames="steps")
def train_step(state, batch, steps=1):
    noise = jax.random.normal(state.key, state.w.shape)
    return State(state.w - 0.1 * steps * batch.mean() + noise, jax.random.split(state.key)[0])

@persistent_call
def evaluate(x):
    if not Path(DATA).exists():
        raise FileNotFoundError("no data to be traced with")
    return x.sum()

if __name__ == "__main__":
    before = statistics()
    state = State(jnp.zeros((64, 64)), jax.random.key(0))
    for steps in (1, 1, 2):
        state = train_step(state, np.ones((128, 8), np.float32), steps=steps)
    evaluate(state.w)
    after = statistics()
    print(json.dumps([after.traces - before.traces, after.compiles - before.compiles]))
    sys.exit(int(sys.argv[1]))
"""
PROGRAMS = 3


@jax.tree_util.register_dataclass
@dataclass
class Pair:
    a: Any
    b: Any


@dataclass
class Project:
    """A folder with a program, and a place where jaxd's commands are run."""

    folder: Path

    def train(self, server: LiveServer) -> list[int]:
        """Runs the program; how often something was traced and compiled."""
        done = self.run(server, sys.executable, "train.py", "0")
        assert done.returncode == 0, done.stderr
        found: list[int] = json.loads(done.stdout)
        return found

    def command(self, server: LiveServer, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs a command of jaxd's."""
        return self.run(server, sys.executable, "-m", "jaxd.cli", *words)

    def run(self, server: LiveServer, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs any program."""
        return subprocess.run(
            words,
            env=self.environment(server),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    def environment(self, server: LiveServer) -> dict[str, str]:
        """Where programs find the server."""
        return server.environment | {"PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """One with the program above."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "train.py").write_text(TRAIN.replace("DATA", repr(str(folder / "data"))))
    (folder / "data").touch()
    return Project(folder)


@pytest.fixture
def start(start_live: StartLive, tmp_path: Path) -> StartLive:
    """Starts servers, each with the cache folder of that name."""
    count = 0

    def start(cache: str) -> LiveServer:
        nonlocal count
        count += 1
        folder = tmp_path / cache
        folder.mkdir(mode=0o700, exist_ok=True)
        return start_live(name=f"s{count}", JAXD_CACHE_DIR=str(folder))

    return start


@pytest.fixture(scope="module")
def lock(project: Project) -> Iterator[str]:
    """A lockfile of what the program calls, recorded twice."""
    runtime = Path(tempfile.mkdtemp(prefix="jaxd-", dir="/tmp"))
    server = LiveServer(runtime, JAXD_CACHE_DIR=str(runtime / "cache"))
    try:
        for name, built in (("warm.lock", PROGRAMS), ("again.lock", 0)):
            words = ("warm", "--record", name, "--", sys.executable, "train.py", "0")
            done = project.command(server, *words)
            assert done.returncode == 0, done.stderr
            assert f"recorded {PROGRAMS} programs of 2 functions in {name}\n" in done.stderr
            assert json.loads(done.stdout) == [built, built]
        yield "warm.lock"
    finally:
        assert server.close() == 0
        shutil.rmtree(runtime)


def counts(client: Client) -> tuple[int, int]:
    """How often something was traced and compiled until now."""
    seen = client.statistics()
    return seen.traces, seen.compiles


# f.warm ------------------------------------------------------------------------------------------


def spec(tree: Any) -> Any:
    """What stands for its arrays."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=leaf.aval.weak_type),
        tree,
    )


CALLS: dict[str, tuple[Any, ...]] = {
    "an array": (jnp.ones((3, 4)),),
    "weak": (jnp.asarray(2.0),),
    "keys": (jax.random.split(jax.random.key(3), 2),),
    "a tree": ({"a": jnp.ones(3), "b": [jnp.zeros((), jnp.int8), jnp.ones(2000)]},),
    "an object": (Pair(jnp.ones(3), jax.random.key(1)),),
    "a large object": (Pair(jnp.ones(3000), Pair(jnp.asarray(1.0), jnp.ones((40, 40)))),),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_was_warmed_is_not_built_by_the_call(client: Client, name: str) -> None:
    """Whatever its arguments are made of; nothing was run for it."""
    arguments = CALLS[name]

    def made(*args: Any, marker: str) -> Any:
        leaves = jax.tree.leaves(args)
        return [leaf.shape for leaf in leaves], len(marker)

    function = client.persistent_call(made, static_argnames="marker")
    calls, before = client.statistics().calls, counts(client)
    warmed = function.warm(*spec(arguments), marker=name)
    assert (warmed.verdict, warmed.seconds > 0) == ("compile", True)
    assert counts(client) == (before[0] + 1, before[1] + 1)
    assert client.statistics().calls == calls
    function(*arguments, marker=name)
    assert counts(client) == (before[0] + 1, before[1] + 1)
    assert function.warm(*arguments, marker=name).verdict == "hit"
    assert function.why(*arguments, marker=name).verdict == "hit"


def test_what_is_cleared_is_built_anew(start: StartLive) -> None:
    """It is gone from the disk too: another worker does not load it."""
    server = start("cache")
    with connect(server.unix) as client:
        function = client.persistent_call(lambda x: x * 1.375)
        assert function.warm(np.ones(3)).verdict == "compile"
        assert function.clear() == 1
        assert function.clear() == 0
        assert function.warm(np.ones(3)).verdict == "compile"
        assert function.clear() == 1
    server.close()
    with connect(start("cache").unix) as client:
        function = client.persistent_call(lambda x: x * 1.375)
        assert function.warm(np.ones(3)).verdict == "compile"


# lockfiles ---------------------------------------------------------------------------------------


def test_a_lockfile_makes_another_server_ready(
    project: Project, lock: str, start: StartLive
) -> None:
    """With an empty cache; the program traces and compiles nothing then, nor does its next one."""
    server = start("cache")
    assert project.command(server, "warm", "--check", lock).returncode == 1
    done = project.command(server, "warm", lock)
    assert done.returncode == 0, done.stderr
    assert f"0 ready, 0 loaded, {PROGRAMS} compiled; " in done.stdout
    assert project.train(server) == [0, 0]
    again = project.command(server, "warm", "--json", lock)
    assert json.loads(again.stdout)["hit"] == PROGRAMS
    assert server.close() == 0
    after = start("cache")
    check = project.command(after, "warm", "--check", lock)
    assert check.returncode == 0, check.stdout
    assert project.train(after) == [0, 0]


def test_what_is_on_disk_is_loaded(
    project: Project, lock: str, start: StartLive, tmp_path: Path
) -> None:
    """By a server that was started since, and by `jaxd warm`."""
    server = start("cache")
    assert project.command(server, "warm", lock).returncode == 0
    folder = str(tmp_path / "cache")
    listed = json.loads(
        project.command(server, "cache", "ls", "--json", "--cache-dir", folder).stdout
    )
    assert len(listed["calls"]) == PROGRAMS  # at once, and not when the server stops
    server.close()
    after = start("cache")
    done = json.loads(project.command(after, "warm", lock, "--json").stdout)
    assert (done["load"], done["compile"], done["failed"]) == (PROGRAMS, 0, [])
    assert project.train(after) == [0, 0]


def test_a_recording_holds_hits_too(project: Project, lock: str) -> None:
    """Of a server that has everything already it is the same, bit by bit."""
    first, again = (project.folder / name for name in (lock, "again.lock"))
    assert first.read_bytes() == again.read_bytes()


def test_a_local_server_is_started_to_be_warmed(project: Project, lock: str, runtime: Path) -> None:
    """As in the build of a container, where none runs; `jaxd stop` ends it."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("JAXD_")
    } | {"JAXD_CACHE_DIR": str(runtime / "cache")} | chosen_platform.environment()  # fmt: skip

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "jaxd.cli", *words],
            env=environment,
            cwd=project.folder,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    try:
        done = command("warm", lock)
        assert done.returncode == 0, done.stderr
        assert f"{PROGRAMS} compiled; " in done.stdout
        listed = command("functions", "--json")
        assert len(json.loads(listed.stdout)["functions"]) == PROGRAMS
    finally:
        assert command("stop").returncode == 0
