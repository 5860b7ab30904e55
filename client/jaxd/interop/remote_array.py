"""`RemoteArray`: an array that stays on the server until its data is needed here.

A loop makes and releases hundreds of them in each step, so those of one call share a `ResultBatch`,
which knows who may use them and who holds them.
"""

from __future__ import annotations

import copy as copies
import math
import operator
import sys
import weakref
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from itertools import repeat
from numbers import Integral
from operator import is_
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from jaxd.interop.jax_runtime import array_library, loaded_jax, native_array
from jaxd.interop.lazy_array import ArrayLike, materialized
from jaxd_protocol.errors import ValueDeleted
from jaxd_protocol.messages.data_locations import spans_of
from jaxd_protocol.pytree import Leaf
from jaxd_protocol.pytree.leaves import dtype_of, itemsize_of

if TYPE_CHECKING:
    from jaxd.interop.html_views import Preview

handle_reducer: Final[ContextVar[Callable[[RemoteArray], tuple[Any, ...]] | None]] = ContextVar(
    "by_handle", default=None
)
"""What a pickle holds in place of an array, as `__reduce__` returns it; None: the array itself."""


class ArrayFetcher(Protocol):
    """Fetches the data of arrays on the server."""

    @property
    def address(self) -> str:
        """The server's address, for people."""

    def fetch_bytes(self, array: RemoteArray) -> memoryview:
        """All bytes in C order, possibly in shared memory; waits for them.

        Raises:
            Exception: what the call raised that was to compute the array.
        """

    def part(self, array: RemoteArray, index: tuple[Any, ...]) -> Any:
        """What basic indexing gives: ints, slices, None and Ellipsis, which fit the shape.

        Raises:
            Exception: as `fetch_bytes`.
        """

    def wait(self, array: RemoteArray) -> None:
        """Returns when the array is computed.

        Raises:
            Exception: as `fetch_bytes`.
        """

    def drop(self, ids: range) -> None:
        """Releases arrays."""

    def data_here(self, array: RemoteArray) -> memoryview | None:
        """All bytes of an array in C order, where this process has them."""


Donation = tuple[range, str]
"""Numbers of arrays of a batch, and the name of the function that they were donated to."""


Loss = tuple[Collection[int], Exception]
"""Numbers of arrays of a batch that are gone, and the error of their use."""


