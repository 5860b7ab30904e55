"""Follows a server for all pages that are open: the view once for each, then what changes."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, NamedTuple

from jaxd.cli.server_summary import Followed
from jaxd_protocol.errors import JaxdError
from jaxd_protocol.messages.server_view import TABLES, ServerView, changed, row_dict

_MOST_WAITING: Final = 64
"""Events of one page; a page that is further behind gets the whole view in their place."""


class Event(NamedTuple):
    """A server-sent event."""

    name: str
    content: Any

    def encoded(self) -> bytes:
        """As it stands in a `text/event-stream`: JSON has no line ends of its own."""
        data = json.dumps(self.content, separators=(",", ":"))
        return f"event: {self.name}\ndata: {data}\n\n".encode()


class Feed:
    """The events of all pages. But for its own thread, used by one event loop.

    Args:
        watch: the server.
    """

    def __init__(self, watch: Followed) -> None:
        self._watch = watch
        self._view = watch.view
        self._state = _state(watch.problem)
        self._pages: set[asyncio.Queue[bytes | None]] = set()
        self._ended = False
        self._thread = threading.Thread(target=self._follow, name="dashboard-feed", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Begins to follow; called in the event loop of the pages."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def end(self) -> None:
        """Tells all pages that the dashboard ends, and closes the watch. May be called again."""
        if not self._ended:
            self._ended = True
            for page in self._pages:
                page.put_nowait(Event("end", {}).encoded())
                page.put_nowait(None)
            self._watch.close()

    def end_soon(self) -> None:
        """As `end`, from a signal handler or another thread."""
        self._soon(self.end)

    async def events(self) -> AsyncIterator[bytes]:
        """What one page is sent: how the server is, its view, and what changes, until the end."""
        page: asyncio.Queue[bytes | None] = asyncio.Queue()
        for first in self._beginning():
            page.put_nowait(first)
        if self._ended:
            page.put_nowait(None)
        self._pages.add(page)
        try:
            while (event := await page.get()) is not None:
                yield event
        finally:
            self._pages.discard(page)

    def _follow(self) -> None:
        """Runs in the thread."""
        before, problem = self._view, self._watch.problem
        try:
            while (after := self._watch.next()) is not None:
                if self._watch.problem != problem:
                    problem = self._watch.problem
                    self._soon(self._take_state, _state(problem))
                if patch := patch_between(before, after):
                    self._soon(self._take_patch, after, patch)
                before = after
        except JaxdError as error:
            self._lose(str(error))
        except Exception as error:  # noqa: BLE001  pages must not go on to say that all is well
            self._lose(f"the dashboard cannot follow the server: {type(error).__name__}: {error}.")

    def _lose(self, problem: str) -> None:
        self._soon(self._take_state, _state(f"{problem} Then start the dashboard again."))

    def _soon(self, call: Any, *args: Any) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call, *args)

    def _take_patch(self, view: ServerView, patch: Mapping[str, Any]) -> None:
        self._view = view
        self._publish(Event("patch", patch))

    def _take_state(self, state: Event) -> None:
        self._state = state
        self._publish(state)

    def _publish(self, event: Event) -> None:
        if self._ended:
            return
        encoded = event.encoded() if self._pages else b""
        for page in self._pages:
            if page.qsize() < _MOST_WAITING:
                page.put_nowait(encoded)
            else:
                self._begin_again(page)

    def _begin_again(self, page: asyncio.Queue[bytes | None]) -> None:
        """Has a page that is behind get the whole view, which has all that it has missed."""
        while not page.empty():
            page.get_nowait()
        for event in self._beginning():
            page.put_nowait(event)

    def _beginning(self) -> tuple[bytes, ...]:
        return self._state.encoded(), Event("view", self._view.to_dict()).encoded()


def _state(problem: str) -> Event:
    return Event("state", {"state": "lost" if problem else "live", "text": problem})


def patch_between(before: ServerView, after: ServerView) -> dict[str, Any]:
    """The merge patch (RFC 7386) that makes one view of another.

    Rows that are the same object in both are not looked into.
    """
    patch = changed({"at": before.at, "sequence": before.sequence}, _head(after))
    for name, old, new in (
        ("server", row_dict(before.server), row_dict(after.server)),
        ("counters", before.counters, after.counters),
    ):
        if inner := changed(old, new):
            patch[name] = inner
    for name in TABLES:
        if rows := _rows_between(getattr(before, name), getattr(after, name)):
            patch[name] = rows
    return patch


def _head(view: ServerView) -> dict[str, Any]:
    return {"at": view.at, "sequence": view.sequence}


def _rows_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    if before is after:
        return {}
    rows: dict[str, Any] = dict.fromkeys(before.keys() - after.keys())
    for name, new in after.items():
        old = before.get(name)
        if old is None:
            rows[name] = row_dict(new)
        elif old is not new and old != new:
            rows[name] = changed(row_dict(old), row_dict(new))
    return rows
