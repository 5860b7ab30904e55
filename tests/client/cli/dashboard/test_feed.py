"""What pages are sent: patches that make one view of another, a whole view where one is behind."""

from __future__ import annotations

import asyncio
import json
import queue
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from jaxd.cli.dashboard.feed import Feed, patch_between
from jaxd_protocol.errors import NotPermitted
from jaxd_protocol.messages.server_view import ServerView, apply_change
from tests.client.cli.dashboard.views import example_view, hostile_view, large_view

VIEWS = {
    "none": ServerView(),
    "example": example_view(),
    "hostile": hostile_view(),
    "many": large_view(50),
}


@pytest.mark.parametrize("after", VIEWS)
@pytest.mark.parametrize("before", VIEWS)
def test_a_patch_makes_one_view_of_another(before: str, after: str) -> None:
    """With rows that go, come and change."""
    old, new = VIEWS[before], VIEWS[after]
    patch = json.loads(json.dumps(patch_between(old, new)))
    assert apply_change(json.loads(json.dumps(old.to_dict())), patch) == json.loads(
        json.dumps(new.to_dict())
    )
    assert bool(patch) == (before != after)


def test_a_patch_has_only_what_has_changed() -> None:
    """One field of one row, although a thousand others are there."""
    before = large_view(1000)
    name = f"{7:032x}"
    after = before.patched({"sequence": 42, "functions": {name: {"hits": 8}}})
    assert patch_between(before, after) == {"sequence": 42, "functions": {name: {"hits": 8}}}


class Scripted:
    """A watch that shows what the test puts into it."""

    def __init__(self) -> None:
        self.view = example_view()
        self.problem = ""
        self.coming: queue.Queue[ServerView | Exception | None] = queue.Queue()

    def next(self, timeout_s: float | None = None, /) -> ServerView | None:
        found = self.coming.get()
        if isinstance(found, Exception):
            raise found
        self.view = found or self.view
        return found

    def close(self) -> None:
        self.coming.put(None)

    def show(self, calls: int) -> None:
        """Another view."""
        self.coming.put(replace(example_view(), sequence=calls, counters={"calls": calls}))


async def _next(events: AsyncIterator[bytes]) -> tuple[str, Any]:
    lines = (await anext(events)).decode().splitlines()
    assert [line.partition(":")[0] for line in lines] == ["event", "data", ""]
    return lines[0].removeprefix("event: "), json.loads(lines[1].removeprefix("data: "))


def test_a_page_gets_the_view_and_then_what_changes() -> None:
    """First how the server is; at the end, that it is the end."""

    async def check() -> None:
        watch = Scripted()
        feed = Feed(watch)
        feed.start()
        events = feed.events()
        assert await _next(events) == ("state", {"state": "live", "text": ""})
        name, view = await _next(events)
        assert (name, view["counters"]["calls"]) == ("view", 1250)
        watch.show(1251)
        name, patch = await _next(events)
        assert (name, patch["counters"]["calls"]) == ("patch", 1251)
        watch.problem = "away"
        watch.coming.put(watch.view)
        assert await _next(events) == ("state", {"state": "lost", "text": "away"})
        feed.end()
        assert await _next(events) == ("end", {})
        assert [each async for each in events] == []

    asyncio.run(check())


def test_a_page_that_is_behind_gets_the_whole_view() -> None:
    """In the place of all patches that wait for it, so that these stay few."""

    async def check() -> None:
        watch = Scripted()
        feed = Feed(watch)
        feed.start()
        slow, quick = feed.events(), feed.events()
        for events in (slow, quick):
            assert [(await _next(events))[0] for _ in range(2)] == ["state", "view"]
        for calls in range(1000):
            watch.show(2000 + calls)
            assert (await _next(quick))[0] == "patch"
        found: dict[str, Any] = {}
        names: list[str] = []
        while found.get("counters", {}).get("calls") != 2999:
            name, content = await _next(slow)
            names.append(name)
            if name == "view":
                found = content
            elif name == "patch":
                found = apply_change(found, content)
        assert names[0] in ("state", "patch")
        assert "view" in names
        assert len(names) < 100
        feed.end()

    asyncio.run(check())


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (NotPermitted("the token was revoked. Get another one."), "the token was revoked. Get"),
        (TypeError("'list' object"), "the dashboard cannot follow the server: TypeError: 'list'"),
    ],
)
def test_a_server_that_refuses_is_said_to_the_pages(error: Exception, text: str) -> None:
    """The last view stays; and so is any other failure to follow it."""

    async def check() -> None:
        watch = Scripted()
        feed = Feed(watch)
        feed.start()
        events = feed.events()
        for _ in range(2):
            await _next(events)
        watch.coming.put(error)
        name, state = await _next(events)
        assert (name, state["state"]) == ("state", "lost")
        assert state["text"].startswith(text)
        feed.end()

    asyncio.run(check())
