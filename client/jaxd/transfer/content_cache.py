"""Content cache: numpy arrays that the server has already, recognized by their hash; for networks.

These can be written to, so they are hashed on each call. The server holds what it was sent under
its hash, also for later processes of the same user; it is asked once whether it has something.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from jaxd_protocol.messages.data_locations import STORED, VALUE, Row, content_id, pack_ids

if TYPE_CHECKING:
    from jaxd.transfer.dedup_policy import Worth
    from jaxd.transfer.server_copies import Copies, Copy


SMALLEST_BYTES: Final = 1 << 20
"""Below this, hashing and asking take as long as sending."""

_MAX_KNOWN: Final = 4096

Content = tuple[int, int]
Ask = Callable[[bytes, bytes], bytes]
"""Asks the server: content ids, and the ids of values that these are to become; see `calls`."""


class Contents:
    """The contents that the server is known to hold, for one session. Thread-safe.

    Args:
        copies: of the session.
        worth: decides whether to look.
    """

    def __init__(self, copies: Copies, worth: Worth) -> None:
        self._copies = copies
        self._worth = worth
        self._known: dict[Content, Copy] = {}

    def rows(
        self, data: Mapping[int, memoryview], heads: Mapping[int, bytes], ask: Ask
    ) -> list[tuple[Row, Copy | None]]:
        """How arrays can travel better than with their data alone.

        The copies are to be settled when the call is over.

        Args:
            data: of the arrays of a call, by leaf.
            heads: their bytes in the skeleton, by leaf.
            ask: asks the server.

        Raises:
            ConnectionLost: when the server cannot be asked.
        """
        large = {leaf: one for leaf, one in data.items() if len(one) >= SMALLEST_BYTES}
        if not large or not self._worth.trying(len(large)):
            return []
        contents = {leaf: content_id(heads[leaf], one) for leaf, one in large.items()}
        found = {leaf: self._find(content) for leaf, content in contents.items()}
        unknown = [leaf for leaf, copy in found.items() if copy is None]
        if unknown:
            sizes = {contents[leaf]: len(large[leaf]) for leaf in unknown}
            self._adopt(sizes, ask)
            found.update({leaf: self._find(contents[leaf]) for leaf in unknown})
        self._worth.found(sum(copy is not None for copy in found.values()), len(found))
        return [
            (Row(leaf, STORED, *contents[leaf]), None)
            if copy is None
            else (Row(leaf, VALUE, copy.id), copy)
            for leaf, copy in found.items()
        ]

    def _find(self, content: Content) -> Copy | None:
        """The copy with that content; it is used from now on."""
        copy = self._known.get(content)
        return copy if copy is not None and self._copies.use(copy) else None

    def _adopt(self, sizes: Mapping[Content, int], ask: Ask) -> None:
        """Has the server make values of what it holds."""
        begun = {content: self._copies.begin(nbytes) for content, nbytes in sizes.items()}
        copies = {content: copy for content, copy in begun.items() if copy is not None}
        if not copies:
            return
        refused: Sequence[Any] = list(copies.values())
        ready = False
        try:
            said = ask(
                pack_ids(number for content in copies for number in content),
                pack_ids(copy.id for copy in copies.values()),
            )
            refused = [copy for copy, is_there in zip(refused, said, strict=True) if not is_there]
            ready = True
            for copy in copies.values():
                copy.is_shared = True
        finally:
            ids = [copy.id for copy in refused]
            self._copies.settle(copies.values(), ready=ready, refused=ids)
        if len(self._known) >= _MAX_KNOWN:
            self._known = {key: copy for key, copy in self._known.items() if copy.is_there}
        self._known.update((key, copy) for key, copy in copies.items() if copy.is_there)
