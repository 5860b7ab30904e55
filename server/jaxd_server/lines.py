"""JSON objects, one a line: what is spoken on the tether to a worker and on the control socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

__all__ = ["MAX_LINE_BYTES", "MAX_TENANT_LINE_BYTES", "encode_line", "messages"]

MAX_LINE_BYTES = 16 << 20
"""Far above a worker's status with all of its running calls; what is longer is no status."""

MAX_TENANT_LINE_BYTES = 1 << 20
"""The same for one principal's worker: nobody else is to wait while its lines are read."""


def encode_line(message: Mapping[str, Any]) -> bytes:
    """`message` as one line."""
    return json.dumps(message).encode() + b"\n"


async def messages(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """The objects that arrive, until the other end closes; other tasks have their turn after each.

    Raises:
        ValueError: when a line is too long, is not JSON, or is not an object.
    """
    try:
        while line := await reader.readline():
            message = json.loads(line)
            if not isinstance(message, dict):
                raise ValueError("not a JSON object")  # noqa: TRY004  a fault of the line
            yield message
            await asyncio.sleep(0)  # `readline` waits for nothing while there are lines
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except ConnectionError:
        return  # a peer that died is at its end
