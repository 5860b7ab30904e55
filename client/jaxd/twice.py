"""What may be asked twice is asked again when its connection is lost on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from jaxd_protocol.errors import ConnectionLost

__all__ = ["twice"]

T = TypeVar("T")


def twice(ask: Callable[[], T]) -> T:
    """What `ask` returns, at the second time when the first loses its connection.

    Raises:
        ConnectionLost: when the second does, too.
        Exception: what else `ask` raises.
    """
    try:
        return ask()
    except ConnectionLost:
        return ask()
