"""The context that checks read, and their results."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Literal

from jaxd.connection.settings import Settings
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import LocalServerFiles, is_server_running

_COMMAND_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check.

    Attributes:
        name: what it is about.
        state: `"ok"`, `"note"` (works, but may surprise), or `"bad"`.
        found: what was found.
        advice: what to do about it, a command where there is one; empty when nothing is to be done.
    """

    name: str
    state: Literal["ok", "note", "bad"]
    found: str
    advice: str = ""


def installed_version(package: str) -> str | None:
    """Of a distribution, which is not imported; None when it is not there."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@dataclass(frozen=True)
class DoctorContext:
    """This machine, this environment, and the server that a call would use.

    Attributes:
        settings: of the client.
        files: the local server's.
        environment: the variables of this process.
        root: where `/dev`, `/proc` and `/sys` are.
    """

    settings: Settings
    files: LocalServerFiles = field(default_factory=LocalServerFiles.of_this_environment)
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    root: str = "/"

    @property
    def address(self) -> Address:
        """The server that a call would use, running or not."""
        return self.settings.server or Address.unix(self.files.socket)

    @property
    def has_server(self) -> bool:
        """Whether there is a server to try: one that was named, or the local one when it runs."""
        return self.settings.server is not None or is_server_running(self.files.socket)

    @property
    def is_server_local(self) -> bool:
        """Whether the server is, or would be, on this machine."""
        return self.address.kind == "unix"

    def path(self, *parts: str) -> str:
        """A path below `root`."""
        return os.path.join(self.root, *parts)

    def read(self, *parts: str) -> str:
        """The text of a file below `root`; empty when it cannot be read."""
        try:
            with open(self.path(*parts), encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError:
            return ""

    def version(self, package: str) -> str | None:
        """Of an installed distribution; None when it is not there."""
        return installed_version(package)

    def run(self, command: Sequence[str], **environment: str) -> str | None:
        """What a program prints; None when it is not there, fails, or takes a minute."""
        try:
            done = subprocess.run(  # noqa: S603  words of ours, no shell
                command,
                env={**self.environment, **environment},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_COMMAND_TIMEOUT_S,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout
