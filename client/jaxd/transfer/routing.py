"""Chooses how large arrays are transferred: in shared memory, deduplicated, or in the message.

Through memory that is shared with a server on the same machine, from 256 kB on, and from 64 kB on
where the data is kept. Not at all when they are jax arrays that the server was sent before: these
cannot have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from jaxd_protocol.base.buffers import address_of
from jaxd_protocol.errors import ConnectionLost, JaxdError
from jaxd_protocol.messages.calls import OK
from jaxd_protocol.messages.data_locations import (
    BLOCK,
    BLOCK_PROBE_BYTES,
    NOT_IN_MESSAGE,
    DataLocation,
    unpack_ids,
)

if TYPE_CHECKING:
    from jaxd.transfer.dedup import CallData, Deduplicator, DedupPlan
    from jaxd.transfer.shared_arrays import ReceiveBuffer
    from jaxd.transfer.shared_memory import BlockOffset, BlockPool, SharedBlock


MIN_SHARED_BYTES: Final = 1 << 18
"""Below this, the socket is as fast."""

MIN_LASTING_BYTES: Final = 1 << 16
"""Above this, what is kept is copied into blocks, which were used before: new memory is slower."""


class BlockPeer(Protocol):
    """A connection, as memory is shared over it.

    Attributes:
        passes_descriptors: whether the server can be given open files, as far as is known.
    """

    passes_descriptors: bool

    def request(
        self,
        verb: str,
        args: tuple[Any, ...],
        *,
        deadline: float | None = None,
        descriptors: Sequence[int] = (),
    ) -> tuple[Any, object]:
        """The server's reply, and its frame."""

    def notify(self, verb: str, args: tuple[Any, ...]) -> None:
        """Sends a message that has no reply."""


def owned_buffers(call: CallData) -> Iterator[tuple[int, memoryview]]:
    """The buffers of a call, each with the number of its leaf; -1 when that is no plain array."""
    return zip(chain(call.buffer_leaves, repeat(-1)), call.buffers, strict=False)


class CallTransfer(NamedTuple):
    """The transfer of one call's data.

    Attributes:
        data_locations: where the data lies that is not in the message.
        buffers: the data that is.
        places: blocks with data of the call, each held once.
        dedup_plan: what of it the server has already.
    """

    data_locations: Sequence[DataLocation]
    buffers: Sequence[memoryview]
    places: Sequence[BlockOffset] = ()
    dedup_plan: DedupPlan | None = None

    def in_blocks(self) -> dict[int, memoryview]:
        """The data of the leaves that lie in blocks, each with the rest of its block."""
        blocks = {block.number: block.view for block, _ in self.places}
        return {
            row.leaf: blocks[row.a][row.b :] for row in self.data_locations if row.kind == BLOCK
        }

    def copies_of(self, call: CallData) -> Sequence[memoryview]:
        """The buffers of the call as the copies that were made: the caller's arrays may change."""
        in_blocks = self.in_blocks()
        absent = {row.leaf for row in self.data_locations if row.kind in NOT_IN_MESSAGE}
        rest = iter(self.buffers)
        copies: list[memoryview] = []
        for owner, data in owned_buffers(call):
            if owner in in_blocks:
                copies.append(in_blocks[owner][: len(data)])
            elif owner in absent:
                copies.append(data)  # an array of jax on the server: it cannot change
            else:
                copies.append(next(rest))
        return copies

    def sends_all(self, call: CallData) -> bool:
        """Whether all of the call's buffers are beside the message, as they are."""
        plan = self.dedup_plan
        return len(self.buffers) == len(call.buffers) and not (plan and plan.packed)

    def beside(self, call: CallData) -> dict[int, memoryview]:
        """What is beside the message of the call's buffers, by their places, as it is."""
        absent = {row.leaf for row in self.data_locations if row.kind in NOT_IN_MESSAGE}
        packed = {} if self.dedup_plan is None else self.dedup_plan.packed
        owners = (owner for owner, _ in owned_buffers(call))
        sent = [(place, owner) for place, owner in enumerate(owners) if owner not in absent]
        pairs = zip(sent, self.buffers, strict=True)
        return {place: data for (place, owner), data in pairs if owner not in packed}

    def release(self, reply: Sequence[Any] | None = None) -> None:
        """Releases the blocks of a call that is over.

        Args:
            reply: of the server; None when there is no result.
        """
        for block, _ in self.places:
            block.release()
        if self.dedup_plan is not None:
            refused = unpack_ids(reply[5]) if reply is not None and len(reply) > 5 else ()
            sent = 0 if reply is None else sum(map(len, self.buffers))
            self.dedup_plan.complete(ready=reply is not None, refused=refused, sent=sent)


