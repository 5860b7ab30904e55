"""From an address to an open, authenticated connection."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING, Any

from jaxd.dialling import dial
from jaxd.pending import Answers
from jaxd.settings import Settings
from jaxd.transport import ClientConnection
from jaxd_protocol.addresses import Address
from jaxd_protocol.errors import JaxdError, NoServer, ProtocolError
from jaxd_protocol.handshake import UNIX, Channel, greet_server
from jaxd_protocol.wire import stream_over

if TYPE_CHECKING:
    from jaxd.dialling import Connected

__all__ = ["open_connection", "probe"]

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
    line = dial(address, settings)
    try:
        welcome = _greet(line, address, settings, session)
        stream = stream_over(line)
    except BaseException:
        line.close()
        raise
    if address.is_network:
        stream.passes_descriptors = False  # ssh speaks with us over a Unix socket
    connection = ClientConnection(stream, int(welcome["max_frame_bytes"]), answers)
    connection.worker = (welcome.get("epoch"), welcome.get("pid"))
    return connection, welcome


def probe(address: Address, settings: Settings) -> dict[str, Any]:
    """What the server at `address` says of itself; the connection is closed again.

    Returns:
        `versions`, `python`, `epoch`, `pid`, `slots` and `max_frame_bytes` of the server.

    Raises:
        JaxdError: as `open_connection`.
    """
    line = dial(address, settings)
    try:
        welcome = _greet(line, address, settings, None)
    finally:
        line.close()
    peer = welcome.pop("peer")
    return {**welcome, "versions": dict(peer.versions), "python": list(peer.python)}


def _greet(
    line: Connected, address: Address, settings: Settings, session: str | None
) -> dict[str, Any]:
    line.settimeout(GREETING_S)
    token = settings.read_token() if address.needs_token else None
    try:
        channel = _channel(line, address)
        return greet_server(line, channel, _versions(), token, session, settings.device)
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


def _channel(line: Connected, address: Address) -> Channel:
    """What is known of the connection, for the proofs; for ssh it is ssh that has proved it."""
    if isinstance(line, socket.socket):
        if address.kind == "tcp":
            return Channel("tcp", sock=line, insecure=address.insecure)
        return UNIX
    from jaxd_protocol.certificates import fingerprint_of

    return Channel("tls", fingerprint_of(line.peer_certificate()))


def _versions() -> dict[str, str]:
    """Versions of what is loaded; nothing is imported to find out."""
    found = {}
    for name in ("jax", "numpy"):
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            found[name] = str(version)
    return found
