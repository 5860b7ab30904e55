"""Draws the pictures of docs/top.md: `python -m tests.client.cli.top_pictures docs`."""

from __future__ import annotations

import asyncio
import random
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Final

from jaxd.cli import top_screen
from jaxd_protocol.messages.server_view import FunctionRow, ServerView
from tests.client.cli.recorded_view import NOW, STEP, RecordedWatch, busy_view, latency

_NAMES: Final = (
    *("loss", "evaluate", "simulate", "encode", "decode", "update_state"),
    *("sample", "log_prob", "project", "render", "forward"),
)
_SIZE: Final = (100, 24)


def _function(place: int, name: str) -> FunctionRow:
    rank = place + 2
    return FunctionRow(
        name,
        f"{('train', 'model', 'data')[place % 3]}.py:{12 + place * 17}",
        1 + place % 3,
        int(90_000 / rank**1.5),
        1 + rank % 4,
        place % 5,
        3600 / rank**1.2,
        92 / rank,
        310 / rank,
        latency(**{f"c{5 + place % 6}": 60_000 // rank}),
        NOW - rank**3,
    )


def _view() -> ServerView:
    made = {f"{place:032x}": _function(place, name) for place, name in enumerate(_NAMES)}
    view = busy_view()
    return replace(view, functions={STEP: view.functions[STEP], **made})


def _after_a_second(view: ServerView, now: float) -> ServerView:
    """With more calls."""
    called = {
        key: {"hits": row.hits + random.randint(1, 9), "last_use": now}
        for key, row in view.functions.items()
        if random.random() < (0.9 if key == STEP else 0.4)
    }
    calls = view.counters["calls"] + random.randint(20, 180)
    return view.patched({"functions": called, "counters": {"calls": calls}})


def _save(top: top_screen.Top, path: Path) -> None:
    """Without the fonts, which a reader's browser would fetch."""
    picture = top.export_screenshot(simplify=True)
    path.write_text(re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL))


async def _draw(folder: Path) -> None:
    now = SimpleNamespace(time=lambda: NOW)
    vars(top_screen)["time"] = now  # that of the view
    watch = RecordedWatch(_view())
    top = top_screen.Top(watch)
    async with top.run_test(size=_SIZE) as pilot:
        await pilot.pause()
        for step in range(61):
            at = NOW + step * 1.001
            now.time = at.__float__
            watch.view = _after_a_second(watch.view, at)
            top.panes.look()
        for name, keys in (
            ("top-confirm", "x"),
            ("top-functions", "n 2 s"),
            ("top-details", "enter"),
        ):
            await pilot.press(*keys.split())
            await pilot.pause(0.2)
            _save(top, folder / f"{name}.svg")
    watch.close()


if __name__ == "__main__":
    random.seed(7)
    asyncio.run(_draw(Path(sys.argv[1])))
