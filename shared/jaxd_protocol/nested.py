"""What a persistent function is on the server, inside of another one: the function itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["PlainInside", "plain"]


class PlainInside:
    """Base of what stands for a function, and is that function inside of another one.

    Attributes:
        __wrapped__: the function.
    """

    __wrapped__: Callable[..., Any]

    def __reduce__(self) -> Any:
        """On the way to a server it is the function itself."""
        return plain, (self.__wrapped__,)


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function; a persistent one is pickled as a call of this."""
    return function
