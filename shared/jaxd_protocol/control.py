"""The host's control socket: where it is, and whether anybody answers on a socket at all."""

from __future__ import annotations

import os
import socket

from jaxd_protocol.addresses import Address
from jaxd_protocol.paths import LocalServerFiles

__all__ = ["control_path", "server_runs", "somebody_answers"]


def control_path(address: Address) -> str:
    """The control socket of the server on this machine that listens on `address`.

    Beside the Unix socket, else named by the TCP port in this environment's own directory.
    """
    if address.kind == "unix":
        return address.path + ".control"
    directory = LocalServerFiles.of_this_environment().directory
    return os.path.join(directory, f"tcp-{address.port}.control")


def server_runs(path: str) -> bool:
    """Whether a server listens on the Unix socket at `path`.

    Its control socket is tried first: a worker, which may be busy, is then not even disturbed.
    """
    return somebody_answers(control_path(Address.unix(path))) or somebody_answers(path)


def somebody_answers(path: str) -> bool:
    """Whether a process holds the Unix socket at `path` open, even when it is too busy to accept.

    False where there is no file, where its process is gone, and on systems without Unix sockets.
    """
    if not hasattr(socket, "AF_UNIX"):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:
            return True  # its queue is full: alive, and busy
        except OSError:
            return False
    return True
