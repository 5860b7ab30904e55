"""The certificate that a server makes for itself when it is given none.

Nobody vouches for it: clients know it by its fingerprint, which stands in the address that the
server prints. Key and certificate are one file, so that they cannot come from two makers.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from contextlib import suppress

from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.tokens import config_dir

__all__ = ["own_certificate_file", "prepare_own_certificate"]

_DAYS = "7300"
"""Twenty years: the fingerprint names it, and it ends when the file is removed."""


def own_certificate_file() -> str:
    """Where it lies: beside the token."""
    return os.path.join(config_dir(), "tls.pem")


def prepare_own_certificate() -> str:
    """The file with key and certificate, which only its owner can read; made when it is missing.

    Servers that start at the same time come to the same one.

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
            with suppress(FileExistsError):  # another server was faster: its certificate it is
                os.link(whole, path)
    except OSError as error:
        raise ConfigurationError(
            f"cannot write the certificate {path}: {error.strerror or error}. Make the folder "
            "writable, or give a certificate with --tls-cert and --tls-key."
        ) from error


def _key_and_certificate(folder: str) -> bytes:
    """Both in PEM. openssl makes them: Python's `ssl` can use certificates, but make none."""
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
            "a certificate is made with the program openssl, which is not here. Install it "
            "(apt-get install openssl), or give one with --tls-cert and --tls-key."
        ) from error
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise ConfigurationError(
            f"openssl cannot make a certificate: {' '.join(said)}. "
            "Give one with --tls-cert and --tls-key."
        ) from error
    found = b""
    for name in (key, certificate):
        with open(name, "rb") as file:
            found += file.read()
    return found
