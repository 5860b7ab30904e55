"""A Ray cluster of a head and nodes on this machine, simulated, for tests: in a process of its own.

It runs in a network namespace with nothing but a loopback device, so that it meets no other cluster
and nothing outside can reach it. `python -m tests.ray_nodes FOLDER` is what runs there: it reads
orders from stdin, one a line, and answers each with a line of JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import pytest

ROOT = Path(__file__).resolve().parent.parent
_END_S = 60.0


class Namespace:
    """A network namespace with only `lo`; `close` it.

    Attributes:
        command: what runs a program in it.
    """

    def __init__(self) -> None:
        self._name = f"jaxd-{os.getpid()}-{os.urandom(3).hex()}"
        self.command = ("ip", "netns", "exec", self._name)
        subprocess.run(["ip", "netns", "add", self._name], check=True, capture_output=True)
        up = ["ip", "-n", self._name, "link", "set", "lo", "up"]
        subprocess.run(up, check=True, capture_output=True)

    def close(self) -> None:
        """Removes it."""
        subprocess.run(["ip", "netns", "del", self._name], check=True)


def namespace_needed() -> Namespace:
    """A namespace; skips the test where there can be none, or Ray is not installed."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'jaxd[ray]'")
    if shutil.which("ip") is None:
        pytest.skip("there is no command ip, which makes network namespaces")
    try:
        return Namespace()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespace can be made here: {error.stderr.decode().strip()}")


class RayNodes:
    """The cluster, as a test sees it; `close` it.

    Args:
        namespace: where it runs.
        environment: of its processes; each node has a cache folder of its own.
        *cpus: of each node beside the head, which has none.

    Attributes:
        address: of the head.
    """

    def __init__(self, namespace: Namespace, environment: dict[str, str], *cpus: int) -> None:
        self._folder = tempfile.mkdtemp(prefix="jaxd-ray-", dir="/tmp")
        self._log = open(f"{self._folder}.log", "wb")  # noqa: SIM115  closed with this
        self._process = subprocess.Popen(
            [*namespace.command, sys.executable, "-m", "tests.ray_nodes", self._folder],
            env={**environment, "PYTHONPATH": f"{environment['PYTHONPATH']}{os.pathsep}{ROOT}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        try:
            self.address: str = self._read()["address"]
            for count in cpus:
                self.add(count)
        except BaseException:
            self.close()
            raise

    def add(self, cpus: int, gpus: int = 0) -> int:
        """Adds a node, which says that it has so many GPUs; its number."""
        return int(self._order("add", cpus, gpus)["node"])

    def kill(self, node: int) -> None:
        """Kills the process of Ray that a node consists of."""
        self._order("kill", node)

    def close(self) -> None:
        """Ends it, with all that runs in it."""
        with suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        finally:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._log.close()
            shutil.rmtree(self._folder, ignore_errors=True)
            os.unlink(f"{self._folder}.log")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _order(self, word: str, *numbers: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([word, *numbers]) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith('{"jaxd"'):
                found: dict[str, Any] = json.loads(line)["jaxd"]
                return found
        said = Path(f"{self._folder}.log").read_text()
        raise AssertionError(f"the cluster has ended:\n{said}")


def _answer(**content: Any) -> None:
    print(json.dumps({"jaxd": content}), flush=True)


def main(folder: str) -> None:
    """Runs the cluster until stdin ends."""
    os.environ["RAY_TMPDIR"] = folder  # where the address of the cluster is noted
    os.mkdir(f"{folder}/ray")
    from ray.cluster_utils import Cluster

    from jaxd_server.pool.ray_cluster import HEALTH

    common = {"node_ip_address": "127.0.0.1", "include_dashboard": False, "temp_dir": folder}
    cluster = Cluster(shutdown_at_exit=True)
    cluster.add_node(num_cpus=0, _system_config=dict(HEALTH), **common)
    _answer(address=cluster.address)
    nodes: list[Any] = []
    caches = os.environ["XDG_CACHE_HOME"]
    for line in sys.stdin:
        word, number, *more = json.loads(line)
        if word == "add":
            os.environ["XDG_CACHE_HOME"] = f"{caches}/node-{len(nodes)}"
            nodes.append(cluster.add_node(num_cpus=number, num_gpus=more[0], **common))
            _answer(node=len(nodes) - 1)
        else:
            nodes[number].kill_raylet()
            _answer(node=number)
    cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
