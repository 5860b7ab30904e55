"""Waiting for whichever happens first."""

from __future__ import annotations

import asyncio

__all__ = ["first_of"]


async def first_of(*events: asyncio.Event, timeout_s: float | None = None) -> None:
    """Returns when one of `events` is set, or after `timeout_s`."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
