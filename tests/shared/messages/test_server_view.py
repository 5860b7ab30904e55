from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.messages.server_view import (
    TABLES,
    CallRow,
    FunctionRow,
    ServerRow,
    ServerView,
    apply_change,
    changed,
    row_dict,
)

VIEW = ServerView(
    12.5,
    7,
    ServerRow("unix:///s", "1", 5, listen=("unix:///s",)),
    {"calls": 3, "run_s": 0.5},
    calls={"c1": CallRow("f", "uid:1", behind="g")},
    functions={"00ff": FunctionRow("f", hits=3, latency=(0, 3))},
)


def test_a_view_survives_json() -> None:
    """Every table is there, also those without rows."""
    content = json.loads(json.dumps(VIEW.to_dict()))
    assert content.keys() == {one.name for one in fields(ServerView)}
    assert ServerView.from_dict(content) == VIEW
    assert ServerView.from_dict(content).to_dict() == content


def test_what_a_newer_server_has_is_left_out() -> None:
    """Tables and fields that are not known here."""
    content = VIEW.to_dict()
    content["weather"] = {"sun": {}}
    content["calls"]["c1"]["colour"] = 7
    assert ServerView.from_dict(content) == VIEW


@pytest.mark.parametrize(
    "change",
    [
        {"at": "now"},
        {"sequence": 1.5},
        {"sequence": True},
        {"server": 3},
        {"server": None},
        {"server": {"pid": "5"}},
        {"server": {"listen": "unix:///s"}},
        {"server": {"listen": [5]}},
        {"server": {"listen": ["x"] * 65}},
        {"counters": {"calls": "3"}},
        {"counters": {"calls": float("nan")}},
        {"calls": []},
        {"calls": {"c1": 3}},
        {"calls": {"c1": {"since": None}}},
        {"calls": {"c1": {"since": float("inf")}}},
        {"calls": {"c1": {"function": b"f"}}},
        {"functions": {"00": {"hits": 1 << 63}}},
        {"functions": {"00": {"latency": [0.5]}}},
        {"workers": {str(number): {} for number in range(100_001)}},
    ],
)
def test_anything_else_is_refused(change: Any) -> None:
    """A type that is wrong anywhere, a number that is none, and more than there can be."""
    with pytest.raises(ProtocolError, match="Install the same jaxd"):
        VIEW.patched(change)


def test_nothing_that_a_terminal_would_obey_is_shown() -> None:
    """In fields and in names; and no text is without end."""
    change = {"calls": {"c\x1b[2J": {"function": "a\x1b]0;b\nc" + "x" * 5000}}}
    view = ServerView.from_dict(change)
    ((name, row),) = view.calls.items()
    assert (name, row.function[:9], len(row.function)) == ("c?[2J", "a?]0;b?cx", 2000)


def test_a_change_makes_only_the_rows_that_it_has() -> None:
    """The others are the same objects."""
    now = VIEW.patched({"calls": {"c2": {"function": "g"}}, "sequence": 8})
    assert now.calls["c1"] is VIEW.calls["c1"]
    assert now.functions is VIEW.functions
    assert (now.sequence, now.calls["c2"]) == (8, CallRow("g"))
    assert now.patched({"calls": {"c1": None}}).calls.keys() == {"c2"}
    assert now.patched({"calls": None}).calls == {}


ROWS = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.builds(CallRow, st.sampled_from(["f", "g"]), since=st.sampled_from([0.0, 1.0])),
)
VIEWS = st.builds(
    ServerView,
    sequence=st.integers(0, 9),
    counters=st.dictionaries(st.sampled_from(["x", "y"]), st.integers(0, 2)),
    calls=ROWS,
)


@given(VIEWS, VIEWS)
def test_a_change_leads_from_one_view_to_the_next(before: ServerView, after: ServerView) -> None:
    """As dataclasses and as JSON; and there is none between equal ones."""
    change = changed(before.to_dict(), after.to_dict())
    assert before.patched(change) == after
    assert apply_change(before.to_dict(), change) == after.to_dict()
    assert bool(change) is (before != after)


def test_each_kind_of_row_can_be_written_and_read() -> None:
    """Whatever types its fields have."""
    for table, kind in TABLES.items():
        row = kind()
        view = ServerView.from_dict({table: {"x": row_dict(row)}})
        assert getattr(view, table) == {"x": row}
