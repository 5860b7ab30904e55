"""What a fork must not share: the child of a fork forgets its parent's connections.

Both would otherwise read from one socket, and the child's end of it would close the parent's.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

__all__ = ["Forgetful", "forget_after_fork"]


class Forgetful(Protocol):
    """Something that belongs to one process."""

    def after_fork(self) -> None:
        """Called in the child: leave what is the parent's alone, and begin anew."""


_things: weakref.WeakSet[Forgetful] = weakref.WeakSet()


def forget_after_fork(thing: Forgetful) -> None:
    """Has `thing.after_fork` called in every child that this process forks while it is alive."""
    _things.add(thing)


def _in_child() -> None:
    for thing in list(_things):
        thing.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
