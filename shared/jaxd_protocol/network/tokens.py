"""Tokens, the secret that both ends prove to hold before a byte is unpickled, and their files.

A token file allows code execution on the server, so it must have mode 0600. But one that belongs to
root may be readable by a group: Kubernetes and systemd provide secrets in this way.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import string
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from jaxd_protocol.errors import AuthenticationFailed, ConfigurationError, ProtocolError

_MAX_TOKEN_BYTES: Final = 4096

_MIN_LENGTH: Final = (
    (string.digits, 39),
    (string.hexdigits, 32),
    (string.ascii_lowercase, 28),
    (string.ascii_uppercase, 28),
    (string.ascii_uppercase + "234567", 26),
    (string.ascii_lowercase + string.digits, 25),
    (string.ascii_uppercase + string.digits, 25),
    (string.ascii_letters, 23),
    (None, 22),
)
"""Characters of a token, by alphabet, so that it can have 128 bits; None: any other, as base64.

Whether a token is random cannot be checked: `jaxd token` makes one that is.
"""

_MIN_DISTINCT: Final = 8
"""Characters in a token. One of 32 random hex digits has fewer once in 28 million."""


def config_dir() -> str:
    """The directory of the user's settings: `$XDG_CONFIG_HOME/jaxd`, else `~/.config/jaxd`."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(base, "jaxd")


def default_token_file() -> str:
    """Where `jaxd token` writes, and where both ends look by default."""
    return os.path.join(config_dir(), "token")


def read_token_file(path: str) -> str:
    """The token in `path`, without the white space around it.

    Raises:
        ConfigurationError: when the file cannot be read, holds no token, or others may read it.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            status = os.fstat(file.fileno())
            mode = stat.S_IMODE(status.st_mode)
            token = file.read(_MAX_TOKEN_BYTES + 1).strip()
    except OSError as error:
        raise ConfigurationError(
            f"cannot read the token file {path}: {error.strerror}. "
            f"Make one with: jaxd token --file {path}"
        ) from error
    too_much = 0o037 if status.st_uid == 0 else 0o077
    if os.name == "posix" and mode & too_much:  # elsewhere the mode has no meaning
        raise ConfigurationError(
            f"others can read the token file {path} (mode {mode:04o}), so it is no secret. "
            f"Run: chmod 600 {path}   (and make a new one with --force if it was ever shared)."
        )
    if not token or len(token) > _MAX_TOKEN_BYTES or not token.isprintable():
        raise ConfigurationError(
            f"the token file {path} does not hold one line with a token. "
            f"Make one with: jaxd token --force --file {path}"
        )
    return checked_token(token, f"the token in {path}")


def checked_token(token: str, what: str) -> str:
    """The token, if it can be as hard to guess as 128 random bits.

    An attacker who records or answers one handshake on plain TCP can compare any number of tokens
    with the recorded proof offline.

    Args:
        token: of any source.
        what: its name in the message; the token itself is never shown.

    Raises:
        ConfigurationError: when it is too short for its kind of characters, or has too few
            different ones.
    """
    if not token:
        raise ConfigurationError(f"{what} is empty. Give this process the secret.")
    least = next(n for kind, n in _MIN_LENGTH if kind is None or not set(token) - set(kind))
    if len(token) < least or len(set(token)) < _MIN_DISTINCT:
        raise ConfigurationError(
            f"{what} can be guessed: {len(token)} characters, {len(set(token))} of them different, "
            f"where {least} and {_MIN_DISTINCT} are the least for 128 bits. Make a new one with "
            "`jaxd token`, and use it on both ends."
        )
    return token


def made_token_file(path: str) -> str:
    """The token in a file, which is made where it is missing, whole at once.

    Raises:
        ConfigurationError: as `read_token_file` and `write_token_file`.
    """
    if not os.path.lexists(path):
        import secrets  # other processes do not need it

        draft = f"{path}.{secrets.token_hex(8)}"
        write_token_file(draft)
        try:
            os.link(draft, path)
        except FileExistsError:
            pass  # another process was faster: that one counts
        except OSError:
            os.rename(draft, path)  # the file system has no links
        finally:
            with suppress(FileNotFoundError):
                os.unlink(draft)
    return read_token_file(path)


STORE_KEY_VARIABLES: Final = ("JAXD_STORE_KEY", "JAXD_STORE_KEY_FILE")
"""Where the secret key of a shared store may be given: itself, and its file."""


def store_key_file() -> str:
    """Where the secret key of the user's stores lies, where no variable names another one."""
    return os.path.join(config_dir(), "store.key")


