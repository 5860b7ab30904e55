"""What a call reports while it runs: its own stream of events, whoever listens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["SILENT", "Build", "Emit", "current_build", "watch_build"]

Emit = Callable[[str, dict[str, Any]], None]
"""Sends one event of a call: its kind, such as `stage`, and its JSON content."""


def SILENT(kind: str, content: dict[str, Any]) -> None:  # noqa: N802  a constant that is called
    """The event stream of a call that nobody watches."""


class Build:
    """What the build that runs in this thread did."""

    def __init__(self) -> None:
        self.traces = 0
        self.compiles = 0


_thread = threading.local()


def current_build() -> Build | None:
    """The build that this thread is busy with, if any."""
    return getattr(_thread, "build", None)


@contextmanager
def watch_build() -> Iterator[Build]:
    """Attributes what jax does in this thread to one build; jax reports synchronously."""
    outer, _thread.build = current_build(), Build()
    try:
        yield _thread.build
    finally:
        _thread.build = outer
