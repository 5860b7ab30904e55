"""One call on values, from its start to its end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxd.lost_values import gone, naming_for
from jaxd.raised import raised_by
from jaxd.results import Home
from jaxd_protocol.calls import FAILED, is_failure
from jaxd_protocol.elsewhere import new_number, unpack_numbers
from jaxd_protocol.errors import ResultError, WorkerReplaced
from jaxd_protocol.failures import Failure, rebuild_failure
from jaxd_protocol.trees import Layout, Placement
from jaxd_protocol.trees.leaves import NOWHERE, data_at

if TYPE_CHECKING:
    from jaxd.encoded import Encoded
    from jaxd.pending import Pending
    from jaxd.routes import Load
    from jaxd.transport import ClientConnection

__all__ = ["Flight", "Form"]


class Form(NamedTuple):
    """What results of such calls look like.

    Attributes:
        skeleton: theirs.
        layout: how to read it.
        hash: what the server is told of it.
    """

    skeleton: bytes
    layout: Layout
    hash: bytes


class _End(NamedTuple):
    """What became of a call: why there is no result, or what it is, and what it has taken."""

    error: BaseException | None = None
    given_up: tuple[int, ...] | None = None  # None: nobody knows
    reply: tuple[Any, ...] | None = None
    skeleton: bytes | None = None
    home: Home | None = None
    changed: bytes | None = None


class Flight:
    """One call on values.

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
        if self.connection is None:
            return rebuild_failure(failure, self.call.spec.identity.reader)
        return raised_by(failure, self.call.spec.identity, self.connection)

    def settle(self, value: tuple[Any, ...], buffers: Sequence[memoryview]) -> None:
        """Its reply is here.

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
        """It was not run, or not sent: what it would have taken for good can be used again."""
        self._finish(_End(error, ()))

    def lose(self, error: BaseException) -> None:
        """There will be no result, and nobody knows what it took: that stays dead."""
        self._finish(_End(error))

    def carry(self, load: Load, call: Encoded) -> None:
        """Its data is on its way, in place of what was before."""
        with self._lock:
            if self.done:
                useless: Load | None = load
            else:
                useless, self.load, self.call = self.load, load, call
        if useless is not None:
            useless.release()

    def tell(self) -> None:
        """Says once, to who wants to know, that it is done."""
        with self._lock:
            ended, self.ended = self.ended, None
        if ended is not None:
            ended(self)

    def _finish(self, end: _End) -> None:
        """Once; where an interrupt comes in between, whoever is next does all of it."""
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
