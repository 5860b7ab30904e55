"""From an address to an open, authenticated connection, with TLS where its kind is tls."""

from __future__ import annotations

import errno
import os
import socket
import stat
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

from jaxd.connection.connection import ClientConnection
from jaxd.connection.settings import Settings
from jaxd_protocol.base.process import start_thread
from jaxd_protocol.errors import (
    AuthenticationFailed,
    Busy,
    ConfigurationError,
    DeadlineExceeded,
    JaxdError,
    NoServer,
    ProtocolError,
)
from jaxd_protocol.network.addresses import Address, relay_greeting
from jaxd_protocol.network.handshake import UNIX, ChannelBinding, handshake_with_server, peer_uid
from jaxd_protocol.wire import stream_over

if TYPE_CHECKING:
    from concurrent.futures import Future

    from jaxd.connection.server_requests import ServerRequestHandler
    from jaxd_protocol.wire.tls_socket import TlsSocket

    Connected = socket.socket | TlsSocket


HANDSHAKE_TIMEOUT_S = 60.0
"""A worker that has just been replaced imports jax first; its listener keeps us waiting."""

CONNECT_TIMEOUT_S = 10.0

_SERVER_FULL_REASONS: Final = ("TLSV1_ALERT_INTERNAL_ERROR", "BAD_RECORD_TYPE")
"""What OpenSSL says of the alert of a server without room, before that has keys for a message.

The second where this end has keys already, and expects nothing in plain text.
"""


class Patience:
    """How long each step of connecting may take, and all of them together.

    Args:
        deadline: `time.monotonic()` after which nobody waits for the connection; None: there is
            no other limit than that of each step.
    """

    __slots__ = ("_deadline",)

    def __init__(self, deadline: float | None = None) -> None:
        self._deadline = deadline

    def seconds(self, most: float) -> float:
        """For the next step, `most` at most.

        Raises:
            TimeoutError: when there is no time left.
        """
        if self._deadline is None:
            return most
        left_s = self._deadline - time.monotonic()
        if left_s <= 0.0:
            raise TimeoutError(errno.ETIMEDOUT, "the caller's time is over")
        return min(most, left_s)

    @property
    def is_endless(self) -> bool:
        """Whether there is no limit but that of each step."""
        return self._deadline is None

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return self._deadline is not None and time.monotonic() >= self._deadline


_NO_DEADLINE: Final = Patience()


def open_connection(
    address: Address,
    settings: Settings,
    session: str | None,
    handler: ServerRequestHandler,
    deadline: float | None = None,
) -> tuple[ClientConnection, dict[str, Any]]:
    """A connection past its handshake, and the server's welcome message.

    Args:
        address: of the server.
        settings: credentials and more.
        session: the session to resume; None: a new one.
        handler: handles the requests of the server.
        deadline: `time.monotonic()` after which nobody waits for it.

    Raises:
        NoServer: when nothing answers there.
        DeadlineExceeded: when that takes longer than the deadline allows.
        AuthenticationFailed, VersionMismatch, ProtocolError: when the handshake fails.
    """
    patience = Patience(deadline)
    try:
        return _opened(address, settings, session, handler, patience)
    except (NoServer, ProtocolError) as error:
        if not patience.is_over:
            raise
        raise connecting_too_long(str(address)) from error


def connecting_too_long(what: str) -> DeadlineExceeded:
    """The error of a call whose time is over before there is a connection."""
    return DeadlineExceeded(
        f"the call's timeout_s passed while {what} was being connected to. Give it more time, or "
        "see `jaxd status` and `jaxd doctor` for what the server does."
    )


def _opened(
    address: Address,
    settings: Settings,
    session: str | None,
    handler: ServerRequestHandler,
    patience: Patience,
) -> tuple[ClientConnection, dict[str, Any]]:
    line = dial(address, settings, patience)
    try:
        owner = None
        if address.kind == "unix" and isinstance(line, socket.socket):
            owner = peer_uid(line)
        welcome = _handshake(line, address, settings, session, patience)
        stream = stream_over(line)
    except BaseException:
        line.close()
        raise
    if address.is_network:
        stream.passes_descriptors = False  # ssh speaks with us over a Unix socket
    connection = ClientConnection(stream, int(welcome["max_frame_bytes"]), handler)
    connection.worker = (welcome.get("epoch"), welcome.get("pid"))
    connection.session = (*connection.worker, welcome.get("session"))
    connection.address = str(address)
    connection.owner = owner
    connection.welcome = welcome
    connection.notice = str(welcome.get("notice", ""))
    return connection, welcome


def probe(address: Address, settings: Settings) -> dict[str, Any]:
    """The welcome message of the server at `address`; the connection is closed again.

    Returns:
        `versions`, `python`, `epoch`, `pid`, `slots` and `max_frame_bytes` of the server.

    Raises:
        JaxdError: as `open_connection`.
    """
    line = dial(address, settings)
    try:
        welcome = _handshake(line, address, settings, None, _NO_DEADLINE)
    finally:
        line.close()
    peer = welcome.pop("peer")
    return {**welcome, "versions": dict(peer.versions), "python": list(peer.python)}


