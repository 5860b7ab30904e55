"""The pipeline of calls on remote values: ordered, at most once each, several in flight.

The reply of such a call is read by whoever needs it, or along with the next call. When the
connection is lost, all calls without a reply are sent again, in their order; the server knows which
of them it has run already.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jaxd.connection.pending import Pending
from jaxd.remote_values.lost import gone, naming_for
from jaxd.results.exceptions import raised_by
from jaxd.results.reader import Home
from jaxd_protocol.errors import ConnectionLost, JaxdError, ResultError, WorkerReplaced
from jaxd_protocol.messages.calls import FAILED, is_failure
from jaxd_protocol.messages.data_locations import new_number, unpack_numbers
from jaxd_protocol.messages.failures import Failure, rebuild_failure
from jaxd_protocol.pytree import Layout, Placement
from jaxd_protocol.pytree.leaves import NOWHERE, data_at

if TYPE_CHECKING:
    from jaxd.connection.connection import ClientConnection
    from jaxd.request.call_request import Encoded
    from jaxd.transfer.dedup import SentBefore
    from jaxd.transfer.release_queue import Drops
    from jaxd.transfer.routing import Load, Routes


AHEAD: Final = 8
"""Calls of one session that are on their way at the same time."""

_ATTEMPTS: Final = 16

Connect = Callable[[], "ClientConnection"]


class Form(NamedTuple):
    """The structure of the results of such calls.

    Attributes:
        skeleton: theirs.
        layout: how to read it.
        hash: what the server is told of it.
    """

    skeleton: bytes
    layout: Layout
    hash: bytes


class _End(NamedTuple):
    """The outcome of a call: its error or result, and the arguments that it consumed."""

    error: BaseException | None = None
    given_up: tuple[int, ...] | None = None  # None: nobody knows
    reply: tuple[Any, ...] | None = None
    skeleton: bytes | None = None
    home: Home | None = None
    changed: bytes | None = None


class Flight:
    """One pipelined call on remote values.

    Args:
        call: the call.
        form: what its result looks like, when that is known.
        donated: numbers of the leaves that such calls are known to take for good.
        ended: called with it when it is done; somebody then always reads.
        is_copied: whether its caller may change its arrays before it is done.
        told: what stands for its skeleton.

    Attributes:
        done: whether its reply is here, or never will be.
        error: why there is no result; None when there is one, or none so far.
        skeleton: what its result looks like; None as long as nobody knows.
        layout: how to read its result; None as long as nobody knows.
        knows: what the server is told of the form that is known.
        home: what of it came home; None before that.
        given_up: numbers of the leaves that it has taken for good.
        changed: what its result looks like when that is not what was known.
        is_sent: whether the server may have it.
        request: its number on its connection.
        load: its data, on its way.
        on: the leaves that it takes from the server: the first and the number of each stretch.
        drops: ids of values that its message says are no longer held.
    """

    def __init__(
        self,
        call: Encoded,
        form: Form | None,
        donated: Sequence[int] = (),
        ended: Callable[[Flight], None] | None = None,
        is_copied: bool = False,
        told: bytes | None = None,
    ) -> None:
        self.call = call
        self.number = 0
        self.load: Load | None = None
        self.is_copied = is_copied
        self.told = told
        self.done = False
        self.error: BaseException | None = None
        self.skeleton: bytes | None = form.skeleton if form else None
        self.layout: Layout | None = form.layout if form else None
        self.knows = form.hash if form else b""
        self.home: Home | None = None
        self.given_up: tuple[int, ...] = ()
        self.changed: bytes | None = None
        self.is_sent = False
        self.connection: ClientConnection | None = None
        self.pending: Pending | None = None
        self.request = 0
        self.attempts = 0
        self.on = call.on
        self.drops = b""
        self.ended = ended
        self._data: dict[int, memoryview] | None = None
        self._donated = tuple(donated)
        self._lock = threading.RLock()  # guards its end, and its data on its way
        for stretch in call.values if donated else ():
            stretch.give(donated, self.name)

    def renumber(self) -> None:
        """Takes a number that is larger than those of all calls that were sent before."""
        assert self.call.stay is not None
        self.number = new_number()
        self.call = self.call._replace(stay=self.call.stay._replace(number=self.number))

    @property
    def name(self) -> str:
        """What people call its function."""
        return self.call.spec.identity.name

    def after_fork(self) -> None:
        """In the child of a fork: nobody else holds the lock."""
        self._lock = threading.RLock()

    def _raised(self, failure: Failure) -> BaseException:
        if is_failure(failure, WorkerReplaced):  # no other worker has what the call needs
            return naming_for(gone(with_worker=True), self.call)
        reader = self.call.spec.identity.reader
        if self.connection is None:
            return rebuild_failure(failure, reader)
        return raised_by(failure, self.name, reader, self.connection.address)

    def settle(self, value: tuple[Any, ...], buffers: Sequence[memoryview]) -> None:
        """Completes the call with its reply.

        Raises:
            Exception: when that is none; the call is not done then.
        """
        if value[0] == FAILED:
            given_up = unpack_numbers(value[2]) if len(value) > 2 else ()
            return self._finish(_End(self._raised(value[1]), given_up))
        given_up = unpack_numbers(value[3])
        skeleton = value[1] or self.skeleton
        if self.skeleton is not None and self.skeleton != skeleton:
            error = ResultError(
                f"{self.name} returned another structure than before for arguments of the same "
                "shapes: it depends on something that is no argument. Call it again."
            )
            return self._finish(_End(error, given_up, changed=skeleton))
        home = Home.of(value, buffers)
        return self._finish(_End(None, given_up, value, skeleton, home))

    def refuse(self, error: BaseException) -> None:
        """Fails a call that did not run: its donated arguments stay usable."""
        self._finish(_End(error, ()))

    def lose(self, error: BaseException) -> None:
        """Fails a call of unknown state: its donated arguments stay unusable."""
        self._finish(_End(error))

    def carry(self, load: Load, call: Encoded) -> None:
        """Replaces the transfer that carries its data."""
        with self._lock:
            if self.done:
                useless: Load | None = load
            else:
                useless, self.load, self.call = self.load, load, call
        if useless is not None:
            useless.release()

    def tell(self) -> None:
        """Calls `ended`, once."""
        with self._lock:
            ended, self.ended = self.ended, None
        if ended is not None:
            ended(self)

    def _finish(self, end: _End) -> None:
        """Completes the call once; after an interrupt, the next caller does all of it."""
        with self._lock:
            if self.done:
                return
            if end.given_up is not None:
                self.given_up = end.given_up
                self._settle_values(end.given_up)
            self.error, self.home, self.changed = end.error, end.home, end.changed
            self.skeleton = end.skeleton or self.skeleton
            load, self.load = self.load, None
            if load is not None:
                load.release(end.reply)
            self.call = self.call.without_data()
            self.done = True

    def _settle_values(self, given_up: tuple[int, ...]) -> None:
        for stretch in self.call.values:
            if given_up != self._donated:
                stretch.give_back(set(self._donated).difference(given_up))
                stretch.give(given_up, self.name)
            stretch.settle(given_up)

    def data(self, leaf: int) -> memoryview | None:
        """The data of a result's leaf, when it came with the reply."""
        if self._data is None and self.home is not None and self.layout is not None:
            self._data = _data_by_leaf(self.layout.without(self.home.away), self.home)
        return (self._data or {}).get(leaf)


