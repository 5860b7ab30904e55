"""How much of something is in use, in total and by each principal."""

from __future__ import annotations

from collections import Counter


class Quota:
    """Accounts for bytes, or calls, of which there is a limited number. Not thread-safe.

    Args:
        limit: how many there are.
        share: of these, what one principal may use; at least one.

    Attributes:
        limit: the same.
        max_per_principal: the number that `share` comes to.
        used: how many are in use.
        used_by: the same by principal, of those that use any.
    """

    def __init__(self, limit: int, share: float = 1.0) -> None:
        self.limit = limit
        self.max_per_principal = max(1, int(limit * share))
        self.used = 0
        self.used_by: Counter[str] = Counter()

    def add(self, principal: str, amount: int) -> None:
        """A principal uses so many more; fewer, when that is negative."""
        self.used += amount
        self.used_by[principal] += amount
        if not self.used_by[principal]:
            del self.used_by[principal]

    def left(self, principal: str) -> int:
        """How many more a principal may use."""
        return min(self.limit - self.used, self.max_per_principal - self.used_by[principal])
