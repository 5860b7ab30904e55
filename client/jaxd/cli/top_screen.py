"""The screens of `jaxd top`: a Textual program that shows a `Watch` through `server_tables`.

It draws with the terminal's own colours, so it is readable where the terminal is, and draws only
the rows that are on the screen. What is asked on a key (details, actions) is asked in a thread of
its own: a server that hangs holds neither the keys nor the end of the program.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from rich.segment import Segment
from rich.style import Style
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.screen import ModalScreen, Screen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Footer, Static

from jaxd.cli.server_summary import (
    GAP,
    Row,
    Seen,
    Spans,
    Watched,
    act,
    detail_text,
    fitted,
    function_lines,
    function_of,
    head,
    programs_of,
    row_lines,
    short_name,
    wrapped,
)
from jaxd.cli.server_tables import PANES, Listing, tone_of
from jaxd_protocol.base.terminal import printable
from jaxd_protocol.errors import JaxdError
from jaxd_protocol.messages.server_view import FunctionRow

if TYPE_CHECKING:
    from textual import events

REFRESH_S: Final = 0.5
"""How often the screen looks at what has come."""

_STEP_S: Final = 1.0
_LONGEST_LINE: Final = 10_000
_TONES: Final = {
    "": Style(),
    "strong": Style(bold=True),
    "good": Style(color="green"),
    "bad": Style(color="red", bold=True),
    "warn": Style(color="magenta"),
}
_CONTENT_STYLES: Final = {
    "": "",
    "strong": "bold",
    "good": "ansi_green",
    "bad": "bold ansi_red",
    "warn": "ansi_magenta",
}

_KEYS: Final = """\
1 to 7          panes; also Tab, Shift-Tab, or a click
↑ ↓ PgUp PgDn   move; also j k, Home End, or the mouse
Enter           details: why it was built, memory and cost, jaxpr, HLO
/               only rows with these letters; Esc: all
s S             sort by the next column, by the one before; or a click
r               the other end first
x               cancel a call, clear a function, release a name; asks first
R               take all functions out of quarantine; asks first
p               hold still, and go on
q Ctrl-C        end

In details: 1 overview  2 why and cost  3 jaxpr  4 HLO  n next program
            / only lines with these letters  Esc back
Any key closes this list."""


# tables -----------------------------------------------------------------------------------------


class RowTable(ScrollView, can_focus=True):
    """Rows of which those that are on the screen are drawn.

    The cursor stays on its row when others come and go; in the first place it stays there.

    Args:
        has_cursor: whether a row can be chosen; else keys scroll.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown,space", "page(1)", show=False),
        Binding("home,g", "move(-1000000000)", show=False),
        Binding("end,G", "move(1000000000)", show=False),
    ]

    def __init__(self, *, has_cursor: bool = True) -> None:
        super().__init__()
        self.cursor = 0
        self._has_cursor = has_cursor
        self._rows: Sequence[tuple[str, Row]] = ()
        self._line: Callable[[str, Row], str] = lambda key, row: ""

    def show(self, rows: Sequence[tuple[str, Row]], line: Callable[[str, Row], str]) -> None:
        """Draws these, each as `line` makes it when it is on the screen."""
        held, place = self.chosen, self.cursor
        self._rows, self._line = rows, line
        if self.cursor and held is not None:
            keys = (number for number, one in enumerate(rows) if one[0] == held[0])
            self.cursor = next(keys, min(self.cursor, max(0, len(rows) - 1)))
        self.virtual_size = Size(self.scrollable_content_region.width, len(rows))
        if self.cursor != place:  # else it is where somebody has scrolled to
            self._keep_in_sight()
        self.refresh()

    @property
    def chosen(self) -> tuple[str, Row] | None:
        """The row under the cursor."""
        return self._rows[self.cursor] if self.cursor < len(self._rows) else None

    def render_line(self, y: int) -> Strip:
        """A line of the screen, as Textual asks for it."""
        place, width = y + self.scroll_offset.y, self.scrollable_content_region.width
        if place >= len(self._rows):
            return Strip.blank(width, self.rich_style)
        key, row = self._rows[place]
        style = self.rich_style + _TONES[tone_of(row)]
        if self._has_cursor and place == self.cursor:
            style += Style(reverse=True)
        return Strip([Segment(fitted(self._line(key, row), width), style)], width)

    def action_move(self, by: int) -> None:
        """Moves the cursor, or the text."""
        if self._has_cursor:
            self.cursor = min(max(0, self.cursor + by), max(0, len(self._rows) - 1))
            self._keep_in_sight()
            self.refresh()
        else:
            self.scroll_to(y=self.scroll_offset.y + by, animate=False)

    def action_page(self, by: int) -> None:
        """Moves by a screen."""
        self.action_move(by * max(1, self.size.height - 1))

    def on_click(self, event: events.Click) -> None:
        """Puts the cursor there."""
        if self._has_cursor:
            self.action_move(event.y + self.scroll_offset.y - self.cursor)

    def _keep_in_sight(self) -> None:
        top, height = self.scroll_offset.y, self.size.height
        at = min(max(top, self.cursor - height + 1), self.cursor)
        if self._has_cursor and height and at != top:
            self.scroll_to(y=at, animate=False, force=True)