class ResultBatch:
    """The remote arrays of one call.

    It holds them until it is told to watch them: those that were donated by then need no weak
    references, and in a loop these are nearly all.

    Args:
        fetcher: fetches their data.
        first: the id of number 0 in its session; the others follow.
        leaves: their shapes and dtypes, by number.
        pending_call: the call that makes them, when that had not run; used by the fetcher only.
        lineage: see the attribute.

    Attributes:
        was_fetched_alone: whether one of them was fetched by itself: the next one is fetched with
            its siblings.
        deleted: the numbers of those that were deleted.
        donations: those that were donated.
        lineage: how they are made again if their worker ends; None: that is not known.
        losses: the numbers of those that are gone and could not be made again, and why.
    """

    __slots__ = (
        *("deleted", "donations", "fetcher", "first", "leaves", "lineage", "losses"),
        "pending_call",
        *("was_fetched_alone", "_made", "_noticed", "_numbers", "_refs"),
    )

    def __init__(
        self,
        fetcher: ArrayFetcher,
        first: int,
        leaves: Sequence[Leaf],
        pending_call: Any = None,
        lineage: Any = None,
    ) -> None:
        self.fetcher = fetcher
        self.first = first
        self.leaves = leaves
        self.pending_call = pending_call
        self.lineage = lineage
        self.losses: tuple[Loss, ...] = ()
        self.was_fetched_alone = False
        self.deleted: set[int] = set()
        self.donations: tuple[Donation, ...] = ()
        self._numbers: Sequence[int] = ()  # of those that were made, in order
        self._made: Sequence[RemoteArray] = ()  # until they are watched
        self._refs: list[weakref.ref[RemoteArray] | None] = []  # from then on
        self._noticed: Callable[[Any], object] = _ignore

    def make(self, numbers: Sequence[int]) -> list[RemoteArray]:
        """The arrays with these numbers, which grow; to be called once."""
        made: list[RemoteArray] = list(map(RemoteArray.kind(), repeat(self), numbers))
        self._numbers, self._made = numbers, tuple(made)  # the caller's list is its own
        return made

    @property
    def arrays(self) -> list[RemoteArray]:
        """Those that somebody holds."""
        refs = list(self._refs)
        held = [array for ref in refs if ref is not None and (array := ref()) is not None]
        return held or list(self._made)

    def begins_with(self, first: int, arrays: Sequence[Any]) -> bool:
        """Whether these are the arrays from that number on, as far as it holds them."""
        own = self._made
        if not own or len(own) != len(self.leaves):
            return False
        own = own[first : first + len(arrays)]
        return len(own) == len(arrays) and all(map(is_, own, arrays))

    # who holds them

    def watch(self, noticed: Callable[[Any], object]) -> bool:
        """See `Releasable`; those that were donated are of no more interest."""
        arrays, self._noticed, self._made = self._made, noticed, ()
        donations: tuple[Donation, ...] | None = None
        while donations is not self.donations:  # or another thread was in between
            donations = self.donations
            refs: list[weakref.ref[RemoteArray] | None] = [None] * len(arrays)
            for start, stop in self._not_donated(donations):
                refs[start:stop] = map(weakref.ref, arrays[start:stop], repeat(noticed))
            self._refs = refs
        return any(refs)

    def take_gone(self) -> tuple[list[range], bool]:
        """See `Releasable`."""
        refs = self._refs
        gone = [i for i, ref in enumerate(refs) if ref is not None and ref() is None]
        for place in gone:
            refs[place] = None
        ids = spans_of(self.first + self._numbers[place] for place in gone)
        are_others = any(refs)
        if not (are_others or self.donations):  # a call that fails may give some back
            self._forget_origin()
        return list(ids), are_others

    def _forget_origin(self) -> None:
        """Nobody has an array of these; what made them holds data, and this is in a cycle."""
        self.lineage = self.pending_call = None

    def _not_donated(self, donations: Sequence[Donation]) -> Iterator[tuple[int, int]]:
        """The places of those that were made and not donated."""
        start = 0
        for numbers, _ in sorted(donations, key=lambda each: each[0].start):
            first, stop = self._places(numbers)
            if start < first:
                yield start, first
            start = max(start, stop)
        if start < len(self._numbers):
            yield start, len(self._numbers)

    def _places(self, numbers: range) -> tuple[int, int]:
        """The places of some among those that were made."""
        return bisect_left(self._numbers, numbers.start), bisect_left(self._numbers, numbers.stop)

    def forget(self, numbers: range) -> None:
        """The server has released these: there is no need to tell it."""
        start, stop = self._places(numbers)
        if self._refs:
            self._refs[start:stop] = [None] * (stop - start)
            if not any(self._refs):
                self._forget_origin()
                self._noticed(None)  # nothing is left to watch

    def release(self, numbers: range) -> None:
        """Has the server release these, which nobody can use any more."""
        self.forget(numbers)
        self.fetcher.drop(range(self.first + numbers.start, self.first + numbers.stop))

    # who may use them

    def donate(self, numbers: range, taker: str) -> None:
        """Marks some as donated."""
        self.donations = (*self.donations, (numbers, taker))

    def take_back(self, numbers: range, taker: str, arrays: Sequence[RemoteArray]) -> None:
        """Undoes one `donate`; `arrays` are among those that become usable, and are watched."""
        rest = list(self.donations)
        with suppress(ValueError):
            rest.remove((numbers, taker))
        self.donations = tuple(rest)
        for array in arrays if self._refs else ():
            place, _ = self._places(range(array.number, array.number + 1))
            if array.number in numbers and not self.is_unusable(array.number):
                self._refs[place] = weakref.ref(array, self._noticed)

    def is_unusable(self, number: int) -> bool:
        """Whether one was deleted or donated."""
        return number in self.deleted or any(number in each for each, _ in self.donations)

    def may_be_unusable(self, numbers: range) -> bool:
        """Whether some of these were deleted or donated, or none was made."""
        if self.pending_call is not None and self.pending_call.error is not None:
            return True
        if self.deleted or self.losses:
            return True
        return any(
            each.start < numbers.stop and numbers.start < each.stop for each, _ in self.donations
        )

    def lose(self, numbers: Collection[int], error: Exception) -> None:
        """Marks some as gone: they could not be made again."""
        self.losses = (*self.losses, (frozenset(numbers), error))

    def loss_of(self, numbers: Iterable[int]) -> Exception | None:
        """Why some of these are gone; None: they are not."""
        if not self.losses:
            return None
        wanted = set(numbers)
        found = (error for gone, error in self.losses if not wanted.isdisjoint(gone))
        error = next(found, None)
        # another one each time: with its traceback it would hold what the caller holds
        return None if error is None else type(error)(*error.args)

    def donated_to(self, number: int) -> str | None:
        """Name of the function that one was donated to, or None."""
        return next((taker for each, taker in self.donations if number in each), None)


