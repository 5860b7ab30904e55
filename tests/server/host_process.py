"""A real host with a fake worker, in a process of its own, as the tests see it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

from tests.another_server import own_server_needed

_PATIENCE_S = 10.0

FAKE_HOST = str(Path(__file__).with_name("fake_host.py"))


class HostProcess:
    """Started at once; its log is read as it is needed, so that no test has to sleep."""

    def __init__(
        self,
        *arguments: str,
        prefix: tuple[str, ...] = (),
        stderr: int | IO[bytes] = subprocess.PIPE,
        **environment: str,
    ) -> None:
        own_server_needed()
        self.said: list[str] = []
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-P", FAKE_HOST, "--log-format", "json", *arguments],
            env=os.environ | environment,
            stderr=stderr,
            text=True,
        )

    def wait_for(self, event: str) -> dict[str, Any]:
        """The next log line of that event."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)
            if line.startswith("{") and json.loads(line)["event"] == event:
                found: dict[str, Any] = json.loads(line)
                return found
        raise AssertionError(f"ended without {event!r}:\n{''.join(self.said)}")

    def wait_until_ready(self) -> dict[str, Any]:
        """Its first `listening` line, once the worker is ready."""
        listening = self.wait_for("listening")
        self.wait_for("worker_ready")
        return listening

    def signal(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        self.process.send_signal(number)

    def wait(self) -> tuple[int, str]:
        """Its exit code and everything that it wrote."""
        assert self.process.stderr is not None
        self.said += self.process.stderr.readlines()
        return self.process.wait(), "".join(self.said)

    def close(self) -> None:
        """Ends it if the test did not, and its worker with it, also one that hangs."""
        for number in (signal.SIGTERM, signal.SIGINT):  # the second one stops at once
            self.process.send_signal(number)
        try:
            self.process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stderr is not None:
            self.process.stderr.close()


def ask(control: str, **request: Any) -> dict[str, Any]:
    """The reply on a control socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(control)
        connection.sendall(json.dumps(request).encode() + b"\n")
        return read_line(connection)


def read_line(connection: socket.socket) -> dict[str, Any]:
    """The next JSON line."""
    with connection.makefile() as lines:
        reply: dict[str, Any] = json.loads(lines.readline())
        return reply


def greeting(path: str) -> dict[str, Any]:
    """What the fake worker says to a caller on the Unix socket `path`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(path)
        return read_line(connection)
