"""How many bytes the values of a worker take, and whether there is room for more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from jaxd_protocol.errors import ValuesFull
from jaxd_server.value_holders import largest

__all__ = ["ValueRoom"]

_MIB: Final = 1 << 20


class ValueRoom:
    """Keeps the account. Not thread-safe: `Values` holds its lock.

    Args:
        limit: bytes that all may take; 0: as many as there is room for.
        share: of this, what one principal may take.

    Attributes:
        limit: the same.
        used: bytes by principal.
        nbytes: bytes of all.
    """

    def __init__(self, limit: int, share: float) -> None:
        self.limit = limit
        self.used: dict[str, int] = {}
        self.nbytes = 0
        self._most_of_one = int(limit * share)
        self._promised: dict[str, int] = {}

    def charge(self, principal: str, nbytes: int) -> None:
        """A principal has so many bytes more; or, below 0, fewer."""
        self.nbytes += nbytes
        _add(self.used, principal, nbytes)

    def promise(self, principal: str, nbytes: int) -> None:
        """So many bytes of what is free are a principal's who is about to use them; or no more."""
        _add(self._promised, principal, nbytes)

    def has(self, principal: str, nbytes: int) -> bool:
        """Whether a principal may have so many bytes more."""
        free = self.limit - self.nbytes - sum(self._promised.values())
        own = self._most_of_one - self.used.get(principal, 0) - self._promised.get(principal, 0)
        return not self.limit or nbytes <= min(free, own)

    def full(self, principal: str, nbytes: int, rows: Iterable[Mapping[str, Any]]) -> ValuesFull:
        """What a principal is told who may not.

        Args:
            principal: who.
            nbytes: what was asked for.
            rows: who holds how much, the largest first.
        """
        promised = sum(self._promised.values())
        others = f" and {promised / _MIB:,.1f} MiB are being filled" if promised else ""
        return ValuesFull(
            f"{nbytes / _MIB:,.1f} MiB more have no room on the server: its values take "
            f"{self.nbytes / _MIB:,.1f} of {self.limit / _MIB:,.1f} MiB, yours "
            f"{self.used.get(principal, 0) / _MIB:,.1f} of {self._most_of_one / _MIB:,.1f} MiB"
            f"{others}. The largest: {largest(rows)}. Let go of arrays that you do not need (del, "
            ".delete(), jaxd.forget), or start the server with a larger --value-bytes."
        )


def _add(account: dict[str, int], principal: str, nbytes: int) -> None:
    account[principal] = account.get(principal, 0) + nbytes
    if not account[principal]:
        del account[principal]
