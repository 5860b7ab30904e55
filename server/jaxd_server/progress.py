"""What a call reports while it runs: its own stream of events, whoever listens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["SILENT", "Emit"]

Emit = Callable[[str, dict[str, Any]], None]
"""Sends one event of a call: its kind, such as `stage`, and its JSON content."""


def SILENT(kind: str, content: dict[str, Any]) -> None:  # noqa: N802  a constant that is called
    """The event stream of a call that nobody watches."""
