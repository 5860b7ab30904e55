"""The archives in use in this thread: whose packages travel as source files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from jaxd_protocol.fingerprint.model import Archives

_current: ContextVar[Archives | None] = ContextVar("jaxd_archives", default=None)


def current_archives() -> Archives | None:
    """The archives of the function whose arguments, code or result are processed."""
    return _current.get()


@contextmanager
def using_archives(archives: Archives | None) -> Iterator[None]:
    """Around the packing of arguments and code, and the reading of results."""
    token = _current.set(archives)
    try:
        yield
    finally:
        _current.reset(token)
