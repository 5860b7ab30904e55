"""What a server that speaks TLS needs, and the line to type where its clients are."""

from __future__ import annotations

import os
import shlex
import socket
import ssl
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from jaxd_protocol.accounts import token_files
from jaxd_protocol.addresses import Address
from jaxd_protocol.certificates import certificate_of, fingerprint_of, server_context
from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.tokens import default_token_file, write_token_file
from jaxd_server.listeners import Listener
from jaxd_server.options import ServerOptions
from jaxd_server.own_certificate import own_certificate_file, prepare_own_certificate

__all__ = ["Tls", "invitations", "ready_for_tls", "tls_of"]

_ANY = ("0.0.0.0", "::", "")  # noqa: S104  compared with, not bound to


class Tls(NamedTuple):
    """With what clients over TLS are accepted.

    Attributes:
        context: has the certificate and its key.
        certificate: the SHA-256 of the certificate.
    """

    context: ssl.SSLContext
    certificate: str


def ready_for_tls(options: ServerOptions) -> ServerOptions:
    """The options, with a token and a certificate where an address needs them.

    Both are made on the first start, readable by their owner only, and found again later.

    Raises:
        ConfigurationError: when they cannot be made or used.
    """
    if not any(address.kind == "tls" for address in options.listen):
        return options
    if not _has_token(options):
        options = replace(options, token_file=_token_file())
    if options.tls_cert is None:
        path = prepare_own_certificate()
        options = replace(options, tls_cert=path, tls_key=path)
    assert options.tls_cert is not None
    tls_of(options)  # usable at all?
    return options


def tls_of(options: ServerOptions) -> Tls | None:
    """What to accept TLS connections with; None when none is to be accepted."""
    if options.tls_cert is None:
        return None
    context = server_context(options.tls_cert, options.tls_key or options.tls_cert)
    return Tls(context, fingerprint_of(certificate_of(options.tls_cert)))


def _token_file() -> str:
    path = default_token_file()
    try:
        write_token_file(path)
    except ConfigurationError:
        if not os.path.exists(path):  # else another server was faster
            raise
    return path


def invitations(options: ServerOptions, listeners: Iterable[Listener]) -> list[str]:
    """The lines to type for clients: for each listener to which the plain address does not lead.

    For TLS it is on another machine; for a Unix socket that other users may use, it names whose it
    is; and for TCP that anybody could answer or change on its way, it says so.

    Args:
        options: as `ready_for_tls` returned them.
        listeners: open ones.
    """
    lines = [_line(options, listener.address) for listener in listeners]
    return [line for line in lines if line is not None]


def _line(options: ServerOptions, address: Address) -> str | None:
    if address.kind == "tls":
        return _export(_for_tls(options, address)) + _token_of(options)
    if address.kind == "unix":
        is_for_others = options.allow_uids and os.getuid() != 0  # root is trusted as it is
        return _export(address._replace(uid=os.getuid())) if is_for_others else None
    if not address.is_loopback:
        return _export(_advertised(options, address)) + _token_of(options)
    if options.allow_unauthenticated_loopback and not _has_token(options):
        return _export(address._replace(insecure=True))
    return None


def _export(address: Address) -> str:
    return f"export JAXD_SERVER={shlex.quote(str(address))}"


def _advertised(options: ServerOptions, address: Address) -> Address:
    """As clients elsewhere find it; nobody there can know what stands in between on plain TCP."""
    host, port = address.host, address.port
    if options.advertise:
        host, _, public_port = options.advertise.partition(":")
        port = int(public_port or port)
    elif host in _ANY:
        host = socket.gethostname()
    return address._replace(host=host, port=port, insecure=address.kind == "tcp")


def _for_tls(options: ServerOptions, address: Address) -> Address:
    assert options.tls_cert is not None
    is_own = options.tls_cert == own_certificate_file()
    pin = fingerprint_of(certificate_of(options.tls_cert)) if is_own else ""
    return _advertised(options, address)._replace(pin=pin)


def _has_token(options: ServerOptions) -> bool:
    named = options.token_folder is not None and token_files(options.token_folder)
    return options.read_token() is not None or bool(named)


def _token_of(options: ServerOptions) -> str:
    if options.token_file is None:
        if options.read_token() is None:
            return " JAXD_TOKEN_FILE=…"  # the one of whoever types it
        return " JAXD_TOKEN=…"  # it came in this server's environment: no log shows it
    return f" JAXD_TOKEN_FILE={_quoted(options.token_file)}"


def _quoted(path: str) -> str:
    """For a shell; with `~` for the home folder, which has another name on another machine."""
    home = os.path.expanduser("~")
    if path.startswith(home + os.sep):
        return "~/" + shlex.quote(path[len(home) + 1 :])
    return shlex.quote(path)