def read_store_key() -> str:
    """The secret key of the user's stores.

    Raises:
        ConfigurationError: as `read_secret_key`.
    """
    return read_secret_key("store")


def read_secret_key(what: str) -> str:
    """The secret key of this user for its stores, or for its pools.

    That in `JAXD_STORE_KEY`, else in the file `JAXD_STORE_KEY_FILE`, else in `store.key` beside the
    user's other settings, which is made where it is missing.

    Args:
        what: it is for, such as `store`, as the names above have it.

    Raises:
        ConfigurationError: when it is empty, can be guessed, or can be read by others, or its file
            cannot be read or made.
    """
    variable = f"JAXD_{what.upper()}_KEY"
    key, file = os.environ.get(variable), os.environ.get(f"{variable}_FILE")
    if key is not None:  # an empty one is a secret that a CI has not given
        return checked_token(key.strip(), f"the key in {variable}")
    if file is not None:
        return read_token_file(file)
    return made_token_file(os.path.join(config_dir(), f"{what}.key"))


def without_password(url: str) -> str:
    """A URL as logs and people see it; what is no URL is returned as it is."""
    scheme, divider, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    login, at, place = host.rpartition("@")
    user, colon, _ = login.partition(":")
    return f"{scheme}{divider}{user}:…{at}{place}{slash}{path}" if divider and colon else url


_MAC_BYTES: Final = 32


class Seal:
    """Seals messages with the key of a pool, and opens those that were.

    Args:
        key: the secret that all parts of a pool have.
    """

    def __init__(self, key: str) -> None:
        self._blake2b = partial(hashlib.blake2b, digest_size=_MAC_BYTES)
        self._key = self._blake2b(key.encode(), person=b"jaxd pool").digest()

    def seal(self, purpose: str, content: Mapping[str, Any]) -> bytes:
        """A message that opens only for that purpose."""
        body = json.dumps(content).encode()
        return self._mac(purpose, body) + body

    def open(self, purpose: str, message: bytes) -> dict[str, Any]:
        """What was sealed for that purpose.

        Raises:
            AuthenticationFailed: when it was not, or with another key.
        """
        import hmac  # clients open none

        mac, body = message[:_MAC_BYTES], message[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(purpose, body)):
            raise AuthenticationFailed(
                "a message within the pool is not sealed with the pool's key. Give every node the "
                "same key (JAXD_POOL_KEY, or the file that JAXD_POOL_KEY_FILE names)."
            )
        content = json.loads(body)
        if not isinstance(content, dict):
            raise ProtocolError(
                "a message within the pool is no object. Install the same jaxd everywhere."
            )
        return content

    def _mac(self, purpose: str, body: bytes) -> bytes:
        data = b"%d:" % len(purpose.encode()) + purpose.encode() + body
        return self._blake2b(data, key=self._key).digest()


def write_token_file(path: str, *, replace: bool = False) -> str:
    """Makes a new token of 32 random bytes, url-safe, in a 0600 file, and returns it.

    A missing directory is made, with mode 0700. A file is replaced atomically: a reader finds the
    old token or the new one.

    Raises:
        ConfigurationError: when `path` exists and `replace` is false, or cannot be written.
    """
    import secrets  # other processes do not need it

    token = secrets.token_urlsafe(32)
    directory = os.path.dirname(os.path.abspath(path))
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        if replace:
            draft = f"{path}.{os.getpid()}"
            _write_private(draft, token + "\n")
            os.replace(draft, path)
        elif os.path.lexists(path):
            raise ConfigurationError(
                f"{path} exists already, and other programs may hold its token. "
                "Use it as it is, or replace it with --force."
            )
        else:
            _write_private(path, token + "\n")
    except OSError as error:
        raise ConfigurationError(
            f"cannot write the token file {path}: {error.strerror}. Choose another with --file."
        ) from error
    return token


def _write_private(path: str, text: str) -> None:
    """Writes a new file; removes it when the disk is full."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(text)
    except OSError:
        os.unlink(path)
        raise
