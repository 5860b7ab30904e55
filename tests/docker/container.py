"""A server in a container, and what is done to it."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import time
from dataclasses import dataclass
from typing import Any, Self

from tests.docker.engine import Engine

HARDENED = (
    *("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"),
    *("--security-opt", "no-new-privileges", "--memory", "2g", "--pids-limit", "512"),
)
"""As in docker/compose.cpu.yaml, with limits besides."""

_HEALTHY_S = 120.0


@dataclass
class Container:
    """Started; `remove` ends it, with its volume.

    Attributes:
        name: of the container, and of its volume.
        python: of an environment that has the client.
        token_file: in the container.
    """

    engine: Engine
    name: str
    python: str
    token_file: str = ".config/jaxd/token"

    @classmethod
    def run(cls, engine: Engine, image: str, python: str, volume: str | None = None) -> Self:
        """Starts one, on a volume of its own or another's, and waits until it is healthy."""
        name = f"jaxd-test-{secrets.token_hex(4)}"
        one = cls(engine, name, python)
        engine.docker(
            *("run", "--detach", "--name", name, *HARDENED, "--publish", "127.0.0.1::18861"),
            *("--volume", f"{volume or name}:/var/lib/jaxd", image),
        )
        one.wait_until_healthy()
        return one

    def wait_until_healthy(self) -> None:
        """Returns when its own health check says so.

        Raises:
            AssertionError: when it does not within two minutes; has the log.
        """
        deadline = time.monotonic() + _HEALTHY_S
        while not self.engine.is_healthy(self.name):
            if time.monotonic() > deadline or self.inspect("{{.State.Running}}") != "true":
                raise AssertionError(f"never healthy:\n{self.engine.docker('logs', self.name)}")
            time.sleep(0.2)

    @property
    def address(self) -> str:
        """Where clients on this machine find it; another port after each restart.

        The certificate is named by the line that the server has printed.
        """
        place = self.engine.docker("port", self.name, "18861/tcp").splitlines()[0]
        (*_, pin) = re.findall("#(sha256=[0-9a-f]{64})", self.engine.docker("logs", self.name))
        return f"tls://{place.rpartition(' ')[2]}#{pin}"

    @property
    def token(self) -> str:
        """What its clients must hold; by default the server has made it at its first start."""
        return self.execute("cat", self.token_file)

    def inspect(self, template: str) -> str:
        """What the engine knows of it."""
        return self.engine.docker("inspect", "--format", template, self.name)

    def execute(self, *words: str, check: bool = True) -> str:
        """What a command prints that runs in it."""
        return self.engine.docker("exec", self.name, *words, check=check)

    def status(self) -> dict[str, Any]:
        """What `jaxd status` says in it."""
        report: dict[str, Any] = json.loads(self.execute("jaxd", "status", "--json"))
        return report

    def call(self, program: str, socket: str | None = None) -> Any:
        """What a client's program prints, as JSON, in a fresh process outside of it.

        Args:
            program: its text.
            socket: a Unix socket to use; else it speaks TLS, and proves the token.
        """
        kept = {name: value for name, value in os.environ.items() if not name.startswith("JAXD_")}
        there = {"JAXD_SERVER": f"unix://{socket}"}
        if socket is None:
            there = {"JAXD_SERVER": self.address, "JAXD_TOKEN": self.token}
        done = subprocess.run(
            [self.python, "-P", "-c", program],
            env=kept | there,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def remove(self) -> None:
        """Ends it, whatever state it is in."""
        self.engine.docker("rm", "--force", "--volumes", self.name, check=False)
        self.engine.docker("volume", "rm", "--force", self.name, check=False)
