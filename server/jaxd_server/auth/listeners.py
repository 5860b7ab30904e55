"""The sockets that the host opens once, and that every worker inherits."""

from __future__ import annotations

import errno
import os
import select
import socket
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from jaxd_protocol.errors import CannotListen, ConfigurationError
from jaxd_protocol.network.addresses import MAX_PATH_BYTES, Address
from jaxd_protocol.network.local_server import has_listener, make_private_directory
from jaxd_server.runtime.logs import locked_folder

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class Listener:
    """An open, listening socket.

    Attributes:
        address: of the socket; never port 0.
        socket: blocking, and inherited only by processes that it is passed to.
        file: device and inode of a Unix socket's file, which nothing else has while it is open.
    """

    address: Address
    socket: socket.socket
    file: tuple[int, int] | None = None

    def loss(self) -> str:
        """Why no client can find it any more; empty when one can, or when that is not known."""
        if self.file is None:
            return ""
        path = self.address.path
        try:
            found = _identity(path)
        except (FileNotFoundError, NotADirectoryError):
            return f"{path} was removed"
        except OSError:
            return ""
        return "" if found == self.file else f"{path} is no longer this server's socket"


def _identity(path: str) -> tuple[int, int]:
    status = os.lstat(path)
    return status.st_dev, status.st_ino


