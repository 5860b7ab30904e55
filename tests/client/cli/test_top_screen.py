"""The screens of `jaxd top`, by Textual's pilot: keys in, what is on the screen out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("textual", reason="jaxd top needs textual: pip install 'jaxd[top]'")

from textual import events

from jaxd.cli.server_tables import PANES, Column
from jaxd.cli.top_screen import Details, Panes, RowTable, Top
from jaxd_protocol.messages.server_view import FunctionRow, WorkerRow
from tests.client.cli.recorded_view import LOSS, NOW, STEP, RecordedWatch, busy_view, many_functions

if TYPE_CHECKING:
    from textual.pilot import Pilot

Steps = Callable[["Pilot[None]", Top, RecordedWatch], Awaitable[None]]

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the time of the recorded view."""
    monkeypatch.setattr("jaxd.cli.top_screen.time", SimpleNamespace(time=lambda: NOW))


def play(
    steps: Steps,
    watch: RecordedWatch | None = None,
    *,
    pane: str = "calls",
    size: tuple[int, int] = (80, 24),
) -> RecordedWatch:
    """Runs the program on a screen of that size, and the steps in it."""
    watch = watch or RecordedWatch(busy_view())
    top = Top(watch, pane)

    async def body() -> None:
        async with top.run_test(size=size, notifications=True) as pilot:
            await pilot.pause()
            await steps(pilot, top, watch)

    try:
        asyncio.run(body())
    finally:
        watch.close()
    return watch


def lines(top: Top) -> list[str]:
    """What is on the screen."""
    strips = top.screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip).rstrip() for strip in strips]


def shown(top: Top) -> str:
    """The same, as one text."""
    return "\n".join(lines(top))


async def until(pilot: Pilot[None], top: Top, text: str) -> None:
    """Returns when that is on the screen; a test that waits longer than a minute is ended."""
    while text not in shown(top):
        await pilot.pause(0.01)


def test_the_first_screen_is_that_of_calls() -> None:
    """With the server, its devices, and the keys."""

    async def steps(pilot: Pilot[None], top: Top, watch: RecordedWatch) -> None:
        seen = lines(top)
        assert "ready" in seen[0]
        assert "saved 83 min" in seen[0]
        assert "cuda:0 █" in seen[1]
        panes = "Calls 3 Functions 2 Builds 2 Values 2 Sessions 2 Events 2 Processes 2"
        assert seen[2].split() == panes.split()
        assert "simulate" in seen[4]
        assert "? keys" in seen[-1]

    play(steps)


def test_panes_are_reached_by_digits_tab_and_clicks() -> None:
    """In their order, and around."""

    async def steps(pilot: Pilot[None], top: Top, watch: RecordedWatch) -> None:
        await pilot.press("2")
        assert top.panes.pane == "functions"
        await pilot.press("tab")
        assert top.panes.pane == "builds"
        await pilot.press("shift+tab", "shift+tab", "shift+tab")
        assert top.panes.pane == "processes"
        await pilot.click("#panes", offset=(lines(top)[2].index("Values") + 1, 0))
        assert top.panes.pane == "values"
        assert "weights" in shown(top)

    play(steps)


def test_rows_are_sorted_by_keys_and_by_clicks_on_the_heading() -> None:
    """Once more: the other end first."""

    async def steps(pilot: Pilot[None], top: Top, watch: RecordedWatch) -> None:
        assert "calls▼" in shown(top)
        await pilot.press("s")
        assert "saved▼" in shown(top)
        await pilot.press("r")
        assert "saved▲" in shown(top)
        assert lines(top)[4].startswith("loss")
        await pilot.press("S", "S")
        assert "function▼" in shown(top)
        heading = lines(top)[3]
        for mark in ("▼", "▲"):
            await pilot.click("#heading", offset=(heading.index("built in") + 2, 0))
            assert f"built i{mark}" in shown(top)

    play(steps, pane="functions")


