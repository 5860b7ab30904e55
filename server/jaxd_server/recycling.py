"""When a worker has lived long enough: after so many calls, at such a size, at such an age."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from jaxd_server.options import ServerOptions

__all__ = ["reason_to_recycle"]

_SETTLED_S: Final = 60.0
"""A worker that is too large sooner than that would be so again at once."""


def reason_to_recycle(
    options: ServerOptions, status: Mapping[str, Any], ready_s: float, resident_bytes: int
) -> str:
    """Why a worker should be replaced now, in words; empty when there is no reason.

    Args:
        options: what the server was told.
        status: what the worker says of itself.
        ready_s: how long it has answered calls.
        resident_bytes: its memory.
    """
    calls, limit = status.get("calls", 0), options.recycle_after_calls
    if limit and calls >= limit:
        return f"it has answered {calls:,} calls (--recycle-after-calls {limit})"
    if options.recycle_after_s and ready_s >= options.recycle_after_s:
        return f"it is {ready_s:.0f} s old (--recycle-after-s {options.recycle_after_s:g})"
    limit = options.recycle_above_bytes
    if limit and resident_bytes >= limit and ready_s >= _SETTLED_S:
        return f"it has {resident_bytes >> 20:,} MiB of memory (--recycle-above-bytes)"
    return ""
