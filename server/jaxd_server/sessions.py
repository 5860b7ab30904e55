"""Sessions: one client process each, outliving its connections."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field

__all__ = ["Session", "Sessions"]


@dataclass(slots=True, eq=False)
class Session:
    """What the server keeps for one client process.

    Attributes:
        id: names the session to the client, and is hard to guess: who knows it may resume it.
        principal: who the client is allowed to be, such as `uid:1000`.
        connections: how many are open.
        left_at: `time.monotonic()` when the last one ended.
        met: serial numbers of the executables that it has used.
    """

    id: str
    principal: str
    connections: int = 0
    left_at: float = field(default_factory=time.monotonic)
    met: set[int] = field(default_factory=set)


class Sessions:
    """The open sessions, and those whose client may still come back. Thread-safe.

    Args:
        grace_s: seconds that a session outlives its last connection.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._sessions: dict[str, Session] = {}
        self._left_at = time.monotonic()
        self._lock = threading.Lock()  # guards both of these and the fields of each session

    def enter(self, wanted: str | None, principal: str) -> Session:
        """The session `wanted` when this principal left it not too long ago, else a new one."""
        with self._lock:
            self._forget_expired()
            session = self._sessions.get(wanted or "")
            if session is None or session.principal != principal:
                session = Session(os.urandom(16).hex(), principal)
                self._sessions[session.id] = session
            session.connections += 1
            return session

    def leave(self, session: Session, *, for_good: bool = False) -> None:
        """One connection of the session ended; `for_good` when its client cannot come back."""
        with self._lock:
            session.connections -= 1
            session.left_at = self._left_at = time.monotonic()
            if for_good and not session.connections:
                self._sessions.pop(session.id, None)
            self._forget_expired()

    @property
    def quiet_s(self) -> float:
        """Seconds since a connection ended last, or since the start."""
        return time.monotonic() - self._left_at

    @property
    def connections(self) -> int:
        """Number of open connections."""
        with self._lock:
            return sum(session.connections for session in self._sessions.values())

    def __len__(self) -> int:
        with self._lock:
            self._forget_expired()
            return len(self._sessions)

    def _forget_expired(self) -> None:
        oldest = time.monotonic() - self._grace_s
        for session in list(self._sessions.values()):
            if not session.connections and session.left_at < oldest:
                del self._sessions[session.id]
