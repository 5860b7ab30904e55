"""The processes of a run: a server, and those that fork clients and plain jax for each project."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.fake_packages import FakeSite
from tests.live_server import ROOT, LiveServer, source_environment

_ANSWER_S: Final = 120.0
HOOK: Final = Path(__file__).parent / "hook"

SERVERS_OWN: Final = {"JAX_PLATFORMS": "cpu", "PYTHONDONTWRITEBYTECODE": "1"}


class Broken(Exception):
    """A process ended or did not answer."""


class Forker:
    """A process that forks one for each connection (`agent.py`)."""

    def __init__(self, folder: Path, kind: str, environment: dict[str, str]) -> None:
        self._path = str(folder / f"{kind}.sock")
        self._log = folder / f"{kind}.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.generator.agent", self._path, kind],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                cwd=ROOT,
            )

    def wait(self) -> None:
        """Until it can fork.

        Raises:
            Broken: when it cannot.
        """
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            raise Broken(self._log.read_text())

    def session(self, first: str = "") -> Session:
        """A fresh process."""
        return Session(self._path, first)

    def close(self) -> None:
        """Ends it."""
        self._process.terminate()
        self._process.wait(10)
        if self._process.stdout is not None:
            self._process.stdout.close()


class Session:
    """One process that runs a project."""

    def __init__(self, path: str, first: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(_ANSWER_S)
        self._socket.connect(path)
        self._file = self._socket.makefile("rw")
        if first:
            self.send_line(first)
        self._read()

    def send(self, message: dict[str, Any]) -> None:
        """What it has to do next."""
        self.send_line(json.dumps(message))

    def send_line(self, line: str) -> None:
        """A line of JSON."""
        self._file.write(line + "\n")
        self._file.flush()

    def answer(self) -> dict[str, Any]:
        """What came of it.

        Raises:
            Broken: when it has ended, or takes too long.
        """
        answer: dict[str, Any] = json.loads(self._read())
        return answer

    def _read(self) -> str:
        try:
            line = self._file.readline()
        except OSError as error:
            raise Broken(f"no answer: {error}") from error
        if not line:
            raise Broken("it has ended")
        return line

    def close(self) -> None:
        """It ends."""
        with contextlib.suppress(OSError):
            self._file.close()
        self._socket.close()


class Processes:
    """Everything that a run needs, in a folder of its own.

    Args:
        without: mechanisms that are switched off, at both ends.

    Attributes:
        folder: for projects.
        site: where packages are installed, for all processes.
        server: the server.
    """

    def __init__(self, without: tuple[str, ...] = ()) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="jaxd-", dir="/tmp"))  # sun_path has 107 bytes
        self.folder = self.root / "projects"
        self.folder.mkdir()
        self.site = FakeSite(self.root)
        self._lock = threading.Lock()  # guards what is learned, and which processes there are
        self._learned: list[Any] = []
        off = {"JAXD_GENERATOR_WITHOUT": ",".join(without)} if without else {}
        self._off = off
        poison = {"PYTHONPATH": self._python_path(HOOK if off else None), **SERVERS_OWN, **off}
        self._forkers: dict[str, Forker] = {}
        plain = source_environment(self.root, PYTHONPATH=self._python_path())
        self._add("oracle", plain)  # which starts beside the server
        try:
            self.server = LiveServer(self.root, **poison)
        except BaseException:
            self._forkers["oracle"].close()
            raise
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _python_path(self, *more: Path | None) -> str:
        folders = ["client", "server", "shared"]
        paths = [
            *(str(ROOT / name) for name in folders),
            str(self.site.path),
            *map(str, filter(None, more)),
        ]
        return os.pathsep.join([*paths, *([str(ROOT)] if any(more) else [])])

    def _start(self) -> None:
        first = self.server.run(_FIRST_CALL)
        assert first.returncode == 0, first.stderr
        self._client = self.server.environment | self._off | {"PYTHONPATH": self._python_path()}
        self._client["JAXD_GENERATOR_IMPORTS"] = first.stdout.strip()
        self._add("client", self._client)
        for forker in self._forkers.values():
            forker.wait()

    def _add(self, kind: str, environment: dict[str, str]) -> None:
        self._forkers[kind] = Forker(self.root, kind, environment)

    def client(self, *, jax: bool) -> Session:
        """A fresh client."""
        with self._lock:
            if jax and "client-jax" not in self._forkers:  # few projects need one
                self._add("client-jax", self._client)
                self._forkers["client-jax"].wait()
        return self._forkers["client-jax" if jax else "client"].session()

    def oracle(self) -> Session:
        """A fresh process with jax, which knows what others have compiled."""
        with self._lock:
            learned, self._learned = self._learned, []
        return self._forkers["oracle"].session(json.dumps(learned))

    def learn(self, programs: list[Any]) -> None:
        """What an oracle has compiled."""
        with self._lock:
            self._learned += programs

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends all of it, and removes the folder."""
        for forker in self._forkers.values():
            forker.close()
        if self.server.process.poll() is None:
            self.server.process.send_signal(signal.SIGTERM)
        self.server.close()
        shutil.rmtree(self.root, ignore_errors=True)


_FIRST_CALL: Final = """
import json, sys, jaxd, numpy as np
f = jaxd.persistent_call(lambda n, x: x + n, static_argnums=0)
f(4, np.arange(3, dtype="int32"))
roots = "jaxd jaxd_protocol rpyc cloudpickle plumbum concurrent asyncio pickle dis inspect"
found = sorted(name for name in sys.modules if name.partition(".")[0] in roots.split())
print(json.dumps(found))
"""
