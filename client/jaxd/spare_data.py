"""What a submitted call is made again of, whatever its caller does to its arrays meanwhile."""

from __future__ import annotations

import threading
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final, NamedTuple

from jaxd.forking import forget_after_fork
from jaxd_protocol.elsewhere import BLOCK

if TYPE_CHECKING:
    from jaxd.encoded import Encoded
    from jaxd.routes import Load

__all__ = ["MOST_BYTES", "Spare", "SpareRoom"]

MOST_BYTES: Final = 1 << 28
"""What the open calls of a process may copy for this, all together: 256 MiB."""


class SpareRoom:
    """Room for copies. Thread-safe.

    Args:
        most: bytes.
    """

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self.after_fork()
        forget_after_fork(self)

    def after_fork(self) -> None:
        """In the child of a fork: the calls are the parent's, and so is who holds the lock."""
        self._left = self._most
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> bool:
        """Whether there is so much; to be given back if so."""
        with self._lock:
            fits = nbytes <= self._left
            if fits:
                self._left -= nbytes
            return fits

    def give_back(self, nbytes: int) -> None:
        """These copies are gone."""
        with self._lock:
            self._left += nbytes


class Spare(NamedTuple):
    """A call of which nothing can change any more.

    Attributes:
        call: the call.
        nbytes: what was copied for it.
    """

    call: Encoded
    nbytes: int

    @classmethod
    def of(cls, call: Encoded, load: Load, room: SpareRoom) -> Spare | None:
        """That of a call.

        Arrays of jax cannot change, and what lies in shared memory is a copy; the rest is copied.

        Args:
            call: the call.
            load: its data, which was loaded just now so that the caller may change it.
            room: for copies; what was copied is to be given back to it.

        Returns:
            None where there is no room.
        """
        blocks = {block.number: block.view for block, _ in load.places}
        rows = {row.leaf: row for row in load.rows if row.kind == BLOCK}
        owned = list(zip(chain(call.owners, repeat(-1)), call.buffers, strict=False))
        stays = rows.keys() | call.sources.keys()
        nbytes = sum(len(data) for owner, data in owned if owner not in stays)
        if not room.take(nbytes):
            return None
        buffers: list[memoryview] = []
        for owner, data in owned:
            row = rows.get(owner)
            if row is not None:
                buffers.append(blocks[row.a][row.b : row.b + len(data)])
            else:
                buffers.append(data if owner in stays else memoryview(bytes(data)))
        return cls(call._replace(buffers=buffers), nbytes)