def test_a_filter_leaves_rows_with_these_letters() -> None:
    """Digits are letters there; each pane has its own; Escape shows all."""

    async def steps(pilot: Pilot[None], top: Top, watch: RecordedWatch) -> None:
        await pilot.press("slash", *"PY:12")
        assert top.panes.pane == "functions"
        assert "train_step" not in shown(top)
        assert "loss" in shown(top)
        await pilot.press("enter", "1")
        assert "train_step" in shown(top)
        await pilot.press("2")
        assert "train_step" not in shown(top)
        await pilot.press("slash", "x")
        assert "nothing has 'PY:12x' in it" in shown(top)
        await pilot.press("escape")
        assert "train_step" in shown(top)

    play(steps, pane="functions")


def test_letters_of_a_filter_are_no_commands() -> None:
    """However fast they come; they can be taken back."""

    async def steps(pilot: Pilot[None], top: Top, watch: RecordedWatch) -> None:
        for key in ("slash", "x", "y", "q", "slash", "backspace", "backspace", "ctrl+u", "l", "o"):
            character = {"slash": "/"}.get(key, key if len(key) == 1 else None)
            top.post_message(events.Key(key, character))
        await until(pilot, top, "/lo▏")
        assert "train_step" not in shown(top)
        await pilot.press("enter")
        await until(pilot, top, "/lo  (Esc: all)")

    assert not play(steps, pane="functions").asked


def test_what_comes_is_shown_and_the_cursor_stays_on_its_row() -> None:
    """Also when other rows come above it, and when it goes."""

    async def steps(pilot: Pilot[None], top: Top, watch: RecordedWatch) -> None:
        await pilot.press("down")
        table = top.screen.query_one(RowTable)
        assert table.chosen is not None
        assert table.chosen[0] == LOSS
        more = {f"{n}": {"name": f"f{n}", "hits": 10**6} for n in range(40)}
        watch.view = watch.view.patched({"functions": more})
        top.panes.look()
        await pilot.pause()
        assert (table.cursor, table.chosen[0]) == (41, LOSS)
        assert "loss" in shown(top)
        watch.view = watch.view.patched({"functions": {LOSS: None}})
        top.panes.look()
        assert table.chosen is not None
        assert table.chosen[0] == STEP

    play(steps, pane="functions")


def test_what_is_scrolled_to_stays_in_sight() -> None:
    """By the mouse; a key brings the cursor back, another pane begins at its top."""

    async def steps(pilot: Pilot[None], top: Top, watch: RecordedWatch) -> None:
        table = top.screen.query_one(RowTable)
        table.scroll_to(y=20, animate=False)
        await pilot.pause()
        assert "function_79 " in lines(top)[4]
        watch.view = watch.view.patched({"functions": {f"{99:032x}": {"hits": 900}}})
        top.panes.look()
        await pilot.pause()
        assert "function_79 " in lines(top)[4]
        await pilot.press("down")
        assert "function_98 " in lines(top)[4]
        await pilot.press("end", "3", "2")
        assert table.cursor == 0
        assert "function_99 " in lines(top)[4]

    play(steps, RecordedWatch(many_functions(100)), pane="functions")


