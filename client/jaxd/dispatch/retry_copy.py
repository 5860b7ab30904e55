"""Copies of a submitted call's arrays, from which the call can be repeated."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final, NamedTuple

from jaxd_protocol.base.process import reset_after_fork

if TYPE_CHECKING:
    from jaxd.request.call_request import CallRequest
    from jaxd.transfer.routing import CallTransfer
    from jaxd.transfer.shared_memory import SharedBlock


MAX_COPY_BYTES: Final = 1 << 28
"""What the open calls of a process may copy for this, all together: 256 MiB."""


class RetryBudget:
    """A byte budget for copies. Thread-safe.

    Args:
        most: bytes.
    """

    def __init__(self, most: int = MAX_COPY_BYTES) -> None:
        self._limit = most
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """In the child of a fork: calls and lock are the parent's."""
        self._free = self._limit
        self._lock = threading.Lock()

    def reserve(self, nbytes: int) -> bool:
        """Whether there is so much; to be given back if so."""
        with self._lock:
            fits = nbytes <= self._free
            if fits:
                self._free -= nbytes
            return fits

    def release(self, nbytes: int) -> None:
        """These copies are gone."""
        with self._lock:
            self._free = min(self._limit, self._free + nbytes)  # a fork's parent may have taken it


class RetryCopy(NamedTuple):
    """A request whose data cannot change any more.

    Attributes:
        call: the call.
        blocks: shared memory in which some of its data lies, one share for each time.
        nbytes: what was copied of the rest.
        budget: where this was taken.
    """

    call: CallRequest
    blocks: Sequence[SharedBlock]
    nbytes: int
    budget: RetryBudget

    @classmethod
    def of(cls, call: CallRequest, transfer: CallTransfer, budget: RetryBudget) -> RetryCopy | None:
        """That of a call. To be released.

        Arrays of jax do not change, whatever jax has made them of; what lies in shared memory is a
        copy; the rest is copied.

        Args:
            call: the call.
            transfer: its data, which was loaded just now so that the caller may change it.
            budget: for copies.

        Returns:
            None where there is no room.
        """
        in_blocks = transfer.in_blocks()
        owned = list(zip(chain(call.buffer_leaves, repeat(-1)), call.buffers, strict=False))
        stays = in_blocks.keys() | call.sources.keys()
        nbytes = sum(len(data) for owner, data in owned if owner not in stays)
        if not budget.reserve(nbytes):
            return None
        try:
            buffers = [
                in_blocks.get(owner, data)[: len(data)]
                if owner in stays
                else memoryview(bytes(data))
                for owner, data in owned
            ]
        except BaseException as error:
            budget.release(nbytes)
            if isinstance(error, MemoryError):
                return None
            raise
        blocks = [block for block, _ in transfer.places]
        for block in blocks:
            block.retain()
        return cls(call._replace(buffers=buffers), blocks, nbytes, budget)

    def release(self) -> None:
        """The call is not made again."""
        for block in self.blocks:
            block.release()
        self.budget.release(self.nbytes)
