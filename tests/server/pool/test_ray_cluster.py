"""What the adapter of Ray does before Ray is asked; the rest is in test_pool_on_ray.py."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jaxd_protocol.errors import NoServer
from jaxd_server.pool import ray_cluster
from jaxd_server.pool.ray_cluster import LocalCluster, RayMembers, local_cluster
from jaxd_server.pool.settings import MemberSettings, PoolSettings, RaySettings


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


def test_ray_repeats_no_call_of_an_actor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever it is: it starts actors again, and an order or a report is asked for anew."""
    made: list[dict[str, Any]] = []

    class Kind:
        """A class of actors."""

        def options(self, **options: Any) -> Kind:
            """As Ray's."""
            made.append(options)
            return self

        def remote(self, *_: object) -> None:
            """As Ray's."""

    errors = SimpleNamespace(RayError=RuntimeError)
    ray = SimpleNamespace(remote=lambda _: Kind(), init=lambda **_: None, exceptions=errors)
    for name in ("_check_answers", "_check_token_mode"):
        monkeypatch.setattr(ray_cluster, name, lambda _: None)
    monkeypatch.setattr(ray_cluster, "_imported", lambda *_: ray)
    members = RayMembers(PoolSettings("lab"), "127.0.0.1:1")
    members.start("m1", MemberSettings(devices=2, platform="gpu"))
    assert [each["name"] for each in made] == ["director-state", "m1"]
    assert {(each["max_task_retries"], each["max_restarts"]) for each in made} == {(0, -1)}
    assert {each["lifetime"] for each in made} == {"detached"}
    assert (made[1]["num_gpus"], made[1]["num_cpus"]) == (2, 1)


def test_a_cluster_of_which_it_is_not_known_who_may_enter_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as with another version of Ray."""
    monkeypatch.setattr(ray_cluster, "_check_answers", lambda _: None)
    monkeypatch.setattr(ray_cluster, "require_ray", lambda: None)
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(NoServer, match="whether the Ray cluster at h:1 asks for a token"):
        RayMembers(PoolSettings("lab", ray=RaySettings("h:1")), "h:1")


@pytest.mark.parametrize("text", ["", "[]", '{"pid": 1}', '{"a": 1, "b": 2, "c": 3}'])
def test_a_file_that_is_no_cluster_is_none(tmp_path: Path, text: str) -> None:
    """Of another version, or written in part."""
    (tmp_path / "cluster.json").write_text(text)
    assert local_cluster(str(tmp_path)) is None
