"""Retries: of calls after a lost connection, with backoff while busy, and of connecting."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jaxd.connection.shared_reader import NotSent
from jaxd_protocol.base.process import reset_after_fork
from jaxd_protocol.errors import (
    ConnectionLost,
    JaxdError,
    NoServer,
    ProtocolError,
    ServerStartFailed,
    WorkerLost,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxd.request.call_request import CallRequest
    from jaxd.transfer.routing import CallTransfer
    from jaxd.transfer.shared_memory import SharedBlock
    from jaxd_protocol.network.addresses import Address


_MAX_LOSSES: Final = 16

_MAX_BUSY_S: Final = 60.0
"""For so long a call that has no `timeout_s` is repeated before it fails."""

_MAX_FACTOR: Final = 8.0
_JITTER: Final = (0.5, 1.5)

WorkerKey = tuple[Any, ...]
"""Names one worker of one server: its epoch and its process; of a pool also the member."""

_OF_WORKER: Final = 2
"""So many of these are the worker's."""


class RetryLimits:
    """Limits how often one call is repeated. For one thread at a time.

    A call during which a worker died is repeated on the next one, which learns this from its flags
    and runs it alone: the server decides whether the call is what ends workers. When only a
    connection was lost, the call is repeated once; and often where the server could not be reached
    in between, for then it is not the call that ends connections. When a member of a pool was lost,
    it is repeated once on another one.

    Args:
        name: what people call the function.
    """

    __slots__ = (
        *("_failed_sends", "_last_worker", "_lost_connections", "_lost_in_outages"),
        *("_lost_members", "_lost_workers", "_name", "_outages"),
    )

    def __init__(self, name: str) -> None:
        self._name = name
        self._last_worker: WorkerKey | None = None
        self._lost_workers = 0
        self._lost_members = 0
        self._lost_connections = 0
        self._lost_in_outages = 0
        self._outages = 0
        self._failed_sends = 0

    def record(self, error: ConnectionLost, worker: WorkerKey | None, outages: int = 0) -> None:
        """Records that the connection was lost while the call was open.

        Args:
            error: the loss.
            worker: the one that it was sent to; None when nothing of it was sent.
            outages: how many there have been so far.

        Raises:
            ConnectionLost: when it could not be sent again and again.
        """
        self._outages = outages
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

    def prepare_retry(self, call: CallRequest, worker: WorkerKey, outages: int = 0) -> CallRequest:
        """The request to send to a worker now, after counting the last loss.

        Args:
            call: the request as it was.
            worker: where it goes.
            outages: how many there have been so far.

        Raises:
            WorkerLost: when too many workers have died during it, or two members of a pool.
            ConnectionLost: when its connection was lost twice, though the server could be reached.
        """
        if self._last_worker is None:
            return call
        if worker == self._last_worker:
            self._lost_in_outages += outages != self._outages
            self._lost_connections += outages == self._outages
        else:
            self._lost_workers += 1
            self._lost_members += worker[_OF_WORKER:] != self._last_worker[_OF_WORKER:]
        self._last_worker = None
        if self._lost_connections > 1 or self._lost_in_outages > _MAX_LOSSES:
            raise ConnectionLost(
                f"the connection to the server was lost while {self._name} was under way, and "
                "again when the call was repeated. See the server's log, and whether what lies in "
                "between ends connections."
            )
        if self._lost_members > 1:
            raise WorkerLost(
                f"two members of the pool were lost, one after the other, while {self._name} was "
                "under way; it is not tried on a third. See their logs (jaxd pool status), and try "
                "it with JAXD_INLINE=1."
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


USUAL_GRACE_S: Final = 60.0
"""How long a server keeps a session without a connection, where it has not said."""

_SOCKET_GONE_S: Final = 2.0
"""Nothing but a new server makes the file of a Unix socket again; it may be about to start."""

_SAID_AFTER_S: Final = 2.0
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 1.0
_PAUSE_SHARE: Final = 0.25
"""A pause is so much of the time that has passed, so that pauses grow."""

_SHORTEST_LOGIN_S, _LONGEST_LOGIN_S = 0.5, 10.0
_LOGIN_SHARE: Final = 0.5
"""Over ssh each attempt is a login: machines shut out who logs in too often."""


class Outage:
    """The time from the first failure to connect again until the next success. Thread-safe.

    Args:
        grace_s: how long the server keeps the session.
        clear_line: clears the line that shows the progress of a call.
    """

    def __init__(self, grace_s: float, clear_line: Callable[[], None] = lambda: None) -> None:
        self._grace_s = grace_s
        self._clear_line = clear_line
        self._began = time.monotonic()
        self._unsaid = [True]  # whichever thread takes it out says it

    @property
    def seconds(self) -> float:
        """How long it has lasted."""
        return time.monotonic() - self._began

    def pause_s(self, error: JaxdError, address: Address, deadline: float | None) -> float | None:
        """Seconds until the next attempt to connect; None: there is none.

        Args:
            error: why the last one failed.
            address: of the server.
            deadline: `time.monotonic()` after which the caller does not wait; None: as long as
                the session may live.
        """
        seconds = self.seconds
        left_s = _patience_s(error, address, self._grace_s) - seconds
        if deadline is not None:
            left_s = min(left_s, deadline - time.monotonic())
        shortest_s, longest_s, share = _SHORTEST_PAUSE_S, _LONGEST_PAUSE_S, _PAUSE_SHARE
        if address.kind == "ssh":
            shortest_s, longest_s, share = _SHORTEST_LOGIN_S, _LONGEST_LOGIN_S, _LOGIN_SHARE
        pause_s = min(longest_s, max(shortest_s, seconds * share))
        if left_s <= 0.0:
            return None
        import random  # as above

        pause_s *= random.uniform(*_JITTER)  # noqa: S311  no secret; all clients lost it at once
        if seconds >= _SAID_AFTER_S:
            self._say(f"{_reason(error, address)}. Trying again for {left_s:.0f} s more.")
        return min(pause_s, left_s)

    def end(self) -> None:
        """There is a connection again."""
        if not self._unsaid:
            self._print(f"connected again after {self.seconds:.1f} s.")

    def _say(self, text: str) -> None:
        with suppress(IndexError):
            self._unsaid.pop()
            self._print(text)

    def _print(self, text: str) -> None:
        """Writes a line, also where stderr is a file: a program that stands still says why."""
        self._clear_line()
        with suppress(AttributeError, OSError, ValueError):  # no stderr, or a closed one
            sys.stderr.write(f"jaxd: {text}\n")
            sys.stderr.flush()


def _patience_s(error: JaxdError, address: Address, grace_s: float) -> float:
    """For how long after such a failure it is tried again."""
    cause = error.__cause__
    if isinstance(error, ProtocolError):
        return grace_s if is_broken_off(error) else 0.0
    if isinstance(error, ServerStartFailed) or isinstance(cause, PermissionError):
        return 0.0  # only a person can change that
    if isinstance(cause, FileNotFoundError) and not address.is_network:
        return min(grace_s, _SOCKET_GONE_S)
    # without a cause the server has refused, or a local one cannot be started
    return grace_s if cause is not None or address.is_network else 0.0


def is_broken_off(error: ProtocolError) -> bool:
    """Whether a handshake ended too early; else something answers, and it is no server."""
    import ssl

    cause = error.__cause__
    if isinstance(cause, ssl.SSLError):
        return isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError)
    return isinstance(cause, EOFError | OSError)


