"""From an address to a connected socket, with TLS on it where the address says so."""

from __future__ import annotations

import os
import socket
import stat
from typing import TYPE_CHECKING

from jaxd.settings import Settings
from jaxd_protocol.addresses import Address
from jaxd_protocol.errors import (
    AuthenticationFailed,
    Busy,
    ConfigurationError,
    JaxdError,
    NoServer,
    ProtocolError,
)
from jaxd_protocol.peers import peer_uid

if TYPE_CHECKING:
    from jaxd_protocol.wire.tls_socket import TlsSocket

    Connected = socket.socket | TlsSocket

__all__ = ["check_owner", "dial"]

CONNECT_S = 10.0

_NO_ROOM = "TLSV1_ALERT_INTERNAL_ERROR"
"""What a server says that takes no more clients, before the keys are there for more words."""


def dial(address: Address, settings: Settings) -> Connected:
    """A socket that is connected to a server.

    Over TLS, its certificate is the right one; a Unix socket is that of a user who may be trusted.

    Raises:
        NoServer: when nothing answers there.
        AuthenticationFailed: when the certificate is not the one that it should be, or a Unix
            socket belongs to another user, or others can put theirs in its place.
        ProtocolError: when no TLS is spoken there.
        Busy: when TLS is, and the server has no room.
        ConfigurationError: when this system cannot reach such an address, or the CA file is not
            usable.
    """
    if address.kind == "ssh":
        from jaxd.ssh import dial_over_ssh  # starts processes; few clients need it

        return dial_over_ssh(address)
    try:
        if address.kind == "unix":
            return _dial_unix(address)
        sock = socket.create_connection(address.place, CONNECT_S)
    except JaxdError:
        raise  # some of ours are OSErrors as well
    except OSError as error:
        raise NoServer(
            f"no server answers at {address} ({error.strerror or error}). Start one there "
            f"(jaxd serve --listen {_to_listen_on(address)}), or set JAXD_SERVER to where one "
            "runs."
        ) from error
    if address.kind == "tcp":
        return sock
    try:
        return _with_tls(sock, address, settings)
    except BaseException:
        sock.close()
        raise


def _to_listen_on(address: Address) -> Address:
    """Without what is for clients only."""
    return address._replace(pin="", insecure=False, uid=None)


def _dial_unix(address: Address) -> socket.socket:
    family = getattr(socket, "AF_UNIX", None)
    if family is None:
        raise ConfigurationError(
            "this system has no Unix sockets. Use a tcp:// or tls:// address for the server."
        )
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(CONNECT_S)
        sock.connect(address.path)
        check_owner(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


def check_owner(sock: socket.socket, address: Address) -> None:
    """Returns when a Unix socket is this user's, root's, or of the user whom the address names.

    As `check_owner` of `jaxd.relay`, which does it at the far end of ssh.

    Raises:
        AuthenticationFailed: when it is not, or others can write in its folder.
    """
    trusted = {0, os.getuid(), address.uid}
    folder = os.path.dirname(address.path)
    found = os.stat(folder)
    owner = peer_uid(sock)
    if owner is None:  # the system does not tell: who can put a socket there, then
        owner = found.st_uid
    if owner not in trusted:
        raise AuthenticationFailed(
            f"user {owner} listens at {address}, and not you or root: it may be somebody who took "
            "the server's place. Nothing was sent. If it is the user of the server that you mean, "
            f"say so in its address: {address._replace(uid=owner)}"
        )
    if found.st_uid not in trusted or stat.S_IMODE(found.st_mode) & 0o022:
        raise AuthenticationFailed(
            f"others can put a socket of theirs into {folder} (user {found.st_uid}, mode "
            f"{stat.S_IMODE(found.st_mode):04o}). Nothing was sent. Have the server listen in a "
            "folder in which only its user can write (chmod 755 or less), and use that address."
        )


def _with_tls(sock: socket.socket, address: Address, settings: Settings) -> TlsSocket:
    import ssl

    from jaxd_protocol.certificates import check_pin, client_context
    from jaxd_protocol.wire.tls_socket import TlsSocket

    ca_file = os.path.expanduser(settings.ca_file) if settings.ca_file else None
    context = client_context(pinned=bool(address.pin), ca_file=ca_file)
    line = TlsSocket(sock, context, server_name=address.host)
    line.settimeout(CONNECT_S)
    try:
        line.do_handshake()
    except ssl.SSLCertVerificationError as error:
        raise AuthenticationFailed(
            f"the certificate of the server at {address} is not trusted here "
            f"({error.verify_message}). Nothing was sent. If the server made it for itself, use "
            "the address that it printed when it started, with #sha256=…; if a CA of your own has "
            "signed it, set JAXD_CA_FILE to the CA's certificate."
        ) from error
    except JaxdError:
        raise
    except (EOFError, OSError) as error:
        if getattr(error, "reason", None) == _NO_ROOM:
            raise Busy(
                f"the server at {address} has no room for one more that shakes hands. Come again "
                "in a moment."
            ) from error
        raise ProtocolError(
            f"what listens at {address} does not speak TLS 1.3 ({error}). Use tcp:// if the server "
            f"was started so, else check the address with: jaxd doctor --server {address}"
        ) from error
    if address.pin:
        check_pin(line.peer_certificate(), address.pin, str(address._replace(pin="")))
    return line