class FilteredTable(Vertical):
    """A table, its heading, and below it the filter while there is one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("escape", "unfilter", show=False),
    ]

    class Filtered(Message):
        """Other letters are wanted."""

        def __init__(self, wanted: str) -> None:
            super().__init__()
            self.wanted = wanted

    class HeadingClicked(Message):
        """The heading was clicked, in this column of the terminal."""

        def __init__(self, x: int) -> None:
            super().__init__()
            self.x = x

    class Left(Message):
        """Escape, where nothing is filtered."""

    def __init__(self, *, has_cursor: bool = True) -> None:
        super().__init__()
        self.heading = Static(id="heading")
        self.table = RowTable(has_cursor=has_cursor)
        self._line = Static(id="filter")
        self._wanted = ""
        self._is_typing = False

    def compose(self) -> ComposeResult:
        """Heading, table and filter."""
        yield self.heading
        yield self.table
        yield self._line

    def on_mount(self) -> None:
        """Nothing is filtered."""
        self.show_filter("")
        self.table.focus()

    def show_filter(self, wanted: str, *, is_typing: bool = False) -> None:
        """With these letters; empty: there is none."""
        self._is_typing = is_typing
        self._line.display = is_typing or bool(wanted)
        self._line.update(Content(f"/{wanted}{'▏' if is_typing else '  (Esc: all)'}"))
        if wanted != self._wanted:
            self._wanted = wanted
            self.post_message(self.Filtered(wanted))

    def on_key(self, event: events.Key) -> None:
        """Takes letters while they are typed; the focus stays, so no key is taken for another."""
        if event.key == "slash" and not self._is_typing:
            self.action_filter()
        elif self._is_typing and (edited := _edited(self._wanted, event)) is not None:
            self.show_filter(edited, is_typing=event.key not in ("enter", "escape"))
        else:
            return
        event.stop()

    def action_filter(self) -> None:
        """Asks for letters."""
        self.show_filter(self._wanted, is_typing=True)

    def action_unfilter(self) -> None:
        """Shows all again; where all is shown, it is a matter of the screen."""
        if self._wanted:
            self.show_filter("")
        else:
            self.post_message(self.Left())

    def on_click(self, event: events.Click) -> None:
        """One on the heading sorts."""
        if event.widget is self.heading:
            self.post_message(self.HeadingClicked(event.x))


def _edited(text: str, event: events.Key) -> str | None:
    """The text after a key; None: it is no key of an editor."""
    edits = {"enter": text, "escape": "", "backspace": text[:-1], "ctrl+u": ""}
    letter = event.character if event.is_printable else None
    return edits.get(event.key, text + letter if letter else None)


def content(lines: Sequence[Spans]) -> Content:
    """Lines of spans as Textual shows them."""
    return Content("\n").join(
        Content.assemble(*((text, _CONTENT_STYLES[tone]) for text, tone in spans))
        for spans in lines
    )


# screens ----------------------------------------------------------------------------------------


def in_thread(work: Callable[[], None]) -> None:
    """Runs it beside the screen, in a thread that does not hold the end of the process."""
    threading.Thread(target=work, daemon=True, name="jaxd-top").start()


def answer_of(ask: Callable[[], str]) -> str:
    """What was answered, or why there is no answer."""
    try:
        return ask()
    except JaxdError as error:
        return str(error)
    except (TypeError, ValueError, AttributeError):
        return "The server's answer cannot be read. Install the same jaxd on both sides."


class Keys(ModalScreen[None]):
    """All keys; any of them closes it."""

    def compose(self) -> ComposeResult:
        """The list."""
        yield Static(Content(_KEYS), classes="box")

    def on_key(self, event: events.Key) -> None:
        """Closes it."""
        event.stop()
        self.dismiss()

    def on_click(self) -> None:
        """Closes it."""
        self.dismiss()


class Confirm(ModalScreen[bool]):
    """Asks whether something is to be done; only `y` and a click on it say yes.

    Args:
        question: what is asked.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", show=False),
        Binding("n,escape,enter,q", "answer(False)", show=False),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """The question."""
        answers = Content.from_markup(
            "\n\n[@click=screen.answer(True)]y: yes[/]   [@click=screen.answer(False)]n: no[/]"
        )
        yield Static(Content(self._question) + answers, classes="box")

    def action_answer(self, answer: bool) -> None:
        """Closes it."""
        self.dismiss(answer)


