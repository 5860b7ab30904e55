"""Calls on values, which return before they have run: in order, never twice, and a few at a time.

The reply of such a call is read by whoever needs it, or along with the next call. When the
connection is lost, all calls without a reply are sent again, in their order; the server knows which
of them it has run already.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from jaxd.flight import Flight
from jaxd.pending import Pending
from jaxd_protocol.errors import ConnectionLost, JaxdError

if TYPE_CHECKING:
    from jaxd.drops import Drops
    from jaxd.routes import Load, Routes
    from jaxd.transport import ClientConnection

__all__ = ["AHEAD", "Flights"]

AHEAD: Final = 8
"""Calls of one session that are on their way at the same time."""

_ATTEMPTS: Final = 16

Connect = Callable[[], "ClientConnection"]


class Flights:
    """The calls on values of one session. Thread-safe.

    Args:
        connect: the connection of this session; raises `ValuesLost` when there is none any more.
        routes: how large arrays travel.
        drops: what to tell the server along with a call.
        arrived: told when a reply has been read, by whoever reads; whether there is a result.
    """

    def __init__(
        self,
        connect: Connect,
        routes: Routes,
        drops: Drops,
        arrived: Callable[[ClientConnection, Flight, bool], None],
    ) -> None:
        self._connect = connect
        self._routes = routes
        self._drops = drops
        self._arrived = arrived
        self._open: dict[int, Flight] = {}
        self._over: deque[Flight] = deque()  # those whose end somebody wants to be told of
        self._lock = threading.RLock()  # guards _open, and the order in which calls are sent
        self._holder: int | None = None

    def after_fork(self) -> None:
        """In the child of a fork: nobody else holds the lock."""
        self._lock = threading.RLock()
        self._holder = None
        self._over.clear()
        for flight in list(self._open.values()):
            flight.after_fork()

    @contextmanager
    def _in_order(self) -> Iterator[None]:
        """Holds the lock; what ends meanwhile is told afterwards."""
        try:
            with self._lock:
                outer = self._holder
                try:
                    self._holder = threading.get_ident()
                    yield
                finally:
                    self._holder = outer
        finally:
            self._tell()

    def _tell(self) -> None:
        """Tells of what is over, but not under the lock: who is told may make calls."""
        while self._over and self._holder != threading.get_ident():
            with suppress(IndexError):  # somebody else tells of it
                self._over.popleft().tell()

    def _end(self, flight: Flight, end: Callable[[BaseException], None], error: Any) -> None:
        self._open.pop(flight.number, None)
        end(error)
        self._over.append(flight)
        self._drops.retry()  # what was let go of may have waited for it

    def launch(self, flight: Flight) -> None:
        """Sends a call; waits while as many are on their way as may be.

        Raises:
            ValuesLost: when the session is gone.
            JaxdError: when it cannot be sent.

        Interrupted when it may have been sent, it is still to be abandoned.
        """
        try:
            self._make_room()
            with suppress(ConnectionLost):  # not under the lock: others may have to be told
                connection = self._connect()
                connection.take_what_is_here()
                self._load(flight, connection)
            with self._in_order():
                connection = self._connect()
                self._recover()  # what was lost comes first
                flight.renumber()
                flight.connection = connection  # first: for others it is not stranded
                self._open[flight.number] = flight
                try:
                    self._send(flight, connection)
                except ConnectionLost:
                    self._recover()
        except BaseException as error:
            self._not_launched(flight, error)
            raise

    def _not_launched(self, flight: Flight, error: BaseException) -> None:
        self._open.pop(flight.number, None)  # also when it is on its way: nobody sends it again
        if flight.is_sent:
            if isinstance(error, JaxdError):
                flight.lose(error)
            return
        flight.refuse(error)
        if flight.drops:
            self._drops.put_back(flight.drops)

    def _make_room(self) -> None:
        while len(flights := list(self._open.values())) >= AHEAD:
            self.wait(flights[0])

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
            ended: called when it is done, at once when it is.
        """
        with self._in_order():
            flight.ended = ended
            if self._is_stranded(flight):
                lost = ConnectionLost("the connection to the server was lost. Call again.")
                self._end(flight, flight.lose, lost)
            elif flight.done:
                self._over.append(flight)
        connection, pending = flight.connection, flight.pending
        if not flight.done and connection is not None and pending is not None:
            connection.leave(flight.request, pending)
            self.cancel(flight)
            if pending.done:  # who has read it was perhaps interrupted
                self._on_reply(flight, connection, pending)

    def cancel(self, flight: Flight) -> None:
        """Tells the server that nobody waits for a call; its reply is read all the same."""
        if not flight.done and flight.connection is not None:
            flight.connection.cancel(flight.request)

    def wait_for_all(self) -> list[Flight]:
        """Waits for all that are on their way; returns them."""
        flights = list(self._open.values())
        for flight in flights:
            self.wait(flight)
        return flights

    def fail_all(self, error: JaxdError) -> None:
        """The session is gone, and with it what these calls were made for."""
        with self._in_order():
            for flight in list(self._open.values()):
                self._end(flight, flight.lose, error)

    def _load(self, flight: Flight, connection: ClientConnection) -> Load:
        call = flight.call
        load = self._routes.load(call, connection, spare=True, copied=flight.is_copied)
        if flight.is_copied:
            load = load._replace(buffers=[memoryview(bytes(one)) for one in load.buffers])
            call = call.of_copies(load)
        flight.carry(load, call)
        return load

    def _send(self, flight: Flight, connection: ClientConnection) -> None:
        number = connection.number()
        flight.attempts += 1
        load = flight.load
        if load is None or not self._routes.announce(connection, load.places):
            load = self._load(flight, connection)
        if flight.attempts == 1:
            flight.drops = self._drops.take()
        is_first = flight.attempts == 1  # later, what was told is perhaps not known
        message = flight.call.message(
            load.rows,
            min(list(self._open), default=flight.number),
            flight.drops,
            flight.told if is_first else None,
            flight.knows,
        )
        pending = Pending(
            lambda pending: self._on_reply(flight, connection, pending),
            attended=flight.ended is not None,
            about=flight.call,
        )
        # not before: what was let go of must not be told before the call that makes it
        flight.connection, flight.request = connection, number
        flight.pending, was_sent, flight.is_sent = pending, flight.is_sent, True
        try:
            connection.launch("call", message, load.buffers, pending, number)
        except ConnectionLost:
            raise
        except JaxdError:
            flight.is_sent = was_sent
            raise
        except BaseException:
            if was_sent:
                flight.connection = None  # perhaps it did not go out: it is sent once more
            raise

    def _recover(self) -> None:
        """Sends again, in order, what was on its way when a connection was lost."""
        with self._in_order():
            if not self.has_stranded():
                return
            while self.has_stranded():
                connection = self._connect()
                try:
                    for flight in list(self._open.values()):
                        if self._is_stranded(flight):
                            self._again(flight, connection)
                except ConnectionLost:
                    continue
        self._drops.retry()  # it waited for the calls that make these values

    def has_stranded(self) -> bool:
        """Whether calls were on their way when a connection was lost, and were not sent again."""
        return any(self._is_stranded(flight) for flight in list(self._open.values()))

    def _is_stranded(self, flight: Flight) -> bool:
        return not flight.done and (flight.connection is None or not flight.connection.alive)

    def _again(self, flight: Flight, connection: ClientConnection) -> None:
        if flight.attempts < _ATTEMPTS:
            try:
                return self._send(flight, connection)
            except ConnectionLost:
                raise
            except JaxdError as error:  # its alone: the others are sent
                return self._end(flight, flight.lose, error)
        lost = ConnectionLost(
            f"the connection to the server was lost {_ATTEMPTS} times while {flight.name} was on "
            "its way. See the server's log, and whether what lies in between ends connections."
        )
        return self._end(flight, flight.lose, lost)

    def _on_reply(self, flight: Flight, connection: ClientConnection, pending: Pending) -> None:
        """Called by whoever reads, and by who waits: perhaps twice."""
        if flight.connection is not connection:
            return
        if isinstance(pending.error, ConnectionLost) and not flight.done:
            self._arrived(connection, flight, False)
            if self._open.get(flight.number) is not flight:  # nobody sends it again
                self._end(flight, flight.lose, pending.error)
                self._tell()
            elif flight.ended is not None:
                threading.Thread(target=self._repeat, name="jaxd-repeat", daemon=True).start()
            return
        try:
            _settle(flight, pending)
        except Exception as error:  # noqa: BLE001  whoever waits for it learns of it; others read on
            flight.lose(error)
        self._open.pop(flight.number, None)
        self._over.append(flight)
        self._arrived(connection, flight, flight.error is None)
        self._tell()

    def _repeat(self) -> None:
        """Sends again what nobody waits for, in a thread of its own: whoever reads must go on."""
        try:
            self._recover()
        except BaseException as error:  # noqa: BLE001  their owners decide about it
            with self._in_order():
                for flight in list(self._open.values()):
                    if flight.ended is not None and self._is_stranded(flight):
                        self._end(flight, flight.lose, error)


def _settle(flight: Flight, pending: Pending) -> None:
    if flight.done:
        return
    if pending.frame is None:
        flight.lose(pending.error or ConnectionLost("the connection was closed."))
    elif pending.error is not None:  # the server has said so
        flight.refuse(pending.error)
    else:
        flight.settle(pending.value, pending.frame.buffers)
