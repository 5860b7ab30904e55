"""Lineages: how arrays on the server are made again, from data or by the calls that made them.

And the errors of arrays that are gone for good.

A lineage does not change. It holds those of the arrays that its call took, donated ones as well, so
it lives as long as an array that depends on it. The numbers of calls are never used twice, so what
is made again has the ids that it had.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from jaxd_protocol.base.buffers import address_of
from jaxd_protocol.errors import ValuesDied, ValuesLost
from jaxd_protocol.messages.data_locations import (
    BLOCK,
    VALUE,
    DataLocation,
    ResultPolicy,
    first_value_id,
    pack_ids,
    pack_locations,
)
from jaxd_protocol.pytree import Leaf, TreeEncoder
from jaxd_protocol.pytree.decoder import COUNT
from jaxd_protocol.pytree.leaves import INLINE_BYTES

if TYPE_CHECKING:
    from jaxd.events.effects import CallEffects
    from jaxd.interop.remote_array import RemoteArray
    from jaxd.request.call_request import CallRequest
    from jaxd.transfer.dedup import CallData
    from jaxd.transfer.routing import CallTransfer
    from jaxd.transfer.shared_memory import BlockOffset

    class WholeData(CallData, Protocol):
        """The arrays of a message, with those in it."""

        @property
        def skeleton(self) -> bytes:
            """What they look like."""

        @property
        def blob(self) -> bytes:
            """The small ones."""


ANSWERS_OBSTACLE: Final = "their call has called back functions that returned more than is kept"
"""Why arrays cannot be made again; the end of a sentence."""


def too_long_obstacle(max_s: float) -> str:
    """Why arrays cannot be made again whose calls took long; the end of a sentence."""
    return f"their calls, one after the other, ran for more than {max_s:g} s (JAXD_LINEAGE_S)"


class RestoreLink(Protocol):
    """What lineages need of the connection over which arrays are made again."""

    def call(self, lineage: CallLineage) -> Sequence[Leaf]:
        """Makes a call again, without its effects; shapes and dtypes of its result.

        Raises:
            BaseException: what the call raises.
            ConnectionLost: when the worker has ended as well.
        """

    def put(self, number: int, data: WholeData, config: Any, ids: bytes = b"") -> Sequence[Leaf]:
        """Sends arrays, with the ids that follow that of the number, or with these; as `call`."""

    def part(self, number: int, whole: int, index: tuple[Any, ...]) -> Sequence[Leaf]:
        """Takes a part of an array again; as `call`."""

    def restore(self, number: int, *asked: Any) -> Sequence[Leaf]:
        """Has a checkpoint read again; as `call`.

        Args:
            number: under which its arrays are.
            asked: path, what it has to be like, its token, and perhaps the ids of its arrays.
        """

    def held(self, secret: str, place: int, ids: bytes) -> Sequence[Leaf]:
        """Has a snapshot that the server keeps read again, under these ids; as `call`."""


class ArgumentSource(NamedTuple):
    """Consecutive arguments of a call that are arrays on the server, and their lineage.

    Attributes:
        leaf: number of the first among the leaves of the call.
        lineage: of the call that made them.
        first: number of the first among the results of that call.
        arrays: their numbers among these results.
    """

    leaf: int
    lineage: Lineage
    first: int
    arrays: range

    @property
    def row(self) -> DataLocation:
        """Where their data lies, once they were made again."""
        first = first_value_id(self.lineage.number) + self.first
        return DataLocation(self.leaf, VALUE, first, len(self.arrays) - 1)


class Lineage:
    """How the results of one call are made again.

    Args:
        number: of the call; the ids of its results follow from it.

    Attributes:
        sources: the arrays on the server that it needs.
        depth: how many calls, one after the other, make them.
        run_s: how long the call ran that has made them; 0.0 where none did, or that is not known.
        seconds: how long the calls ran, one after the other, that make them.
        nbytes: how much data is held for it.
        obstacle: why it cannot be made again; empty: it can.
        is_copy: whether it is a copy of arrays, and no way to compute them.
        donates: whether the call that makes them takes arrays for good.
        on_gone: called when nothing depends on it any more, also during garbage collection.
    """

    __slots__ = ("number", "on_gone")
    sources: Sequence[ArgumentSource] = ()
    depth = 0
    run_s = 0.0
    seconds = 0.0
    nbytes = 0
    obstacle = ""
    is_copy = False
    donates = False

    def __init__(self, number: int) -> None:
        self.number = number
        self.on_gone: Callable[[], object] | None = None

    def __del__(self) -> None:
        self.release_room()

    def release_room(self) -> None:
        """Its data is gone."""
        on_gone, self.on_gone = self.on_gone, None
        if on_gone is not None:
            on_gone()

    def assign_number(self, policy: ResultPolicy) -> None:
        """Gives it the number of its call, which is about to be sent for the first time."""
        self.number = policy.number

    def has(self, wanted: Collection[int]) -> bool:
        """Whether it makes all of these, by their numbers among the results."""
        return True

    def settle(self, run_s: float = 0.0) -> None:
        """The call is over. Where its results cannot be made again, nothing is kept for that.

        Args:
            run_s: how long it ran.
        """

    def make(self, link: RestoreLink) -> Sequence[Leaf]:
        """Makes the results again; their shapes and dtypes.

        Raises:
            BaseException: why that is not possible.
        """
        raise NotImplementedError


class NoLineage(Lineage):
    """Of arrays that cannot be made again.

    Args:
        number: of their call.
        obstacle: why, as the end of "they cannot be made again: ".
    """

    __slots__ = ("obstacle",)

    def __init__(self, number: int, obstacle: str) -> None:
        super().__init__(number)
        self.obstacle = obstacle


class Snapshot(Lineage):
    """Of arrays whose data this process has.

    Args:
        number: of the call that made them.
        data: shape and dtype, and all bytes in C order, by number among the results of the call.
    """

    __slots__ = ("data", "nbytes")
    is_copy = True

    def __init__(self, number: int, data: Mapping[int, tuple[Leaf, memoryview]]) -> None:
        super().__init__(number)
        self.data = data
        self.nbytes = sum(len(each) for _, each in data.values())

    def make(self, link: RestoreLink) -> Sequence[Leaf]:
        """Sends the data."""
        encoder = _DataEncoder()
        encoder.arrays(self.data.values())
        first = first_value_id(self.number)
        ids = pack_ids(first + i for i in self.data)
        return link.put(self.number, KeptData.of(encoder), (), ids)


class KeptData(NamedTuple):
    """Data of a message that does not change any more.

    Attributes:
        skeleton, blob, buffers, buffer_leaves, sources, leaf_headers, data_locations: as those of
            an `ArgumentEncoder`.
    """

    skeleton: bytes
    blob: bytes
    buffers: Sequence[memoryview]
    buffer_leaves: Sequence[int]
    sources: Mapping[int, Any] = {}
    leaf_headers: Mapping[int, bytes] = {}
    data_locations: Sequence[DataLocation] = ()

    @classmethod
    def of(cls, encoder: TreeEncoder) -> KeptData:
        """What was encoded; its buffers do not change."""
        return cls(encoder.skeleton, encoder.blob, encoder.buffers, encoder.buffer_leaves)


class PutLineage(Lineage):
    """Of arrays that were put.

    Args:
        number: under which they were put.
        data: theirs.
        config: the settings under which they were.
    """

    __slots__ = ("_config", "_data", "nbytes")
    is_copy = True

    def __init__(self, number: int, data: KeptData, config: Any) -> None:
        super().__init__(number)
        self._data, self._config = data, config
        self.nbytes = sum(map(len, data.buffers)) + len(data.blob)

    def make(self, link: RestoreLink) -> Sequence[Leaf]:
        """Puts them again."""
        return link.put(self.number, self._data, self._config)


class WeakPutLineage(Lineage):
    """Of arrays that were put from arrays of jax, which are put again as long as they exist.

    Args:
        number: under which they were put.
        data: the numbers and small arrays.
        sources: the others; jax does not change them.
        config: the settings under which they were put.
    """

    __slots__ = ("_config", "_data", "_sources")
    is_copy = True

    def __init__(self, number: int, data: KeptData, sources: Sequence[Any], config: Any) -> None:
        super().__init__(number)
        self._data, self._config = data, config
        self._sources = [weakref.ref(each) for each in sources]

    @classmethod
    def of(
        cls, number: int, data: CallData, skeleton: bytes, blob: bytes, config: Any
    ) -> WeakPutLineage | None:
        """The lineage of what is put; None where some of it may change."""
        sources = [data.sources.get(leaf) for leaf in data.buffer_leaves]
        if len(sources) != len(data.buffers) or any(each is None for each in sources):
            return None
        return cls(number, KeptData(skeleton, blob, (), tuple(data.buffer_leaves)), sources, config)

    def _arrays(self) -> list[Any]:
        """Those that can still be read."""
        found = [ref() for ref in self._sources]
        return [each for each in found if each is not None and not each.is_deleted()]

    @property
    def obstacle(self) -> str:  # type: ignore[override]
        """As of any lineage."""
        is_whole = len(self._arrays()) == len(self._sources)
        return "" if is_whole else "the arrays that they were put from do not exist any more"

    def make(self, link: RestoreLink) -> Sequence[Leaf]:
        """Puts them again."""
        from jaxd.request.arguments import ArgumentEncoder

        encoder = ArgumentEncoder({}, gathers=True)
        encoder.node(tuple(self._arrays()))
        data = self._data._replace(buffers=encoder.buffers)
        return link.put(self.number, data, self._config)


class PartLineage(Lineage):
    """Of a part of an array, which basic indexing has given.

    Args:
        number: under which it was made.
        whole: of the array.
        leaf: number of the array among the results of its call.
        index: of the part.
    """

    __slots__ = ("_index", "depth", "seconds", "sources")

    def __init__(self, number: int, whole: Lineage, leaf: int, index: tuple[Any, ...]) -> None:
        super().__init__(number)
        self.sources = (ArgumentSource(0, whole, leaf, range(leaf, leaf + 1)),)
        self.depth, self.seconds = whole.depth + 1, whole.seconds
        self._index = index

    def make(self, link: RestoreLink) -> Sequence[Leaf]:
        """Takes the part again."""
        return link.part(self.number, self.sources[0].row.a, self._index)


class RestoredLineage(Lineage):
    """Of arrays that were restored from a checkpoint on the server's machine.

    Args:
        number: under which they were.
        path: of the checkpoint.
        like: what was expected there, as the server was told.
        token: of the checkpoint; empty: it has none, and may be another one by now.
    """

    __slots__ = ("_asked", "obstacle")

    def __init__(self, number: int, path: str, like: str, token: str) -> None:
        super().__init__(number)
        self._asked = path, like, token
        self.obstacle = "" if token else f"they were restored from {path}, which may have changed"

    def make(self, link: RestoreLink) -> Sequence[Leaf]:
        """Has it read again."""
        return link.restore(self.number, *self._asked)


def saved_name(number: int) -> str:
    """What the result of that number is called in a folder."""
    return str(number)


class SavedLineage(Lineage):
    """Of arrays that their worker has written into a folder, shard by shard.

    Args:
        number: of the call that made them.
        leaves: shapes and dtypes of those that were written, by number among its results.
        path: of what was written.
        token: of that.
    """

    __slots__ = ("_leaves", "_path", "_token", "nbytes")
    is_copy = True

    def __init__(self, number: int, leaves: Mapping[int, Leaf], path: str, token: str) -> None:
        super().__init__(number)
        self._leaves, self._path, self._token = leaves, path, token
        self.nbytes = sum(leaf.nbytes for leaf in leaves.values())

    def has(self, wanted: Collection[int]) -> bool:
        """As of any lineage."""
        return self._leaves.keys() >= set(wanted)

    def make(self, link: RestoreLink) -> Sequence[Leaf]:
        """Has them read again, each shard to its device."""
        first = first_value_id(self.number)
        ids = pack_ids(first + number for number in sorted(self._leaves, key=saved_name))
        return link.restore(self.number, self._path, "", self._token, ids)


class HeldLineage(SavedLineage):
    """Of arrays of which the server keeps a snapshot that outlives its worker.

    Args:
        number: of the call that made them.
        leaves: shapes and dtypes of those in the snapshot, by number among its results.
        secret: by which the server knows whose it is.
        place: its number among those.
    """

    __slots__ = ("_place",)

    def __init__(self, number: int, leaves: Mapping[int, Leaf], secret: str, place: int) -> None:
        super().__init__(number, leaves, "", secret)
        self._place = place

    def make(self, link: RestoreLink) -> Sequence[Leaf]:
        """Has it read again."""
        first = first_value_id(self.number)
        return link.held(self._token, self._place, pack_ids(first + i for i in self._leaves))


class KeptCopy:
    """A copy of an argument that several calls may have; counted as long as one of them is kept.

    Args:
        nbytes: of it.
        free: told that nobody has it any more; also during garbage collection.
    """

    __slots__ = ("__weakref__", "_free", "_nbytes")

    def __init__(self, nbytes: int, free: Callable[[int], object]) -> None:
        self._nbytes, self._free = nbytes, free

    def __del__(self) -> None:
        self._free(self._nbytes)


class CallLineage(Lineage):
    """Of what a call returned.

    Args:
        call: the request; its data does not change any more, and its values are the sources.
        sources: its arguments on the server.
        effects: those that it has had so far; they are not repeated.
        nbytes: of its data, without these copies.
        copies: of its data that other calls may have as well.
        max_s: it is not made again where the calls for that ran longer, one after the other.
    """

    __slots__ = (
        *("_call", "_copies", "_max_s", "_obstacle", "_policy", "depth", "effects", "nbytes"),
        *("run_s", "seconds", "sources"),
    )

    def __init__(
        self,
        call: CallRequest,
        sources: Sequence[ArgumentSource],
        effects: CallEffects,
        nbytes: int,
        copies: Sequence[KeptCopy],
        max_s: float,
    ) -> None:
        assert call.result_policy is not None
        super().__init__(call.result_policy.number)
        self._call, self._policy = call, call.result_policy
        self.sources, self.effects, self._obstacle = sources, effects, ""
        self.depth = 1 + max((each.lineage.depth for each in sources), default=0)
        self._max_s = max_s
        self.run_s = self.seconds = 0.0
        self.nbytes, self._copies = nbytes, copies

    def release_room(self) -> None:
        """As of any lineage."""
        self._copies = ()
        super().release_room()

    @property
    def call(self) -> CallRequest:
        """The request, under its number."""
        if self._call.result_policy is not self._policy:
            self._call = self._call._replace(result_policy=self._policy)
        return self._call

    @property
    def obstacle(self) -> str:  # type: ignore[override]
        """As of any lineage."""
        return self._obstacle if self.effects.are_recorded else ANSWERS_OBSTACLE

    @property
    def donates(self) -> bool:  # type: ignore[override]
        """As of any lineage."""
        return self._call.spec.donates

    def settle(self, run_s: float = 0.0) -> None:
        """As of any lineage; calls that it depends on were over before it."""
        found = [self, *(each.lineage for each in self.sources)]
        self.run_s, self.seconds = run_s, run_s + max(each.seconds for each in found)
        calls = (each for each in found if isinstance(each, CallLineage))
        self._obstacle = next((each.obstacle for each in calls if each.obstacle), "")
        if self.seconds > self._max_s:
            self._obstacle = self._obstacle or too_long_obstacle(self._max_s)
        if self._obstacle:
            self._call, self.sources = self._call.without_data(), ()
            self.release_room()

    def assign_number(self, policy: ResultPolicy) -> None:
        """As of any lineage."""
        self.number, self._policy = policy.number, policy

    def make(self, link: RestoreLink) -> Sequence[Leaf]:
        """Makes the call again."""
        return link.call(self)


class _DataEncoder(TreeEncoder):
    """Writes arrays of which only the bytes are here."""

    def arrays(self, arrays: Collection[tuple[Leaf, memoryview]]) -> None:
        """Appends a tuple of them."""
        self._skeleton += (b"T", COUNT.pack(len(arrays)))
        for leaf, data in arrays:
            self.spec(leaf)
            self.count -= 1  # that was the shape alone
            if len(data) <= INLINE_BYTES:
                self.small(bytes(data))
            elif leaf.tag == "K":
                self.beside(data)
            else:
                self.large(data)


def stable_buffers(
    call: CallData,
    transfer: CallTransfer | None,
    in_blocks: Mapping[int, BlockOffset],
    *,
    copied: bool = False,
) -> Sequence[memoryview]:
    """The buffers of a call in memory that nobody changes.

    What was copied to be sent stays where it is, and shared blocks are held as long as it is;
    arrays of jax do not change; the rest is copied.

    Args:
        call: its data, which the caller has not changed so far.
        transfer: that of the data, if it was prepared.
        in_blocks: those of `copies_in_blocks`.
        copied: whether what is beside its message are copies.
    """
    if not call.buffers:
        return ()
    if copied and transfer is not None and transfer.sends_all(call):
        return transfer.buffers
    beside = transfer.beside(call) if transfer is not None and copied else {}
    owners = [*call.buffer_leaves, *[-1] * (len(call.buffers) - len(call.buffer_leaves))]
    return [
        beside[place]
        if place in beside
        else _held_view(in_blocks[owner], len(data))
        if owner in in_blocks
        else data
        if owner in call.sources
        else memoryview(bytes(data))
        for place, (owner, data) in enumerate(zip(owners, call.buffers, strict=True))
    ]


def copies_in_blocks(call: CallData, transfer: CallTransfer) -> dict[int, BlockOffset]:
    """Where copies of a call's leaves lie that may stay there.

    Not what lies in a block of the caller's own (`jaxd.empty`, `jaxd.shared_copy`), which may be
    filled anew.
    """
    blocks = {block.number: block for block, _ in transfer.places}
    stay = {number for number, block in blocks.items() if block.may_stay()}
    data = dict(zip(call.buffer_leaves, call.buffers, strict=False))
    return {
        row.leaf: (blocks[row.a], row.b)
        for row in transfer.data_locations
        if row.kind == BLOCK
        and row.a in stay
        and blocks[row.a].address + row.b != address_of(data[row.leaf])
    }


def _held_view(place: BlockOffset, nbytes: int) -> memoryview:
    from jaxd.transfer.shared_arrays import block_view

    data: memoryview = block_view(*place, nbytes).data
    return data


def rows_of(data: CallData, rows: Iterable[DataLocation]) -> bytes:
    """Where the data lies, for the wire."""
    return pack_locations(sorted((*data.data_locations, *rows)))


# errors of arrays that are gone -------------------------------------------------------------------

_SHOWN: Final = 4
_ADVICE: Final = "Make them again, or restore the state from a checkpoint."


def values_lost_error(*, with_worker: bool, notice: str = "", is_off: bool = False) -> ValuesLost:
    """The error for all arrays of a session that has ended.

    Args:
        with_worker: whether its worker has ended as well.
        notice: what the server says of that.
        is_off: whether nothing is kept to make arrays again.
    """
    why = ", and nothing is kept to make them again (JAXD_SNAPSHOT_S=0)" if is_off else ""
    if with_worker:
        how = f", {notice}" if notice else ""
        return ValuesDied(f"arrays on the server died with its worker{how}{why}. {_ADVICE}")
    return ValuesLost(
        "arrays on the server are gone: it freed them after --session-grace-s without a "
        f"connection{why}. {_ADVICE}"
    )


def died_with_member_error(member: str) -> ValuesLost:
    """The error for all arrays of a session whose server, a member of a pool, is gone.

    Args:
        member: its name.
    """
    return ValuesDied(
        f"arrays on {member}, a member of the pool, died with it. {_ADVICE} What is to outlive a "
        "member is put with jaxd.put(…, replicate=True)."
    )


def irreproducible_error(obstacle: str, *, with_worker: bool = True) -> ValuesLost:
    """The error of arrays that could not be made again in another session.

    Args:
        obstacle: why, as the end of a sentence.
        with_worker: whether they died with their worker.
    """
    if with_worker:
        return ValuesDied(
            "arrays on the server died with its worker, and could not be made again on the next "
            f"one: {obstacle}. {_ADVICE}"
        )
    return ValuesLost(
        "arrays on the server are gone, as it freed them after --session-grace-s without a "
        f"connection, and could not be made again: {obstacle}. {_ADVICE}"
    )


def unanswered_call_error(name: str) -> ValuesLost:
    """The error of a call that was given arrays for good, and whose reply will not come.

    Args:
        name: of its function.
    """
    return ValuesLost(
        f"{name} was sent with arrays that were donated to it, and its answer did not "
        "come before the connection was given up: whether it has run is not known, and they cannot "
        f"be used any more. {_ADVICE}"
    )


def with_array_names(
    error: ValuesLost, arrays: Sequence[RemoteArray], needed_by: str = "this process"
) -> ValuesLost:
    """The same error, with the needed arrays in its message.

    Args:
        error: why the arrays are gone.
        arrays: the needed arrays.
        needed_by: the name of what needs them.
    """
    kinds = Counter(f"{array.dtype}[{','.join(map(str, array.shape))}]" for array in arrays)
    shown = [
        kind if count == 1 else f"{count} of {kind}" for kind, count in kinds.most_common(_SHOWN)
    ]
    more = len(kinds) - len(shown)
    rest = f" and {more} other kinds" if more else ""
    what, _, advice = str(error).partition(". ")
    what = what.partition("; ")[0]  # without the arrays that were named before
    needs = f"{needed_by} needs {len(arrays)} of them: {', '.join(shown)}{rest}"
    return type(error)(f"{what}; {needs}. {advice}")


def with_call_array_names(error: ValuesLost, call: CallRequest) -> ValuesLost:
    """As `with_array_names`, of the arrays that a call needs."""
    arrays = [array for handle_range in call.values for array in handle_range.arrays]
    return with_array_names(error, arrays, call.spec.snapshot.name)