class Details(Screen[None]):
    """A row: its fields, and of a function its history, cost, jaxpr and HLO.

    Args:
        title: what it is.
        overview: makes the first section, each time it is shown.
        watch: is asked for the others.
        function: the key of the function that it is about; empty when there is none.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("1", "section('overview')", "overview"),
        Binding("2", "section('why')", "why, cost"),
        Binding("3", "section('jaxpr')", "jaxpr"),
        Binding("4", "section('hlo')", "HLO"),
        Binding("n", "next_program", "program"),
        Binding("escape,q", "leave", "back"),
    ]

    class Fetched(Message):
        """A section has come."""

        def __init__(self, section: tuple[str, str], text: str) -> None:
            super().__init__()
            self.section, self.text = section, text

    def __init__(
        self, title: str, overview: Callable[[], list[str]], watch: Watched, function: str
    ) -> None:
        super().__init__()
        self._about, self._overview = title, overview
        self._server, self._function = watch, function
        self._section = ("overview", "")
        self._texts: dict[tuple[str, str], list[str]] = {}
        self._wanted = ""
        self._shown: tuple[Any, ...] = ()

    def compose(self) -> ComposeResult:
        """Title, text and keys."""
        yield Static(id="title")
        yield FilteredTable(has_cursor=False)
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        """Keeps up with the view."""
        self.query_one(FilteredTable).heading.display = False
        self.call_after_refresh(self.draw)
        self.set_interval(REFRESH_S, self.draw)

    def on_resize(self) -> None:
        """Draws it as wide as it is now."""
        self.call_after_refresh(self.draw)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Only functions have sections."""
        return bool(self._function) or action not in ("section", "next_program")

    def action_section(self, name: str) -> None:
        """Shows another section, which is asked for when it is shown first."""
        names = programs_of(self._function, self._server.view)
        program = self._section[1] if self._section[1] in names else next(iter(names), "")
        self._show(name, program)

    def action_next_program(self) -> None:
        """Shows the same of the next program."""
        names = programs_of(self._function, self._server.view)
        if self._section[1] in names:
            after = (names.index(self._section[1]) + 1) % len(names)
            self._show(self._section[0], names[after])

    def _show(self, name: str, program: str) -> None:
        self._section = asked = (name, program)
        if name != "overview" and asked not in self._texts:
            self._texts[asked] = ["asking the server ..."]
            in_thread(partial(self._fetch, asked))
        self.query_one(RowTable).scroll_to(y=0, animate=False)
        self.draw()

    def _fetch(self, asked: tuple[str, str]) -> None:
        text = answer_of(partial(self._asked, *asked))
        with suppress(RuntimeError):  # the program has ended meanwhile
            self.post_message(self.Fetched(asked, text))

    def _asked(self, name: str, program: str) -> str:
        if name == "why":
            return detail_text(self._server.detail(self._function))
        if not program:
            return "no program of it is known: its next call builds one"
        return self._server.text(self._function, program, "jaxpr" if name == "jaxpr" else "hlo")

    def on_details_fetched(self, event: Fetched) -> None:
        """Shows it, if it is still wanted."""
        self._texts[event.section] = event.text.splitlines() or ["it is empty"]
        self.draw()

    def on_filtered_table_filtered(self, event: FilteredTable.Filtered) -> None:
        """Shows only the lines with these letters."""
        self._wanted = event.wanted.lower()
        self.draw()

    def on_filtered_table_left(self) -> None:
        """Back to the panes."""
        self.dismiss()

    def action_leave(self) -> None:
        """Back to the panes."""
        self.dismiss()

    def draw(self) -> None:
        """Draws it, if anything has changed."""
        lines = self._texts.get(self._section) or self._overview()
        table = self.query_one(RowTable)
        asked = (lines, self._wanted, table.scrollable_content_region.width, self._section)
        if asked == self._shown:
            return
        self._shown = asked
        parts = [part for line in lines for part in wrapped(line, asked[2])]
        rows = [(str(at), part) for at, part in enumerate(parts) if self._wanted in part.lower()]
        table.show(rows, lambda key, row: row)
        self.query_one("#title", Static).update(content([self._title_line()]))

    def _title_line(self) -> Spans:
        name, program = self._section
        known = self._server.view.programs.get(program)
        arguments = known.arguments if known and name in ("jaxpr", "hlo") else ""
        return [(self._about, "strong"), (f"  {name.replace('hlo', 'HLO')}  {arguments}", "")]


