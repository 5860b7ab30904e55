"""The control socket: answers `jaxd status`, `jaxd stop` and so on, also while a worker hangs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from socket import socket
from typing import Any, Protocol

from jaxd_server.runtime.json_lines import encode_line, messages

_MAX_REQUEST_BYTES = 1 << 16


class ControlledServer(Protocol):
    """The interface of the host for its control socket."""

    async def status(self) -> dict[str, Any]:
        """The state of host and worker, as JSON values; never waits long for a worker."""

    def stop(self, *, now: bool = False) -> None:
        """Begins to stop: after the running calls, or `now`."""

    async def restart(self, *, force: bool = False) -> dict[str, Any]:
        """Has another worker take the place of this one; what became of it."""

    def quarantined(self) -> list[dict[str, Any]]:
        """The functions that are called no more, as rows."""

    def release(self, what: str) -> list[dict[str, Any]]:
        """Has some of them called again; their rows."""


@asynccontextmanager
async def serving_control_socket(
    listening: socket, controlled: ControlledServer
) -> AsyncIterator[None]:
    """Answers on the socket `listening` until the block ends.

    One JSON object a line each way: `{"ask": "status"}`, `{"ask": "stop"}`,
    `{"ask": "stop", "now": true}`, `{"ask": "restart"}`, `{"ask": "quarantined"}` and
    `{"ask": "release", "what": NAME}`. A connection stays open until its client closes it or the
    host is gone, so that who asked to stop can wait for the end.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async for request in messages(reader):
                writer.write(encode_line(await _reply(request, controlled)))
                await writer.drain()
        except ValueError as error:
            writer.write(encode_line({"error": f"the request is not a JSON line: {error}"}))
        except (ConnectionError, asyncio.CancelledError):
            pass  # who asked has gone, or the host ends and this connection with it
        finally:
            writer.close()

    server = await asyncio.start_unix_server(answer, sock=listening, limit=_MAX_REQUEST_BYTES)
    try:
        yield
    finally:
        server.close()


async def _reply(request: Mapping[str, Any], controlled: ControlledServer) -> dict[str, Any]:
    match request:
        case {"ask": "status"}:
            return await controlled.status()
        case {"ask": "stop"}:
            controlled.stop(now=request.get("now") is True)
            return {"stopping": True}
        case {"ask": "restart"}:
            return await controlled.restart(force=request.get("force") is True)
        case {"ask": "quarantined"}:
            return {"quarantined": controlled.quarantined()}
        case {"ask": "release", "what": str(what)}:
            return {"released": controlled.release(what)}
    return {"error": f"{request.get('ask')!r} is not known here; ask for status or stop"}