class TransferRouter:
    """Prepares the transfers of one caller. Thread-safe.

    Args:
        pool: memory to share; by default that of this process.
    """

    def __init__(self, pool: BlockPool | None = None) -> None:
        self._given_pool = pool

    @property
    def _pool(self) -> BlockPool:
        if self._given_pool is None:
            from jaxd.transfer.shared_memory import shared_pool  # many processes send nothing large

            self._given_pool = shared_pool()
        return self._given_pool

    def prepare(
        self,
        call: CallData,
        connection: BlockPeer,
        deduplicator: Callable[[], Deduplicator] | None = None,
        *,
        copied: bool = False,
        lasting: bool = False,
        deadline: float | None = None,
    ) -> CallTransfer:
        """Prepares the transfer of a call's data, and announces its blocks to the peer.

        Args:
            call: its data.
            connection: over which it is sent.
            deduplicator: gives that of the session; None: no deduplication.
            copied: whether the caller may change its arrays before the reply has arrived.
            lasting: whether the data is kept beyond that.
            deadline: `time.monotonic()` at which the caller stops waiting.

        Raises:
            ConnectionLost: when the connection has ended.
            DeadlineExceeded: when the deadline passed.
        """
        if not call.buffers:
            return CallTransfer(call.data_locations, call.buffers)

        def ask(wanted: bytes, ids: bytes) -> bytes:
            value, _ = connection.request("adopt", (wanted, ids), deadline=deadline)
            return bytes(value[1])

        plan = deduplicator().plan(call, ask) if deduplicator else None
        try:
            rows = list(plan.data_locations) if plan else []
            places = self._load_blocks(call, connection, rows, copied=copied, lasting=lasting)
        except BaseException:
            if plan:
                plan.complete(ready=False)
            raise
        absent = {row.leaf for row in rows if row.kind in NOT_IN_MESSAGE}
        packed = plan.packed if plan else {}
        owned = owned_buffers(call)
        rest = [packed.get(owner, data) for owner, data in owned if owner not in absent]
        return CallTransfer(sorted((*call.data_locations, *rows)), rest, places, plan)

    def _load_blocks(
        self,
        call: CallData,
        connection: BlockPeer,
        rows: list[DataLocation],
        *,
        copied: bool,
        lasting: bool,
    ) -> Sequence[BlockOffset]:
        """Loads large buffers of leaves that have no row so far into blocks; adds their rows."""
        settled = {row.leaf for row in rows}
        least = MIN_LASTING_BYTES if lasting else MIN_SHARED_BYTES
        large = [
            index
            for index, (owner, data) in enumerate(owned_buffers(call))
            if owner >= 0 and len(data) >= least and owner not in settled
        ]
        if not large or not connection.passes_descriptors:
            return ()
        buffers = [call.buffers[index] for index in large]
        places = self._place_in_blocks(buffers, copied=copied, lasting=lasting)
        if places is None:
            return ()
        with ExitStack() as undo:
            undo.callback(self._pool.release, places)
            if not self.announce(connection, places):
                return ()
            undo.pop_all()
        rows += [
            DataLocation(call.buffer_leaves[index], BLOCK, block.number, offset)
            for index, (block, offset) in zip(large, places, strict=True)
        ]
        return places

    def receive_buffer(self, connection: BlockPeer, sizes: Sequence[int]) -> ReceiveBuffer | None:
        """Shared memory for arrays of these sizes; None when the server should send them.

        Raises:
            ConnectionLost: when the connection has ended.
        """
        if sum(sizes) < MIN_SHARED_BYTES or not connection.passes_descriptors:
            return None
        from jaxd.transfer.shared_arrays import ReceiveBuffer, block_view
        from jaxd.transfer.shared_memory import aligned_offsets

        *offsets, room = aligned_offsets(sizes)
        block = self._pool.lease(room)
        if block is None:
            return None
        try:
            if not self.announce(connection, [(block, 0)]):
                return None
            block.is_awaited = True
            places = [number for offset in offsets for number in (block.number, offset)]
            pieces = zip(offsets, sizes, strict=True)
            views = [block_view(block, offset, size).data for offset, size in pieces]
            return ReceiveBuffer(places, views, block)
        finally:
            block.release()

    def uses_shared_blocks(self, call: CallData) -> bool:
        """Whether some of its data lies in shared memory, which the server would read directly."""
        for owner, data in owned_buffers(call):
            is_large = owner >= 0 and len(data) >= MIN_SHARED_BYTES
            if is_large and (place := self._find(data)) is not None:
                place[0].release()
                return True
        return False

    def _place_in_blocks(
        self, buffers: Sequence[memoryview], *, copied: bool, lasting: bool
    ) -> list[BlockOffset] | None:
        """Where the data lies, copied or as it is; None when there is no room."""
        with ExitStack() as undo:
            found: list[BlockOffset | None] = []
            for data in buffers:
                place = None if copied else self._find(data)
                if place is None and lasting:
                    place = self._pool.find_copy(data)
                if place is not None:
                    undo.callback(place[0].release)
                found.append(place)
            pairs = zip(buffers, found, strict=True)
            absent = [data for data, place in pairs if place is None]
            copies = self._pool.copy_in(absent, lasting=lasting)
            if copies is None:
                return None
            undo.pop_all()
        rest = iter(copies)
        return [next(rest) if place is None else place for place in found]

    def _find(self, data: memoryview) -> BlockOffset | None:
        return self._pool.find(address_of(data), len(data))

    def announce(self, connection: BlockPeer, places: Sequence[BlockOffset]) -> bool:
        """Announces blocks that the server has not mapped yet; whether it can map them.

        Raises:
            ConnectionLost: when the connection has ended.
        """
        blocks = self._pool.unannounced(connection, [block for block, _ in places])
        if not all(self._share_block(connection, block) for block in blocks):
            connection.passes_descriptors = False
            return False
        retired = self._pool.announced(connection, blocks)
        if retired:
            connection.notify("unshare", (tuple(retired),))
        return True

    def _share_block(self, connection: BlockPeer, block: SharedBlock) -> bool:
        """Whether the server can read the block; not if a proxy lies in between."""
        before = bytes(block.view[:BLOCK_PROBE_BYTES])
        try:
            value, _ = connection.request(
                "share", (block.number, block.nbytes), descriptors=(block.descriptor,)
            )
        except ConnectionLost:
            raise
        except JaxdError:
            return False
        now = bytes(block.view[:BLOCK_PROBE_BYTES])  # another thread may have written it
        return bool(value[0] == OK and value[1] in (before, now))
