"""What there is to see of a server as tables: panes, their columns, and how rows are arranged.

Nothing here knows a terminal or asks a server. Cells are made of the rows that are shown and of no
others, so a table may have any number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from jaxd.cli.query import owner
from jaxd.cli.server_summary import (
    GAP,
    Row,
    Seen,
    build_word,
    clock,
    count,
    fitted,
    long_ago,
    median,
    median_text,
    short_name,
    since,
    sparkline,
    worker_word,
)
from jaxd_protocol.base.terminal import duration, size
from jaxd_protocol.messages.server_view import ServerView, WorkerRow

# columns ----------------------------------------------------------------------------------------


class Column(NamedTuple):
    """A column of a pane.

    Attributes:
        title: its heading.
        width: its columns of the terminal, at least.
        text: makes the cell of a row, from its key, itself, and what is known beside it.
        order: what rows are sorted by, from key and row.
        grows: whether it takes its share of what is left of a wide terminal.
        is_count: whether it stands on the right, and has the largest first when it is sorted by.
    """

    title: str
    width: int
    text: Callable[[str, Row, Seen], str]
    order: Callable[[str, Row], Any]
    grows: bool = False
    is_count: bool = False


def _text(title: str, field: str, width: int, *, grows: bool = True) -> Column:
    return Column(
        title,
        width,
        lambda key, row, seen: getattr(row, field),
        lambda key, row: getattr(row, field).lower(),
        grows,
    )


def _function(field: str, width: int, *, grows: bool = True) -> Column:
    return _made("function", width, lambda key, row: short_name(getattr(row, field)), grows=grows)


def _made(
    title: str, width: int, make: Callable[[str, Row], str], *, grows: bool = False
) -> Column:
    """A text that is made of key and row."""
    return Column(title, width, lambda key, row, seen: make(key, row), make, grows)


def _key(title: str, width: int) -> Column:
    return _made(title, width, lambda key, row: key)


def _of() -> Column:
    return _made("of", 8, lambda key, row: owner(row.principal))


def _count(title: str, field: str, width: int = 7, shown: Callable[[Any], str] = count) -> Column:
    return Column(
        title,
        width,
        lambda key, row, seen: shown(value) if (value := getattr(row, field, 0)) else "",
        lambda key, row: getattr(row, field, 0),
        is_count=True,
    )


def _seconds(title: str, field: str, width: int = 7) -> Column:
    return _count(title, field, width, duration)


def _age(title: str, field: str, width: int = 7) -> Column:
    """How long it is since: what began first is on top."""
    return Column(
        title,
        width,
        lambda key, row, seen: since(getattr(row, field), seen.now),
        lambda key, row: -getattr(row, field) or float("-inf"),
        is_count=True,
    )


def _used(title: str, field: str) -> Column:
    """How long ago: what was last is on top."""
    return Column(
        title,
        10,
        lambda key, row, seen: long_ago(getattr(row, field, 0.0), seen.now),
        lambda key, row: getattr(row, field, 0.0),
        is_count=True,
    )


def _time(title: str, field: str) -> Column:
    return _count(title, field, 8, clock)


def _behind_text(row: Row, now: float) -> str:
    return f"{short_name(row.behind)} ({since(row.behind_since, now)})" if row.behind else ""


def _build_seconds(row: Row, now: float) -> float:
    """Of work; 0 while it waits."""
    return max(0.0, (row.finished or now) - row.started) if row.started else 0.0


# panes ------------------------------------------------------------------------------------------


class Action(NamedTuple):
    """What can be done with a row, once somebody has said yes.

    Attributes:
        name: ``cancel``, ``clear`` or ``release``.
        question: of a key and its row; says what is lost.
        refusal: why it cannot be done with this one; empty when it can.
    """

    name: str
    question: Callable[[str, Row], str]
    refusal: Callable[[str, Row], str] = lambda key, row: ""


class Pane(NamedTuple):
    """A table.

    Attributes:
        title: its name.
        rows: of a view, by their keys.
        columns: the most important first: a narrow terminal has the first ones.
        first: the title of the column that it is sorted by at first.
        found: the letters of a row that a filter looks at.
        empty: what stands there when there are no rows.
        action: what can be done with a row.
    """

    title: str
    rows: Callable[[ServerView], Mapping[str, Row]]
    columns: tuple[Column, ...]
    first: str
    found: Callable[[str, Row], str]
    empty: str
    action: Action | None = None


def _found(*fields: str) -> Callable[[str, Row], str]:
    return lambda key, row: " ".join((key, *(getattr(row, field) for field in fields))).lower()


def _processes(view: ServerView) -> dict[str, Row]:
    workers = {f"worker {key}": row for key, row in view.workers.items()}
    return {**workers, **{f"builder {key}": row for key, row in view.builders.items()}}


def _process_state(row: Row) -> str:
    if isinstance(row, WorkerRow):
        return worker_word(row)
    return f"builds {short_name(row.function)}" if row.function else "waits for work"


_CALLS: Final = Pane(
    "Calls",
    lambda view: view.calls,
    (
        _function("function", 14),
        _text("stage", "phase", 11, grows=False),
        _age("for", "since"),
        Column(
            "waits behind",
            16,
            lambda key, row, seen: _behind_text(row, seen.now),
            lambda key, row: row.behind,
            grows=True,
        ),
        _age("in stage", "phase_since", 8),
        _of(),
        _key("call", 12),
    ),
    "for",
    _found("function", "phase", "principal", "behind"),
    "no call is in flight",
    Action(
        "cancel",
        lambda key, row: (
            f"Cancel the call of {short_name(row.function)} ({row.phase})? Its client is told."
        ),
    ),
)

_FUNCTIONS: Final = Pane(
    "Functions",
    lambda view: view.functions,
    (
        _function("name", 14),
        _count("calls", "hits"),
        _seconds("saved", "saved_s"),
        _seconds("built in", "built_s", 8),
        _count("compiled", "compiled", 8),
        Column(
            "median",
            8,
            lambda key, row, seen: median_text(row.latency),
            lambda key, row: median(row.latency),
            is_count=True,
        ),
        _used("last use", "last_use"),
        Column(
            "last minute",
            12,
            lambda key, row, seen: sparkline(seen.trend(key, 12), 12),
            lambda key, row: row.last_use,
            is_count=True,
        ),
        _count("loaded", "loaded"),
        _count("programs", "programs", 8),
        _seconds("ran for", "run_s"),
        _text("where", "where", 16),
        _key("key", 12),
    ),
    "calls",
    _found("name", "where"),
    "no function is known yet",
    Action(
        "clear",
        lambda key, row: (
            f"Clear the programs of {short_name(row.name)}, on disk as well? The next call builds "
            f"them again; it took {duration(row.built_s)}."
        ),
    ),
)

_BUILDS: Final = Pane(
    "Builds",
    lambda view: view.builds,
    (
        _function("function", 14),
        _made("what", 8, lambda key, row: build_word(row)),
        Column(
            "took",
            7,
            lambda key, row, seen: duration(_build_seconds(row, seen.now)) if row.started else "",
            lambda key, row: _build_seconds(row, row.started),
            is_count=True,
        ),
        _text("why", "reason", 28),
        _time("asked", "queued"),
        _text("behind", "behind", 10, grows=False),
        _of(),
        _text("arguments", "arguments", 16),
        _count("builder", "builder", 7, str),
    ),
    "asked",
    _found("function", "reason", "principal", "verdict"),
    "nothing was compiled or loaded since the server's worker started",
)

_VALUES: Final = Pane(
    "Values",
    lambda view: view.values,
    (
        _text("holder", "holder", 14),
        _text("kind", "kind", 7, grows=False),
        _count("size", "nbytes", 8, size),
        _count("arrays", "count"),
        _made("largest", 20, lambda key, row: ", ".join(row.largest), grows=True),
        _of(),
    ),
    "size",
    _found("holder", "kind", "principal"),
    "no arrays stay on the server",
    Action(
        "release",
        lambda key, row: (
            f"Release {row.holder}, arrays of {size(row.nbytes)}? Whoever asks for the name gets "
            "an error."
        ),
        lambda key, row: (
            ""
            if row.kind == "name"
            else "These belong to a process, and go when it lets go of them. Names can be released."
        ),
    ),
)

_SESSIONS: Final = Pane(
    "Sessions",
    lambda view: view.sessions,
    (
        _key("session", 10),
        _of(),
        _text("process", "process", 14),
        _count("calls", "calls"),
        _seconds("saved", "saved_s"),
        _count("compiled", "compiled", 8),
        _age("since", "since"),
        _count("loaded", "loaded"),
        _count("in memory", "found", 9),
        _count("connections", "connections", 11),
    ),
    "calls",
    _found("principal", "process"),
    "no client is connected",
)

_EVENTS: Final = Pane(
    "Events",
    lambda view: view.events,
    (
        _time("at", "at"),
        _text("level", "level", 7, grows=False),
        _text("event", "name", 16, grows=False),
        _function("function", 12, grows=False),
        _text("what", "text", 20),
        _of(),
        _text("call", "call", 12, grows=False),
    ),
    "at",
    _found("name", "level", "function", "text", "call"),
    "nothing was logged yet",
)

_PROCESSES: Final = Pane(
    "Processes",
    _processes,
    (
        _key("process", 14),
        _made("state", 18, lambda key, row: _process_state(row), grows=True),
        _count("pid", "pid", 8, str),
        _count("memory", "resident_bytes", 8, size),
        _used("answered", "answered"),
    ),
    "process",
    lambda key, row: f"{key} {_process_state(row)}".lower(),
    "no worker runs",
)

PANES: Final[Mapping[str, Pane]] = {
    pane.title.lower(): pane
    for pane in (_CALLS, _FUNCTIONS, _BUILDS, _VALUES, _SESSIONS, _EVENTS, _PROCESSES)
}
"""The panes by their names on the command line, in their order."""


class Listing:
    """A pane as somebody has arranged it.

    Attributes:
        pane: the pane.
        sort: place of the column that it is sorted by.
        reverse: whether the other end comes first.
        wanted: only rows that have these letters in them.
    """

    def __init__(self, pane: Pane) -> None:
        self.pane = pane
        self.sort = [column.title for column in pane.columns].index(pane.first)
        self.reverse = False
        self.wanted = ""
        self._arranged_for: tuple[Any, ...] = (None, 0, False, "")
        self._rows: list[tuple[str, Row]] = []

    def rows(self, view: ServerView) -> list[tuple[str, Row]]:
        """Keys and rows in their order, which is found again only when something has changed."""
        asked = (self.pane.rows(view), self.sort, self.reverse, self.wanted)
        if asked[0] is not self._arranged_for[0] or asked[1:] != self._arranged_for[1:]:
            self._rows = self._arranged(asked[0])
            self._arranged_for = asked
        return self._rows

    def _arranged(self, table: Mapping[str, Row]) -> list[tuple[str, Row]]:
        column, wanted = self.pane.columns[self.sort], self.wanted.lower()
        rows = sorted(table.items(), key=lambda one: one[0])  # what is equal stays in its place
        if wanted:
            rows = [one for one in rows if wanted in self.pane.found(*one)]
        is_down = column.is_count is not self.reverse
        rows.sort(key=lambda one: column.order(*one), reverse=is_down)
        return rows

    def columns(self, width: int) -> list[tuple[Column, int]]:
        """Those that have room, each with its width: the one that is sorted by, then the first."""
        columns, left, taken = self.pane.columns, width + GAP, set()
        for place in (self.sort, *range(len(columns))):
            needs = columns[place].width + GAP
            if place not in taken and needs <= left:
                taken.add(place)
                left -= needs
        shown = [columns[place] for place in sorted(taken)]
        growing = [column for column in shown if column.grows]
        share, rest = divmod(left, len(growing) or 1)
        more = {column.title: share for column in growing}
        if growing:
            more[growing[-1].title] += rest
        return [(column, column.width + more.get(column.title, 0)) for column in shown]

    def heading(self, columns: Iterable[tuple[Column, int]]) -> str:
        """The titles; that of the column that is sorted by with ``▼`` or ``▲``."""
        mark = "▲" if self.reverse else "▼"
        by = self.pane.columns[self.sort].title
        return _joined(
            fitted(
                f"{one.title[: width - 1]}{mark}" if one.title == by else one.title,
                width,
                right=one.is_count,
            )
            for one, width in columns
        )

    @staticmethod
    def line(columns: Iterable[tuple[Column, int]], key: str, row: Row, seen: Seen) -> str:
        """A row."""
        return _joined(
            fitted(column.text(key, row, seen), width, right=column.is_count)
            for column, width in columns
        )


def _joined(texts: Iterable[str]) -> str:
    return (" " * GAP).join(texts)


_TONES: Final = {
    "error": "bad",
    "warning": "warn",
    "stuck": "bad",
    "broken": "bad",
    "failed": "bad",
}


def tone_of(row: Row) -> str:
    """How a row stands out, beside what its words say."""
    words = (getattr(row, name, "") for name in ("level", "state", "verdict"))
    return next((_TONES[word] for word in words if word in _TONES), "")
