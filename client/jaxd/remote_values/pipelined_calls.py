"""Calls on remote values: in order; they return early where the shape of the result is known."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from jaxd.connection.pending import WORD_S
from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.base.process import Later
from jaxd_protocol.errors import JaxdError, ValuesLost
from jaxd_protocol.messages.data_locations import (
    EVERYTHING,
    HOME_BYTES,
    MOST_NAMED_BYTES,
    NAMED,
    NOTHING,
    WORTH_A_NAME,
    Stay,
    first_id,
    form_hash,
    known_skeleton,
    named_skeleton,
    new_number,
)
from jaxd_protocol.pytree import Leaf

if TYPE_CHECKING:
    from concurrent.futures import Future

    from jaxd.connection.connection import ClientConnection
    from jaxd.events.progress import Progress
    from jaxd.events.warnings import Notices
    from jaxd.interop.result_batch import Handle
    from jaxd.remote_values.pipeline import Flight, Flights
    from jaxd.request.call_request import Encoded
    from jaxd.results.reader import Home, ResultsAs
    from jaxd.transfer.dedup import SentBefore
    from jaxd.transfer.release_queue import Drops
    from jaxd.transfer.routing import Routes


_MAX_FORMS: Final = 1024
_MOST_SHAPES: Final = 256

_Kind = tuple[bytes, bytes, str, tuple[tuple[int, int], ...]]
"""Of calls whose results look alike: function, arguments, form, and the leaves on the server."""

_Known = tuple[bytes, tuple[int, ...], bytes]
"""Of such results: their skeleton, the leaves that are given up for them, and a hash."""


def stay_for(results: ResultsAs, *, on_values: bool) -> Stay | None:
    """The result policy of a call: what stays on the server."""
    if results == "remote":
        return Stay(new_number(), EVERYTHING, -1)
    if results == "auto":
        return Stay(new_number(), EVERYTHING if on_values else HOME_BYTES, HOME_BYTES)
    return Stay(new_number(), NOTHING, NOTHING) if on_values else None


class Shapes:
    """The table of indexed skeletons of one session. Thread-safe.

    A loop need not say in each step what its state looks like.

    A name is never given to another skeleton: a call must not be taken for another.
    """

    def __init__(self) -> None:
        self.after_fork()

    def after_fork(self) -> None:
        """In the child of a fork: nobody else holds the lock."""
        self._known: dict[bytes, int] = {}
        self._given = 0
        self._lock = threading.Lock()  # guards _given

    def told(self, skeleton: bytes) -> bytes:
        """The bytes to send for a skeleton: an index, a definition, or itself."""
        number = self._known.get(skeleton)
        if number is not None:
            return known_skeleton(number)
        if not WORTH_A_NAME <= len(skeleton) <= MOST_NAMED_BYTES - 2:
            return skeleton
        with self._lock:
            if self._given >= _MOST_SHAPES:
                return skeleton
            number, self._given = self._given, self._given + 1
        return named_skeleton(number, skeleton)

    def heard(self, told: bytes) -> None:
        """Confirms a definition: the server has answered the call that contained it."""
        if told.startswith(NAMED):
            self._known[told[2:]] = told[1]


class Services(Protocol):
    """The services of the client that pipelined calls use.

    Attributes:
        routes: how large arrays travel.
        notices: says what the server has to say of calls.
        progress: shows how far long calls are.
    """

    routes: Routes
    notices: Notices
    progress: Progress


class ValueStore(Protocol):
    """The arrays of one session, as calls on them need it.

    Attributes:
        drops: collects the ids of those that nobody here holds any more.
        sent_before: gives what the session has sent.
    """

    drops: Drops
    sent_before: Callable[[], SentBefore]

    def connection(self) -> ClientConnection:
        """A connection of this session; raises `ValuesLost` when there is none any more."""

    def remote(
        self,
        first: int,
        leaves: Sequence[Leaf],
        numbers: Iterable[int] | None = None,
        flight: Flight | None = None,
    ) -> list[Any]:
        """What stands for some leaves of a result."""


class ValueCalls:
    """The calls of one session on its remote values. Thread-safe.

    Args:
        values: the arrays of the session.
        services: of the client.
    """

    def __init__(self, values: ValueStore, services: Services) -> None:
        self._values = values
        self._services = services
        self._forms = BoundedDict[_Kind, _Known](_MAX_FORMS)
        self._shapes = Shapes()
        self._later = Later(self._begin)

    def _begin(self) -> Flights:
        from jaxd.remote_values.pipeline import Flights

        values = self._values
        ways = values.connection, self._services.routes, values.drops, values.sent_before
        return Flights(*ways, self._arrived)

    @property
    def _flights(self) -> Flights:
        """Those on their way."""
        return self._later()

    def after_fork(self) -> None:
        """In the child of a fork: a thread of the parent may have been sending."""
        if self._later.made is not None:
            self._later.made.after_fork()
        self._shapes.after_fork()

    def has_stranded(self) -> bool:
        """See `Flights.has_stranded`."""
        return self._later.made is not None and self._later.made.has_stranded()

    def fail_all(self, error: JaxdError) -> None:
        """The session is gone: nothing comes of what is on its way."""
        if self._later.made is not None:
            self._later.made.fail_all(error)

    def call(self, call: Encoded) -> Any:
        """Makes a call on values; returns before it has run where its result's form is known.

        Raises:
            BaseException: what the function raised, or one before it on whose result it depends.
            JaxdError: when the call could not be made.
        """
        lies_here = self._services.routes.lies_in_blocks(call)  # and could be changed too early
        flight = self._launch(call, may_return=call.timeout_s is None and not lies_here)
        try:
            if flight.layout is not None and _is_remote(call):
                return self._result(flight)
            self.wait_for(flight, call.timeout_s)
            return self._ended(flight)
        except BaseException:
            self._abandon(flight)
            raise

    def _abandon(self, flight: Flight) -> None:
        """Abandons a call: what it leaves on the server is released when it is done."""

        def ended(flight: Flight) -> None:
            with suppress(BaseException):
                self._ended(flight)

        self._flights.abandon(flight, ended)

    def submit(self, call: Encoded) -> Future[Any]:
        """The same as a future, which is done when the call is."""
        from concurrent.futures import InvalidStateError  # a plain call needs neither

        from jaxd.connection.call_future import CallFuture

        future: CallFuture[Any] = CallFuture()

        def ended(flight: Flight) -> None:
            try:
                result = self._ended(flight)
            except BaseException as error:  # noqa: BLE001  the future's owner decides about it
                with suppress(InvalidStateError):
                    future.set_exception(error)
            else:
                with suppress(InvalidStateError):
                    future.set_result(result)

        flight = self._launch(call, may_return=False, ended=ended)

        def done(future: Future[Any]) -> None:
            if future.cancelled():
                self._flights.cancel(flight)

        future.when_done(done)
        return future

    def _launch(self, call: Encoded, *, may_return: bool, ended: Any = None) -> Flight:
        from jaxd.remote_values.pipeline import Flight, Form

        try:
            for stretch in call.values:
                if stretch.origin.is_doubtful:
                    self.check(stretch.arrays)
        except ValuesLost as error:
            from jaxd.remote_values.lost import naming_for

            raise naming_for(error, call) from None
        assert call.stay is not None
        form: Form | None = None
        donated: tuple[int, ...] = ()
        known = self._forms.get(_kind(call, call.on)) if may_return else None
        if known is not None:
            skeleton, donated, hash_ = known
            form = Form(skeleton, call.spec.identity.reader.layout(skeleton), hash_)
        told = self._shapes.told(call.skeleton)
        is_copied = known is not None or ended is not None
        flight = Flight(call, form, donated, ended, is_copied, told)
        try:
            self._flights.launch(flight)
        except ValuesLost as error:
            from jaxd.remote_values.lost import naming_for

            raise naming_for(error, call) from None
        except BaseException:
            if not flight.done:  # it was interrupted, and is perhaps on its way
                self._abandon(flight)
            raise
        return flight

    def wait_for(self, flight: Flight, timeout_s: float | None = None) -> None:
        """Returns when a call is done.

        Raises:
            BaseException: what it raised.
            DeadlineExceeded: when that takes longer.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s + WORD_S
        self._flights.wait(flight, until)
        if self._services.notices.waiting and flight.connection is not None:
            self._services.notices.issue(flight.connection, flight.request)
        if flight.error is not None:
            raise flight.error

    def _ended(self, flight: Flight) -> Any:
        """The result of a call that is done."""
        if flight.error is not None:
            raise flight.error
        call = flight.call
        assert flight.skeleton is not None
        assert call.stay is not None
        flight.layout = call.spec.identity.reader.layout(flight.skeleton)
        self._learn(flight)
        return self._result(flight)

    def _learn(self, flight: Flight) -> None:
        """Remembers what the results of such calls look like."""
        if flight.skeleton is None or not _is_remote(flight.call):
            return
        self._remember(flight, flight.skeleton)
        if flight.told is not None and flight.attempts == 1:
            self._shapes.heard(flight.told)

    def _remember(self, flight: Flight, skeleton: bytes) -> None:
        kind = _kind(flight.call, flight.on)
        known = self._forms.get(kind)
        if known is not None and known[:2] == (skeleton, flight.given_up):
            return
        self._forms[kind] = skeleton, flight.given_up, form_hash(skeleton)

    def _relearn(self, flight: Flight, skeleton: bytes) -> None:
        """Replaces the known result shape of such calls, after a result had another."""
        stay = flight.call.stay
        assert stay is not None
        self._forms.pop(_kind(flight.call, flight.on), None)
        with suppress(Exception):  # it cannot be read in this process
            layout = flight.call.spec.identity.reader.layout(skeleton)
            self._remember(flight, skeleton)
            for leaf in range(len(layout.leaves)):
                self._values.drops.add(first_id(stay.number) + leaf)

    def _result(self, flight: Flight) -> Any:
        assert flight.skeleton is not None
        return self.read(flight.call, flight.skeleton, flight.home, flight)

    def read(
        self,
        call: Encoded,
        skeleton: bytes,
        home: Home | None,
        flight: Flight | None = None,
    ) -> Any:
        """The result of a call, some of which stays here.

        Args:
            call: the call.
            skeleton: what its result looks like.
            home: what of it came home; None when nothing has so far.
            flight: the call, when it returns before its reply is here.

        Raises:
            JaxdError: when it cannot be read in this process.
        """
        identity, stay = call.spec.identity, call.stay
        assert stay is not None
        first = first_id(stay.number)

        def remote(leaves: Sequence[Leaf], numbers: Sequence[int]) -> list[Any]:
            return self._values.remote(first, leaves, numbers, flight)

        with identity.travelling():
            return identity.reader.read_part(skeleton, home, stay, call.results, remote)

    def _arrived(self, connection: ClientConnection, flight: Flight, ready: bool) -> None:
        self._services.progress.finish(connection, flight.request, ready=ready)
        if flight.changed is not None:
            self._relearn(flight, flight.changed)

    def check(self, arrays: Iterable[Handle]) -> None:
        """Returns when arrays can be used, as far as that is known.

        Raises:
            ValueDeleted: when one was deleted or donated.
            BaseException: what the call raised that was to compute one.
        """
        for array in arrays:
            array.refuse_deleted()
            flight = array.flight
            if flight is not None and flight.error is not None:
                raise flight.error

    def wait_for_all(self) -> None:
        """Returns when all calls on values are done.

        Raises:
            BaseException: what the first of them raised that failed.
        """
        for flight in self._flights.wait_for_all():
            if flight.error is not None:
                raise flight.error


def _is_remote(call: Encoded) -> bool:
    return call.results in ("auto", "remote")


def _kind(call: Encoded, on: tuple[tuple[int, int], ...]) -> _Kind:
    return call.spec.key, call.skeleton, call.results, on
