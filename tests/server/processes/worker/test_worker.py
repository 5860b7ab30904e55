from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import jaxd
from jaxd_server.config.options import ServerOptions
from jaxd_server.processes.worker.worker import Worker, _stand_by
from jaxd_server.runtime.imported_packages import ImportedPackages
from tests.live_server import LiveServer, source_environment
from tests.server.processes.worker.test_report import STATUS


class WorkerAlone:
    """A real worker; the test is its host."""

    def __init__(self, folder: Path, epoch: int = 7) -> None:
        self.address = f"unix://{folder}/w.sock"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(folder / "w.sock"))
        listener.listen()
        self.host_channel, theirs = socket.socketpair()
        self.host_channel.settimeout(50)
        self._lines = self.host_channel.makefile("rb")
        argument = {
            "options": ServerOptions().to_json(),
            "listeners": [{"fd": listener.fileno(), "address": self.address}],
            "tether_fd": theirs.fileno(),
            "epoch": epoch,
        }
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "jaxd_server.processes.worker.worker",
                json.dumps(argument),
            ],
            pass_fds=(listener.fileno(), theirs.fileno()),
            env=source_environment(folder),
            stderr=subprocess.DEVNULL,
        )
        listener.close()
        theirs.close()

    def send(self, **message: Any) -> None:
        """As the host does."""
        self.host_channel.sendall(json.dumps(message).encode() + b"\n")

    def hear(self) -> Any:
        """Its next line."""
        return json.loads(self._lines.readline())

    def leave(self) -> None:
        """The host dies."""
        self._lines.close()
        self.host_channel.close()

    def close(self) -> None:
        """Ends it."""
        self.leave()
        self.process.wait(30)


@pytest.fixture
def alone(runtime: Path) -> Iterator[WorkerAlone]:
    """A worker whose host is the test."""
    worker = WorkerAlone(runtime)
    yield worker
    worker.close()


@pytest.mark.slow
def test_a_worker_lives_as_its_host_wants(alone: WorkerAlone) -> None:
    """It says that it is ready, answers the host and clients, and drains: exit code 0."""
    alone.send(ask="status")
    first = alone.hear()
    assert first["status"]["phase"] == "starting"
    assert set(first["status"]) >= STATUS
    assert alone.hear() == {"event": "ready"}
    with jaxd.connect(alone.address) as client:
        assert float(client.persistent_call(lambda x: x * 2)(2.0)) == 4.0
        info = client.info()
        assert (info["epoch"], info["pid"], info["listen"]) == (
            *(7, alone.process.pid),
            [alone.address],
        )
        alone.send(ask="status")
        status = alone.hear()["status"]
        assert set(status) >= STATUS
        assert (status["phase"], status["calls"], status["connections"]) == ("ready", 1, 1)
        alone.send(ask="drain")
        assert alone.hear() == {"event": "draining"}
        assert alone.process.wait(30) == 0


@pytest.mark.slow
def test_a_worker_without_a_host_ends(alone: WorkerAlone) -> None:
    """At once, and not as if all were well: also while it still imports jax."""
    alone.leave()
    assert alone.process.wait(30) == 1


def ends(pid: int, action: Callable[[], object]) -> bool:
    """Whether the process, which is not ours, ends after the action."""
    watched = os.pidfd_open(pid)
    try:
        action()
        return bool(select.select([watched], [], [], 30)[0])
    finally:
        os.close(watched)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of that")
def test_a_worker_that_hangs_dies_with_its_host(
    start_live: Callable[..., LiveServer],
) -> None:
    """Stopped, so that it cannot see the end of its host channel."""
    live = start_live()
    worker = live.worker_pid()
    os.kill(worker, signal.SIGSTOP)
    assert ends(worker, live.process.kill)


@pytest.mark.parametrize("changes", [[], ["jax was changed from 1 to 2"]])
def test_one_that_stands_by_is_of_no_use_with_old_packages(
    monkeypatch: pytest.MonkeyPatch, changes: list[str]
) -> None:
    """It has imported what is no longer there: it says so and ends, else it goes on."""
    told: list[Any] = []

    def leave(code: int) -> None:
        raise SystemExit(code)

    worker = Worker(ServerOptions())
    worker.begin({"epoch": 2})
    monkeypatch.setattr(ImportedPackages, "changes", lambda _: changes)
    monkeypatch.setattr(os, "_exit", leave)
    host_channel: Any = SimpleNamespace(notify=told.append)
    with pytest.raises(SystemExit) if changes else nullcontext():
        _stand_by(worker, host_channel)
    assert [one["event"] for one in told] == ["standing_by", "stale"][: 1 + len(changes)]