class Panes(Screen[None]):
    """Head, panes and keys.

    Args:
        watch: what is shown.
        pane: the one that is shown first.
        is_local: whether the server has the clock of this machine.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "details", "details", key_display="enter"),
        Binding("s", "sort(1)", "sort"),
        Binding("S", "sort(-1)", show=False),
        Binding("r", "reverse", "reverse"),
        *(Binding("x", f"act('{name}')", name) for name in ("cancel", "clear", "release")),
        Binding("R", "release", show=False),
        Binding("p", "hold", "hold"),
        Binding("q", "app.quit", "quit"),
        Binding("tab", "next_pane(1)", show=False, priority=True),
        Binding("shift+tab", "next_pane(-1)", show=False, priority=True),
        *(
            Binding(str(place), f"show_pane('{name}')", show=False)
            for place, name in enumerate(PANES, 1)
        ),
    ]

    class Acted(Message):
        """An action has ended."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self, watch: Watched, pane: str, *, is_local: bool) -> None:
        super().__init__()
        self.pane = pane
        self.view = watch.view
        self.seen = Seen()
        self._server, self._is_local = watch, is_local
        self._listings = {name: Listing(one) for name, one in PANES.items()}
        self._ahead_s = max(0.0, watch.view.at - time.time())
        self._next_step = 0.0
        self._is_held = False

    @property
    def listing(self) -> Listing:
        """The pane that is shown, as it is arranged."""
        return self._listings[self.pane]

    def compose(self) -> ComposeResult:
        """Head, panes, table and keys."""
        yield Static(id="head")
        yield Static(id="panes")
        yield FilteredTable()
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        """Looks at once, and again and again."""
        self.call_after_refresh(self.look)
        self.set_interval(REFRESH_S, self.look)

    def on_resize(self) -> None:
        """Draws it as wide as it is now."""
        self.call_after_refresh(self.draw)

    def look(self) -> None:
        """Takes up what has come, and draws it."""
        if not self._is_held:
            if self._server.view is not self.view and not self._is_local:
                self._ahead_s = self._server.view.at - time.time()  # its clock beside ours
            self.view = self._server.view
            self.seen.now = time.time() + self._ahead_s
            if self.seen.now >= self._next_step:
                self._next_step = self.seen.now + _STEP_S
                self.seen.add(self.view)
        self.draw()

    # drawing

    def draw(self) -> None:
        """Draws what is known."""
        lines = head(self.view, self.seen, self.size.width, self._server.problem)
        if self._is_held:
            lines.append([("held still: p goes on", "warn")])
        self.query_one("#head", Static).update(content(lines))
        self.query_one("#panes", Static).update(self._pane_bar())
        both, listing = self.query_one(FilteredTable), self.listing
        columns = listing.columns(both.table.scrollable_content_region.width)
        rows = listing.rows(self.view)
        both.heading.update(Content(listing.heading(columns) if rows else self._emptiness()))
        both.table.show(rows, lambda key, row: listing.line(columns, key, row, self.seen))

    def _emptiness(self) -> str:
        wanted = self.listing.wanted
        return f"nothing has {wanted!r} in it; Esc: all" if wanted else self.listing.pane.empty

    def _pane_bar(self) -> Content:
        """The panes with their counts; on a narrow terminal without them, or only this one."""
        counts = [f"{one.title} {_short(len(one.rows(self.view)))}" for one in PANES.values()]
        for texts in (counts, [one.title for one in PANES.values()]):
            if len(" ".join(texts)) <= self.size.width:
                named = zip(PANES, texts, strict=True)
                return Content(" ").join(self._pane_link(name, text) for name, text in named)
        place = list(PANES).index(self.pane)
        return Content(f"{place + 1} of {len(PANES)}: {counts[place]}")

    def _pane_link(self, name: str, text: str) -> Content:
        style = "reverse " if name == self.pane else ""
        return Content.from_markup(f"[{style}@click=screen.show_pane('{name}')]$text[/]", text=text)

    # keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What can be done here."""
        own = self.listing.pane.action
        return action != "act" or (own is not None and parameters == (own.name,))

    def action_show_pane(self, name: str) -> None:
        """Shows another pane."""
        self.pane = name
        both = self.query_one(FilteredTable)
        both.table.action_move(-both.table.cursor)
        both.show_filter(self.listing.wanted)
        both.table.focus()
        self.draw()
        self.refresh_bindings()

    def action_next_pane(self, by: int) -> None:
        """Shows the one beside it."""
        names = list(PANES)
        self.action_show_pane(names[(names.index(self.pane) + by) % len(names)])

    def action_sort(self, by: int) -> None:
        """Sorts by the column beside it."""
        self._sort((self.listing.sort + by) % len(self.listing.pane.columns), reverse=False)

    def action_reverse(self) -> None:
        """The other end first."""
        self._sort(self.listing.sort, reverse=not self.listing.reverse)

    def _sort(self, place: int, *, reverse: bool) -> None:
        self.listing.sort, self.listing.reverse = place, reverse
        self.draw()

    def action_hold(self) -> None:
        """Holds still, or goes on."""
        self._is_held = not self._is_held
        self.look()

    def on_filtered_table_filtered(self, event: FilteredTable.Filtered) -> None:
        """Shows only the rows with these letters."""
        self.listing.wanted = event.wanted
        self.draw()

    def on_filtered_table_heading_clicked(self, event: FilteredTable.HeadingClicked) -> None:
        """Sorts by that column; once more: the other end first."""
        listing, end = self.listing, 0
        width = self.query_one(RowTable).scrollable_content_region.width
        for column, columns in listing.columns(width):
            end += columns + GAP
            if event.x < end:
                place = listing.pane.columns.index(column)
                self._sort(place, reverse=place == listing.sort and not listing.reverse)
                return

    def action_details(self) -> None:
        """All about the row under the cursor."""
        chosen = self.query_one(RowTable).chosen
        if chosen is not None:
            key, row = chosen
            function = function_of(self.pane, key, row, self.view)
            name = short_name(getattr(row, "function", "") or getattr(row, "name", "") or key)
            overview = partial(self._overview, self.pane, key, row, function)
            title = f"{self.listing.pane.title}: {name}"
            self.app.push_screen(Details(title, overview, self._server, function))

    def _overview(self, pane: str, key: str, row: Row, function: str) -> list[str]:
        """The row as it is now, or was last, and its function."""
        now = PANES[pane].rows(self.view).get(key, row)
        lines = [] if isinstance(now, FunctionRow) else [*row_lines(now, self.seen.now), ""]
        if function in self.view.functions:
            lines += function_lines(function, self.view, self.seen)
        return lines or ["it is gone: nothing is known of it any more"]

    def action_act(self, name: str) -> None:
        """Asks, and does it."""
        action, chosen = self.listing.pane.action, self.query_one(RowTable).chosen
        if action is None or chosen is None:
            return
        if refusal := action.refusal(*chosen):
            self.app.notify(refusal, markup=False)
            return
        key, row = chosen
        asked = ("forget", row.holder) if name == "release" else (name, key)
        self._confirm(action.question(key, row), partial(act, self._server, *asked))

    def action_release(self) -> None:
        """Asks, and takes all functions out of quarantine."""
        if not self.view.server.quarantined:
            self.app.notify("No function is in quarantine.", markup=False)
            return
        self._confirm(
            f"Take {self.view.server.quarantined:,} functions out of quarantine? They have ended "
            "workers, and may do so again.",
            partial(act, self._server, "release", "all"),
        )

    def _confirm(self, question: str, do: Callable[[], str]) -> None:
        def answered(is_wanted: bool | None) -> None:
            if is_wanted:
                in_thread(partial(self._do, do))

        self.app.push_screen(Confirm(question), answered)

    def _do(self, do: Callable[[], str]) -> None:
        text = answer_of(do)
        with suppress(RuntimeError):  # the program has ended meanwhile
            self.post_message(self.Acted(text))

    def on_panes_acted(self, event: Acted) -> None:
        """Says what became of it."""
        self.app.notify(printable(event.text, _LONGEST_LINE), markup=False)


