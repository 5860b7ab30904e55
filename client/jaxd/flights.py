"""Calls on values, which return before they have run: in order, never twice, and a few at a time.

The reply of such a call is read by whoever needs it, or along with the next call. When the
connection is lost, all calls without a reply are sent again, in their order; the server knows which
of them it has run already.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from jaxd.flight import Flight
from jaxd_protocol.calls import KNOWS_FORM
from jaxd_protocol.errors import ConnectionLost, JaxdError, WorkerLost

if TYPE_CHECKING:
    from jaxd.pending import Pending
    from jaxd.routes import Load, Routes
    from jaxd.transport import ClientConnection

__all__ = ["AHEAD", "Flights"]

AHEAD: Final = 8
"""Calls of one session that are on their way at the same time."""

_ATTEMPTS: Final = 4

Connect = Callable[[], "ClientConnection"]


class Flights:
    """The calls on values of one session. Thread-safe.

    Args:
        connect: the connection of this session; raises `ValuesLost` when there is none any more.
        routes: how large arrays travel.
        take_drops: what to tell the server along with a call.
        arrived: told when a reply has been read, by whoever reads.
    """

    def __init__(
        self,
        connect: Connect,
        routes: Routes,
        take_drops: Callable[[], bytes],
        arrived: Callable[[ClientConnection, int, bool], None],
    ) -> None:
        self._connect = connect
        self._routes = routes
        self._take_drops = take_drops
        self._arrived = arrived
        self._open: dict[int, Flight] = {}
        self._lock = threading.RLock()  # guards _open, and the order in which calls are sent

    def after_fork(self) -> None:
        """In the child of a fork: nobody else holds the lock."""
        self._lock = threading.RLock()

    def launch(self, flight: Flight) -> None:
        """Sends a call; waits while as many are on their way as may be.

        Raises:
            ValuesLost: when the session is gone.
            JaxdError: when it cannot be sent.
        """
        try:
            self._make_room()
            with suppress(ConnectionLost):  # not under the lock: the server may be asked something
                self._load(flight, self._connect())
            with self._lock:
                connection = self._connect()
                self._recover()  # what was lost comes first
                flight.renumber()
                self._open[flight.number] = flight
                try:
                    self._send(flight, connection)
                except ConnectionLost:
                    self._recover()
        except BaseException as error:
            self._open.pop(flight.number, None)
            flight.fail(error)
            raise

    def _make_room(self) -> None:
        while True:
            with self._lock:
                oldest = next(iter(self._open.values()), None)
                if oldest is None or len(self._open) < AHEAD:
                    return
            self.wait(oldest)

    def wait(self, flight: Flight, deadline: float | None = None) -> None:
        """Returns when a call is done, one way or the other.

        Raises:
            DeadlineExceeded: when `time.monotonic()` passes the deadline first.
            JaxdError: when the server cannot be reached any more.
        """
        while not flight.done:
            connection, pending = flight.connection, flight.pending
            if connection is not None and pending is not None:
                connection.await_reply(pending, deadline)
                if pending.done:  # who has read it may not be that far, or be interrupted
                    self._on_reply(flight, connection, pending)
            if not flight.done:
                self._recover()

    def abandon(self, flight: Flight, ended: Callable[[Flight], None]) -> None:
        """Nobody waits for a call any more; one that would have to be sent again is forgotten.

        Args:
            flight: the call.
            ended: called when it is done, if that will ever be.
        """
        with self._lock:
            if self._is_stranded(flight):
                self._open.pop(flight.number, None)
                flight.fail(ConnectionLost("the connection to the server was lost. Call again."))
            elif not flight.done:
                flight.ended = ended

    def wait_for_all(self) -> list[Flight]:
        """Waits for all that are on their way; returns them."""
        with self._lock:
            flights = list(self._open.values())
        for flight in flights:
            self.wait(flight)
        return flights

    def fail_all(self, error: JaxdError) -> None:
        """The session is gone, and with it what these calls were made for."""
        with self._lock:
            for flight in list(self._open.values()):
                self._open.pop(flight.number, None)
                flight.fail(error)

    def _load(self, flight: Flight, connection: ClientConnection) -> Load:
        load = self._routes.load(flight.call, connection, spare=True, copied=flight.is_copied)
        if flight.is_copied:
            load = load._replace(buffers=[memoryview(bytes(one)) for one in load.buffers])
        flight.load = load
        return load

    def _send(self, flight: Flight, connection: ClientConnection) -> None:
        number = connection.number()
        flight.connection = connection
        flight.attempts += 1
        flight.request = number
        load = flight.load
        if load is None or not self._routes.announce(connection, load.places):
            if load is not None:
                load.release()
            load = self._load(flight, connection)
        if flight.attempts == 1:
            flight.drops = self._take_drops()
        is_first = flight.attempts == 1  # later, what was told is perhaps not known
        message = flight.call.message(
            load.rows,
            next(iter(self._open)),
            flight.drops,
            flight.told if is_first else None,
            KNOWS_FORM if is_first and flight.skeleton is not None else 0,
        )
        flight.pending = connection.launch(
            "call",
            message,
            load.buffers,
            lambda pending: self._on_reply(flight, connection, pending),
            number,
            attended=flight.ended is not None,
        )

    def _recover(self) -> None:
        """Sends again, in order, what was on its way when a connection was lost."""
        with self._lock:
            while self.has_stranded():
                connection = self._connect()
                try:
                    for flight in list(self._open.values()):
                        if self._is_stranded(flight):
                            self._again(flight, connection)
                except ConnectionLost:
                    continue

    def has_stranded(self) -> bool:
        """Whether calls were on their way when a connection was lost, and were not sent again."""
        return any(self._is_stranded(flight) for flight in list(self._open.values()))

    def _is_stranded(self, flight: Flight) -> bool:
        return not flight.done and (flight.connection is None or not flight.connection.alive)

    def _again(self, flight: Flight, connection: ClientConnection) -> None:
        if flight.attempts < _ATTEMPTS:
            return self._send(flight, connection)
        self._open.pop(flight.number, None)
        return flight.fail(
            WorkerLost(
                f"the connection to the server was lost {_ATTEMPTS} times while {flight.name} "
                "was on its way. The function may be what ends it: see the server's log."
            )
        )

    def _on_reply(self, flight: Flight, connection: ClientConnection, pending: Pending) -> None:
        """Called by whoever reads, and by who waits: perhaps twice."""
        if flight.connection is not connection:
            return
        if isinstance(pending.error, ConnectionLost):
            self._arrived(connection, flight.request, False)
            if flight.ended is not None:
                threading.Thread(target=self._repeat, name="jaxd-repeat", daemon=True).start()
            return
        if flight.done:
            pass
        elif pending.error is not None or pending.frame is None:
            flight.fail(pending.error or ConnectionLost("the connection was closed."))
        else:
            flight.settle(pending.value, pending.frame.buffers)
        self._open.pop(flight.number, None)
        self._arrived(connection, flight.request, flight.error is None)

    def _repeat(self) -> None:
        """Sends again what nobody waits for, in a thread of its own: whoever reads must go on."""
        try:
            self._recover()
        except BaseException as error:  # noqa: BLE001  their owners decide about it
            for flight in list(self._open.values()):
                if flight.ended is not None and self._is_stranded(flight):
                    self._open.pop(flight.number, None)
                    flight.fail(error)
