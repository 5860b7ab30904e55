"""From an address to a connected socket, with TLS on it where the address says so."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from jaxd.settings import Settings
from jaxd_protocol.addresses import Address
from jaxd_protocol.errors import (
    AuthenticationFailed,
    ConfigurationError,
    JaxdError,
    NoServer,
    ProtocolError,
)

if TYPE_CHECKING:
    from jaxd_protocol.wire.tls_socket import TlsSocket

    Connected = socket.socket | TlsSocket

__all__ = ["dial"]

CONNECT_S = 10.0


def dial(address: Address, settings: Settings) -> Connected:
    """A socket that is connected to a server. On TLS, its certificate is the right one.

    Raises:
        NoServer: when nothing answers there.
        AuthenticationFailed: when the certificate is not the one that it should be.
        ProtocolError: when no TLS is spoken there.
        ConfigurationError: when this system cannot reach such an address, or the CA file is not
            usable.
    """
    if address.kind == "ssh":
        from jaxd.ssh import dial_over_ssh  # starts processes; few clients need it

        return dial_over_ssh(address)
    try:
        if address.kind == "unix":
            return _dial_unix(address.path)
        sock = socket.create_connection((address.host, address.port), CONNECT_S)
    except OSError as error:
        raise NoServer(
            f"no server answers at {address} ({error.strerror or error}). Start one there "
            f"(jaxd serve --listen {address._replace(pin='')}), or set JAXD_SERVER to where one "
            "runs."
        ) from error
    if address.kind == "tcp":
        return sock
    try:
        return _with_tls(sock, address, settings)
    except BaseException:
        sock.close()
        raise


def _dial_unix(path: str) -> socket.socket:
    family = getattr(socket, "AF_UNIX", None)
    if family is None:
        raise ConfigurationError(
            "this system has no Unix sockets. Use a tcp:// or tls:// address for the server."
        )
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(CONNECT_S)
        sock.connect(path)
    except BaseException:
        sock.close()
        raise
    return sock


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
        raise ProtocolError(
            f"what listens at {address} does not speak TLS 1.3 ({error}). Use tcp:// if the server "
            f"was started so, else check the address with: jaxd doctor --server {address}"
        ) from error
    if address.pin:
        check_pin(line.peer_certificate(), address.pin, str(address._replace(pin="")))
    return line
