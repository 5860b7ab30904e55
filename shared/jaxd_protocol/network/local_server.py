"""The local server of one user and one environment: its files, and whether it runs.

The auto-started server belongs to one environment: its directory is named by a digest of
`sys.prefix`, Python's cache tag, the protocol, jax's RECORD and the store that is shared, so that
another virtual environment, another Python, another jaxd, an upgraded jax or another store finds
another server (or starts one).
"""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import sys
from contextlib import suppress
from typing import Final, NamedTuple

import jaxd_protocol
from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.network.addresses import Address

_NO_CACHE: Final = "none"
_POOL: Final = "pool-"
"""Before the name of a pool, in that of its folder."""

STORE_VARIABLES: Final = ("JAXD_STORE", "JAXD_STORE_READ_ONLY")
"""Which store a server shares with those of other machines, and whether it adds to it."""


def runtime_dir() -> str:
    """The directory for this user's sockets: `$XDG_RUNTIME_DIR/jaxd`, else `/tmp/jaxd-<uid>`.

    Not created here; see `make_private_directory`.
    """
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and os.path.isdir(base):
        return os.path.join(base, "jaxd")
    return f"/tmp/jaxd-{_uid()}"  # noqa: S108  made 0700 and checked by make_private_directory


def _uid() -> int:
    return os.getuid() if hasattr(os, "getuid") else 0


def cache_root(given: str | None = None) -> str | None:
    """The absolute path of the cache folder; None: there is to be none.

    Args:
        given: from the options; else `$JAXD_CACHE_DIR`, else `$XDG_CACHE_HOME/jaxd`, else
            `~/.cache/jaxd`. `none` in the first two switches the cache off.
    """
    named = given or os.environ.get("JAXD_CACHE_DIR")
    if named == _NO_CACHE:
        return None
    if named:
        return os.path.abspath(os.path.expanduser(named))
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the specification wants a relative one ignored
        base = os.path.expanduser("~/.cache")
    return os.path.join(os.path.abspath(base), "jaxd")


def environment_digest() -> str:
    """Twelve hex digits that name this Python environment.

    jax's RECORD is found by name in `sys.path`: `importlib.metadata` would cost more than the
    rest of a client's start.
    """
    digest = hashlib.blake2b(digest_size=6)
    digest.update(os.path.realpath(sys.prefix).encode())
    digest.update((sys.implementation.cache_tag or "").encode())
    digest.update(f"{jaxd_protocol.__version__} {jaxd_protocol.PROTOCOL_VERSION}".encode())
    for record in _jax_records():
        digest.update(record)
    for name in STORE_VARIABLES:
        value = os.environ.get(name)
        if value not in (None, "", "0"):
            digest.update(f"{name}={value}\0".encode())
    return digest.hexdigest()


def _jax_records() -> list[bytes]:
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        found = sorted(n for n in names if n.startswith("jax-") and n.endswith(".dist-info"))
        if found:
            return [_read_record(os.path.join(folder, name)) for name in found]
    return []


def _read_record(dist_info: str) -> bytes:
    try:
        with open(os.path.join(dist_info, "RECORD"), "rb") as file:
            return file.read()
    except OSError:
        return os.path.basename(dist_info).encode()


class LocalServerFiles(NamedTuple):
    """The files of one local server, all in one private directory.

    Attributes:
        directory: absolute path; made with mode 0700.
    """

    directory: str

    @classmethod
    def of_this_environment(cls) -> LocalServerFiles:
        """The files of the server that belongs to the running Python environment."""
        return cls(os.path.join(runtime_dir(), environment_digest()))

    @property
    def socket(self) -> str:
        """The Unix socket that clients connect to."""
        return os.path.join(self.directory, "server.sock")

    @property
    def control(self) -> str:
        """The host's control socket, which answers while the worker is busy as well."""
        return self.socket + ".control"

    @property
    def log(self) -> str:
        """The log of a server started in the background."""
        return os.path.join(self.directory, "server.log")

    @property
    def lock(self) -> str:
        """The lock that the process holds which starts the server."""
        return os.path.join(self.directory, "start.lock")


class PoolFiles(NamedTuple):
    """The files of the director of a pool on this machine, in one private directory.

    Attributes:
        name: of the pool.
        directory: absolute path; made with mode 0700.
    """

    name: str
    directory: str

    @classmethod
    def of(cls, name: str) -> PoolFiles:
        """Those of this user's pool of that name."""
        return cls(name, os.path.join(runtime_dir(), f"{_POOL}{name}"))

    @property
    def socket(self) -> str:
        """The Unix socket of the director, over which `jaxd pool` orders."""
        return os.path.join(self.directory, "director.sock")

    @property
    def log(self) -> str:
        """The log of a director that was started in the background."""
        return os.path.join(self.directory, "director.log")


def running_pools() -> list[str]:
    """The names of this user's pools whose directors run on this machine."""
    with suppress(OSError):
        folders = [name for name in os.listdir(runtime_dir()) if name.startswith(_POOL)]
        names = sorted(name.removeprefix(_POOL) for name in folders)
        return [name for name in names if has_listener(PoolFiles.of(name).socket)]
    return []


def make_private_directory(path: str) -> str:
    """Makes `path` (and its parent) with mode 0700 and checks that only this user may enter it.

    Raises:
        ConfigurationError: when it cannot be made, or as `check_private`.
    """
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        os.makedirs(path, mode=0o700, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"cannot make the directory {path}: {error.strerror}. Free some room or set "
            "XDG_RUNTIME_DIR to a directory that you own."
        ) from error
    check_private(path)
    return path


def check_private(path: str) -> None:
    """Checks that only this user may enter a directory, and `runtime_dir` if that is its parent.

    An unauthenticated connection gives code execution on the server and all data of the client, so
    the directory is the only protection.

    Raises:
        ConfigurationError: when one of them is missing, belongs to another user, or others may
            enter it.
    """
    parent = os.path.dirname(path)
    for directory in (parent, path) if parent == runtime_dir() else (path,):
        try:
            status = os.lstat(directory)
        except OSError as error:
            raise ConfigurationError(
                f"cannot look at {directory}: {error.strerror}. Set XDG_RUNTIME_DIR to a "
                "directory that you own."
            ) from error
        ours = stat.S_ISDIR(status.st_mode) and status.st_uid == _uid()
        if not ours or status.st_mode & 0o077:
            raise ConfigurationError(
                f"{directory} must be a directory of yours that nobody else can enter. "
                f"Run: chmod 700 {directory}   (or set XDG_RUNTIME_DIR to another directory)."
            )


def control_path(address: Address) -> str:
    """The control socket of the server on this machine that listens on `address`.

    Beside the Unix socket, else named by the TCP port in this environment's own directory.
    """
    if address.kind == "unix":
        return address.path + ".control"
    directory = LocalServerFiles.of_this_environment().directory
    return os.path.join(directory, f"tcp-{address.port}.control")


def is_server_running(path: str) -> bool:
    """Whether a server listens on the Unix socket at `path`.

    Its control socket is tried first, so that a busy worker is not disturbed.
    """
    return has_listener(control_path(Address.unix(path))) or has_listener(path)


def has_listener(path: str) -> bool:
    """Whether a process holds the Unix socket at `path` open, even when it is too busy to accept.

    False where there is no file, where its process is gone, and on systems without Unix sockets.
    """
    if not hasattr(socket, "AF_UNIX"):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:
            return True  # its queue is full
        except OSError:
            return False
    return True
