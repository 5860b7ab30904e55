"""A real server for the tests: host, worker and jax, on sockets of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests import chosen_platform

ROOT = Path(__file__).resolve().parent.parent
TOKEN = "a-token-for-tests-only"
_STOP_S = 30.0


def source_environment(directory: Path, **more: str) -> dict[str, str]:
    """The environment of a process that uses the sources of this checkout and no other server."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JAXD_")}
    kept.pop("PYTHONUNBUFFERED", None)  # it hides what nobody flushes
    names = ("client", "server", "shared", *(["tests/pauses"] if "PAUSES" in kept else []))
    folders = os.pathsep.join(str(ROOT / name) for name in names)
    return (
        kept
        | {
            "PYTHONPATH": folders,
            "XDG_RUNTIME_DIR": str(directory),
            "XDG_CONFIG_HOME": str(directory / "config"),
            "XDG_CACHE_HOME": str(directory / "cache"),
            "JAXD_FALLBACK": "error",
        }
        | chosen_platform.environment()
        | more
    )


def run_client(
    program: str, *arguments: str, environment: dict[str, str], timeout_s: float = 50
) -> subprocess.CompletedProcess[str]:
    """Runs a client program in a fresh process with this environment."""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


class LiveServer:
    """Started at once and ready when the constructor returns; `close` ends it.

    Args:
        directory: for its sockets, its cache and its token.
        *arguments: of its command line.
        name: of its socket.
        executable: the interpreter that runs it.
        **environment: of its processes, beside that of this checkout.

    Attributes:
        ready: what its log says when clients may come.
        unix, tcp, tls: its addresses; the last with the fingerprint of its certificate.
        invitation: what it prints for clients elsewhere.
        environment: for client processes that are to use it.
    """

    ready = "worker_ready"

    def __init__(
        self,
        directory: Path,
        *arguments: str,
        name: str = "s",
        executable: str = sys.executable,
        **environment: str,
    ) -> None:
        from tests.another_server import own_server_needed  # which knows this module

        own_server_needed()
        chosen_platform.made_up_devices_needed(environment)
        self.directory = directory
        token_file = directory / f"{name}.token"
        token_file.touch(mode=0o600)
        token_file.write_text(TOKEN)
        self.unix = f"unix://{directory}/{name}.sock"
        self.lines: list[dict[str, Any]] = []
        self.raw: list[str] = []
        self._heard = threading.Condition()
        command = [executable, "-P", "-m", "jaxd_server", "--log-format", "json"]
        command += ["--listen", self.unix, "--listen", "tcp://127.0.0.1:0"]
        command += ["--listen", "tls://127.0.0.1:0"]
        command += ["--token-file", str(token_file)]
        command += ["--no-standby", *arguments]
        printed = directory / f"{name}.printed"
        with printed.open("w") as file:
            self.process = subprocess.Popen(
                command,
                stdout=file,
                stderr=subprocess.PIPE,
                text=True,
                env=source_environment(directory, **environment),
            )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.tcp = next(
            line["address"]
            for line in self.wait_for(self.ready)
            if line.get("event") == "listening" and line["address"].startswith("tcp")
        )
        self.invitation = printed.read_text()
        self.tls = self.invitation.split("'")[1]
        self.environment = source_environment(directory, JAXD_SERVER=self.unix, JAXD_TOKEN=TOKEN)

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for text in self.process.stderr:
            with self._heard:
                self.raw.append(text)
                if text.startswith("{"):
                    self.lines.append(json.loads(text))
                self._heard.notify_all()
        with self._heard:
            self.raw.append("")
            self._heard.notify_all()

    def wait_for(self, event: str, count: int = 1, **fields: Any) -> list[dict[str, Any]]:
        """All log lines so far, once `count` of them are of that event and have those fields."""

        def fits(line: Mapping[str, Any]) -> bool:
            return line["event"] == event and all(line.get(k) == v for k, v in fields.items())

        with self._heard:
            self._heard.wait_for(
                lambda: sum(map(fits, self.lines)) >= count or self.raw[-1:] == [""]
            )
            if sum(map(fits, self.lines)) < count:
                raise AssertionError(f"ended without {event!r}:\n{''.join(self.raw)}")
            return list(self.lines)

    def worker_pid(self) -> int:
        """The process that owns the devices now."""
        with self._heard:
            started = [line for line in self.lines if line["event"] == "worker_started"]
        return int(started[-1]["pid"])

    def run(self, program: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Runs a client program in a fresh process that uses this server."""
        return run_client(program, *arguments, environment=self.environment | more)

    def close(self) -> int:
        """Drains it and returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self._listener.join(_STOP_S)
        if self.process.stderr is not None:
            self.process.stderr.close()
        return code


@contextmanager
def live_server(*arguments: str) -> Iterator[LiveServer]:
    """One with a short folder of its own; it ends in order, and nothing of it is left."""
    directory = Path(tempfile.mkdtemp(prefix="jaxd-", dir="/tmp"))  # sun_path has 107 bytes
    server = LiveServer(directory, *arguments)
    try:
        yield server
    finally:
        code = server.close()
        shutil.rmtree(directory)
    assert code == 0
