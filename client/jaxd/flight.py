"""One call on values, from its start to its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from jaxd.results import Home
from jaxd_protocol.calls import FAILED
from jaxd_protocol.elsewhere import new_number, unpack_numbers
from jaxd_protocol.errors import ResultError
from jaxd_protocol.failures import rebuild_failure
from jaxd_protocol.trees import Layout, Placement

if TYPE_CHECKING:
    from jaxd.encoded import Encoded
    from jaxd.pending import Pending
    from jaxd.routes import Load
    from jaxd.transport import ClientConnection

__all__ = ["Flight"]


class Flight:
    """One call on values.

    Args:
        call: the call.
        form: what its result looks like, when that is known: its skeleton and how to read it.
        donated: numbers of the leaves that such calls are known to take for good.
        ended: called with it when it is done, by whoever reads; somebody then always reads.
        is_copied: whether its caller may change its arrays before it is done.
        told: what stands for its skeleton.

    Attributes:
        done: whether its reply is here, or never will be.
        error: why there is no result; None when there is one, or none so far.
        skeleton: what its result looks like; None as long as nobody knows.
        layout: how to read its result; None as long as nobody knows.
        home: what of it came home; None before that.
        given_up: numbers of the leaves that it has taken for good.
        request: its number on its connection.
        load: its data, on its way.
        on: numbers of the leaves that it takes from the server.
        drops: ids of values that its message says are no longer held.
    """

    def __init__(
        self,
        call: Encoded,
        form: tuple[bytes, Layout] | None,
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
        self.skeleton: bytes | None = form[0] if form else None
        self.layout: Layout | None = form[1] if form else None
        self.home: Home | None = None
        self.given_up: tuple[int, ...] = ()
        self.connection: ClientConnection | None = None
        self.pending: Pending | None = None
        self.request = 0
        self.attempts = 0
        self.on = tuple(call.values)
        self.drops = b""
        self.ended = ended
        self._data: dict[int, memoryview] | None = None
        self._donated = tuple(donated)
        self._mark(donated, self.name)

    def renumber(self) -> None:
        """Takes a number that is larger than those of all calls that were sent before."""
        assert self.call.stay is not None
        self.number = new_number()
        self.call = self.call._replace(stay=self.call.stay._replace(number=self.number))

    def _mark(self, numbers: Iterable[int], taker: str | None) -> None:
        for number in numbers:
            array = self.call.values.get(number)
            if array is not None:
                array.donated_to = taker

    @property
    def name(self) -> str:
        """What people call its function."""
        return self.call.spec.identity.name

    def settle(self, value: tuple[Any, ...], buffers: Sequence[memoryview]) -> None:
        """Its reply is here."""
        failed = value[0] == FAILED
        self.given_up = unpack_numbers(value[2 if failed else 3])
        if failed:
            return self.fail(rebuild_failure(value[1]))
        skeleton = value[1] or self.skeleton
        if self.skeleton is not None and self.skeleton != skeleton:
            return self._end(
                ResultError(
                    f"{self.name} returned another structure than before for arguments of the same "
                    "shapes: it depends on something that is no argument. Call it again."
                )
            )
        self.skeleton, self.home = skeleton, Home.of(value, buffers)
        return self._end(reply=value)

    def fail(self, error: BaseException) -> None:
        """There will be no result, and what it did not take for good can be used again."""
        self._end(error)

    def _end(
        self, error: BaseException | None = None, reply: tuple[Any, ...] | None = None
    ) -> None:
        """Perhaps twice, by two threads: what must be done once is taken out first."""
        if self.given_up != self._donated:
            self._mark(set(self._donated).difference(self.given_up), None)
            self._mark(self.given_up, self.name)
        self.error = error
        load, self.load = self.load, None
        if load is not None:
            load.release(reply)
        self.call = self.call.without_data()
        self.done = True
        ended, self.ended = self.ended, None
        if ended is not None:
            ended(self)

    def data(self, leaf: int) -> memoryview | None:
        """The data of a result's leaf, when it came with the reply."""
        if self._data is None and self.home is not None and self.layout is not None:
            self._data = _data_by_leaf(self.layout.without(self.home.away), self.home)
        return (self._data or {}).get(leaf)


def _data_by_leaf(placement: Placement, home: Home) -> dict[int, memoryview]:
    placement.check(home.blob, home.buffers)
    found = {}
    for number, (leaf, place) in enumerate(zip(placement.leaves, placement.places, strict=True)):
        if place.buffer >= 0:
            found[number] = home.buffers[place.buffer]
        elif place.offset >= 0:
            found[number] = memoryview(home.blob)[place.offset : place.offset + leaf.nbytes]
    return found
