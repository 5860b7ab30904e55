"""Deduplication: data that a session sent before is not sent again."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from jaxd.transfer.dedup_policy import DedupPolicy
from jaxd.transfer.jax_array_cache import JaxArrayCache
from jaxd.transfer.server_copies import ServerCopies, ServerCopy
from jaxd_protocol.messages.data_locations import COMPRESSED, DataLocation

if TYPE_CHECKING:
    from jaxd.transfer.compression import Compression
    from jaxd.transfer.content_cache import AdoptRequest, ContentCache
    from jaxd.transfer.release_queue import ReleaseQueue
    from jaxd_protocol.network.addresses import Address


_FindCopy = Callable[[int, Any], tuple[DataLocation, ServerCopy] | None]


class CallData(Protocol):
    """Arrays that are to be sent, or lie on the server; see `Encoded`."""

    @property
    def data_locations(self) -> Sequence[DataLocation]:
        """Where the data lies that is on the server."""

    @property
    def buffers(self) -> Sequence[memoryview]:
        """The large arrays."""

    @property
    def buffer_leaves(self) -> Sequence[int]:
        """For each of them the number of its leaf, or -1."""

    @property
    def sources(self) -> Mapping[int, Any]:
        """The arrays of jax whose data is in a buffer, by leaf."""

    @property
    def leaf_headers(self) -> Mapping[int, bytes]:
        """What the skeleton says of the arrays whose data is in a buffer, by leaf."""


class DedupPlan:
    """The data that a call need not send, or sends compressed.

    Attributes:
        data_locations: where that data lies.
        packed: what is sent in place of some data, by leaf.
    """

    def __init__(self, copies: ServerCopies, policy: DedupPolicy) -> None:
        self.data_locations: list[DataLocation] = []
        self.packed: dict[int, memoryview] = {}
        self._copies = copies
        self._policy = policy
        self._used_copies: list[ServerCopy] = []
        self._started = 0.0

    def add(self, row: DataLocation, copy: ServerCopy | None) -> None:
        """One leaf, and the copy to which its row refers or which it brings, if any."""
        self.data_locations.append(row)
        if copy is not None:
            self._used_copies.append(copy)

    def start(self) -> None:
        """From now on the call is on its way."""
        self._started = time.monotonic()

    def abandon(self) -> None:
        """The server has answered a call that was settled before, because nobody waited."""
        self._copies.release_unconfirmed(self._used_copies)

    def complete(self, *, ready: bool, refused: Collection[int] = (), sent: int = 0) -> None:
        """The call is over.

        Args:
            ready: see `ServerCopies.settle`.
            refused: the same.
            sent: how many bytes of data it has sent.
        """
        self._copies.complete(self._used_copies, ready=ready, refused=refused)
        self._policy.record_transfer(sent, time.monotonic() - self._started)


class Deduplicator:
    """Deduplicates the data of one session's calls. Thread-safe.

    Args:
        drops: tells the server what it need not keep any more.
        where: the server's address.
        compress: whether data may be compressed on its way over a network.
    """

    def __init__(
        self, release_queue: ReleaseQueue, where: Address, *, compress: bool = False
    ) -> None:
        self._copies = ServerCopies(release_queue)
        self._jax_arrays = JaxArrayCache(self._copies)
        self._policy = DedupPolicy(where.is_loopback)
        self._content_cache: ContentCache | None = None
        self._compression: Compression | None = None
        if where.is_network:
            from jaxd.transfer.compression import Compression
            from jaxd.transfer.content_cache import ContentCache

            self._content_cache = ContentCache(self._copies, self._policy)
            self._compression = Compression(self._policy) if compress else None

    def plan(self, call: CallData, ask: AdoptRequest) -> DedupPlan:
        """What a call need not send; to be settled when it is over.

        Args:
            call: its data.
            ask: asks the server.

        Raises:
            JaxdError: as `ask`.
        """
        plan = DedupPlan(self._copies, self._policy)
        try:
            self._plan_sources(plan, call, self._jax_arrays.find_copy)
            if self._content_cache is not None:
                self._plan_contents(self._content_cache, plan, call, ask)
            self._plan_sources(plan, call, self._jax_arrays.offer_copy)
            if self._compression is not None:
                self._plan_compression(self._compression, plan, call)
        except BaseException:
            plan.complete(ready=False)
            raise
        plan.start()
        return plan

    def _plan_sources(self, plan: DedupPlan, call: CallData, look: _FindCopy) -> None:
        """Spares arrays of jax that have no row so far."""
        settled = {row.leaf for row in plan.data_locations}
        for leaf, array in call.sources.items():
            found = None if leaf in settled else look(leaf, array)
            if found is not None:
                plan.add(*found)

    def _plan_compression(self, compression: Compression, plan: DedupPlan, call: CallData) -> None:
        """Compresses arrays that have to be sent."""
        settled = {-1, *(row.leaf for row in plan.data_locations)}
        for owner, data in zip(call.buffer_leaves, call.buffers, strict=False):
            packed = None if owner in settled else compression.packed(data)
            if packed is not None:
                plan.add(DataLocation(owner, COMPRESSED, len(data)), None)
                plan.packed[owner] = packed

    def _plan_contents(
        self, contents: ContentCache, plan: DedupPlan, call: CallData, ask: AdoptRequest
    ) -> None:
        """Plans arrays by their content hash."""
        settled = {-1, *(row.leaf for row in plan.data_locations)}
        data = {
            owner: data
            for owner, data in zip(call.buffer_leaves, call.buffers, strict=False)
            if owner not in settled
        }
        for row, copy in contents.locate(data, call.leaf_headers, ask):
            plan.add(row, copy)
            if copy is not None and row.leaf in call.sources:
                self._jax_arrays.link_copy(call.sources[row.leaf], copy)