def _data_by_leaf(placement: Placement, home: Home) -> dict[int, memoryview]:
    placement.check(home.blob, home.buffers)
    places = enumerate(zip(placement.leaves, placement.places, strict=True))
    return {
        number: data_at(leaf, place, home.blob, home.buffers)
        for number, (leaf, place) in places
        if place is not NOWHERE
    }


class Flights:
    """The pipelined calls of one session. Thread-safe.

    Args:
        connect: the connection of this session; raises `ValuesLost` when there is none any more.
        routes: how large arrays travel.
        drops: what to tell the server along with a call.
        sent_before: gives what this session has sent.
        arrived: told when a reply has been read, by whoever reads; whether there is a result.
    """

    def __init__(
        self,
        connect: Connect,
        routes: Routes,
        drops: Drops,
        sent_before: Callable[[], SentBefore],
        arrived: Callable[[ClientConnection, Flight, bool], None],
    ) -> None:
        self._connect = connect
        self._routes = routes
        self._drops = drops
        self._sent_before = sent_before
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
        """Notifies of finished calls, not under the lock: handlers may make calls."""
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
                connection.shared_reader.take_what_is_here()
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
                connection.shared_reader.wait(pending, deadline)
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
        """Fails all open calls: the session is gone."""
        with self._in_order():
            for flight in list(self._open.values()):
                self._end(flight, flight.lose, error)

    def _load(self, flight: Flight, connection: ClientConnection) -> Load:
        call = flight.call
        load = self._routes.load(call, connection, self._sent_before, copied=flight.is_copied)
        if flight.is_copied:
            load = load._replace(buffers=[memoryview(bytes(one)) for one in load.buffers])
            if load.places:  # else none of it is ever loaded again
                call = call._replace(buffers=load.copies_of(call))
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
