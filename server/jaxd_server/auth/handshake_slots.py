"""Slots for peers that are not authenticated yet; when all are taken, one of them is evicted.

Only the address of an unauthenticated peer is known, so an attacker cannot be distinguished from a
slow client. A slot is taken from the address that has most of them, and there from the peer that
has sent least, and longest ago. A client without delay in its handshake keeps its slot, even if
silent connections come from its own address.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from jaxd_protocol.errors import AuthenticationFailed, Busy, VersionMismatch
from jaxd_protocol.network.handshake import ByteStream, refuse_client

MAX_HANDSHAKES: Final = 64
"""Handshakes in progress at a time on a listener that requires a token."""

FIRST_BYTES_S: Final = 2.0
"""The timeout of the first bytes of a peer: a jaxd client sends them when it connects."""

_MIN_SLOT_S: Final = 1.0
"""A peer that has sent something keeps its slot so long against others of its address."""

_RETRY_S: Final = 1.0
_REPLY_TIMEOUT_S: Final = 1.0
_MAX_UNREAD: Final = 1 << 13

_CLIENT_ERRORS: Final = (AuthenticationFailed, VersionMismatch)
"""Errors that were already sent to the peer when they are raised."""

_ALERT: Final = bytes((21, 3, 3, 0, 2, 2, 80))
"""The fatal TLS alert *internal error*, the only message before there are keys (RFC 8446, 6)."""


@dataclass(slots=True, eq=False)
class UnauthenticatedPeer:
    """A peer that is not authenticated yet.

    Attributes:
        sock: its connection.
        place: the key of its address, see `rate_limit_key`.
        line: for an error; None until TLS is set up.
        came_at: when it connected.
        is_evicted: whether it has lost its slot.
        stage: of its handshake: 0 it has sent nothing, 1 some bytes, 2 it uses jaxd's
            protocol; TLS alone does not count.
    """

    sock: socket.socket
    place: str
    line: ByteStream | None
    came_at: float
    is_evicted: bool = False
    stage: int = 0

    @property
    def worth(self) -> tuple[int, float]:
        """The peer with the lowest worth is evicted first."""
        return self.stage, self.came_at


class HandshakeSlots:
    """The handshakes in progress on one listener. Thread-safe.

    Args:
        most: the number of slots.
        clock: seconds that only grow.
    """

    def __init__(
        self, most: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit = MAX_HANDSHAKES if most is None else most
        self._clock = clock
        self._peers: dict[UnauthenticatedPeer, None] = {}  # in the order of their connections
        self._lock = threading.Lock()  # guards it, and `is_evicted` of its peers

    @contextmanager
    def acquire(
        self, sock: socket.socket, place: str, *, tls: bool = False
    ) -> Iterator[UnauthenticatedPeer]:
        """Holds a slot for the block. A peer that is evicted reads the end of its connection.

        Args:
            sock: its connection.
            place: the key of its address.
            tls: whether TLS has to be set up before an error can be sent.

        Raises:
            Busy: when no slot was free, or it was evicted; the error was sent.
            TimeoutError: when it was too slow; it was asked to connect again.
        """
        stranger = UnauthenticatedPeer(sock, place, None if tls else sock, self._clock())
        if not self._acquire(stranger):
            raise _refusal_to(
                stranger, f"{self._limit} other handshakes are in progress, all of them recent."
            )
        try:
            yield stranger
        except TimeoutError:
            self._release(stranger)
            _refusal_to(stranger, "the handshake took too long.")
            raise
        except (EOFError, OSError) as error:
            if not self._release(stranger) or isinstance(error, _CLIENT_ERRORS):
                raise
            raise self._lost(stranger) from error
        finally:
            self._release(stranger)
        if stranger.is_evicted:
            raise self._lost(stranger)

    def _lost(self, stranger: UnauthenticatedPeer) -> Busy:
        return _refusal_to(
            stranger, f"more than {self._limit} handshakes are in progress, and others are faster."
        )

    def _acquire(self, stranger: UnauthenticatedPeer) -> bool:
        with self._lock:
            if len(self._peers) >= self._limit:
                other = self._choose_evicted(stranger)
                if other is None:
                    return False
                other.is_evicted = True
                del self._peers[other]
                with suppress(OSError):  # still open: its own thread closes it
                    other.sock.shutdown(socket.SHUT_RD)
            self._peers[stranger] = None
            return True

    def _choose_evicted(self, newcomer: UnauthenticatedPeer) -> UnauthenticatedPeer | None:
        """The peer that is evicted for a new one; None: none. The lock is held."""
        places = Counter(one.place for one in (*self._peers, newcomer))
        most = max(places.values())
        crowd = [one for one in self._peers if places[one.place] == most]
        other = min(crowd, key=lambda one: one.worth, default=None)
        if other is None or not other.stage or most > places[newcomer.place]:
            return other
        return other if newcomer.came_at - other.came_at >= _MIN_SLOT_S else None

    def _release(self, stranger: UnauthenticatedPeer) -> bool:
        """Frees the slot of a peer; returns whether it was evicted before."""
        with self._lock:
            self._peers.pop(stranger, None)
            return stranger.is_evicted


def refuse_busy(sock: socket.socket, line: ByteStream | None, error: Busy) -> None:
    """Asks a peer to connect again, without waiting for it; the caller closes its connection.

    Args:
        sock: the connection.
        line: for the error; None if TLS is not set up: then an alert is sent.
        error: the reason, and the delay.
    """
    with suppress(OSError):
        sock.settimeout(_REPLY_TIMEOUT_S)
        if line is None:
            sock.sendall(_ALERT)
        else:
            refuse_client(line, error)
        sock.setblocking(False)
        sock.recv(_MAX_UNREAD)  # closing with unread bytes could drop the answer


def _refusal_to(stranger: UnauthenticatedPeer, why: str) -> Busy:
    error = Busy(f"{why} Come again in a moment.", _RETRY_S)
    refuse_busy(stranger.sock, stranger.line, error)
    return error
