"""The peer: what it and the kernel report of it, and whether both ends can exchange code."""

from __future__ import annotations

import importlib.util
import socket
import struct
import sys
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from jaxd_protocol import PROTOCOL_VERSION, __version__
from jaxd_protocol.errors import ProtocolError, VersionMismatch

Message = dict[str, Any]

_UCRED: Final = struct.Struct("3i")


def peer_uid(sock: socket.socket) -> int | None:
    """The user at the other end of a Unix socket; None where the system does not tell (Linux does).

    Of a client, it is who connected; of a server, who listens.
    """
    option: Any = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    _, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, option, _UCRED.size))
    return int(uid)


class Peer(NamedTuple):
    """What one end says of itself.

    Attributes:
        protocol: version of this protocol.
        python: major and minor version.
        magic: bytecode magic number in hex.
        versions: distribution name to version, for reports and warnings only; none before the
            end that hears them has proved who it is.
    """

    protocol: int
    python: tuple[int, int]
    magic: str
    versions: Mapping[str, str]

    def to_message(self) -> Message:
        """The fields as JSON values."""
        return {
            "protocol": self.protocol,
            "python": list(self.python),
            "magic": self.magic,
            "versions": dict(self.versions),
        }

    def without_versions(self) -> Peer:
        """As much as a stranger may know, and needs to be refused with a reason."""
        return self._replace(versions={})

    @classmethod
    def from_message(cls, message: Message) -> Peer:
        """Reads what `to_message` wrote; raises `ProtocolError` for anything else."""
        try:
            major, minor = message["python"]
            versions = {str(k): str(v) for k, v in message["versions"].items()}
            return cls(
                int(message["protocol"]), (int(major), int(minor)), str(message["magic"]), versions
            )
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise ProtocolError("the peer's greeting is not one of jaxd's.") from error


def local_peer(versions: Mapping[str, str]) -> Peer:
    """This process, with the given package `versions` beside jaxd's own."""
    return Peer(
        PROTOCOL_VERSION,
        (sys.version_info.major, sys.version_info.minor),
        importlib.util.MAGIC_NUMBER.hex(),
        {"jaxd": __version__, **versions},
    )


def check_versions(client: Peer, server: Peer) -> None:
    """Refuses two ends that cannot exchange code.

    Raises:
        VersionMismatch: with the text that says what to start instead.
    """
    if client.protocol != server.protocol:
        raise VersionMismatch(
            f"the client speaks protocol {client.protocol}, the server {server.protocol}. "
            "Install the same jaxd on both sides."
        )
    if (client.python, client.magic) != (server.python, server.magic):
        ours, theirs = (".".join(map(str, peer.python)) for peer in (client, server))
        raise VersionMismatch(
            f"the client runs Python {ours} and the server Python {theirs}; functions travel as "
            f"bytecode, so both need the same minor version. Start a server with Python {ours} "
            f"(python{ours} -m pip install 'jaxd[server]' && python{ours} -m jaxd.cli serve, or in "
            f"a container: docker run --publish 18861:18861 --volume jaxd:/var/lib/jaxd "
            f"jaxd:py{ours}), or run the client with Python {theirs}."
        )
