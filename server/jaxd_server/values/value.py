"""Arrays that stay on the server: single ones, what calls returned, and those of one session."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, NamedTuple

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.errors import ValueDeleted
from jaxd_protocol.messages.data_locations import call_number_of
from jaxd_protocol.messages.failures import Failure, ForwardedFailure
from jaxd_protocol.pytree import Leaf

_MAX_FAILURES: Final = 256


@dataclass(slots=True, eq=False)
class Value:
    """An array on the server.

    Attributes:
        array: jax's; perhaps still being computed.
        leaf: what it looks like in a skeleton.
        nbytes: its size.
        maker: the function that returned it, or how else it came here.
        run: the run that makes it, as long as that is not done; None when another thing has.
        copied: whether its client has the array as well, so that it must not be donated.
        made_at: `time.time()` when it came.
        holders: how many numbers and names stand for it; `ValueStore` counts them.
    """

    array: Any
    leaf: Leaf
    nbytes: int
    maker: str
    copied: bool = False
    run: weakref.ref[Any] | None = None
    made_at: float = field(default_factory=time.time)
    holders: int = 0


@dataclass(slots=True, eq=False)
class NamedValues:
    """A tree of values under a name.

    Attributes:
        skeleton: the structure of the tree.
        values: its leaves.
        until: `time.monotonic()` after which it is gone; None: never.
    """

    skeleton: bytes
    values: tuple[Value, ...]
    until: float | None


Spans = tuple[list[tuple[int, int]], list[tuple[int, int]]]
"""The spans of some numbers that are there, and the gaps: first number, and behind the last."""


class Batch:
    """What one call returned and stays on the server: one object, however many arrays it is.

    A `Value` is made of one of them only when somebody asks for it by itself; it is then no part of
    the batch any more. Each array is freed by itself. Not thread-safe; see `SessionValues`.

    Args:
        first: the id of number 0; the others follow.
        arrays: jax's, by number, perhaps still being computed; None for those that do not stay.
        leaves: what they look like in a skeleton.
        present: a byte for each number, 1 for those that stay.
        ends: the bytes of those that stay and come before each number, and of all.
        maker: the function that returned them.
        run: the run that makes them, as long as that is not done.

    Attributes:
        count: how many of them are there.
        nbytes: of these.
        made_at: `time.time()` when it came.
    """

    __slots__ = (
        *("arrays", "count", "first", "leaves", "made_at", "maker", "nbytes", "run"),
        *("_ends", "_present"),
    )

    def __init__(
        self,
        first: int,
        arrays: list[Any],
        leaves: Sequence[Leaf],
        present: bytes,
        ends: Sequence[int],
        maker: str,
        run: weakref.ref[Any] | None = None,
    ) -> None:
        self.first = first
        self.arrays = arrays
        self.leaves = leaves
        self.maker = maker
        self.run = run
        self.made_at = time.time()
        self.count = present.count(1)
        self.nbytes = ends[-1]
        self._present = bytearray(present)
        self._ends = ends

    def split(self, ids: range) -> Spans:
        """Which of these ids are in it."""
        first, stop = ids.start - self.first, min(ids.stop - self.first, len(self.arrays))
        present = self._present
        if first < stop and present.find(0, first, stop) < 0:
            return [(first, stop)], []
        spans: list[tuple[int, int]] = []
        gaps: list[tuple[int, int]] = []
        at = first
        while at < stop:
            end = present.find(1 - present[at], at, stop)
            end = stop if end < 0 else end
            (spans if present[at] else gaps).append((at, end))
            at = end
        return spans, gaps

    def nbytes_of(self, span: tuple[int, int]) -> int:
        """The bytes of a span that is there."""
        return self._ends[span[1]] - self._ends[span[0]]

    def take_out(self, span: tuple[int, int]) -> list[Any]:
        """Takes a span out that is there; its arrays, which are freed when nothing holds these."""
        first, stop = span
        gone = self.arrays[first:stop]
        self.count -= stop - first
        self.nbytes -= self.nbytes_of(span)
        self.arrays[first:stop] = [None] * (stop - first)
        self._present[first:stop] = bytes(stop - first)
        return gone

    def separate(self, id: int) -> Value | None:  # noqa: A002
        """Makes a value of one; None when it is not there."""
        number = id - self.first
        if number >= len(self.arrays) or not self._present[number]:
            return None
        span = (number, number + 1)
        nbytes = self.nbytes_of(span)
        (array,) = self.take_out(span)
        leaf = self.leaves[number]
        return Value(array, leaf, nbytes, self.maker, False, self.run, self.made_at, 1)


class Lent(NamedTuple):
    """Values that follow one another, as a call takes them.

    Attributes:
        id: of the first.
        arrays: jax's.
        source: what they are in, or the only one.
    """

    id: int
    arrays: list[Any]
    source: Batch | Value


class SessionValues:
    """The values of one session. Thread-safe; use it through `ValueStore` where room is taken.

    Attributes:
        principal: whose they are.
        values: the single ones, by id.
        batches: the others, by the number of their call.
        failures: why calls have made no values, by their numbers; for calls that take them.
        ended: whether the session is over, so that nothing is taken in any more.
        kept: what its client keeps to make them again, as that has said last; empty: nothing.
        held: whose snapshots it may have read; see `HeldSnapshots`.
        nbytes: of the values; `ValueStore` counts them.
        lock: guards `values` and `batches`; the lock of the `ValueStore` comes before it.
    """

    __slots__ = (
        *("batches", "ended", "failures", "held", "kept", "lock", "nbytes", "principal", "values"),
    )

    def __init__(self, principal: str) -> None:
        self.principal = principal
        self.ended = False
        self.nbytes = 0
        self.kept: dict[str, Any] = {}
        self.held: set[str] = set()
        self.values: dict[int, Value] = {}
        self.batches: dict[int, Batch] = {}
        self.failures = BoundedDict[int, Failure](_MAX_FAILURES)
        self.lock = threading.Lock()

    def get(self, id: int) -> Value:  # noqa: A002
        """The value with that number, which is a single one from now on.

        Raises:
            ForwardedFailure: what the call that was to make it has raised.
            ValueDeleted: when it is not there, or not any more.
        """
        with self.lock:
            return self._get(id)

    def _get(self, id: int) -> Value:  # noqa: A002
        """The lock is held."""
        value = self.values.get(id)
        if value is not None:
            return value
        number = call_number_of(id)
        batch = self.batches.get(number)
        value = None if batch is None else batch.separate(id)
        if batch is not None and value is not None:
            self.values[id] = value
            if not batch.count:
                del self.batches[number]
            return value
        failure = self.failures.get(number)
        if failure is not None:
            raise ForwardedFailure(failure)
        raise ValueDeleted(
            "an array on the server is not there any more: it was deleted, or donated to a call. "
            "Use the result of that call instead."
        )

    def lend(self, ids: range) -> list[Lent]:
        """Several that follow one another, for a call.

        Raises:
            ForwardedFailure, ValueDeleted: as `get`.
        """
        with self.lock:
            batch = self.batches.get(call_number_of(ids.start))
            if batch is None:
                return [_single(id_, self._get(id_)) for id_ in ids]
            spans, gaps = batch.split(ids)
            first = batch.first
            lent = [Lent(first + a, batch.arrays[a:b], batch) for a, b in spans]
            missing = range(max(ids.start, first + len(batch.arrays)), ids.stop)
            lent += [_single(first + i, self._get(first + i)) for a, b in gaps for i in range(a, b)]
            lent += [_single(id_, self._get(id_)) for id_ in missing]
            return sorted(lent, key=_id_of) if gaps else lent

    def take_out(self, spans: Iterable[range]) -> tuple[list[Any], list[Value], int]:
        """Takes values out, of those that are there.

        Returns:
            The arrays of batches, the single values, and the bytes of the first.
        """
        arrays: list[Any] = []
        values: list[Value] = []
        nbytes = 0
        with self.lock:
            for ids in spans:
                number = call_number_of(ids.start)
                batch = self.batches.get(number)
                rest = [ids]
                if batch is not None:
                    there, gaps = batch.split(ids)
                    before = batch.nbytes
                    for span in there:
                        arrays += batch.take_out(span)
                    nbytes += before - batch.nbytes
                    if not batch.count:
                        del self.batches[number]
                    end = batch.first + len(batch.arrays)
                    rest = [range(batch.first + a, batch.first + b) for a, b in gaps]
                    rest.append(range(max(ids.start, end), ids.stop))
                values += self._pop_values(rest) if self.values else ()
        return arrays, values, nbytes

    def _pop_values(self, spans: Sequence[range]) -> list[Value]:
        """The lock is held."""
        found = []
        for ids in spans:
            few = len(self.values) < len(ids)
            known = [id_ for id_ in self.values if id_ in ids] if few else ids
            found += [value for id_ in known if (value := self.values.pop(id_, None)) is not None]
        return found

    def freed(self, spans: Iterable[range]) -> int:
        """Bytes that are free when these go."""
        nbytes = 0
        with self.lock:
            for ids in set(spans):
                batch = self.batches.get(call_number_of(ids.start))
                if batch is not None:
                    nbytes += sum(map(batch.nbytes_of, batch.split(ids)[0]))
                found = map(self.values.get, ids) if self.values else ()
                nbytes += sum(v.nbytes for v in found if v is not None and v.holders == 1)
        return nbytes

    def makers(self, spans: Iterable[range]) -> set[Any]:
        """The runs that are not done and make some of these."""
        refs: list[weakref.ref[Any] | None] = []
        with self.lock:
            for ids in spans:
                batch = self.batches.get(call_number_of(ids.start))
                if batch is not None:
                    refs.append(batch.run)
                found = map(self.values.get, ids) if self.values else ()
                refs += [value.run for value in found if value is not None]
        return {run for ref in refs if ref is not None and (run := ref()) is not None}

    def refill(self, batch: Batch, arrays: Sequence[Any]) -> None:
        """Puts in what a call has returned once more, of what was not dropped meanwhile."""
        ids = range(batch.first, batch.first + len(arrays))
        with self.lock:
            spans, gaps = batch.split(ids)
            for first, stop in spans:
                batch.arrays[first:stop] = arrays[first:stop]
            for number in (number for gap in gaps for number in range(*gap)):
                value = self.values.get(batch.first + number)
                if value is not None:
                    value.array = arrays[number]


_id_of: Final = attrgetter("id")


def _single(id: int, value: Value) -> Lent:  # noqa: A002
    return Lent(id, [value.array], value)
