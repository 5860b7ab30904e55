"""What is made, and imported, when it is first needed: many processes need none of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Later"]

T = TypeVar("T")


class Later(Generic[T]):
    """Gives one object, always the same. From any thread; it holds no lock, as after a fork.

    Args:
        make: makes it. Threads that ask at the same moment may each make one, of which only
            the first is ever given to anybody.

    Attributes:
        made: the object; None as long as nobody has asked for it.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._first: dict[None, T] = {}
        self.made: T | None = None

    def __call__(self) -> T:
        """The object."""
        if self.made is None:
            self.made = self._first.setdefault(None, self._make())
        return self.made
