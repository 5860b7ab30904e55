"""What a fork must not share: the child of a fork forgets its parent's connections.

Both would otherwise read from one socket, and the child's end of it would close the parent's.
Memory that both have mapped is the child's as well from then on.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

__all__ = ["Forgetful", "Inherited", "forget_after_fork", "tell_of_forks"]


class Forgetful(Protocol):
    """Something that belongs to one process."""

    def after_fork(self) -> None:
        """Called in the child: leave what is the parent's alone, and begin anew."""


class Inherited(Protocol):
    """Something of which the child has a part."""

    def on_fork(self) -> None:
        """Called in the parent, before and after: a child has what there is now."""


_inherited: weakref.WeakSet[Inherited] = weakref.WeakSet()
_things: weakref.WeakSet[Forgetful] = weakref.WeakSet()


def forget_after_fork(thing: Forgetful) -> None:
    """Has `thing.after_fork` called in every child that this process forks while it is alive."""
    _things.add(thing)


def tell_of_forks(thing: Inherited) -> None:
    """Has `thing.on_fork` called in this process at every fork while it is alive."""
    _inherited.add(thing)


def _in_parent() -> None:
    for thing in list(_inherited):
        thing.on_fork()


def _in_child() -> None:
    for thing in list(_things):
        thing.after_fork()


if hasattr(os, "register_at_fork"):
    # before, for what another thread gives back meanwhile; after, for what it has taken
    os.register_at_fork(before=_in_parent, after_in_parent=_in_parent, after_in_child=_in_child)
