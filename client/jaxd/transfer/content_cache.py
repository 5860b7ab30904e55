"""Content cache: numpy arrays that the server has already, recognized by their hash; for networks.

numpy arrays are mutable, so they are hashed on each call. The server keeps data under its hash,
also for later processes of the same user; it is asked once for each hash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from jaxd_protocol.messages.data_locations import (
    CACHED_BY_CONTENT,
    VALUE,
    DataLocation,
    content_id,
    pack_ids,
)

if TYPE_CHECKING:
    from jaxd.transfer.link_speed import DedupPolicy
    from jaxd.transfer.server_copies import ServerCopies, ServerCopy


MIN_HASHED_BYTES: Final = 1 << 20
"""Below this, hashing and asking take as long as sending."""

_MAX_KNOWN: Final = 4096

ContentId = tuple[int, int]
AdoptRequest = Callable[[bytes, bytes], bytes]
"""Asks the server: content ids, and the ids of values that these are to become; see `calls`."""


class ContentCache:
    """The contents that the server is known to hold, for one session. Thread-safe.

    Args:
        copies: of the session.
        policy: decides whether data is hashed.
    """

    def __init__(self, copies: ServerCopies, policy: DedupPolicy) -> None:
        self._copies = copies
        self._policy = policy
        self._copies_by_id: dict[ContentId, ServerCopy] = {}

    def locate(
        self, data: Mapping[int, memoryview], leaf_headers: Mapping[int, bytes], ask: AdoptRequest
    ) -> list[tuple[DataLocation, ServerCopy | None]]:
        """Locations for arrays that the server has, or keeps from now on.

        The copies must be completed with the call.

        Args:
            data: of the arrays of a call, by leaf.
            leaf_headers: their bytes in the skeleton, by leaf.
            ask: asks the server.

        Raises:
            ConnectionLost: when the server cannot be asked.
        """
        large = {leaf: one for leaf, one in data.items() if len(one) >= MIN_HASHED_BYTES}
        if not large or not self._policy.should_probe(len(large)):
            return []
        contents = {leaf: content_id(leaf_headers[leaf], one) for leaf, one in large.items()}
        found = {leaf: self._find(content) for leaf, content in contents.items()}
        unknown = [leaf for leaf, copy in found.items() if copy is None]
        if unknown:
            sizes = {contents[leaf]: len(large[leaf]) for leaf in unknown}
            self._adopt(sizes, ask)
            found.update({leaf: self._find(contents[leaf]) for leaf in unknown})
        self._policy.record_probe(sum(copy is not None for copy in found.values()), len(found))
        return [
            (DataLocation(leaf, CACHED_BY_CONTENT, *contents[leaf]), None)
            if copy is None
            else (DataLocation(leaf, VALUE, copy.id), copy)
            for leaf, copy in found.items()
        ]

    def _find(self, content: ContentId) -> ServerCopy | None:
        """The copy with that content, acquired for a call."""
        copy = self._copies_by_id.get(content)
        return copy if copy is not None and self._copies.acquire(copy) else None

    def _adopt(self, sizes: Mapping[ContentId, int], ask: AdoptRequest) -> None:
        """Asks the server to make values of the contents that it has."""
        begun = {content: self._copies.reserve(nbytes) for content, nbytes in sizes.items()}
        copies = {content: copy for content, copy in begun.items() if copy is not None}
        if not copies:
            return
        refused: Sequence[Any] = list(copies.values())
        ready = False
        try:
            found = ask(
                pack_ids(number for content in copies for number in content),
                pack_ids(copy.id for copy in copies.values()),
            )
            refused = [copy for copy, is_there in zip(refused, found, strict=True) if not is_there]
            ready = True
            for copy in copies.values():
                copy.is_shared = True
        finally:
            ids = [copy.id for copy in refused]
            self._copies.complete(copies.values(), ready=ready, refused=ids)
        if len(self._copies_by_id) >= _MAX_KNOWN:
            self._copies_by_id = {
                key: copy for key, copy in self._copies_by_id.items() if copy.is_on_server
            }
        self._copies_by_id.update((key, copy) for key, copy in copies.items() if copy.is_on_server)
