"""A real host with a fake worker, in a process of its own, as the tests see it."""

from __future__ import annotations

import atexit
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

from tests.another_server import own_server_needed

_PATIENCE_S = 10.0

FAKE_HOST = str(Path(__file__).with_name("fake_host.py"))


@cache
def _maker() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    number = theirs.fileno()
    command = [sys.executable, "-P", FAKE_HOST, "--fork", str(number)]
    process = subprocess.Popen(command, pass_fds=[number])
    theirs.close()
    atexit.register(process.wait)
    atexit.register(ours.close)  # before that
    return ours


class _Forked:
    """A host that had nothing to import, as `subprocess.Popen` shows a process."""

    def __init__(
        self, arguments: Sequence[str], stderr: int | IO[bytes], environment: Mapping[str, str]
    ) -> None:
        asked = json.dumps(
            {
                "arguments": arguments,
                "environment": {**os.environ, **environment},
                "files": resource.getrlimit(resource.RLIMIT_NOFILE),
            }
        )
        said, says = os.pipe()
        self.stderr: IO[str] | None = None
        written = stderr if isinstance(stderr, int) else os.dup(stderr.fileno())
        if written == subprocess.PIPE:
            read, written = os.pipe()
            self.stderr = os.fdopen(read)
        socket.send_fds(_maker(), [asked.encode()], [written, says])
        os.close(written)
        os.close(says)
        self._said = os.fdopen(said)
        self.pid = int(self._said.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(FAKE_HOST, timeout or 0)
        return code

    def _look(self, patience_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._said], [], [], patience_s)[0]:
            self.returncode = int(self._said.readline())
            self._said.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class HostProcess:
    """Started at once; its log is read as it is needed, so that no test has to sleep.

    Args:
        *arguments: of its command line.
        prefix: words that start it, where it has to begin as a program.
        stderr: where its log goes.
        **environment: beside that of this process.
    """

    def __init__(
        self,
        *arguments: str,
        prefix: tuple[str, ...] = (),
        stderr: int | IO[bytes] = subprocess.PIPE,
        **environment: str,
    ) -> None:
        own_server_needed()
        self.said: list[str] = []
        words = ["--log-format", "json", *arguments]
        self.process: subprocess.Popen[str] | _Forked
        if prefix:
            command = [*prefix, sys.executable, "-P", FAKE_HOST, *words]
            self.process = subprocess.Popen(
                command, env=os.environ | environment, stderr=stderr, text=True
            )
        else:
            self.process = _Forked(words, stderr, environment)

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