class _PatientStream:
    """A connection of which all steps together last no longer than somebody waits for it."""

    def __init__(self, line: Connected, patience: Patience) -> None:
        self._line = line
        self._patience = patience

    def recv(self, count: int, flags: int = 0, /) -> bytes:
        self._line.settimeout(self._patience.seconds(HANDSHAKE_TIMEOUT_S))
        return self._line.recv(count, flags)

    def sendall(self, data: bytes, /) -> None:
        self._line.settimeout(self._patience.seconds(HANDSHAKE_TIMEOUT_S))
        self._line.sendall(data)


def _handshake(
    line: Connected,
    address: Address,
    settings: Settings,
    session: str | None,
    patience: Patience,
) -> dict[str, Any]:
    began = time.monotonic()
    token = settings.read_token() if address.needs_token else None
    try:
        channel = _channel_binding(line, address)
        return handshake_with_server(
            _PatientStream(line, patience),
            channel,
            _package_versions(),
            token,
            session,
            settings.device,
        )
    except JaxdError:
        raise  # some of ours are OSErrors as well
    except TimeoutError as error:
        raise NoServer(
            f"the server at {address} accepted the connection but did not answer in "
            f"{time.monotonic() - began:.1f} s. See its log, or `jaxd status`."
        ) from error
    except (EOFError, OSError) as error:
        _check_has_room(error, address)
        raise ProtocolError(
            f"what listens at {address} closed the connection during the handshake: it is no "
            "jaxd server, or it is stopping. Check the address with `jaxd doctor`."
        ) from error


def _check_has_room(error: EOFError | OSError, address: Address) -> None:
    """Raises `Busy` where this is how a server without room ends a connection."""
    if getattr(error, "reason", None) in _SERVER_FULL_REASONS:
        raise Busy(
            f"the server at {address} has no room for one more that shakes hands ({error}). "
            "Come again in a moment."
        ) from error


def _channel_binding(line: Connected, address: Address) -> ChannelBinding:
    """The channel binding for authentication; over ssh, ssh has authenticated the server."""
    if isinstance(line, socket.socket):
        if address.kind == "tcp":
            return ChannelBinding("tcp", sock=line, insecure=address.insecure)
        return UNIX
    from jaxd_protocol.network.certificates import fingerprint_of

    return ChannelBinding("tls", fingerprint_of(line.peer_certificate()))


def _package_versions() -> dict[str, str]:
    """Versions of what is loaded; nothing is imported to find out."""
    loaded = [name for name in ("jax", "numpy") if hasattr(sys.modules.get(name), "__version__")]
    return {name: str(sys.modules[name].__version__) for name in loaded}


def dial(address: Address, settings: Settings, patience: Patience = _NO_DEADLINE) -> Connected:
    """A socket that is connected to a server.

    Over TLS, its certificate is the right one; a Unix socket is that of a trusted user.

    Args:
        address: of the server.
        settings: credentials and more.
        patience: how long it may take.

    Raises:
        NoServer: when nothing answers there, or not in time.
        AuthenticationFailed: when the certificate is not the one that it should be, or a Unix
            socket belongs to another user, or others can put theirs in its place.
        ProtocolError: when no TLS is spoken there.
        Busy: when TLS is, and the server has no room.
        ConfigurationError: when this system cannot reach such an address, or the CA file is not
            usable.
    """
    if address.kind == "ssh":
        from jaxd.connection.ssh import dial_over_ssh  # starts processes; few clients need it

        return dial_over_ssh(address, patience.seconds)
    try:
        if address.kind == "unix":
            return _dial_unix(address, patience.seconds(CONNECT_TIMEOUT_S))
        sock = _dial_tcp(address.place, patience)
    except JaxdError:
        raise  # some of ours are OSErrors as well
    except OSError as error:
        is_unknown = isinstance(error, socket.gaierror)
        advice = f"Correct the host (getent hosts {address.host})." if is_unknown else ""
        raise NoServer(
            f"no server answers at {address} ({error.strerror or error}). "
            f"{advice or address.advice}"
        ) from error
    if address.kind == "tcp":
        return sock
    try:
        if address.ticket:  # a relay passes nothing on before it has seen this
            sock.sendall(relay_greeting(address.ticket))
        return _with_tls(sock, address, settings, patience)
    except BaseException:
        sock.close()
        raise


def _dial_tcp(place: tuple[str, int], patience: Patience) -> socket.socket:
    """A connection to the first of a host's addresses that accepts one.

    Raises:
        OSError: when none does, or not in time, or the host has none.
    """
    failure = OSError(errno.EADDRNOTAVAIL, "it has no address")
    for family, kind, protocol, _, found in _addresses(place, patience):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(patience.seconds(CONNECT_TIMEOUT_S))
            sock.connect(found)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure


