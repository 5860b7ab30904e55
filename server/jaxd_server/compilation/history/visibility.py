"""Which functions each principal has called: only those are shown to it.

Programs are shared by all who call the same function. What there is to be read about them (names,
arguments, constants that changed, code) is shown to those who have called it themselves, and to
whom the server belongs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.network.accounts import UNNAMED

Visibility = Callable[[bytes], bool]
"""Whether somebody may be shown what there is about a key."""

_MAX_KEYS: Final = 10_000
"""For each principal, those that it has called last."""

_ROOT: Final = "uid:0"


class KnownFunctions:
    """The functions that each principal has called. Thread-safe.

    Args:
        is_owner: whether the server belongs to a principal, who may see everything.
    """

    def __init__(self, is_owner: Callable[[str], bool] = lambda principal: True) -> None:
        self.is_owner = is_owner
        self._known: dict[str, BoundedDict[bytes, None]] = {}
        self._lock = threading.Lock()  # guards the table

    def record(self, principal: str, key: bytes) -> None:
        """A principal has called a function."""
        if self.is_owner(principal):
            return
        with self._lock:
            self._known.setdefault(principal, BoundedDict(_MAX_KEYS))[key] = None

    def visibility(self, principal: str) -> Visibility:
        """What a principal may be shown."""
        if self.is_owner(principal):
            return lambda key: True

        def knows(key: bytes) -> bool:
            return key in self._known.get(principal, ())

        return knows

    def forget(self, principal: str) -> None:
        """Whoever has that name next is somebody else."""
        with self._lock:
            self._known.pop(principal, None)


def belongs_to(uid: int) -> Callable[[str], bool]:
    """Whether a server of that user belongs to a principal.

    That is the user itself, root, and whoever holds the token without a name, which is the user's
    own; where nobody has to prove anything, everybody.
    """
    owners = {f"uid:{uid}", _ROOT, UNNAMED, ""}
    return lambda principal: principal in owners or principal.startswith("anonymous@")