class ListenerProbe:
    """Finds out whether clients that connect to a listener are accepted.

    Args:
        listening: the socket, which other processes may share.
    """

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening

    def has_waiting(self) -> bool:
        """Whether a client that has connected was not accepted yet."""
        if self._listening.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(self._listening, select.POLLIN)
        return bool(poll.poll(0))

    def accepts(self, timeout_s: float) -> bool:
        """Connects as a client; whether it is accepted before the timeout.

        Says nothing: who accepts it sees its end, and closes the connection. A socket whose file is
        gone cannot be asked, and counts as one that accepts.
        """
        with socket.socket(self._listening.family, socket.SOCK_STREAM) as own:
            own.settimeout(timeout_s)
            try:
                self._connect(own, timeout_s)
                own.shutdown(socket.SHUT_WR)
                own.recv(1)
            except TimeoutError:  # nobody takes it
                return False
            except OSError:
                return True  # it was closed at once, or cannot be asked
        return True

    def _connect(self, own: socket.socket, timeout_s: float) -> None:
        """Connects. A Unix socket for which too many wait refuses at once, and is waited for.

        Raises:
            TimeoutError: when that takes too long.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return own.connect(_reachable(self._listening.getsockname()))
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise TimeoutError from error
                time.sleep(_FULL_S)


_FULL_S: Final = 0.05
"""Between two looks at a queue of connections that is full."""


def _reachable(name: Any) -> Any:
    """The name of a listening socket as a client on this machine uses it."""
    if isinstance(name, tuple) and name[0] in ("0.0.0.0", "::"):  # noqa: S104  not bound here
        return ("127.0.0.1" if name[0] == "0.0.0.0" else "::1", *name[1:])  # noqa: S104  as above
    return name


@contextmanager
def open_listeners(
    addresses: Iterable[Address], *, for_others: bool = False, beside_others: bool = False
) -> Iterator[list[Listener]]:
    """Opens all `addresses`, in order; at the end closes them and removes their socket files.

    Args:
        addresses: those to open.
        for_others: whether other users can reach the Unix sockets; the authenticator then decides
            which of them may connect.
        beside_others: whether other users may enter the folder of these private sockets.

    Raises:
        CannotListen: when one of them is in use, not allowed, not private, too long, or when the
            disk is full. None is left open then.
    """
    with ExitStack() as stack:
        yield [
            stack.enter_context(_listener(address, for_others, beside_others))
            for address in addresses
        ]


@contextmanager
def _listener(address: Address, for_others: bool, beside_others: bool) -> Iterator[Listener]:
    if address.kind != "unix":
        opened = _tcp_socket(address)
    else:
        check_length(address.path)
        directory = os.path.dirname(address.path)
        if for_others or beside_others:
            _check_guarded(directory, entered=for_others)
        else:
            _check_private(directory)
        opened = _unix_socket(address, 0o666 if for_others else 0o600)
    with opened as listening:
        yield listening


@contextmanager
def _unix_socket(address: Address, mode: int) -> Iterator[Listener]:
    path = address.path
    with _explaining_errors(address):
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with listening:
        with _explaining_errors(address), locked_folder(os.path.dirname(path)):  # until `bind`
            _remove_stale_socket(path)
            listening.bind(path)
            os.chmod(path, mode)
            listening.listen(socket.SOMAXCONN)
        ours = _identity(path)
        try:
            yield Listener(address, listening, ours)
        finally:
            _remove(path, ours)


def check_length(path: str) -> None:
    """Refuses a path that no Unix socket can have.

    Raises:
        CannotListen: when it is too long.
    """
    length = len(os.fsencode(path))
    if length > MAX_PATH_BYTES:
        raise CannotListen(
            f"{path} has {length} bytes, and a Unix socket's path may have {MAX_PATH_BYTES}. "
            "Choose a shorter --listen (or --control), or set XDG_RUNTIME_DIR to a shorter path."
        )


def _check_private(directory: str) -> None:
    """Makes a private directory if it is missing; refuses one that is not private."""
    if not os.path.lexists(directory):
        try:
            make_private_directory(directory)
        except ConfigurationError as error:
            raise CannotListen(str(error)) from error
        return
    _refuse_link(directory)
    status = os.stat(directory)
    if not stat.S_ISDIR(status.st_mode):
        raise CannotListen(f"{directory} is not a directory. Choose another --listen.")
    if status.st_uid == os.getuid() and not status.st_mode & 0o077:
        return
    raise CannotListen(
        f"others can enter {directory}, and everybody who reaches the socket can run code as you. "
        f"Listen in a directory of your own, such as unix://{directory}/jaxd/server.sock, or, "
        f"if nobody else needs this one, run: chmod 700 {directory}"
    )


def _refuse_link(directory: str) -> None:
    """Refuses a link of another user, who could change its target at any moment."""
    status = os.lstat(directory)
    if stat.S_ISLNK(status.st_mode) and status.st_uid not in (0, os.getuid()):
        raise CannotListen(
            f"{directory} is a link that another user has made, and can change. Name the folder "
            "itself, or listen in another one."
        )


def _check_guarded(directory: str, *, entered: bool) -> None:
    """Makes a directory that others may enter but not change, or refuses the one that is there."""
    try:
        if not os.path.lexists(directory):
            os.makedirs(directory)
            os.chmod(directory, 0o711)  # noqa: S103  others may enter it, and not list it
        status = os.stat(directory)
    except OSError as error:
        raise CannotListen(
            f"cannot make the directory {directory}: {error.strerror}. Choose another --listen."
        ) from error
    _refuse_link(directory)
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise CannotListen(
            f"others can change the content of {directory}, and replace the socket by their own. "
            "Listen in a directory of your own, or, if nobody else needs this one, run: "
            f"chmod 711 {directory}"
        )
    if entered and not status.st_mode & 0o011:
        raise CannotListen(
            f"with --allow-uid others have to enter {directory}, and they cannot. Run: "
            f"chmod 711 {directory}   (or choose another --listen)."
        )


def _remove_stale_socket(path: str) -> None:
    """Removes the socket file of a server that has ended; refuses any other file."""
    if not os.path.lexists(path):
        return
    if has_listener(path):
        raise CannotListen(
            f"a server already answers at {path}. Run `jaxd stop` or choose another --listen."
        )
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise CannotListen(f"{path} exists and is no socket. Remove it or choose another --listen.")
    os.unlink(path)


def _remove(path: str, ours: tuple[int, int]) -> None:
    """Removes the socket file, unless it was replaced by another one."""
    with suppress(OSError):  # it is removed already
        if _identity(path) == ours:
            os.unlink(path)


@contextmanager
def _tcp_socket(address: Address) -> Iterator[Listener]:
    with _explaining_errors(address):
        listening = _bound_tcp(address)
    with listening:
        port = listening.getsockname()[1]
        yield Listener(address._replace(port=port), listening)


def _bound_tcp(address: Address) -> socket.socket:
    found = socket.getaddrinfo(*address.place, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    # a name may have addresses of both families, and every client tries IPv4
    family, _, _, _, place = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    return socket.create_server(place, family=family, backlog=socket.SOMAXCONN, dualstack_ipv6=both)


@contextmanager
def _explaining_errors(address: Address) -> Iterator[None]:
    try:
        yield
    except CannotListen:
        raise
    except OSError as error:
        raise _cannot_listen(address, error) from error


def _cannot_listen(address: Address, error: OSError) -> CannotListen:
    """The exception for `error`."""
    if error.errno == errno.EADDRINUSE:
        return CannotListen(
            f"another program listens on port {address.port} of {address.host}. Stop it, or choose "
            f"another port: --listen {address._replace(port=0)} takes a free one."
        )
    if error.errno in _DISK_FULL:
        return CannotListen(
            f"cannot listen on {address}: no room on its disk. "
            f"Free some, or choose another --listen."
        )
    if error.errno == errno.EACCES:
        return CannotListen(f"not allowed to listen on {address}. Choose another --listen.")
    return CannotListen(
        f"cannot listen on {address}: {error.strerror or error}. Choose another --listen."
    )
