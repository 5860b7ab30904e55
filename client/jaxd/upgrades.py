"""Notices packages that are upgraded while this process runs: keys name what is installed."""

from __future__ import annotations

import threading
import time
from typing import Final

from jaxd.forking import forget_after_fork
from jaxd.notices import warn_of_changes
from jaxd_protocol.packages import changed_since_first_seen

__all__ = ["Upgrades", "upgrades"]

_EVERY_S: Final = 1.0


class Upgrades:
    """Counts the changes of installed packages; looks once a second at most. Thread-safe."""

    def __init__(self) -> None:
        self._count = 0
        self._looked = 0.0
        self.after_fork()
        forget_after_fork(self)

    def after_fork(self) -> None:
        """In the child of a fork: a thread of the parent may have been looking."""
        self._lock = threading.Lock()  # guards _count and _looked

    def count(self) -> int:
        """How many times packages were found changed so far. Warns of each change.

        Raises:
            SkewWarning: where the user's filters turn it into an error.
        """
        now = time.monotonic()
        if now - self._looked < _EVERY_S:
            return self._count
        with self._lock:
            self._looked = now
            changes = changed_since_first_seen()
            self._count += len(changes)
        if changes:
            warn_of_changes(changes)
        return self._count


upgrades: Final = Upgrades()
"""Those that this process has seen."""
