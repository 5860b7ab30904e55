"""Finds the server that a client shall use, and starts a local one when there is none."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from jaxd.connection.settings import Settings
from jaxd_protocol.errors import ConfigurationError, NoServer
from jaxd_protocol.network.addresses import Address

if TYPE_CHECKING:
    from jaxd_protocol.network.local_server import LocalServerFiles


def find_server(settings: Settings, deadline: float | None = None) -> Address:
    """The address of the server to connect to.

    One that was named is returned as it is, answering or not. Without a name it is the local
    server of this environment, started in the background when none runs: once, however many
    threads and processes ask at the same time.

    Args:
        settings: the address, if one was named, and whether a server may be started.
        deadline: `time.monotonic()` after which nobody waits for it to start.

    Raises:
        NoServer: when no local server runs and none may be started here.
        ServerStartFailed: when one was started and ended again; quotes its last words.
        ConfigurationError: when the directory of its socket is not private.
    """
    if settings.server is not None:
        return settings.server
    from jaxd_protocol.network.local_server import (
        LocalServerFiles,
        check_private,
        is_server_running,
    )

    files = LocalServerFiles.of_this_environment()
    if os.path.lexists(files.directory):
        check_private(files.directory)  # or its owner could answer in the server's place
    if not is_server_running(files.socket):
        _start(files, settings, deadline)
    return Address.unix(files.socket)


def has_server_extra() -> bool:
    """Whether this environment can run a server: whether jax is installed. Imports nothing."""
    import importlib.util

    return importlib.util.find_spec("jax") is not None


def require_server_extra() -> None:
    """Returns when this environment can run a server.

    Raises:
        ConfigurationError: when it cannot; names the extra to install, or the system to use.
    """
    import socket

    if not hasattr(socket, "AF_UNIX"):
        raise ConfigurationError(
            "a server needs Unix sockets, which this system does not have. Start it on Linux, with "
            "`jaxd serve --listen tls://0.0.0.0:18861`, and set JAXD_SERVER here to the address "
            "that it prints."
        )
    if not has_server_extra():
        raise ConfigurationError(
            "this environment has no jax, so it cannot run a server. "
            "Run: pip install 'jaxd[server]'"
        )


def _start(files: LocalServerFiles, settings: Settings, deadline: float | None) -> None:
    import socket

    if not hasattr(socket, "AF_UNIX"):
        raise NoServer(
            "a local server needs Unix sockets, which this system does not have. "
            "Set JAXD_SERVER to the address of a server, such as tls://gpu-host:18861#sha256=…"
        )
    if not settings.autostart:
        raise NoServer(
            f"no server runs at {files.socket}, and starting one is switched off. "
            "Run `jaxd start`, or set JAXD_SERVER to the address of a server."
        )
    if not has_server_extra():
        raise NoServer(
            "no server runs here, and this environment cannot run one. Either run "
            "`pip install 'jaxd[server]'`, or set JAXD_SERVER to the address of a server, "
            "such as ssh://gpu-host."
        )
    from jaxd.connection.local_server import start_background

    start_background(files, deadline=deadline)
