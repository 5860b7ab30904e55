"""What a persistent function is on the server, inside of another one: the function itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["plain"]


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function; a persistent one is pickled as a call of this."""
    return function
