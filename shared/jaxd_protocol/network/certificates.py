"""TLS contexts for both ends, and fingerprints of certificates.

Only TLS 1.3: both ends are jaxd's, so older versions would only add weaknesses.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import ssl
from collections.abc import Callable
from typing import Protocol, TypeVar

from jaxd_protocol.errors import AuthenticationFailed, ConfigurationError
from jaxd_protocol.network.addresses import Address


class TlsLine(Protocol):
    """What `over_tls` needs of a connection; see `wire.tls_socket.TlsSocket`."""

    def settimeout(self, seconds: float | None) -> None:
        """How long the handshake may take."""

    def do_handshake(self) -> None:
        """The handshake of TLS."""

    def peer_certificate(self) -> bytes:
        """The certificate that the server has shown, in DER."""


Line = TypeVar("Line", bound=TlsLine)


def server_context(certificate: str, key: str) -> ssl.SSLContext:
    """The context of the accepting end, which shows the certificate.

    Args:
        certificate: a PEM file with it, and with those that lead to its CA.
        key: a PEM file with its private key; may be the same one.

    Raises:
        ConfigurationError: when one cannot be read, or they do not belong together.
    """
    context = _require_newest_tls(ssl.PROTOCOL_TLS_SERVER)
    # Tickets are sent after the handshake, and would wake a thread that waits for a message.
    context.num_tickets = 0
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")  # else OpenSSL prompts
    except OSError as error:  # which ssl.SSLError is as well
        raise ConfigurationError(
            f"the certificate {certificate} with the key {key} cannot be used: "
            f"{error.strerror or error}. Give PEM files that belong together, the key without a "
            "password, with --tls-cert and --tls-key."
        ) from error
    return context


def client_context(*, pinned: bool, ca_file: str | None = None) -> ssl.SSLContext:
    """The context of the connecting end.

    Args:
        pinned: whether the certificate is known by its fingerprint, and so is checked only by
            `check_pin`; else it is checked by name.
        ca_file: the trusted CAs; None: those of the system.

    Raises:
        ConfigurationError: when the file cannot be read.
    """
    context = _require_newest_tls(ssl.PROTOCOL_TLS_CLIENT)
    if pinned:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    try:
        if ca_file is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(ca_file)
    except OSError as error:
        raise ConfigurationError(
            f"the CA file {ca_file} cannot be used: {error.strerror or error}. "
            "Name a PEM file with JAXD_CA_FILE, or unset it."
        ) from error
    return context


def _require_newest_tls(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def fingerprint_of(der: bytes) -> str:
    """SHA-256 of a certificate, in 64 hex digits."""
    return hashlib.sha256(der).hexdigest()


def certificate_of(path: str) -> bytes:
    """The first certificate of a PEM file, in DER.

    Raises:
        ConfigurationError: when there is none.
    """
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            _, begin, rest = file.read().partition("-----BEGIN CERTIFICATE-----")
        body, end, _ = rest.partition("-----END CERTIFICATE-----")
        return ssl.PEM_cert_to_DER_cert(begin + body + end)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"there is no certificate in {path}: {error}. Name a PEM file with --tls-cert."
        ) from error


def over_tls(
    make: Callable[..., Line],
    sock: socket.socket,
    address: Address,
    timeout_s: float,
    ca_file: str | None = None,
) -> Line:
    """TLS with a server that shows the certificate that its address names, or that a CA has signed.

    Args:
        make: makes the connection over a socket: `TlsSocket`.
        sock: connected to the server; where this fails, the caller closes it.
        address: of the server.
        timeout_s: for the handshake.
        ca_file: the trusted CAs where the address has no pin; None: those of the system.

    Raises:
        AuthenticationFailed: when the certificate is another one than the pinned one.
        ConfigurationError: when the CA file cannot be read.
        EOFError, OSError: when there is no TLS in time, or no trusted certificate.
    """
    context = client_context(pinned=bool(address.pin), ca_file=ca_file)
    line = make(sock, context, server_name=address.host)
    line.settimeout(timeout_s)
    line.do_handshake()
    if address.pin:
        check_pin(line.peer_certificate(), address.pin, str(address._replace(pin="")))
    return line


def check_pin(der: bytes, pin: str, address: str) -> None:
    """Checks that a server shows the certificate that its address names.

    Args:
        der: the certificate that it shows.
        pin: the fingerprint in the address.
        address: for the message.

    Raises:
        AuthenticationFailed: when it shows another.
    """
    found = fingerprint_of(der)
    if not hmac.compare_digest(found, pin):
        raise AuthenticationFailed(
            f"the server at {address} shows another certificate, sha256={found}: somebody else "
            "may answer in its place. Nothing was sent. If the server has a new one, use the "
            "line that it printed when it started."
        )
