"""What becomes of a call whose connection was lost: it is repeated, or its caller told why not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from jaxd.pending import Unsent
from jaxd_protocol.errors import ConnectionLost, WorkerLost

if TYPE_CHECKING:
    from jaxd.encoded import Encoded

__all__ = ["Losses"]

_MOST: Final = 16

Worker = tuple[Any, ...]
"""Names one worker of one server: its epoch and its process."""


class Losses:
    """How often one call was lost. For one thread at a time.

    A call that a worker died of is repeated on the next one, which is told so and runs it alone: it
    is for the server to say that the call is what workers die of. When only a connection was lost,
    the call is repeated once.

    Args:
        name: what people call the function.
    """

    __slots__ = ("_connections", "_lost_with", "_name", "_unsent", "_workers")

    def __init__(self, name: str) -> None:
        self._name = name
        self._lost_with: Worker | None = None
        self._workers = 0
        self._connections = 0
        self._unsent = 0

    def note(self, error: ConnectionLost, worker: Worker | None) -> None:
        """The connection ended while the call was under way.

        Args:
            error: says so.
            worker: that it was under way to; None when nothing of it was sent.

        Raises:
            ConnectionLost: when it could not be sent again and again.
        """
        if worker is not None and not isinstance(error, Unsent):
            self._lost_with = worker
            return
        self._unsent += 1
        if self._unsent >= _MOST:
            raise ConnectionLost(
                f"the connection to the server was lost {_MOST} times while {self._name} was being "
                "sent. See the server's log, and whether what lies in between ends connections."
            ) from error

    def repeated(self, call: Encoded, worker: Worker) -> Encoded:
        """The call as it is to be sent to a worker.

        Raises:
            WorkerLost: when too many workers have died during it.
            ConnectionLost: when its connection was lost twice.
        """
        if self._lost_with is None:
            return call
        if worker == self._lost_with:
            self._connections += 1
        else:
            self._workers += 1
        self._lost_with = None
        if self._connections > 1:
            raise ConnectionLost(
                f"the connection to the server was lost while {self._name} was under way, and "
                "again when the call was repeated. See the server's log, and whether what lies in "
                "between ends connections."
            )
        if self._workers > _MOST:
            raise WorkerLost(
                f"{self._workers} workers of the server have ended while {self._name} was under "
                "way. See the server's log, and try it with JAXD_INLINE=1."
            )
        return call._replace(lost=self._workers) if self._workers else call
