"""Retries of calls: after a lost connection, and with backoff while the server is busy."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from jaxd.connection.shared_reader import NotSent
from jaxd_protocol.errors import ConnectionLost, WorkerLost

if TYPE_CHECKING:
    from jaxd.request.call_request import CallRequest


_MAX_LOSSES: Final = 16

_MAX_BUSY_S: Final = 60.0
"""For so long a call that has no `timeout_s` is repeated before it fails."""

_MAX_FACTOR: Final = 8.0
_JITTER: Final = (0.5, 1.5)

WorkerKey = tuple[Any, ...]
"""Names one worker of one server: its epoch and its process."""


class RetryLimits:
    """Limits how often one call is repeated. For one thread at a time.

    A call during which a worker died is repeated on the next one, which learns this from its flags
    and runs it alone: the server decides whether the call is what ends workers. When only a
    connection was lost, the call is repeated once.

    Args:
        name: what people call the function.
    """

    __slots__ = ("_failed_sends", "_last_worker", "_lost_connections", "_lost_workers", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._last_worker: WorkerKey | None = None
        self._lost_workers = 0
        self._lost_connections = 0
        self._failed_sends = 0

    def record(self, error: ConnectionLost, worker: WorkerKey | None) -> None:
        """Records that the connection was lost while the call was open.

        Args:
            error: the loss.
            worker: the one that it was sent to; None when nothing of it was sent.

        Raises:
            ConnectionLost: when it could not be sent again and again.
        """
        if worker is not None and not isinstance(error, NotSent):
            self._last_worker = worker
            return
        self._failed_sends += 1
        if self._failed_sends >= _MAX_LOSSES:
            raise ConnectionLost(
                f"the connection to the server was lost {_MAX_LOSSES} times while "
                f"{self._name} was being sent. See the server's log, and whether what lies in "
                "between ends connections."
            ) from error

    def prepare_retry(self, call: CallRequest, worker: WorkerKey) -> CallRequest:
        """The request to send to a worker now, after counting the last loss.

        Raises:
            WorkerLost: when too many workers have died during it.
            ConnectionLost: when its connection was lost twice.
        """
        if self._last_worker is None:
            return call
        if worker == self._last_worker:
            self._lost_connections += 1
        else:
            self._lost_workers += 1
        self._last_worker = None
        if self._lost_connections > 1:
            raise ConnectionLost(
                f"the connection to the server was lost while {self._name} was under way, and "
                "again when the call was repeated. See the server's log, and whether what lies in "
                "between ends connections."
            )
        if self._lost_workers > _MAX_LOSSES:
            raise WorkerLost(
                f"{self._lost_workers} workers of the server have ended while {self._name} was "
                "under way. See the server's log, and try it with JAXD_INLINE=1."
            )
        return call._replace(lost_workers=self._lost_workers) if self._lost_workers else call


class BusyBackoff:
    """Computes when one call is sent again to a busy server.

    The server gives the time; each client adds a jitter of its own.

    Args:
        deadline: `time.monotonic()` after which its caller does not wait; None: after a minute.
    """

    def __init__(self, deadline: float | None) -> None:
        self._deadline = time.monotonic() + _MAX_BUSY_S if deadline is None else deadline
        self._factor = 1.0

    def pause_s(self, retry_after_s: float) -> float | None:
        """Seconds to wait before the next attempt; None when that would be too late.

        Args:
            retry_after_s: the time that the server gave.
        """
        import random  # a server seldom is busy, and this takes longer to import than all else

        pause_s = retry_after_s * self._factor * random.uniform(*_JITTER)  # noqa: S311  no secret
        self._factor = min(_MAX_FACTOR, 2 * self._factor)  # all clients may have got the same time
        return pause_s if time.monotonic() + pause_s < self._deadline else None
