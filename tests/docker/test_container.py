"""The image as people run it: built, called from outside, restarted, stopped."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.docker.container import HARDENED, Container
from tests.docker.engine import ROOT, Engine

pytestmark = pytest.mark.docker

GRACE_S = 30

USER = 4321
"""Nobody in particular, and not the image's own."""

PROGRAM = """
import json, sys
import numpy as np
import jaxd

@jaxd.persistent_call
def step(w, x):
    import jax, jax.numpy as jnp
    loss = lambda w: jnp.mean(jnp.tanh(x @ w) ** 2)
    value, slope = jax.value_and_grad(loss)(w)
    return value, w - 0.1 * slope

w, x = np.ones((3, 2), "f4"), np.arange(12, dtype="f4").reshape(4, 3)
before = jaxd.statistics()
value, w = step(w, x)
for _ in range(3):
    value, w = step(w, x)
after = jaxd.statistics()
print(json.dumps({
    "value": float(value),
    "jax": "jax" in sys.modules,
    "epoch": after.epoch,
    **{name: getattr(after, name) - getattr(before, name)
       for name in ("calls", "traces", "compiles", "executable_loads", "executable_hits")},
}))
"""
"""A training step, four times. The first process has it built; no other one does."""


def test_it_may_do_nothing_but_its_work(container: Container) -> None:
    """Not root, no compiler, nothing to write but its volume; it knows how much memory it has."""
    assert container.execute("id", "-u") == "10001"
    for compiler in ("gcc", "cc", "g++", "make", "ld"):
        assert container.execute("sh", "-c", f"command -v {compiler}", check=False) == ""
    said = container.execute("sh", "-c", "touch /opt/jaxd/x /usr/x", check=False)
    assert said.count("Read-only file system") == 2
    asks = "from jaxd_server.runtime.system_memory import machine_bytes; print(machine_bytes())"
    assert int(container.execute("python", "-c", asks)) <= 2 << 30
    assert container.inspect("{{.Config.StopSignal}}") in {"SIGTERM", "15"}
    assert container.inspect('{{index .Config.Labels "org.opencontainers.image.title"}}') == "jaxd"


def test_a_client_outside_calls_it_and_a_second_process_compiles_nothing(
    container: Container,
) -> None:
    """Neither has jax: the environment has only the client."""
    first, second = container.call(PROGRAM), container.call(PROGRAM)
    assert (first["traces"], first["compiles"], first["calls"]) == (1, 1, 4)
    assert (second["traces"], second["compiles"], second["executable_hits"]) == (0, 0, 4)
    assert first["value"] == second["value"]
    assert not second["jax"]


def test_a_worker_that_is_killed_comes_back_warm(container: Container) -> None:
    """The server stays, and what it knew is on the volume."""
    before = container.call(PROGRAM)
    worker = container.status()["host"]["worker_pid"]
    container.execute("sh", "-c", f"kill -9 {worker}")
    after = container.call(PROGRAM)
    assert after["epoch"] == before["epoch"] + 1
    assert (after["traces"], after["compiles"], after["executable_loads"]) == (0, 0, 1)
    assert after["value"] == before["value"]


def test_orphans_are_collected(container: Container) -> None:
    """Nobody else is there to do it: the server is process 1."""
    forks = """
import os
reading, writing = os.pipe()
if not os.fork():
    os.write(writing, str(os.fork() or os.getpid()).encode() + b" ")
    os._exit(0)
os.wait()
print(max(map(int, os.read(reading, 99).split())))
"""
    orphan = container.execute("python", "-c", forks)
    deadline = time.monotonic() + GRACE_S
    while container.execute("sh", "-c", f"ls -d /proc/{orphan}", check=False) == f"/proc/{orphan}":
        assert time.monotonic() < deadline, container.execute("cat", f"/proc/{orphan}/stat")


def test_a_restart_keeps_it_warm(container: Container) -> None:
    """A known function is neither traced nor compiled; clients find the same certificate."""
    before, address = container.call(PROGRAM), container.address
    container.engine.docker("restart", "-t", str(GRACE_S), container.name)
    container.wait_until_healthy()
    after = container.call(PROGRAM)
    assert (after["traces"], after["compiles"], after["executable_loads"]) == (0, 0, 1)
    assert (after["epoch"], after["value"]) == (1, before["value"])
    assert container.address.partition("#")[2] == address.partition("#")[2]


def test_a_new_container_on_the_same_volume_is_warm(container: Container, image: str) -> None:
    """As after an upgrade of the image."""
    before = container.call(PROGRAM)
    container.engine.docker("stop", "-t", str(GRACE_S), container.name)
    other = Container.run(container.engine, image, container.python, volume=container.name)
    try:
        after = other.call(PROGRAM)
    finally:
        other.remove()
    assert (after["traces"], after["compiles"], after["value"]) == (0, 0, before["value"])
    container.engine.docker("start", container.name)
    container.wait_until_healthy()


def test_a_client_reaches_it_over_a_socket_in_a_shared_folder(
    engine: Engine, image: str, client_python: str
) -> None:
    """As the user who owns the folder, without any port; large arrays go through shared memory."""
    with tempfile.TemporaryDirectory(prefix="jaxd-", dir="/tmp") as name:
        folders = [Path(name, "socket"), Path(name, "state")]
        for folder in (Path(name), *folders):
            folder.mkdir(mode=0o700, exist_ok=True)
            os.chown(folder, USER, USER)
        one = Container(engine, f"jaxd-test-{os.path.basename(name)}", client_python)
        engine.docker(
            *("run", "--detach", "--name", one.name, *HARDENED, "--user", f"{USER}:{USER}"),
            *("--volume", f"{folders[0]}:/tmp/jaxd", "--volume", f"{folders[1]}:/var/lib/jaxd"),
            *("--network", "none", image, "--log-format", "json"),
        )
        try:
            one.wait_until_healthy()
            seen = one.call(PROGRAM, f"{folders[0]}/server.sock?uid={USER}")
            assert (seen["compiles"], seen["calls"]) == (1, 4)
            assert folders[1].joinpath(".cache", "jaxd").is_dir()
        finally:
            one.remove()


def test_the_tests_of_clients_pass_against_it(container: Container) -> None:
    """Those that need nothing of a server but its address, over TLS and from outside."""
    if container.engine.python != ".".join(map(str, sys.version_info[:2])):
        pytest.skip("these tests run on another Python than the image")
    part = f"{int(time.time()) % 2 + 1}/2"  # all of them take four minutes
    pytest_words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--part", part)
    done = subprocess.run(
        [sys.executable, *pytest_words, "--on-server", container.address, "tests/end_to_end"],
        cwd=ROOT,
        env=os.environ | {"JAXD_TOKEN": container.token, "XLA_FLAGS": ""},  # as in the container
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) > 100


def test_it_stops_in_time_when_it_is_told_to(container: Container) -> None:
    """Drained, with exit code 0; not killed when the grace time is over."""
    began = time.monotonic()
    container.engine.docker("stop", "-t", str(GRACE_S), container.name)
    assert time.monotonic() - began < GRACE_S
    assert container.inspect("{{.State.ExitCode}}") == "0"
    assert "drained" in container.engine.docker("logs", container.name)
