"""From an address to an open, authenticated connection."""

from __future__ import annotations

import socket
from typing import Any

from jaxd.pending import Answers
from jaxd.settings import Settings
from jaxd.transport import ClientConnection
from jaxd_protocol.addresses import Address
from jaxd_protocol.errors import ConfigurationError, JaxdError, NoServer, ProtocolError
from jaxd_protocol.handshake import greet_server
from jaxd_protocol.wire import BulkStream, tune_socket

__all__ = ["open_connection", "probe"]

CONNECT_S = 10.0
GREETING_S = 60.0
"""A worker that has just been replaced imports jax first; its listener keeps us waiting."""


def open_connection(
    address: Address, settings: Settings, session: str | None, answers: Answers
) -> tuple[ClientConnection, dict[str, Any]]:
    """A connection past its handshake, and what the server said of itself.

    Raises:
        NoServer: when nothing answers there.
        AuthenticationFailed, VersionMismatch, ProtocolError: when the handshake fails.
    """
    sock = _connect(address)
    try:
        welcome = _greet(sock, address, settings, session)
        tune_socket(sock)
    except BaseException:
        sock.close()
        raise
    connection = ClientConnection(BulkStream(sock), int(welcome["max_frame_bytes"]), answers)
    return connection, welcome


def probe(address: Address, settings: Settings) -> dict[str, Any]:
    """What the server at `address` says of itself; the connection is closed again.

    Returns:
        `versions`, `python`, `epoch`, `pid`, `slots` and `max_frame_bytes` of the server.

    Raises:
        JaxdError: as `open_connection`.
    """
    sock = _connect(address)
    with sock:
        welcome = _greet(sock, address, settings, None)
    peer = welcome.pop("peer")
    return {**welcome, "versions": dict(peer.versions), "python": list(peer.python)}


def _greet(
    sock: socket.socket, address: Address, settings: Settings, session: str | None
) -> dict[str, Any]:
    sock.settimeout(GREETING_S)
    token = settings.read_token() if address.kind == "tcp" else None
    try:
        return greet_server(sock, _versions(), token, session)
    except JaxdError:
        raise  # some of ours are OSErrors as well
    except TimeoutError as error:
        raise NoServer(
            f"the server at {address} accepted the connection but said nothing for "
            f"{GREETING_S:.0f} s. See its log, or `jaxd status`."
        ) from error
    except (EOFError, OSError) as error:
        raise ProtocolError(
            f"what listens at {address} closed the connection during the handshake: it is no "
            "jaxd server, or it is stopping. Check the address with `jaxd doctor`."
        ) from error


def _versions() -> dict[str, str]:
    """Versions of what is loaded; nothing is imported to find out."""
    import sys

    found = {}
    for name in ("jax", "numpy"):
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            found[name] = str(version)
    return found


def _connect(address: Address) -> socket.socket:
    try:
        if address.kind == "unix":
            return _connect_unix(address.path)
        return socket.create_connection((address.host, address.port), CONNECT_S)
    except OSError as error:
        raise NoServer(
            f"no server answers at {address} ({error.strerror or error}). Start one there "
            f"(jaxd serve --listen {address}), or set JAXD_SERVER to where one runs."
        ) from error


def _connect_unix(path: str) -> socket.socket:
    family = getattr(socket, "AF_UNIX", None)
    if family is None:
        raise ConfigurationError(
            "this system has no Unix sockets. Use a tcp:// address for the server."
        )
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(CONNECT_S)
        sock.connect(path)
    except BaseException:
        sock.close()
        raise
    return sock
