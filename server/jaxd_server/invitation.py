"""What a server that speaks TLS needs, and the one line to type where its clients are."""

from __future__ import annotations

import os
import shlex
import socket
import ssl
from collections.abc import Iterable
from dataclasses import replace

from jaxd_protocol.accounts import token_files
from jaxd_protocol.addresses import Address
from jaxd_protocol.certificates import certificate_of, fingerprint_of, server_context
from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.tokens import default_token_file, write_token_file
from jaxd_server.listeners import Listener
from jaxd_server.options import ServerOptions
from jaxd_server.own_certificate import own_certificate_file, prepare_own_certificate

__all__ = ["invitations", "ready_for_tls", "tls_context"]

_ANY = ("0.0.0.0", "::", "")  # noqa: S104  compared with, not bound to


def ready_for_tls(options: ServerOptions) -> ServerOptions:
    """The options, with a token and a certificate where an address needs them.

    Both are made on the first start, readable by their owner only, and found again later.

    Raises:
        ConfigurationError: when they cannot be made or used.
    """
    if not any(address.kind == "tls" for address in options.listen):
        return options
    named = options.token_folder is not None and token_files(options.token_folder)
    if options.read_token() is None and not named:
        options = replace(options, token_file=_token_file())
    if options.tls_cert is None:
        path = prepare_own_certificate()
        options = replace(options, tls_cert=path, tls_key=path)
    assert options.tls_cert is not None
    tls_context(options)  # usable at all?
    return options


def tls_context(options: ServerOptions) -> ssl.SSLContext | None:
    """What to accept TLS connections with; None when none is to be accepted."""
    if options.tls_cert is None:
        return None
    return server_context(options.tls_cert, options.tls_key or options.tls_cert)


def _token_file() -> str:
    path = default_token_file()
    try:
        write_token_file(path)
    except ConfigurationError:
        if not os.path.exists(path):  # else another server was faster
            raise
    return path


def invitations(options: ServerOptions, listeners: Iterable[Listener]) -> list[str]:
    """For each TLS listener the line to type on a client's machine.

    Args:
        options: as `ready_for_tls` returned them.
        listeners: open ones.
    """
    return [
        _line(options, listener.address) for listener in listeners if listener.address.kind == "tls"
    ]


def _line(options: ServerOptions, address: Address) -> str:
    assert options.tls_cert is not None
    host, port = address.host, address.port
    if options.advertise:
        host, _, public_port = options.advertise.partition(":")
        port = int(public_port or port)
    elif host in _ANY:
        host = socket.gethostname()
    is_own = options.tls_cert == own_certificate_file()
    pin = fingerprint_of(certificate_of(options.tls_cert)) if is_own else ""
    words = f"export JAXD_SERVER={shlex.quote(str(Address.tls(host, port, pin)))}"
    if options.token_file is None:
        if options.read_token() is None:
            return f"{words} JAXD_TOKEN_FILE=…"  # the one of whoever types it
        return f"{words} JAXD_TOKEN=…"  # it came in this server's environment: no log shows it
    return f"{words} JAXD_TOKEN_FILE={_quoted(options.token_file)}"


def _quoted(path: str) -> str:
    """For a shell; with `~` for the home folder, which has another name on another machine."""
    home = os.path.expanduser("~")
    if path.startswith(home + os.sep):
        return "~/" + shlex.quote(path[len(home) + 1 :])
    return shlex.quote(path)
