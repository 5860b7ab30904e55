"""What goes back to a client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["Finish", "Reply"]

Reply = tuple[Any, Sequence[memoryview]]
"""The outcome as plain values, and the buffers beside it."""

Finish = Callable[[], Reply]
"""Waits until a call that was started is done, and never raises; to be called once."""
