"""Tables and lines that are made of a view, without a terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from jaxd.cli.server_summary import (
    Seen,
    cells,
    fitted,
    function_lines,
    head,
    median_text,
    row_lines,
    sparkline,
    wrapped,
)
from jaxd.cli.server_tables import PANES, Listing
from jaxd_protocol.messages.server_view import (
    DeviceRow,
    FunctionRow,
    ServerRow,
    ServerView,
    WorkerRow,
)
from tests.client.cli.recorded_view import NOW, STEP, busy_view, latency, many_functions


def texts(view: ServerView, width: int = 80, problem: str = "") -> list[str]:
    """The lines above the panes."""
    lines = head(view, Seen(NOW), width, problem)
    return ["".join(text for text, _ in spans) for spans in lines]


def names(listing: Listing, view: ServerView) -> list[str]:
    """The functions of a listing, in its order."""
    return [row.name for _, row in listing.rows(view)]


# columns ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pane", PANES)
@pytest.mark.parametrize("width", [20, 40, 80, 120, 400])
def test_a_line_is_as_wide_as_the_terminal_at_most(pane: str, width: int) -> None:
    """Heading and rows have the same columns."""
    listing = Listing(PANES[pane])
    columns = listing.columns(width)
    heading = listing.heading(columns)
    rows = listing.rows(busy_view())
    assert rows
    for key, row in rows:
        assert cells(listing.line(columns, key, row, Seen(NOW))) == cells(heading) <= width


def test_a_wide_terminal_has_more_columns() -> None:
    """A narrow one has the first, and always the one that is sorted by."""
    listing = Listing(PANES["functions"])
    narrow, wide = ([one.title for one, _ in listing.columns(width)] for width in (40, 200))
    assert narrow == ["function", "calls", "saved"]
    assert wide == [one.title for one in PANES["functions"].columns]
    listing.sort = wide.index("programs")
    assert [one.title for one, _ in listing.columns(40)] == ["function", "calls", "programs"]


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("calls", ["train_step", "loss"]),
        ("saved", ["train_step", "loss"]),
        ("function", ["loss", "train_step"]),
        ("median", ["train_step", "loss"]),
        ("last use", ["train_step", "loss"]),
        ("loaded", ["loss", "train_step"]),
    ],
)
def test_rows_are_sorted_by_any_column(title: str, expected: list[str]) -> None:
    """Counts have the largest first, names the first letter; reversed the other end."""
    listing = Listing(PANES["functions"])
    listing.sort = [one.title for one in listing.pane.columns].index(title)
    assert names(listing, busy_view()) == expected
    listing.reverse = True
    assert names(listing, busy_view()) == expected[::-1]


def test_the_call_that_waits_longest_is_on_top() -> None:
    """With what it does, and what it waits behind."""
    listing = Listing(PANES["calls"])
    columns = listing.columns(80)
    lines = [listing.line(columns, key, row, Seen(NOW)) for key, row in listing.rows(busy_view())]
    assert [line.split()[:2] for line in lines] == [
        ["simulate", "running"],
        ["train_step", "building"],
        ["evaluate", "waiting"],
    ]
    assert "train_step (12 s)" in lines[2]


def test_a_filter_looks_at_names_and_places() -> None:
    """Without regard to capital letters."""
    listing = Listing(PANES["functions"])
    listing.wanted = "TRAIN.PY:12"
    assert names(listing, busy_view()) == ["loss"]


def test_rows_are_arranged_again_only_when_they_change() -> None:
    """A view in which something else has changed has the same table."""
    listing, view = Listing(PANES["functions"]), many_functions(50)
    first = listing.rows(view)
    assert listing.rows(view.patched({"counters": {"calls": 1}})) is first
    later = listing.rows(view.patched({"functions": {f"{7:032x}": {"hits": 9_000}}}))
    assert later is not first
    assert later[0][1].name == "function_7"


def test_processes_are_those_that_own_devices_and_those_that_build() -> None:
    """Each with its state in words."""
    view = replace(busy_view(), workers={"4": WorkerRow(4, 7, "stuck", restarts=2)})
    listing = Listing(PANES["processes"])
    columns = listing.columns(80)
    lines = [listing.line(columns, key, row, Seen(NOW)) for key, row in listing.rows(view)]
    assert "builds train_step" in lines[0]
    assert "hanging, restarted 2 times" in lines[1]


# above the panes ----------------------------------------------------------------------------------


def test_the_first_line_says_how_the_server_is() -> None:
    """Server, state, uptime, seconds saved, and calls."""
    first, devices = texts(busy_view())
    assert (
        first == "…/1000/jaxd/3f0c8e21b7aa/server.sock  ready  up 3 h  saved 83 min  128,934 calls"
    )
    assert len(devices) <= 80
    assert "cuda:0 ██████" in devices
    assert "52 GB of 80 GB" in devices


def test_calls_a_second_are_those_of_the_last_steps() -> None:
    """With a line of how they went."""
    view, seen = busy_view(), Seen(NOW)
    for step, calls in enumerate((1000, 1000, 1050, 1150)):
        seen.now = NOW + step
        seen.add(replace(view, counters={"calls": calls, "saved_s": 1.0}))
    assert list(seen.rates) == [0.0, 50.0, 100.0]
    (first, *_) = head(view, seen, 140)
    assert [text.strip() for text, _ in first][-2:] == ["50 calls/s", "▁▅█"]


def test_a_function_shows_when_it_was_called() -> None:
    """Calls of each step, where they were."""
    seen = Seen(NOW)
    for hits in (5, 5, 9, 9):
        seen.add(ServerView(functions={"k": FunctionRow("f", hits=hits)}))
    assert seen.trend("k", 60)[-4:] == [0, 0, 4, 0]
    assert seen.trend("k", 12) == [0] * 11 + [4]
    assert seen.trend("other", 2) == [0, 0]


@pytest.mark.parametrize(
    ("worker", "state", "next_step"),
    [
        (WorkerRow(state="starting"), "starting", "jaxd logs -f"),
        (WorkerRow(state="busy", answered=NOW - 3), "busy", "has not answered for 3.0 s"),
        (WorkerRow(state="stuck", answered=NOW - 34), "hanging", "jaxd restart --force"),
        (WorkerRow(state="resting"), "resting", "The next call starts one"),
        (WorkerRow(state="draining"), "draining", "jaxd start"),
        (WorkerRow(state="broken", why="no driver"), "broken", "no driver. Repair that"),
        (
            WorkerRow(state="ready", restarts=2),
            "ready, restarted 2 times",
            "worker_exited under Events",
        ),
        (WorkerRow(state="of a newer server"), "of a newer server", ""),
    ],
)
def test_a_state_is_told_in_words_with_the_next_step(
    worker: WorkerRow, state: str, next_step: str
) -> None:
    """A worker that is ready needs none."""
    lines = texts(replace(busy_view(), workers={"1": worker}), 100)
    assert f"  {state}  " in lines[0]
    assert next_step in "\n".join(lines[2:])
    assert bool(lines[2:]) == bool(next_step)


def test_the_worker_that_needs_somebody_is_the_state_of_the_server() -> None:
    """Where each principal has one, it is named."""
    workers = {
        "1": WorkerRow(state="ready", principal="account:mia"),
        "2": WorkerRow(state="broken", principal="account:tom", why="no driver"),
    }
    lines = texts(replace(busy_view(), workers=workers))
    assert "broken" in lines[0]
    assert lines[2].startswith("No worker of tom starts: no driver.")


def test_quarantine_is_told() -> None:
    """With the command that says more."""
    server = replace(busy_view().server, quarantined=2)
    assert "jaxd functions --quarantined" in texts(replace(busy_view(), server=server))[-1]


def test_a_server_that_is_gone_is_told() -> None:
    """In the place of what was known of its worker."""
    lines = texts(busy_view(), problem="the server has ended. Run: jaxd start")
    assert "  gone  " in lines[0]
    assert lines[2:] == ["the server has ended. Run: jaxd start"]


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("count", [0, 1, 2, 8])
def test_devices_have_bars_that_fit(width: int, count: int) -> None:
    """Where they do not, all together have one, and the fullest is named."""
    devices = {str(n): DeviceRow(f"cuda:{n}", n * 10**10, 0, 80 * 10**9) for n in range(count)}
    line = texts(replace(busy_view(), devices=devices), width)[1]
    assert len(line) <= max(width, 60)
    assert ("fullest: cuda:" in line) == (count == 8 or (count == 2 and width == 40))


def test_a_device_that_has_no_limit_has_no_bar() -> None:
    """A processor has none."""
    devices = {"0": DeviceRow("cpu:0", 2_000_000)}
    assert texts(replace(busy_view(), devices=devices))[1] == "cpu:0 2 MB in use"


def test_a_fingerprint_does_not_hide_the_address() -> None:
    """It follows the port."""
    server = ServerRow(address=f"tls://gpu-host:18861#sha256={'ab' * 32}")
    assert texts(ServerView(server=server))[0].startswith("tls://gpu-host:18861  ")


# text ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("abc", "abc  "),
        ("abcdef", "abcd…"),
        ("日本語", "日本…"),
        ("日本", "日本 "),
        ("é́é", "é́é   "),
    ],
)
def test_a_cell_is_cut_and_filled_by_what_the_terminal_takes(text: str, shown: str) -> None:
    """Wide letters take two columns, accents none."""
    assert fitted(text, 5) == shown
    assert cells(shown) == 5


def test_a_count_stands_on_the_right() -> None:
    """Beside the next column."""
    assert fitted("12", 5, right=True) == "   12"


def test_a_sparkline_is_scaled_to_its_largest() -> None:
    """And has only the last values."""
    assert sparkline([9, 0, 1, 2, 4], 4) == "▁▃▅█"
    assert sparkline([0, 0], 4) == "▁▁"


@pytest.mark.parametrize(
    ("counts", "text"),
    [({}, ""), ({"c0": 1}, "≤10 µs"), ({"c8": 5, "c9": 4}, "≤2.6 ms"), ({"c24": 9}, ">84 s")],
)
def test_the_middle_call_is_told_by_its_class(counts: dict[str, int], text: str) -> None:
    """The upper bound of it."""
    assert median_text(latency(**counts)) == text


def test_a_long_line_goes_on_below() -> None:
    """A little to the right; what a terminal would obey is not in it."""
    assert wrapped("  a" + " b" * 20, 24) == ["  a b b b b b b b b b b", "    b b b b b b b b b b"]
    assert wrapped("\x1b[31mred", 80) == ["?[31mred"]


# one row ------------------------------------------------------------------------------------------


def test_a_function_is_told_with_its_history() -> None:
    """Figures, calls by time, programs, and why it was built."""
    text = "\n".join(function_lines(STEP, busy_view(), Seen(NOW)))
    for part in (
        "train_step  train.py:41",
        "saved 60 min, built in 92 s",
        "90,000 calls, median ≤2.6 ms",
        "60,000 calls, saved 40 min",
        "40 MB on the host, 2 MB on the device, 9 MB on disk",
        "building, waited for loss: global LR: 0.1 → 0.2",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("pane", "parts"),
    [
        ("calls", ["behind         train_step", "principal      account:mia"]),
        ("values", ["nbytes         3 GB", "largest        float32[8192,8192]"]),
        ("events", ["text           error=ValueError"]),
    ],
)
def test_all_of_a_row_is_told(pane: str, parts: list[str]) -> None:
    """Also what its table has no room for."""
    rows: Callable[[ServerView], dict[str, Any]] = PANES[pane].rows  # type: ignore[assignment]
    text = "\n".join(line for row in rows(busy_view()).values() for line in row_lines(row, NOW))
    for part in parts:
        assert part in text