def _reason(error: JaxdError, address: Address) -> str:
    cause: Any = error.__cause__
    why = getattr(cause, "strerror", None) or str(cause or "") or "no server answers"
    return f"waiting for the server at {address._replace(pin='')} ({why})"


def outlasted(error: JaxdError, address: Address, seconds: float) -> JaxdError:
    """The error for the caller when it is not tried again."""
    if not isinstance(error, ProtocolError) or not is_broken_off(error):
        return error
    found = NoServer(
        f"the server at {address} has answered before, and now each connection to it ends during "
        f"the handshake, for {seconds:.0f} s so far: it is stopping, or something in between takes "
        "connections for it while it does not run. Try again later, or look for the cause with "
        "`jaxd doctor`."
    )
    found.__cause__ = error
    return found


MAX_COPY_BYTES: Final = 1 << 28
"""What the open calls of a process may copy for this, all together: 256 MiB."""


class RetryBudget:
    """A byte budget for copies. Thread-safe.

    Args:
        most: bytes.
    """

    def __init__(self, most: int = MAX_COPY_BYTES) -> None:
        self._limit = most
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """In the child of a fork: calls and lock are the parent's."""
        self._free = self._limit
        self._lock = threading.Lock()

    def reserve(self, nbytes: int) -> bool:
        """Whether there is so much; to be given back if so."""
        with self._lock:
            fits = nbytes <= self._free
            if fits:
                self._free -= nbytes
            return fits

    def release(self, nbytes: int) -> None:
        """These copies are gone."""
        with self._lock:
            self._free = min(self._limit, self._free + nbytes)  # a fork's parent may have taken it


class RetryCopy(NamedTuple):
    """A request whose data cannot change any more.

    Attributes:
        call: the call.
        blocks: shared memory in which some of its data lies, one share for each time.
        nbytes: what was copied of the rest.
        budget: where this was taken.
    """

    call: CallRequest
    blocks: Sequence[SharedBlock]
    nbytes: int
    budget: RetryBudget

    @classmethod
    def of(cls, call: CallRequest, transfer: CallTransfer, budget: RetryBudget) -> RetryCopy | None:
        """That of a call. To be released.

        Arrays of jax do not change, whatever jax has made them of; what lies in shared memory is a
        copy; the rest is copied.

        Args:
            call: the call.
            transfer: its data, which was loaded just now so that the caller may change it.
            budget: for copies.

        Returns:
            None where there is no room.
        """
        from jaxd.transfer.routing import owned_buffers  # there is data to transfer

        in_blocks = transfer.in_blocks()
        owned = list(owned_buffers(call))
        stays = in_blocks.keys() | call.sources.keys()
        nbytes = sum(len(data) for owner, data in owned if owner not in stays)
        if not budget.reserve(nbytes):
            return None
        try:
            buffers = [
                in_blocks.get(owner, data)[: len(data)]
                if owner in stays
                else memoryview(bytes(data))
                for owner, data in owned
            ]
        except BaseException as error:
            budget.release(nbytes)
            if isinstance(error, MemoryError):
                return None
            raise
        blocks = [block for block, _ in transfer.places]
        for block in blocks:
            block.retain()
        return cls(call._replace(buffers=buffers), blocks, nbytes, budget)

    def release(self) -> None:
        """The call is not made again."""
        for block in self.blocks:
            block.release()
        self.budget.release(self.nbytes)