def test_ten_thousand_functions_are_drawn_by_the_screen_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cells are made for the rows that are shown, whatever comes; arranged once for each change."""
    made: list[str] = []

    def cell(key: str, row: Any, seen: object) -> str:
        made.append(key)
        return str(row.name)

    pane = PANES["functions"]
    column = Column("function", 14, cell, pane.columns[0].order, grows=True)
    watched = pane._replace(columns=(column, *pane.columns[1:]))
    monkeypatch.setattr("jaxd.cli.top_screen.PANES", {**PANES, "functions": watched})

    async def steps(pilot: Pilot[None], top: Top, watch: RecordedWatch) -> None:
        height = top.screen.query_one(RowTable).size.height
        del made[:]
        for hits in range(5):  # one function is called again
            watch.view = watch.view.patched({"functions": {f"{3:032x}": {"hits": hits}}})
            top.panes.look()
            await pilot.pause()
        assert len(made) <= 2 * 5 * height
        assert len(set(made)) <= height + 5
        del made[:]
        await pilot.press("end")
        await pilot.pause()
        assert "function_4 " in shown(top)
        assert len(made) <= 3 * height

    play(steps, RecordedWatch(many_functions(10_000)), pane="functions")


def test_details_can_be_searched() -> None:
    """Lines with the letters alone."""

    async def steps(pilot: Pilot[None], top: Top, watch: RecordedWatch) -> None:
        await pilot.press("enter", "3")
        await until(pilot, top, "dot_general")
        await pilot.press("slash", *"dot_")
        assert "lambda" not in shown(top)
        assert "dot_general" in shown(top)
        await pilot.press("escape")
        assert isinstance(top.screen, Details)
        assert "lambda" in shown(top)

    play(steps, pane="functions")


def test_details_of_a_call_are_its_own_and_those_of_its_function() -> None:
    """They go on while it does, and stay when it is over."""

    async def steps(pilot: Pilot[None], top: Top, watch: RecordedWatch) -> None:
        await pilot.press("down", "enter")
        await until(pilot, top, "Calls: train_step")
        assert "phase          building" in shown(top)
        watch.view = watch.view.patched({"calls": {"c-000123": {"phase": "running"}}})
        top.panes.look()
        await until(pilot, top, "phase          running")
        watch.view = watch.view.patched({"calls": {"c-000123": None}})
        top.panes.look()
        await pilot.pause()
        assert "principal      uid:1000" in shown(top)

    play(steps)


@pytest.mark.parametrize(
    ("pane", "moves", "question", "asked", "answer"),
    [
        (
            "calls",
            (),
            "Cancel the call of simulate",
            ("cancel", "c-000125"),
            "cancel: Cancelled.",
        ),
        (
            "functions",
            (),
            "Clear the programs of train_step",
            ("clear", STEP),
            "clear: 2 programs dropped",
        ),
        (
            "values",
            ("down",),
            "Release weights",
            ("forget", "weights"),
            "release: Released weights.",
        ),
    ],
)
def test_nothing_is_done_without_a_yes(
    pane: str, moves: tuple[str, ...], question: str, asked: tuple[str, ...], answer: str
) -> None:
    """The question names what is lost, the answer says what became of it."""

    async def steps(pilot: Pilot[None], top: Top, watch: RecordedWatch) -> None:
        await pilot.press(*moves)
        assert f" x {answer.partition(': ')[0]} " in lines(top)[-1]
        for key in ("n", "escape", "enter", "q", "y"):
            await pilot.press("x")
            await until(pilot, top, question)
            await pilot.press(key)
            assert isinstance(top.screen, Panes)
            if key != "y":
                assert not watch.asked
        await until(pilot, top, answer.partition(": ")[2])

    assert play(steps, pane=pane).asked == [asked]


def test_what_cannot_be_done_says_why() -> None:
    """The arrays of a process are its own; sessions cannot be ended from here."""

    async def steps(pilot: Pilot[None], top: Top, watch: RecordedWatch) -> None:
        await pilot.press("x")
        await until(pilot, top, "These belong to a process")
        assert isinstance(top.screen, Panes)
        await pilot.press("5", "x")
        assert isinstance(top.screen, Panes)

    assert not play(steps, pane="values").asked


def test_quarantine_is_ended_by_a_key() -> None:
    """After a yes, where there is one."""

    async def steps(pilot: Pilot[None], top: Top, watch: RecordedWatch) -> None:
        await pilot.press("R")
        await until(pilot, top, "No function is in quarantine")
        watch.view = watch.view.patched({"server": {"quarantined": 2}})
        top.panes.look()
        await pilot.press("R")
        await until(pilot, top, "Take 2 functions out of quarantine?")
        await pilot.press("y")
        await until(pilot, top, "Released 2 from quarantine")

    assert play(steps).asked == [("release", "all")]


def test_it_holds_still() -> None:
    """Until the same key."""

    async def steps(pilot: Pilot[None], top: Top, watch: RecordedWatch) -> None:
        await pilot.press("p")
        watch.view = watch.view.patched({"calls": {"c-9": {"function": "newest"}}})
        top.panes.look()
        await until(pilot, top, "held still: p goes on")
        assert "newest" not in shown(top)
        await pilot.press("p")
        await until(pilot, top, "newest")

    play(steps)


def test_all_keys_are_listed() -> None:
    """Each that is bound; the next key closes the list and does nothing else."""

    async def steps(pilot: Pilot[None], top: Top, watch: RecordedWatch) -> None:
        await pilot.press("question_mark")
        await until(pilot, top, "Any key closes this list.")
        assert "cancel a call, clear a function" in shown(top)
        await pilot.press("q")
        assert isinstance(top.screen, Panes)
        assert top.is_running

    play(steps)


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
def test_a_key_ends_it(key: str) -> None:
    """From the panes; Ctrl-C from anywhere."""

    async def steps(pilot: Pilot[None], top: Top, watch: RecordedWatch) -> None:
        if key == "ctrl+c":
            await pilot.press("enter", "slash", "a")
        await pilot.press(key)
        assert top._exit

    play(steps)


def test_a_smaller_terminal_gets_less() -> None:
    """At once, and more again when it grows."""

    async def steps(pilot: Pilot[None], top: Top, watch: RecordedWatch) -> None:
        assert "last use" in shown(top)
        await pilot.resize_terminal(36, 12)
        await until(pilot, top, "2 of 7: Functions 2")
        assert "last use" not in shown(top)
        await pilot.resize_terminal(120, 24)
        await until(pilot, top, "last minute")

    play(steps, pane="functions")


def test_names_of_others_do_nothing_to_the_terminal() -> None:
    """A function may have any name; markup in it is text."""

    async def steps(pilot: Pilot[None], top: Top, watch: RecordedWatch) -> None:
        name = "[bold]\x1b]0;title\x07[/bold]"
        watch.view = watch.view.patched({"functions": {"k": {"name": name, "hits": 10**7}}})
        top.panes.look()
        await until(pilot, top, "[bold]?]0;title?[/")
        await pilot.press("enter")
        await until(pilot, top, "Functions: [bold]?]0;title?[/bold]")
        await pilot.press("escape", "x")
        await until(pilot, top, "Clear the programs of [bold]?]0;title?[/bold]")

    play(steps, pane="functions")


def test_only_the_terminals_own_colours_are_used() -> None:
    """Readable wherever the terminal is, dark or light: the background is the terminal's."""

    async def steps(pilot: Pilot[None], top: Top, watch: RecordedWatch) -> None:
        watch.view = replace(watch.view, workers={"3": WorkerRow(state="stuck")})
        for key in ("1", "6", "slash", "escape", "question_mark"):
            await pilot.press(key)
            await pilot.pause()
            for strip in top.screen._compositor.render_strips():
                for segment in strip:
                    style = segment.style
                    for colour in (style.color, style.bgcolor) if style else ():
                        assert colour is None or colour.triplet is None, (key, segment)

    play(steps)


def test_a_function_with_no_program_says_so() -> None:
    """In place of a text."""

    async def steps(pilot: Pilot[None], top: Top, watch: RecordedWatch) -> None:
        watch.view = replace(watch.view, functions={"k": FunctionRow("bare")}, programs={})
        top.panes.look()
        await pilot.press("enter", "3")
        await until(pilot, top, "no program of it is known")

    assert not play(steps, pane="functions").asked
