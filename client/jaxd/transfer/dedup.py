"""Deduplication: data that a session sent before is not sent again."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from jaxd.transfer.dedup_policy import Worth
from jaxd.transfer.jax_array_cache import SeenArrays
from jaxd.transfer.server_copies import Copies, Copy
from jaxd_protocol.messages.data_locations import PACKED, Row

if TYPE_CHECKING:
    from jaxd.transfer.compression import Compression
    from jaxd.transfer.content_cache import Ask, Contents
    from jaxd.transfer.release_queue import Drops
    from jaxd_protocol.network.addresses import Address


_Look = Callable[[int, Any], tuple[Row, Copy] | None]


class Data(Protocol):
    """Arrays that are to be sent, or lie on the server; see `Encoded`."""

    @property
    def rows(self) -> Sequence[Row]:
        """Where the data lies that is on the server."""

    @property
    def buffers(self) -> Sequence[memoryview]:
        """The large arrays."""

    @property
    def owners(self) -> Sequence[int]:
        """For each of them the number of its leaf, or -1."""

    @property
    def sources(self) -> Mapping[int, Any]:
        """The arrays of jax whose data is in a buffer, by leaf."""

    @property
    def heads(self) -> Mapping[int, bytes]:
        """What the skeleton says of the arrays whose data is in a buffer, by leaf."""


class Spared:
    """The data that a call need not send, or sends compressed.

    Attributes:
        rows: where that data lies.
        packed: what is sent in place of some data, by leaf.
    """

    def __init__(self, copies: Copies, worth: Worth) -> None:
        self.rows: list[Row] = []
        self.packed: dict[int, memoryview] = {}
        self._copies = copies
        self._worth = worth
        self._used: list[Copy] = []
        self._started = 0.0

    def add(self, row: Row, copy: Copy | None) -> None:
        """One leaf, and the copy to which its row refers or which it brings, if any."""
        self.rows.append(row)
        if copy is not None:
            self._used.append(copy)

    def start(self) -> None:
        """From now on the call is on its way."""
        self._started = time.monotonic()

    def abandon(self) -> None:
        """The server has answered a call that was settled before, because nobody waited."""
        self._copies.drop_lost(self._used)

    def settle(self, *, ready: bool, refused: Collection[int] = (), sent: int = 0) -> None:
        """The call is over.

        Args:
            ready: see `Copies.settle`.
            refused: the same.
            sent: how many bytes of data it has sent.
        """
        self._copies.settle(self._used, ready=ready, refused=refused)
        self._worth.took(sent, time.monotonic() - self._started)


class SentBefore:
    """Deduplicates the data of one session's calls. Thread-safe.

    Args:
        drops: tells the server what it need not keep any more.
        where: the server's address.
        compress: whether data may be compressed on its way over a network.
    """

    def __init__(self, drops: Drops, where: Address, *, compress: bool = False) -> None:
        self._copies = Copies(drops)
        self._seen = SeenArrays(self._copies)
        self._worth = Worth(where.is_loopback)
        self._contents: Contents | None = None
        self._compression: Compression | None = None
        if where.is_network:
            from jaxd.transfer.compression import Compression
            from jaxd.transfer.content_cache import Contents

            self._contents = Contents(self._copies, self._worth)
            self._compression = Compression(self._worth) if compress else None

    def spare(self, call: Data, ask: Ask) -> Spared:
        """What a call need not send; to be settled when it is over.

        Args:
            call: its data.
            ask: asks the server.

        Raises:
            JaxdError: as `ask`.
        """
        spared = Spared(self._copies, self._worth)
        try:
            self._spare_sources(spared, call, self._seen.known)
            if self._contents is not None:
                self._look_inside(self._contents, spared, call, ask)
            self._spare_sources(spared, call, self._seen.offer)
            if self._compression is not None:
                self._pack(self._compression, spared, call)
        except BaseException:
            spared.settle(ready=False)
            raise
        spared.start()
        return spared

    def _spare_sources(self, spared: Spared, call: Data, look: _Look) -> None:
        """Spares arrays of jax that have no row so far."""
        settled = {row.leaf for row in spared.rows}
        for leaf, array in call.sources.items():
            found = None if leaf in settled else look(leaf, array)
            if found is not None:
                spared.add(*found)

    def _pack(self, compression: Compression, spared: Spared, call: Data) -> None:
        """Compresses arrays that have to be sent."""
        settled = {-1, *(row.leaf for row in spared.rows)}
        for owner, data in zip(call.owners, call.buffers, strict=False):
            packed = None if owner in settled else compression.packed(data)
            if packed is not None:
                spared.add(Row(owner, PACKED, len(data)), None)
                spared.packed[owner] = packed

    def _look_inside(self, contents: Contents, spared: Spared, call: Data, ask: Ask) -> None:
        """Plans arrays by their content hash."""
        settled = {-1, *(row.leaf for row in spared.rows)}
        data = {
            owner: data
            for owner, data in zip(call.owners, call.buffers, strict=False)
            if owner not in settled
        }
        for row, copy in contents.rows(data, call.heads, ask):
            spared.add(row, copy)
            if copy is not None and row.leaf in call.sources:
                self._seen.link(call.sources[row.leaf], copy)
