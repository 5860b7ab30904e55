"""What the adapter of Ray does before Ray is asked; the rest is in test_pool_on_ray.py."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from jaxd_protocol.errors import NoServer
from jaxd_server.pool.ray_cluster import LocalCluster, RayMembers, local_cluster
from jaxd_server.pool.settings import PoolSettings, RaySettings


def test_a_wrong_address_is_told_at_once() -> None:
    """Ray would try for minutes."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = "{}:{}".format(*unused.getsockname())
        with pytest.raises(NoServer, match=r"nothing answers at 127\.0\.0\.1:"):
            RayMembers(PoolSettings("lab", ray=RaySettings(address)), address)


def test_a_cluster_is_known_by_the_process_that_holds_it(tmp_path: Path) -> None:
    """One that has ended is gone, and what it left; also where another process has its number."""
    file, left, other = (tmp_path / name for name in ("cluster.json", "jaxd-ray-1", "other"))
    left.mkdir()
    other.mkdir()
    assert local_cluster(str(tmp_path)) is None
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
    found = LocalCluster("127.0.0.1:1", process.pid, started, str(left))
    file.write_text(json.dumps(found._asdict()))
    assert local_cluster(str(tmp_path)) == found
    assert left.exists()
    strange = found._replace(pid=os.getpid(), folder=str(other))
    file.write_text(json.dumps(strange._asdict()))
    assert local_cluster(str(tmp_path)) is None
    file.write_text(json.dumps(found._asdict()))
    process.communicate(b"\n")
    assert local_cluster(str(tmp_path)) is None
    assert (left.exists(), other.exists()) == (False, True)


@pytest.mark.parametrize("text", ["", "[]", '{"pid": 1}', '{"a": 1, "b": 2, "c": 3}'])
def test_a_file_that_is_no_cluster_is_none(tmp_path: Path, text: str) -> None:
    """Of another version, or written in part."""
    (tmp_path / "cluster.json").write_text(text)
    assert local_cluster(str(tmp_path)) is None
