"""Relays stdin and stdout to a server's Unix socket, for `ssh://` addresses.

Runs where the server is: as `jaxd relay`, and as the program that `ssh://` addresses hand to Python
over there. So it stands alone: nothing but the standard library, of Python 3.7 or later.
"""

from __future__ import annotations

import glob
import os
import socket
import stat
import struct
import sys
import threading

CONNECTED = "jaxd-relay: connected"
"""The line that comes before the first byte of the server; others may come before it."""

REFUSED = "jaxd-relay: no: "
"""How the line begins that comes in its place; the reason follows."""

_CHUNK_BYTES = 1 << 16


def relay_stdio(path: str = "", uid: str = "") -> int:
    """Connects stdin and stdout with a server of this machine until one of both ends.

    Args:
        path: its Unix socket; empty: that of the only server of this user that runs.
        uid: the number of the user whose server it is; empty: this user or root.

    Returns:
        0 when it was connected, else 1.
    """
    try:
        path = path or _find_only_socket()
        sock = _connect(path)
        check_owner(sock, path, uid)
    except (LookupError, OSError) as error:
        _write((REFUSED + str(error).replace("\n", " ") + "\n").encode())
        return 1
    _write((CONNECTED + "\n").encode())
    threading.Thread(target=_forward_stdin, args=(sock,), daemon=True).start()
    try:
        for data in iter(lambda: sock.recv(_CHUNK_BYTES), b""):
            _write(data)
    except OSError:  # one of both is gone
        pass
    return 0


def _forward_stdin(sock: socket.socket) -> None:
    try:
        for data in iter(lambda: os.read(0, _CHUNK_BYTES), b""):
            sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
    except OSError:  # the server is gone, and with it what this process is for
        os._exit(0)


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def _connect(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(path)
    except OSError as error:
        sock.close()
        reason = "%s: %s" % (path, error.strerror)  # noqa: UP031  as short as it can be
        raise OSError(reason) from error
    return sock


def check_owner(sock: socket.socket, path: str, uid: str) -> None:
    """Returns when a socket is this user's, root's, or that of the user of that number.

    Raises:
        LookupError: when it is not, or others can write in its folder.
    """
    trusted = {0, os.getuid(), int(uid or "0")}
    folder = os.path.dirname(path)
    found = os.stat(folder)
    owner = found.st_uid
    if hasattr(socket, "SO_PEERCRED"):
        told = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        owner = struct.unpack("3i", told)[1]
    if owner not in trusted:
        said = "user %d listens at %s; if it is the server's user, add ?uid=%d to the address"
        raise LookupError(said % (owner, path, owner))
    if found.st_uid not in trusted or found.st_mode & 0o022:
        raise LookupError("others can put a socket of theirs into " + folder)


def _find_only_socket() -> str:
    """The one of the first folder in which a server runs.

    Raises:
        LookupError: when there is none, or more than one.
    """
    for folder in _socket_folders():
        found = glob.glob(os.path.join(folder, "*", "server.sock"))
        running = sorted(path for path in found if _is_trusted(path) and _accepts_connections(path))
        if len(running) > 1:
            raise LookupError("several servers run here; name one: " + " ".join(running))
        if running:
            return running[0]
    raise LookupError("no server of this user runs here; start one there: jaxd start")


def _socket_folders() -> list[str]:
    """Where `jaxd start` may have put its sockets; see `jaxd_protocol.network.local_server`."""
    uid = os.getuid()
    bases = [os.environ.get("XDG_RUNTIME_DIR", ""), "/run/user/%d" % uid]  # noqa: UP031
    last = "/tmp/jaxd-%d" % uid  # noqa: S108, UP031  looked into only where it is ours alone
    return [*(os.path.join(base, "jaxd") for base in bases if base), last]


def _is_trusted(path: str) -> bool:
    """Whether only this user can put another socket or folder in its place."""
    folder = os.path.dirname(path)
    own, above = os.lstat(folder), os.lstat(os.path.dirname(folder))  # a link is none
    is_private = stat.S_ISDIR(own.st_mode) and not own.st_mode & 0o077
    return is_private and own.st_uid == above.st_uid == os.getuid() and not above.st_mode & 0o022


def _accepts_connections(path: str) -> bool:
    try:
        _connect(path).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(relay_stdio(*sys.argv[1:3]))
