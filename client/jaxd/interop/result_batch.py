"""Result batches: the state shared by the remote arrays of one call.

A loop makes and drops hundreds of them in each step. What they share is said here once, and what
happens to many of them at a time is written down in one go.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from weakref import ref

from jaxd_protocol.messages.data_locations import VALUE, DataLocation

if TYPE_CHECKING:
    from jaxd_protocol.pytree import Leaf


_ORIGIN: Final = attrgetter("origin")
_NUMBER: Final = attrgetter("number")

DELETED = ""
"""In place of the function that was given an array's memory."""


class Handle(Protocol):
    """An array on the server, as this process holds it: a `RemoteArray`."""

    @property
    def origin(self) -> ResultBatch:
        """Where it came from, with others."""

    @property
    def number(self) -> int:
        """Which of these it is."""

    @property
    def id(self) -> int:
        """Its number in the session."""

    @property
    def pending_call(self) -> Any:
        """The call that makes it, when that had not run; the fetcher's affair."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions."""

    @property
    def dtype(self) -> Any:
        """The dtype."""

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""

    @property
    def is_fetched(self) -> bool:
        """Whether its data was fetched."""

    def receive(self, data: memoryview) -> None:
        """Takes its data, all bytes in C order, which nobody changes any more."""

    def is_deleted(self) -> bool:
        """Whether it was deleted, or donated to a call."""

    def refuse_deleted(self) -> None:
        """Raises `ValueDeleted` when it was deleted or donated."""


class ArrayFetcher(Protocol):
    """Fetches the data of arrays on the server."""

    @property
    def address(self) -> str:
        """The server's address, for people."""

    def fetch_bytes(self, array: Handle, copy: bool = True) -> memoryview:
        """All bytes in C order, waited for; without `copy` they may lie in shared memory.

        Raises:
            Exception: what the call raised that was to compute the array.
        """

    def part(self, array: Handle, index: tuple[Any, ...]) -> Any:
        """What basic indexing gives: ints, slices, None and Ellipsis, which fit the shape.

        Raises:
            Exception: as `fetch_bytes`.
        """

    def wait(self, array: Handle) -> None:
        """Returns when the array is computed.

        Raises:
            Exception: as `fetch_bytes`.
        """

    def drop(self, id: int) -> None:  # noqa: A002
        """Releases the array. Called during garbage collection."""


class ResultBatch:
    """The remote arrays of one call.

    Args:
        fetcher: who has their data.
        first: the id of number 0 in its session; the others follow.
        leaves: what they are, by number.
        pending_call: the call that makes them, when that had not run; the fetcher's affair.

    Attributes:
        arrays: those that stand for them, as long as somebody holds them.
        pending_call: the call that makes them, when that had not run.
        was_fetched_alone: whether one of them was fetched by itself: the next one is fetched with
            its siblings.
        unusable: what became of those that cannot be used any more, by number: the name of the
            function that was given their memory, or `DELETED`.
        released: numbers of those that the server has let go of, or was told to.
    """

    __slots__ = (
        "arrays",
        "fetcher",
        "first",
        "leaves",
        "pending_call",
        "released",
        "unusable",
        "was_fetched_alone",
    )

    def __init__(
        self, fetcher: ArrayFetcher, first: int, leaves: Sequence[Leaf], flight: Any = None
    ) -> None:
        self.fetcher = fetcher
        self.first = first
        self.leaves = leaves
        self.pending_call = flight
        self.arrays: Sequence[ref[Handle]] = ()
        self.was_fetched_alone = False
        self.unusable: dict[int, str] = {}
        self.released: set[int] = set()

    @property
    def has_unusable(self) -> bool:
        """Whether some of them may be of no use."""
        return bool(self.unusable) or (
            self.pending_call is not None and self.pending_call.error is not None
        )

    def release_handle(self, number: int) -> None:
        """Releases one that is no longer held. Called during garbage collection: takes no lock."""
        if number not in self.released:
            self.released.add(number)
            self.fetcher.drop(self.first + number)


class HandleRange(NamedTuple):
    """Consecutive arrays of one batch that are consecutive arguments of a call.

    Attributes:
        leaf: number of the first among the leaves of the call.
        origin: theirs.
        number: of the first in its origin.
        arrays: they themselves.
    """

    leaf: int
    origin: ResultBatch
    number: int
    arrays: Sequence[Handle]

    @property
    def row(self) -> DataLocation:
        """Where their data lies."""
        return DataLocation(self.leaf, VALUE, self.origin.first + self.number, len(self.arrays) - 1)

    def numbers(self, leaves: Collection[int]) -> list[int]:
        """The numbers in their origin of those that are these leaves of the call."""
        shift = self.leaf - self.number
        end = self.leaf + len(self.arrays)
        return [leaf - shift for leaf in leaves if self.leaf <= leaf < end]

    def mark_donated(self, leaves: Collection[int], taker: str) -> None:
        """Marks the arrays at these leaves as donated."""
        self.origin.unusable.update(dict.fromkeys(self.numbers(leaves), taker))

    def unmark_donated(self, leaves: Collection[int]) -> None:
        """Marks the arrays at these leaves as usable again."""
        for number in self.numbers(leaves):
            self.origin.unusable.pop(number, None)

    def mark_released(self, leaves: Collection[int]) -> None:
        """Marks the arrays at these leaves as released by the server."""
        self.origin.released.update(self.numbers(leaves))


class HandleRanges:
    """Collects the ranges of one call while its arguments are encoded.

    Attributes:
        ranges: all so far.
    """

    __slots__ = ("_last_arrays", "_last_position", "_next_leaf", "ranges")

    def __init__(self) -> None:
        self.ranges: list[HandleRange] = []
        self._last_position: tuple[ResultBatch | None, int] = (None, 0)  # of the last one
        self._last_arrays: list[Handle] = []  # its arrays
        self._next_leaf = -1  # the leaf behind it

    def add(self, leaf: int, arrays: Sequence[Handle]) -> None:
        """Takes arrays that follow one another, from that leaf of the call on."""
        origin, number = arrays[0].origin, arrays[0].number
        place = (origin, number - leaf)
        if place != self._last_position or leaf != self._next_leaf:
            self._last_position, self._last_arrays = place, []
            self.ranges.append(HandleRange(leaf, origin, number, self._last_arrays))
        self._last_arrays += arrays
        self._next_leaf = leaf + len(arrays)


def are_consecutive(arrays: Sequence[Handle]) -> bool:
    """Whether arrays, at least one, have one origin, and follow one another as in it."""
    first = arrays[0].number
    return len(set(map(_ORIGIN, arrays))) == 1 and list(map(_NUMBER, arrays)) == [
        *range(first, first + len(arrays))
    ]
