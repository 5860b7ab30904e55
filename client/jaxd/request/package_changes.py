"""Detects packages that change on disk while this process runs: keys contain their versions."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Iterable
from typing import Final

from jaxd_protocol.base.process import reset_after_fork
from jaxd_protocol.errors import SkewWarning
from jaxd_protocol.packages.distributions import Package, changed_since_first_seen, describe_change

_POLL_INTERVAL_S: Final = 1.0


class PackageChanges:
    """Counts the changes of installed packages. Thread-safe.

    Attributes:
        count: how many times packages were found changed so far.
        next_look_s: when to look again, by `time.monotonic`: a second after the last time.
    """

    def __init__(self) -> None:
        self.count = 0
        self.next_poll_s = 0.0
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """In the child of a fork: a thread of the parent may have been looking."""
        self._lock = threading.Lock()  # guards count and next_look_s

    def poll(self) -> None:
        """Checks for changes, and warns of each.

        Raises:
            SkewWarning: where the user's filters turn it into an error.
        """
        with self._lock:
            self.next_poll_s = time.monotonic() + _POLL_INTERVAL_S
            changes = changed_since_first_seen()
            self.count += len(changes)
        if changes:
            _warn_of_changes(changes)


def _warn_of_changes(changes: Iterable[tuple[Package, Package | None]]) -> None:
    """Warns, in the line that called, of packages that were changed on disk.

    This process goes on with what was there before.

    Args:
        changes: what `jaxd_protocol.packages.distributions.changed_since_first_seen` returned.

    Raises:
        SkewWarning: where the user's filters turn it into an error.
    """
    from jaxd.request.stacklevel import user_stacklevel

    for old, new in changes:
        text = (
            f"{describe_change(old, new)} while this process runs what was there before. Functions are "
            "built anew with what is there now; restart this process to have the same in it."
        )
        warnings.warn(text, SkewWarning, user_stacklevel())


package_changes: Final = PackageChanges()
"""Those that this process has seen."""
