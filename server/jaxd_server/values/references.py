"""Data that calls of a connection refer to instead of sending it: values, shared blocks."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import jax
import numpy as np

from jaxd_protocol.errors import ArgumentError, ProtocolError, ValuesFull
from jaxd_protocol.jax_objects.arrays import exact_array
from jaxd_protocol.messages.calls import OK
from jaxd_protocol.messages.data_locations import (
    BLOCK,
    CACHED_AS_VALUE,
    CACHED_BY_CONTENT,
    COMPRESSED,
    VALUE,
    DataLocation,
    content_id,
    spans_of,
    unpack_ids,
)
from jaxd_protocol.pytree import Layout, Leaf, LeafOffset
from jaxd_protocol.pytree.leaves import WIDE_DTYPES, spec_bytes
from jaxd_server.codec.arguments import read_leaf
from jaxd_server.values.client_memory import ClientMemory
from jaxd_server.values.store import ContentId, ValueStore
from jaxd_server.values.value import Lent, SessionValues, Value

_IN_BUFFER = LeafOffset(buffer=0)
_SENT_BY_CLIENT = "sent by the client"


class Given(NamedTuple):
    """Values that a call was given for good.

    Attributes:
        leaves: the numbers that they have as leaves of the call.
        ids: of the values.
    """

    leaves: range
    ids: range


class ReferencedData:
    """Resolves references to the values of a session and the blocks of a connection.

    Args:
        values: those of the whole worker.
        own: those of the session.
        blocks: those of the connection.
    """

    def __init__(self, values: ValueStore, own: SessionValues, blocks: ClientMemory) -> None:
        self.values = values
        self.own = own
        self._blocks = blocks
        self._closed = False

    def fill(
        self,
        rows: Sequence[DataLocation],
        layout: Layout,
        leaves: list[Any],
        donated: Collection[int],
    ) -> tuple[tuple[int, ...], list[Given]]:
        """Puts in what a call refers to, and keeps what it brings to be kept.

        When this raises, nothing has changed. What is kept stays, whatever becomes of the call.

        Args:
            rows: where its data lies.
            layout: of the call.
            leaves: those that are in the message; the others are put in.
            donated: numbers of the leaves that the call gives up.

        Returns:
            Ids of what was to be kept and has no room; and the values that are given to the call
            for good.

        Raises:
            ProtocolError: when something is not as the layout says.
            ArgumentError: when a value that is given up is needed by the same call once more.
            ValueDeleted: when a value is gone.
            ForwardedFailure: when the call that was to make a value has failed.
        """
        self._refuse_twice(rows, donated)
        given: list[Given] = []
        wanted = _spans_of(frozenset(donated)) if donated else ()
        kept: dict[int, Value] = {}
        stored: dict[ContentId, Value] = {}
        for row in rows:
            number, kind, a, b = row
            leaf = layout.leaves[number]
            if kind == VALUE:
                given += self._fill_values(row, layout, leaves, wanted)
            elif kind == BLOCK:
                view = self._blocks.view(a, b, leaf.nbytes)
                leaves[number] = read_leaf(leaf, _IN_BUFFER, b"", [view])
            elif kind != COMPRESSED:  # that was inflated as it was read
                value = _sent_value(row, leaf, leaves[number])
                array = copy_of(value.array) if number in donated else value.array
                leaves[number] = _as_sent(leaf, array)
                if kind == CACHED_AS_VALUE:
                    kept[a] = value
                else:
                    stored[a, b] = value
        for content, value in stored.items():
            self.values.contents.put(self.own.principal, content, value)
        return self._keep(kept) if kept else (), given

    def _keep(self, kept: Mapping[int, Value]) -> tuple[int, ...]:
        nbytes = sum(value.nbytes for value in kept.values())
        try:  # half of the room is for what clients have nowhere else
            with self.values.room(self.own, nbytes, spare=self.values.limit // 2):
                self.values.add(self.own, kept)
        except ValuesFull:
            return tuple(kept)  # the client has it all the same
        return ()

    def adopt(self, contents: bytes, ids: bytes) -> tuple[int, bytes]:
        """Makes arrays that are held by their content values of the session.

        Args:
            contents: their content ids, two numbers each.
            ids: those that they are to have as values.

        Returns:
            OK, and a byte for each: 1 when it is a value now, 0 when it is not here.

        Raises:
            ProtocolError: when this cannot be read.
        """
        numbers, wanted = unpack_ids(contents), unpack_ids(ids)
        if len(numbers) != 2 * len(wanted):
            raise ProtocolError("the client does not say readably what it has.")
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        found = [self.values.contents.find(self.own.principal, pair) for pair in pairs]
        made = {i: value for i, value in zip(wanted, found, strict=True) if value is not None}
        refused = self._keep(made) if made else ()
        return OK, bytes(id_ in made and id_ not in refused for id_ in wanted)

    def write(self, places: Sequence[int], data: Sequence[memoryview]) -> None:
        """Writes data into the client's blocks.

        Args:
            places: for each of them, the number of a block and the offset in it.
            data: as flat bytes.

        Raises:
            ProtocolError: when there is no such place.
        """
        if self._closed:
            raise ProtocolError("the client whose memory this is has gone.")
        if len(places) != 2 * len(data):
            raise ProtocolError("the client does not say readably where it wants its data.")
        for number, offset, part in zip(places[::2], places[1::2], data, strict=True):
            place = self._blocks.writable_view(number, offset, len(part))
            np.copyto(np.frombuffer(place, "u1"), np.frombuffer(part, "u1"))

    def close(self) -> None:
        """The connection ended: nothing is written into the client's memory any more."""
        self._closed = True

    def _refuse_twice(self, rows: Sequence[DataLocation], donated: Collection[int]) -> None:
        """Returns unless a call gives up what it needs once more; jax would not run it either."""
        if not donated:
            return
        spans = sorted((row.a, row.a + row.b) for row in rows if row.kind == VALUE)
        if all(end < start for (_, end), (start, _) in itertools.pairwise(spans)):
            return
        lent = {leaf: id_ for row in rows if row.kind == VALUE for leaf, id_ in _value_ids(row)}
        times = Counter(lent.values())
        shared = [id_ for leaf, id_ in lent.items() if leaf in donated and times[id_] > 1]
        if not all(self.own.get(id_).copied for id_ in shared):  # else the call is given copies
            raise ArgumentError(
                "an array on the server is given to a call twice, and donated at least once. "
                "Give a copy to the argument that is donated, such as jaxd.put(x.fetch()), or "
                "take the other one out of the call."
            )

    def _fill_values(
        self, row: DataLocation, layout: Layout, leaves: list[Any], donated: Sequence[range]
    ) -> Iterator[Given]:
        """Puts in the values of one row; those that are given for good."""
        count = 1 + row.b
        for lent in self.own.lend(range(row.a, row.a + count)):
            first = row.leaf + lent.id - row.a
            stop = first + len(lent.arrays)
            if not _looks_like(layout, first, lent):
                raise ProtocolError("a value on the server is not what the call says that it is.")
            leaves[first:stop] = lent.arrays
            for span in donated:
                taken = range(max(first, span.start), min(stop, span.stop))
                if taken:
                    yield from _give(lent, leaves, taken, lent.id + taken.start - first)
            if layout.leaves[first].dtype in WIDE_DTYPES:
                leaves[first] = _as_sent(layout.leaves[first], leaves[first])