def _short(count: int) -> str:
    """``3``, ``10k``."""
    return str(count) if count < 1000 else f"{count // 1000}k"


class Top(App[None]):
    """The program.

    Args:
        watch: what is shown; not used by anything else meanwhile.
        pane: the one that is shown first.
        is_local: whether the server has the clock of this machine.
    """

    TITLE = "jaxd top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    * { background: ansi_default; color: ansi_default; }
    #head, #panes, #title { height: auto; width: 100%; }
    #heading { text-style: underline; height: 1; }
    #filter { height: 1; }
    #title { margin-bottom: 1; }
    Static { link-color: ansi_default; link-style: none; link-style-hover: underline; }
    Static { link-color-hover: ansi_default; link-background-hover: ansi_default; }
    FilteredTable, RowTable { height: 1fr; }
    RowTable { overflow-x: hidden; scrollbar-gutter: stable; scrollbar-size-vertical: 1; }
    Keys, Confirm { align: center middle; background: transparent; }
    .box { width: auto; max-width: 100%; height: auto; border: round ansi_default; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "keys", "keys", key_display="?"),
        Binding("ctrl+c", "quit", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False),
    ]

    def __init__(self, watch: Watched, pane: str = "calls", *, is_local: bool = True) -> None:
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"
        self.panes = Panes(watch, pane, is_local=is_local)
        self._server = watch

    def get_default_screen(self) -> Screen[None]:
        """The panes."""
        return self.panes

    def on_mount(self) -> None:
        """Waits for views in a thread; ends in order when it is told to from outside."""
        in_thread(self._follow)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.exit)

    def _follow(self) -> None:
        """Has the watch take up what comes, until it is closed or the server refuses."""
        try:
            while self._server.next() is not None:
                pass
        except JaxdError as error:
            self._server.problem = str(error)

    def action_keys(self) -> None:
        """Lists the keys."""
        self.push_screen(Keys())
