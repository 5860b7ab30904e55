"""Certificates for the tests, made once for each process that runs some."""

from __future__ import annotations

import atexit
import shutil
import socket
import subprocess
import tempfile
import threading
from functools import cache
from pathlib import Path
from typing import NamedTuple

from jaxd_protocol.network.certificates import client_context, server_context
from jaxd_protocol.wire import stream_over
from jaxd_protocol.wire.stream import BulkStream
from jaxd_protocol.wire.tls_socket import TlsSocket

_MAKE = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]


class Pem(NamedTuple):
    """Files with a certificate and its key."""

    certificate: str
    key: str


@cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="jaxd-certificates-"))
    atexit.register(shutil.rmtree, folder)
    return folder


def _make(name: str, alternative: str, *more: str) -> Pem:
    made = Pem(f"{_folder()}/{name}.pem", f"{_folder()}/{name}.key")
    subject = ["-nodes", "-subj", f"/CN={name}", "-addext", f"subjectAltName={alternative}"]
    files = ["-keyout", made.key, "-out", made.certificate]
    subprocess.run([*_MAKE, *subject, *files, *more], check=True, capture_output=True)
    return made


@cache
def authority() -> Pem:
    """A CA that nobody trusts who does not name it."""
    return _make("authority", "DNS:authority")


@cache
def signed() -> Pem:
    """The certificate of a machine named localhost, from that CA."""
    ca = authority()
    return _make(
        "machine", "DNS:localhost", "-CA", ca.certificate, "-CAkey", ca.key,
        "-addext", "basicConstraints=critical,CA:FALSE",
    )  # fmt: skip


def tls_pair(server: socket.socket, client: socket.socket) -> tuple[TlsSocket, TlsSocket]:
    """Both ends of a connection, past the handshake of TLS."""
    certificate, key = authority()
    there = TlsSocket(server, server_context(certificate, key), server_side=True)
    here = TlsSocket(client, client_context(pinned=True))
    for end in (here, there):
        end.settimeout(20)
    thread = threading.Thread(target=there.do_handshake)
    thread.start()
    here.do_handshake()
    thread.join()
    return there, here


def tls_streams(pair: tuple[socket.socket, socket.socket]) -> tuple[BulkStream, BulkStream]:
    """Two connected streams over TLS."""
    one, other = map(stream_over, tls_pair(*pair))
    return one, other
