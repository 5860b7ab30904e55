"""Prepares TLS for a server, and prints the line that clients need to connect.

A server without a certificate makes a self-signed one, which clients verify by the fingerprint in
the address that the server prints. Its key and certificate are in one file, so that two servers
that make them at the same time cannot mix them.
"""

from __future__ import annotations

import os
import shlex
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.network.accounts import token_files
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.certificates import certificate_of, fingerprint_of, server_context
from jaxd_protocol.network.tokens import config_dir, default_token_file, write_token_file
from jaxd_server.auth.listeners import Listener
from jaxd_server.config.options import ServerOptions

_DAYS = "7300"
"""Twenty years: it is valid as long as its file exists."""


def own_certificate_file() -> str:
    """The path of the self-signed certificate, beside the token."""
    return os.path.join(config_dir(), "tls.pem")


def prepare_own_certificate() -> str:
    """The file with key and certificate, which only its owner can read; made when it is missing.

    Servers that start at the same time get the same one.

    Raises:
        ConfigurationError: when it cannot be made, or others can read the one that is there.
    """
    path = own_certificate_file()
    if not os.path.lexists(path):
        _make(path)
    mode = os.stat(path).st_mode & 0o777
    if mode & 0o077:
        raise ConfigurationError(
            f"others can read the key in {path} (mode {mode:04o}), so it proves nothing. "
            f"Remove it, and the server makes another: rm {path}"
        )
    return path


def _make(path: str) -> None:
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".tls-") as draft:  # mode 0700
            whole = os.path.join(draft, "tls.pem")
            with open(os.open(whole, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                file.write(_key_and_certificate(draft))
            with suppress(FileExistsError):  # another server was faster: its certificate is used
                os.link(whole, path)
    except OSError as error:
        raise ConfigurationError(
            f"cannot write the certificate {path}: {error.strerror or error}. Make the folder "
            "writable, or give a certificate with --tls-cert and --tls-key."
        ) from error


def _key_and_certificate(folder: str) -> bytes:
    """Both in PEM, made by openssl: Python's `ssl` cannot make certificates."""
    key, certificate = os.path.join(folder, "key"), os.path.join(folder, "certificate")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", _DAYS, "-subj", "/CN=jaxd", "-addext", "subjectAltName=DNS:jaxd"]
    try:
        subprocess.run(  # noqa: S603  openssl, words of ours, no shell
            [*command, "-keyout", key, "-out", certificate],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
        )
    except FileNotFoundError as error:
        raise ConfigurationError(
            "the program openssl, which makes certificates, is missing. Install it "
            "(apt-get install openssl), or give a certificate with --tls-cert and --tls-key."
        ) from error
    except subprocess.CalledProcessError as error:
        output = error.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise ConfigurationError(
            f"openssl cannot make a certificate: {' '.join(output)}. "
            "Give one with --tls-cert and --tls-key."
        ) from error
    return Path(key).read_bytes() + Path(certificate).read_bytes()


_ANY = ("0.0.0.0", "::", "")  # noqa: S104  compared with, not bound to


class TlsConfig(NamedTuple):
    """The TLS settings of a listener.

    Attributes:
        context: has the certificate and its key.
        certificate: the SHA-256 of the certificate.
    """

    context: ssl.SSLContext
    certificate: str


def ready_for_tls(options: ServerOptions) -> ServerOptions:
    """The options, with a token and a certificate where an address needs them.

    Both are made on the first start, readable by their owner only, and used again later.

    Raises:
        ConfigurationError: when they cannot be made or used.
    """
    if not any(address.kind == "tls" for address in options.listen):
        return options
    if not has_token(options):
        options = replace(options, token_file=_token_file())
    if options.tls_cert is None:
        path = prepare_own_certificate()
        options = replace(options, tls_cert=path, tls_key=path)
    assert options.tls_cert is not None
    tls_config_of(options)  # raises if they cannot be used
    return options


def tls_config_of(options: ServerOptions) -> TlsConfig | None:
    """The TLS settings of listeners; None without a certificate."""
    if options.tls_cert is None:
        return None
    context = server_context(options.tls_cert, options.tls_key or options.tls_cert)
    return TlsConfig(context, fingerprint_of(certificate_of(options.tls_cert)))


def _token_file() -> str:
    path = default_token_file()
    try:
        write_token_file(path)
    except ConfigurationError:
        if not os.path.exists(path):  # otherwise another server was faster
            raise
    return path


def connection_hints(options: ServerOptions, listeners: Iterable[Listener]) -> list[str]:
    """The commands that configure clients, for each listener that needs more than its address.

    The address of a TLS listener is for other machines; that of a Unix socket for other users
    names the server's user; that of TCP that can be intercepted says so.

    Args:
        options: as `ready_for_tls` returned them.
        listeners: the open listeners.
    """
    lines = [_line(options, listener.address) for listener in listeners]
    return [line for line in lines if line is not None]


def _line(options: ServerOptions, address: Address) -> str | None:
    if address.kind == "tls":
        return _export(_for_tls(options, address)) + _token_of(options)
    if address.kind == "unix":
        is_for_others = options.allow_uids and os.getuid() != 0  # clients trust root anyway
        return _export(address._replace(uid=os.getuid())) if is_for_others else None
    if not address.is_loopback:
        return _export(advertised(options, address)) + _token_of(options)
    if options.allow_unauthenticated_loopback and not has_token(options):
        return _export(address._replace(insecure=True))
    return None


def _export(address: Address) -> str:
    return f"export JAXD_SERVER={shlex.quote(str(address))}"


def advertised(options: ServerOptions, address: Address) -> Address:
    """The address of a listener for other machines; plain TCP could be intercepted on the way."""
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
    return advertised(options, address)._replace(pin=pin)


def has_token(options: ServerOptions) -> bool:
    """Whether clients can prove to hold a token of the server, with a name or without."""
    named = options.token_folder is not None and token_files(options.token_folder)
    return options.read_token() is not None or bool(named)


def _token_of(options: ServerOptions) -> str:
    if options.token_file is None:
        if options.read_token() is None:
            return " JAXD_TOKEN_FILE=…"  # the file of the client's user
        return " JAXD_TOKEN=…"  # from the environment of the server: a secret is not printed
    return f" JAXD_TOKEN_FILE={_quoted(options.token_file)}"


def _quoted(path: str) -> str:
    """Quoted for a shell, with `~` for the home folder, which differs between machines."""
    home = os.path.expanduser("~")
    if path.startswith(home + os.sep):
        return "~/" + shlex.quote(path[len(home) + 1 :])
    return shlex.quote(path)