def give_up(arrays: Iterable[RemoteArray], taker: str) -> None:
    """Marks those as donated whose copies here were, and has the server release them.

    Args:
        arrays: the arguments of a call that ran in this process.
        taker: name of the function that was called.
    """
    taken: dict[ResultBatch, list[int]] = {}
    for array in arrays:
        if array.take_donated_copy():
            taken.setdefault(array.origin, []).append(array.number)
    for origin, numbers in taken.items():
        for span in spans_of(sorted(numbers)):
            origin.donate(span, taker)
            origin.release(span)


def _ignore(_: object) -> None:
    """Until it is known who is to be told."""


class RemoteArray(ArrayLike):
    """An array that lies on the server, and is fetched when its data is used.

    It behaves as the array itself: as a `jax.Array`, of which it is an instance, in a process that
    has imported jax; else as a numpy array. It cannot be changed. Shape, dtype and `repr` move
    nothing, `h[10:20]` only these rows; everything else fetches the array once and keeps it. As an
    argument of a persistent function it does not move. Thread-safe; threads that use it first at
    the same time may each fetch it.

    Args:
        origin: the arrays of the call that made it.
        number: its place among these.
    """

    _data: memoryview | None = None
    _here: Any = None
    _kind = ""
    _copy: RemoteArray | None = None
    _in_place_of: weakref.ref[RemoteArray] | None = None
    replicas: Sequence[RemoteArray] = ()
    """The same array on other servers."""

    @classmethod
    def kind(cls) -> Any:
        """The class to instantiate: in a process that has jax, a subclass of `jax.Array` too."""
        if loaded_jax() is None:
            return cls
        from jaxd.interop.jax_registry import leaf_class

        return leaf_class(RemoteArray)

    def __init__(self, origin: ResultBatch, number: int) -> None:
        self.number = number
        self.origin = origin

    @property
    def __class__(self) -> Any:
        """That of `kind`: an array that is older than the import of jax is a `jax.Array` too."""
        return type(self).kind()

    @__class__.setter
    def __class__(self, _: Any) -> NoReturn:
        raise TypeError("the class of an array cannot be changed.")

    # what is known without moving anything

    @property
    def fetcher(self) -> ArrayFetcher:
        """Fetches the data."""
        return self.origin.fetcher

    @property
    def id(self) -> int:
        """Its number in the session."""
        return self.origin.first + self.number

    @property
    def leaf(self) -> Leaf:
        """Its shape and dtype on the wire."""
        return self.origin.leaves[self.number]

    @property
    def pending_call(self) -> Any:
        """The call that makes it, when that had not run; used by the fetcher only."""
        return self.origin.pending_call

    @property
    def donated_to(self) -> str | None:
        """Name of the function that it was donated to, or None."""
        return self.origin.donated_to(self.number)

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """Dimensions."""
        return self.leaf.shape[:-1] if self.leaf.tag == "K" else self.leaf.shape

    @property
    def dtype(self) -> Any:
        """The dtype, numpy's. Of PRNG keys jax's own, or uint32 in a process without jax."""
        if self.leaf.tag == "K" and loaded_jax() is not None:
            from jaxd.interop.jax_registry import key_dtype

            return key_dtype(self.leaf.impl)
        return dtype_of(self.leaf.dtype)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return itemsize_of(self.leaf.dtype) * (self.leaf.shape[-1] if self.leaf.tag == "K" else 1)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.leaf.nbytes

    @property
    def weak_type(self) -> bool:
        """Whether its dtype gives way to others, as jax has it."""
        return self.leaf.weak

    def is_deleted(self) -> bool:
        """Whether it was deleted, or donated to a call."""
        return self.origin.is_unusable(self.number)

    def __repr__(self) -> str:
        kind = f"key<{self.leaf.impl}>" if self.leaf.tag == "K" else self.leaf.dtype
        end = ", deleted" if self.is_deleted() else ""
        shape = ",".join(map(str, self.shape))
        return f"<jaxd.RemoteArray {kind}[{shape}] on {self.fetcher.address}{end}>"

    def _repr_html_(self) -> str:
        from jaxd.interop.html_views import array_html  # for notebooks

        return array_html(self)

    # what waits or moves

    def preview(self, rows: int = 6, columns: int = 8) -> Preview:
        """Its first rows and columns, to be looked at; no more than these move.

        Args:
            rows: how many of the second last dimension, a hundred at most.
            columns: how many of the last, likewise. Of all others the first element is taken.

        Raises:
            ValueDeleted: when it was deleted or donated.
            Exception: what the call raised that was to compute it.
        """
        from jaxd.interop.html_views import Preview  # for notebooks

        return Preview(self, rows, columns)

    def fetch(self, copy: bool = True) -> Any:
        """The array, here: a `jax.Array` in a process that has imported jax, else numpy's.

        Args:
            copy: whether a numpy array is the caller's own. Without it, it is read-only and may
                lie in memory that is shared with the server.

        Raises:
            ValueDeleted: when it was deleted or donated.
            Exception: what the call raised that was to compute it.
        """
        array = self._materialized()
        return copies.deepcopy(array) if copy and self._kind != "jax" else array

    def on_server_of(self, fetcher: object) -> Any:
        """What a call takes in its place on another server: its copy there, or its data.

        Args:
            fetcher: of the arrays on that server.
        """
        self.refuse_deleted()
        there = (each for each in self.replicas if each.fetcher is fetcher)
        usable = next((each for each in there if not each.is_deleted()), None)
        return self.fetch(copy=False) if usable is None else usable

    @property
    def owner(self) -> RemoteArray | None:
        """What goes on as this copy on another server; itself, where nothing does."""
        return self if self._in_place_of is None else self._in_place_of()

    def use_copy(self) -> None:
        """Goes on as its first copy on another server, if it has one: this one is gone."""
        owner = self.owner
        if owner is not None and owner.replicas:
            owner.go_on_as(owner.replicas[0])

    def go_on_as(self, copy: RemoteArray) -> RemoteArray | None:
        """Goes on as a copy on another server; the copy that it went on as until now, if any."""
        self.replicas = tuple(each for each in self.replicas if each is not copy)
        copy._in_place_of = weakref.ref(self)
        before, self._copy = self._copy, copy  # it is held as long as this one
        # a thread that uses it meanwhile reads either: copies have the number of the first
        self.origin, self.number = copy.origin, copy.number
        return before

    def block_until_ready(self) -> RemoteArray:
        """This array, once it is computed. Moves nothing.

        Raises:
            ValueDeleted: when it was deleted or donated.
            Exception: what the call raised that was to compute it.
        """
        self.refuse_deleted()
        self.fetcher.wait(self)
        return self

    def delete(self) -> None:
        """Frees its memory here and on the server. Later uses raise ValueDeleted."""
        if not self.is_deleted():
            self.origin.deleted.add(self.number)
            self._here = self._data = None
            self.origin.release(range(self.number, self.number + 1))

    def take_donated_copy(self) -> bool:
        """Whether its copy here was donated by a call that ran in this process; forgets that."""
        if self._kind != "jax" or self._here is None or not self._here.is_deleted():
            return False
        self._here = self._data = None
        return True

    def __getitem__(self, index: Any) -> Any:
        basic = None if self.is_here else basic_index(index, self.shape)
        if basic is not None:
            self.refuse_deleted()
            part = self.fetcher.part(self, basic)
            if array_library() == "numpy" and ... not in basic and not isinstance(part, ArrayLike):
                return part[()]  # numpy's elements have a type of their own
            return part
        return self._materialized()[materialized(index)]

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise TypeError(
            "an array on the server cannot be changed. Make another one with "
            "h.at[index].set(value) where jax is imported, or change a copy: a = np.array(h)."
        )

    def __getattr__(self, name: str) -> Any:
        cls = self._class_here()
        if cls is not None and not hasattr(cls, name):  # an unknown name must not move the array
            raise AttributeError(f"a RemoteArray has no attribute {name!r}.")
        return super().__getattr__(name)

    @property
    def __jax_array__(self) -> Callable[[], Any]:
        """Returns the array to jax; looking it up registers the class with jax."""
        from jaxd.interop.jax_registry import leaf_class

        leaf_class(RemoteArray)
        return self._materialized

    def __stands_for__(self) -> Any:
        """The array of jax that it is; in a process that has not imported jax, its content."""
        array = super().__stands_for__()
        if self._kind == "jax":
            return array
        from jaxd_protocol.jax_objects.decomposition import ArrayContent  # few arrays are captured

        data = array.data if self.leaf.tag == "K" else array
        implementation = self.leaf.impl or None
        return ArrayContent(data.dtype.name, data.shape, self.weak_type, implementation, data)

    def __copy__(self) -> Any:
        return copies.copy(self._materialized())

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copies.deepcopy(self._materialized(), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        instead = handle_reducer.get()
        return instead(self) if instead else (operator.getitem, ([self._materialized()], 0))

    @property
    def is_here(self) -> bool:
        """Whether its data was fetched."""
        return self._here is not None or self._data is not None

    def receive(self, data: memoryview) -> None:
        """Takes its data, all bytes in C order, which do not change any more."""
        if self._here is None:
            self._data = data

    def data_here(self) -> memoryview | None:
        """All bytes in C order, where they were fetched, or came with the reply of its call."""
        if self._data is not None:
            return self._data
        if self._here is None or self.leaf.tag == "K":
            return None
        if self._kind == "jax" and self._here.is_deleted():  # a local call was given it for good
            return None
        numpy = sys.modules["numpy"]  # the array is numpy's, or can become one
        data: memoryview = numpy.ascontiguousarray(self._here).reshape(-1).view("u1").data
        return data

    def refuse_lost(self) -> None:
        """Raises `ValuesLost` when its worker has ended, and it could not be made again."""
        error = self.origin.loss_of((self.number,))
        if error is not None:
            raise error

    def refuse_deleted(self) -> None:
        """Raises `ValueDeleted` when it was deleted or donated."""
        if not self.is_deleted():
            return
        if self.donated_to is not None:
            raise ValueDeleted(
                f"this array was donated to {self.donated_to}, which has used its memory. Use "
                "what that call returned, or do not donate it."
            )
        raise ValueDeleted("this array was deleted with delete(). Make it again.")

    def _materialized(self) -> Any:
        self.refuse_deleted()
        kind = array_library()
        if self._here is None or self._kind != kind:
            data = self.fetcher.fetch_bytes(self) if self._data is None else self._data
            self._here, self._kind = native_array(self.leaf, data.toreadonly(), kind), kind
            self._data = None if kind == "jax" else data
        return self._here

    def _class_here(self) -> type | None:
        """The class of the array here; None for PRNG keys and where it is not loaded."""
        if self.leaf.tag == "K":
            return None
        if loaded_jax() is not None:
            from jaxd.interop.jax_registry import array_class

            return array_class()
        return getattr(sys.modules.get("numpy"), "ndarray", None)


def basic_index(index: Any, shape: tuple[int, ...]) -> tuple[Any, ...] | None:
    """An index as a tuple of ints, slices of ints, None and Ellipsis.

    None when it is anything else, or does not fit the shape: the array itself then handles it.
    """
    try:
        items = tuple(map(_plain_item, index if isinstance(index, tuple) else (index,)))
    except TypeError:
        return None
    axes = [item for item in items if item is not None]
    gaps = axes.count(...)
    missing = len(shape) - len(axes) + gaps
    if gaps > 1 or missing < 0:
        return None
    if gaps:
        at = axes.index(...)
        axes[at : at + 1] = [slice(None)] * missing
    return items if all(map(_fits, axes, shape)) else None


def _plain_item(item: Any) -> Any:
    """The item with plain ints; raises TypeError when it is no basic index."""
    if item is None or item is ...:
        return item
    if isinstance(item, slice):
        return slice(*(None if x is None else _int(x) for x in (item.start, item.stop, item.step)))
    return _int(item)


def _int(item: Any) -> int:
    if type(item) is bool or not isinstance(item, Integral):  # True picks by a mask
        raise TypeError
    return int(item)


def _fits(item: Any, length: int) -> bool:
    if isinstance(item, slice):
        return bool(item.step != 0)
    return -length <= int(item) < length
