"""The pages of a dashboard, what they ask, and the process that serves them."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from jaxd.cli.dashboard.access import Access
from jaxd.cli.dashboard.feed import Feed
from jaxd.cli.server_summary import Watched, act
from jaxd_protocol.errors import JaxdError

if TYPE_CHECKING:
    from starlette.requests import Request

_STATIC: Final = Path(__file__).with_name("static")
_MOST_BYTES: Final = 4096
"""Of what a page sends."""
_END_S: Final = 2
"""Seconds that open requests have when the dashboard ends."""


def serve(server: Watched, listener: socket.socket, access: Access) -> None:
    """Serves the pages until a signal ends it.

    Args:
        server: is closed at the end.
        listener: listens on 127.0.0.1.
        access: lets in who may.

    Raises:
        KeyboardInterrupt: when that was Ctrl-C.
    """
    feed = Feed(server)
    access.app = _app(server, feed, access.place)
    config = uvicorn.Config(
        access,
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=_END_S,
    )
    _Process(config, feed).run(sockets=[listener])


class _Process(uvicorn.Server):
    """Tells the pages first when it ends: their events would go on for ever."""

    def __init__(self, config: uvicorn.Config, feed: Feed) -> None:
        super().__init__(config)
        self._feed = feed

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._feed.end_soon()
        super().handle_exit(signal.Signals(sig), frame)


def _app(server: Watched, feed: Feed, place: str) -> Starlette:
    """The pages below `/place/`."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        feed.start()
        yield
        feed.end()

    async def events(_: Request) -> Response:
        return StreamingResponse(feed.events(), media_type="text/event-stream")

    def detail(request: Request) -> Response:
        key = request.query_params.get("function", "")
        return _answered(lambda: asdict(server.detail(key)))

    def text(request: Request) -> Response:
        asked = (request.query_params.get(name, "") for name in ("function", "program", "stage"))
        return _answered(lambda: {"text": server.text(*asked)})

    async def action(request: Request) -> Response:
        return await _acted(server, request)

    routes = [
        Route("/", lambda _: FileResponse(_STATIC / "index.html")),
        Route("/events", events),
        Route("/detail", detail),
        Route("/text", text),
        Route("/actions/{name}", action, methods=["POST"]),
        Mount("/static", StaticFiles(directory=_STATIC)),
    ]
    return Starlette(routes=[Mount(f"/{place}", routes=routes)], lifespan=lifespan)


def _answered(ask: Callable[[], Mapping[str, Any]]) -> Response:
    """What the server says, or its error, which the page shows."""
    try:
        return JSONResponse(ask())
    except JaxdError as error:
        return JSONResponse({"error": str(error)})


# what can be done ---------------------------------------------------------------------------------


_FIELDS: Final = {"cancel": "call", "clear": "key", "forget": "name", "release": "what"}
"""What a page may ask for: by action the field that says of what."""


async def _acted(server: Watched, request: Request) -> Response:
    """Does what the page asks for, and says in a sentence what came of it."""
    action = request.path_params["name"]
    what = (await _content(request)).get(_FIELDS.get(action, ""))
    if action not in _FIELDS or type(what) is not str:
        return JSONResponse({"text": "The dashboard cannot do that. Load the page again."}, 400)
    try:
        return JSONResponse({"text": await asyncio.to_thread(act, server, action, what)})
    except JaxdError as error:
        return JSONResponse({"text": str(error)}, 409)


async def _content(request: Request) -> Mapping[str, Any]:
    """The JSON object that was sent; empty where it is none, or too long."""
    found = bytearray()
    async for piece in request.stream():
        found += piece
        if len(found) > _MOST_BYTES:
            return {}
    try:
        content = json.loads(found)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}
