"""jaxd's own server for one row: started with its command line, ended by its process id."""

from __future__ import annotations

import json
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_START_S = 120.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class OwnServer:
    """A running `jaxd serve`, reachable at a Unix socket and a loopback port.

    Attributes:
        unix: its address on the Unix socket.
        tcp: its address on the loopback port.
        token_file: holds the token that the loopback port asks for.
    """

    process: subprocess.Popen[bytes]
    unix: str
    tcp: str
    token_file: str

    @classmethod
    def start(cls, environment: Mapping[str, str], directory: Path) -> OwnServer:
        """Starts it in `directory` and waits until its worker is ready.

        Raises:
            RuntimeError: when it ends, or is not ready in time; quotes its last words.
        """
        name = directory / f"own-{time.monotonic_ns()}"
        token_file, log = name.with_suffix(".token"), name.with_suffix(".log")
        token_file.touch(mode=0o600)
        token_file.write_text(secrets.token_hex(32) + "\n")
        unix = f"unix://{name}.sock"
        command = [sys.executable, "-m", "jaxd.cli", "serve", "--listen", unix]
        command += [
            "--listen",
            "tcp://127.0.0.1:0",
            "--token-file",
            str(token_file),
            "--no-standby",
        ]
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=dict(environment)
            )
        try:
            listening = _wait_until_ready(process, f"{name}.sock.control")
        except BaseException as error:
            process.kill()
            process.wait()
            words = log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"jaxd serve did not get ready; its last words:\n{words}") from error
        tcp = next(address for address in listening if address.startswith("tcp://"))
        return cls(process, unix, tcp, str(token_file))

    def worker_pid(self) -> int:
        """The process that answers clients."""
        status = _status(f"{self.unix.removeprefix('unix://')}.control")
        assert status is not None
        return int(status["host"]["worker_pid"])

    def end(self) -> None:
        """Asks it to drain and waits; kills it when that takes too long."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(40)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], control: str) -> list[str]:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ChildProcessError(f"it exited with {process.returncode}")
        status = _status(control)
        if status is not None and status["worker_state"] == "ready":
            listening: list[str] = status["host"]["listen"]
            return listening
        time.sleep(_POLL_S)
    raise TimeoutError(f"it was not ready within {_START_S:.0f} s")


def _status(control: str) -> dict[str, Any] | None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(control)
        except OSError:  # not listening yet
            return None
        connection.sendall(b'{"ask": "status"}\n')
        with connection.makefile("r", encoding="utf-8") as lines:
            answer: dict[str, Any] = json.loads(lines.readline())
            return answer