def _looks_like(layout: Layout, first: int, lent: Lent) -> bool:
    """Whether values look like the leaves of a call from that one on."""
    source = lent.source
    if isinstance(source, Value):
        return layout.leaves[first] == source.leaf
    return layout.has(first, source.leaves, lent.id - source.first, len(lent.arrays))


def _give(lent: Lent, leaves: list[Any], numbers: range, id: int) -> Iterator[Given]:  # noqa: A002
    """Gives a call some of what it was lent, from that id on; of what others hold, a copy."""
    source = lent.source
    if isinstance(source, Value):
        if source.copied or source.holders > 1:
            leaves[numbers.start] = copy_of(source.array)
        if source.copied:
            return
    yield Given(numbers, range(id, id + len(numbers)))


_spans_of: Final = lru_cache(maxsize=1024)(lambda numbers: spans_of(sorted(numbers)))


def _value_ids(row: DataLocation) -> Iterator[tuple[int, int]]:
    """Leaf and id of each value of which a row speaks."""
    return zip(row.leaves, itertools.count(row.a), strict=False)


def _sent_value(row: DataLocation, leaf: Leaf, array: Any) -> Value:
    """The value of an array that a call brings to be kept."""
    if row.kind == CACHED_BY_CONTENT:
        _check_content((row.a, row.b), leaf, array)
    return Value(exact_array(array), leaf, leaf.nbytes, _SENT_BY_CLIENT, copied=True)


def _as_sent(leaf: Leaf, array: Any) -> Any:
    """An array that was kept, as a call takes it: one of numpy's that jax narrows is none of jax's.

    Args:
        leaf: what it looked like when it was sent.
        array: what is kept of it.
    """
    return np.asarray(array) if leaf.is_narrowed else array


def _check_content(content: ContentId, leaf: Leaf, array: Any) -> None:
    """Returns when an array has the content id that its client has given."""
    spec = spec_bytes("A", leaf.dtype, leaf.shape, leaf.weak, leaf.exact)
    if leaf.tag != "A" or content != content_id(
        spec, np.asarray(array).reshape(-1).view("u1").data
    ):
        raise ProtocolError(
            "an array is not what its client says that it is. It was changed while it was being "
            "sent, or the client is none of jaxd's: repeat the call."
        )


def copy_of(data: Any) -> Any:
    """jax's array of some data, or of another array, with memory of its own.

    `array.copy()` would compile a small program, and jax ignores `may_alias=False` for arrays of
    numpy, but not for its own.
    """
    array = jax.device_put(data, may_alias=False)
    is_shared = isinstance(data, np.ndarray) and array.unsafe_buffer_pointer() == data.ctypes.data
    return jax.device_put(array, may_alias=False) if is_shared else array