_AddressInfo = tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]


def _addresses(place: tuple[str, int], patience: Patience) -> Sequence[_AddressInfo]:
    """What the name of a host stands for.

    Raises:
        OSError: when it stands for nothing, or that is not known in time.
    """
    if patience.is_endless:
        return _looked_up(place)
    with suppress(socket.gaierror):  # it is no number
        return _looked_up(place, socket.AI_NUMERICHOST)
    key = (os.getpid(), *place)  # a child has none of its parent's threads
    lookup = _lookups.get(key) or _start_lookup(key)
    left_s = patience.seconds(CONNECT_TIMEOUT_S)
    try:
        return lookup.result(left_s)
    except TimeoutError as error:
        if lookup.done():  # in time after all, or that is its own error
            return lookup.result()
        why = f"the lookup of {place[0]} takes too long"
        raise TimeoutError(errno.ETIMEDOUT, why) from error


def _looked_up(place: tuple[str, int], flags: int = 0) -> Sequence[_AddressInfo]:
    return socket.getaddrinfo(*place, type=socket.SOCK_STREAM, flags=flags)


def _start_lookup(key: tuple[int, str, int]) -> Future[Sequence[_AddressInfo]]:
    """Looks a name up in a thread of its own: the system's lookup has no limit that one could set.

    It is left behind when the caller's time is over; whoever asks next waits for the same one.

    Args:
        key: process, host and port.

    Raises:
        Busy: when there is no thread for it.
    """
    from concurrent.futures import Future

    from jaxd.connection.call_future import complete  # most connections need neither

    lookup: Future[Sequence[_AddressInfo]] = Future()

    def run() -> None:
        _lookups[key] = lookup
        complete(lookup, partial(_looked_up, key[1:]))
        _lookups.pop(key, None)

    start_thread(Thread(target=run, name="jaxd-lookup", daemon=True))
    return lookup


_lookups: Final[dict[tuple[int, str, int], Future[Sequence[_AddressInfo]]]] = {}
"""Those under way; each access is atomic."""


def _dial_unix(address: Address, timeout_s: float) -> socket.socket:
    family = getattr(socket, "AF_UNIX", None)
    if family is None:
        raise ConfigurationError(
            "this system has no Unix sockets. Use a tcp:// or tls:// address for the server."
        )
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.connect(address.path)
        check_owner(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


def check_owner(sock: socket.socket, address: Address) -> None:
    """Returns when a Unix socket is this user's, root's, or of the user in the address.

    As `check_owner` of `jaxd.connection.ssh_relay`, which does it at the far end of ssh.

    Raises:
        AuthenticationFailed: when it is not, or others can write in its folder.
    """
    trusted = {0, os.getuid(), address.uid}
    folder = os.path.dirname(address.path)
    found = os.stat(folder)
    owner = peer_uid(sock)
    if owner is None:  # not known on this system: the user who can put a socket there, then
        owner = found.st_uid
    if owner not in trusted:
        raise AuthenticationFailed(
            f"user {owner} listens at {address}, and not you or root: it may be somebody who took "
            "the server's place. Nothing was sent. If it is the user of the server that you mean, "
            f"say so in its address: {address._replace(uid=owner)}"
        )
    if found.st_uid not in trusted or stat.S_IMODE(found.st_mode) & 0o022:
        raise AuthenticationFailed(
            f"others can put a socket of theirs into {folder} (user {found.st_uid}, mode "
            f"{stat.S_IMODE(found.st_mode):04o}). Nothing was sent. Have the server listen in a "
            "folder in which only its user can write (chmod 755 or less), and use that address."
        )


def _with_tls(
    sock: socket.socket, address: Address, settings: Settings, patience: Patience
) -> TlsSocket:
    import ssl

    from jaxd_protocol.network.certificates import over_tls
    from jaxd_protocol.wire.tls_socket import TlsSocket

    ca_file = os.path.expanduser(settings.ca_file) if settings.ca_file else None
    try:
        return over_tls(TlsSocket, sock, address, patience.seconds(CONNECT_TIMEOUT_S), ca_file)
    except ssl.SSLCertVerificationError as error:
        raise AuthenticationFailed(
            f"the certificate of the server at {address} is not trusted here "
            f"({error.verify_message}). Nothing was sent. If the server made it for itself, use "
            "the address that it printed when it started, with #sha256=…; if a CA of your own has "
            "signed it, set JAXD_CA_FILE to the CA's certificate."
        ) from error
    except JaxdError:
        raise
    except (EOFError, OSError) as error:
        _check_has_room(error, address)
        raise ProtocolError(
            f"what listens at {address} does not speak TLS 1.3 ({error}). Use tcp:// if the server "
            f"was started so, else check the address with: jaxd doctor --server {address}"
        ) from error
