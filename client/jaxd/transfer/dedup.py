"""Deduplication: data that a session sent before is not sent again.

jax arrays are immutable: one that is sent a second time is kept by the server, and from the third
time on it is not sent. Other arrays are recognized by their content, over networks only.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from jaxd.transfer.content_cache import AdoptRequest, ContentCache, DedupPolicy, compressed
from jaxd.transfer.server_copies import ServerCopies, ServerCopy
from jaxd_protocol.messages.data_locations import (
    CACHED_AS_VALUE,
    COMPRESSED,
    VALUE,
    DataLocation,
)

if TYPE_CHECKING:
    from jaxd.transfer.release_queue import ReleaseQueue
    from jaxd_protocol.network.addresses import Address


MIN_CACHED_BYTES: Final = 1 << 16
"""Smaller arrays of jax are sent as quickly as they are looked up."""

_FindCopy = Callable[[int, Any], tuple[DataLocation, ServerCopy] | None]


class CallData(Protocol):
    """The arrays of a call or of `put`, to be sent or on the server."""

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
        """The skeleton's bytes for the arrays whose data is in a buffer, by leaf."""


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
        """Adds the location of a leaf, and the copy that it refers to or makes, if any."""
        self.data_locations.append(row)
        if copy is not None:
            self._used_copies.append(copy)

    def start(self) -> None:
        """Marks the beginning of the transfer."""
        self._started = time.monotonic()

    def abandon(self) -> None:
        """Handles the late reply of a call that was completed before without a result."""
        self._copies.release_unconfirmed(self._used_copies)

    def complete(self, *, ready: bool, refused: Collection[int] = (), sent: int = 0) -> None:
        """Completes the plan with its call.

        Args:
            ready: see `ServerCopies.complete`.
            refused: the same.
            sent: how many bytes of data the call has sent.
        """
        self._copies.complete(self._used_copies, ready=ready, refused=refused)
        self._policy.record_transfer(sent, time.monotonic() - self._started)


class _ArrayRef(weakref.ref[Any]):
    """A weak reference to an array, with its copy on the server, if any."""

    __slots__ = ("copy", "key")

    def __init__(self, array: Any, gone: Callable[[Any], object]) -> None:
        self.key = id(array)  # what `super` does with both, it has done in `__new__`
        self.copy: ServerCopy | None = None


class JaxArrayCache:
    """The jax arrays that one session has sent. Thread-safe.

    Args:
        copies: of the session.
    """

    def __init__(self, copies: ServerCopies) -> None:
        self._copies = copies
        self._refs: dict[int, _ArrayRef] = {}  # by id(): arrays of jax have no hash

    def find_copy(self, leaf: int, array: Any) -> tuple[DataLocation, ServerCopy] | None:
        """The copy that replaces an array, and its location; None when the array has to be sent.

        The copy must be completed with the call, and the array kept alive until then.

        Args:
            leaf: its number in the call.
            array: of jax.
        """
        seen = self._find(array)
        copy = None if seen is None else seen.copy
        if copy is None or not self._copies.acquire(copy):
            return None
        return DataLocation(leaf, VALUE, copy.id), copy

    def offer_copy(self, leaf: int, array: Any) -> tuple[DataLocation, ServerCopy] | None:
        """The copy that the server keeps of an array that is sent, as `find_copy`, or None."""
        nbytes: int = array.nbytes
        if nbytes < MIN_CACHED_BYTES:
            return None
        seen = self._find(array)
        if seen is None:
            self._add(array)
            return None
        if seen.copy is not None and (seen.copy.users or seen.copy.is_refused):
            return None
        seen.copy = copy = self._copies.reserve(nbytes)
        return None if copy is None else (DataLocation(leaf, CACHED_AS_VALUE, copy.id), copy)

    def link_copy(self, array: Any, copy: ServerCopy) -> None:
        """Notes that a copy on the server has the content of this array."""
        (self._find(array) or self._add(array)).copy = copy

    def _find(self, array: Any) -> _ArrayRef | None:
        seen = self._refs.get(id(array))
        return seen if seen is not None and array is seen() else None

    def _add(self, array: Any) -> _ArrayRef:
        seen = self._refs[id(array)] = _ArrayRef(array, self._forget)
        return seen

    def _forget(self, seen: _ArrayRef) -> None:
        """Called when an array was collected, in any thread: takes no lock."""
        if self._refs.get(seen.key) is seen:
            self._refs.pop(seen.key, None)
        if seen.copy is not None:
            self._copies.forget(seen.copy)


class Deduplicator:
    """Deduplicates the data of one session's calls. Thread-safe.

    Args:
        release_queue: the ids of copies that the server need not keep any more.
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
        self._compresses = compress and where.is_network
        if where.is_network:
            self._content_cache = ContentCache(self._copies, self._policy)

    def plan(self, call: CallData, ask: AdoptRequest) -> DedupPlan:
        """The data that a call need not send; the plan must be completed with the call.

        Args:
            call: its data.
            ask: asks the server which contents it has.

        Raises:
            JaxdError: as `ask`.
        """
        plan = DedupPlan(self._copies, self._policy)
        try:
            self._plan_sources(plan, call, self._jax_arrays.find_copy)
            if self._content_cache is not None:
                self._plan_contents(self._content_cache, plan, call, ask)
            self._plan_sources(plan, call, self._jax_arrays.offer_copy)
            if self._compresses:
                self._plan_compression(plan, call)
        except BaseException:
            plan.complete(ready=False)
            raise
        plan.start()
        return plan

    def _plan_sources(self, plan: DedupPlan, call: CallData, look: _FindCopy) -> None:
        """Plans arrays of jax that have no row so far."""
        settled = {row.leaf for row in plan.data_locations}
        for leaf, array in call.sources.items():
            found = None if leaf in settled else look(leaf, array)
            if found is not None:
                plan.add(*found)

    def _plan_compression(self, plan: DedupPlan, call: CallData) -> None:
        """Compresses arrays that have to be sent."""
        settled = {-1, *(row.leaf for row in plan.data_locations)}
        for owner, data in zip(call.buffer_leaves, call.buffers, strict=False):
            packed = None if owner in settled else compressed(data, self._policy.speed)
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
