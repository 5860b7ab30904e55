from __future__ import annotations

from pathlib import Path

import pytest

from jaxd_server.runtime.log_events import COMMON, EVENTS, FIELDS
from tests.server import log_event_table
from tests.server.log_event_table import emissions, parts_of_the_page, tables

FOUND = list(emissions())


def test_each_call_that_logs_can_be_read() -> None:
    """Its event and fields stand in the source, so that the next tests see all of them."""
    assert len(FOUND) > 100
    assert [one.place for one in FOUND if one.events is None or one.fields is None] == []


def test_what_is_logged_is_in_the_catalogue() -> None:
    """An event or a field that is not there fails here."""
    unknown = {
        (one.place, name, field)
        for one in FOUND
        for name in one.events or ()
        for field in (one.fields or set()) | {""}
        if name not in EVENTS or (field and field not in EVENTS[name].fields)
    }
    assert unknown == set()


def test_what_is_in_the_catalogue_is_logged() -> None:
    """Each event and each of its fields is logged somewhere, and each field has a meaning."""
    logged: dict[str, set[str]] = {}
    for one in FOUND:
        for name in one.events or ():
            logged.setdefault(name, set()).update(one.fields or ())
    assert {name: set(event.fields) for name, event in EVENTS.items()} == logged
    named = {field for event in EVENTS.values() for field in event.fields}
    assert named - set(COMMON) == set(FIELDS)


def test_no_field_hides_one_that_every_line_has() -> None:
    """A line that says `process=stopped` would no longer say whose it is."""
    common = set(COMMON) - {"principal"}
    assert [name for name, event in EVENTS.items() if common & set(event.fields)] == []


def test_the_page_is_that_of_the_catalogue() -> None:
    """docs/log-events.md lists what there is."""
    _, found, _ = parts_of_the_page()
    assert found == tables(), "write it anew: python -m tests.server.log_event_table"


@pytest.mark.parametrize(
    ("code", "events", "fields"),
    [
        ('log_event("idle", idle_s=1)', {"idle"}, {"idle_s"}),
        ('log_event("idle" if x else "stopped")', {"idle", "stopped"}, set()),
        ("log_event(name)", None, set()),
        ('log_event(f"worker_{name}")', None, set()),
        ('log_event("idle", **fields)', {"idle"}, None),
        ('self._troubles.warn("cache_refused", reason="")', {"cache_refused"}, {"reason"}),
    ],
)
def test_calls_are_read(
    code: str,
    events: set[str] | None,
    fields: set[str] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What cannot be read is None, and not nothing."""
    monkeypatch.setattr(log_event_table, "ROOT", tmp_path)
    (tmp_path / "some.py").write_text(f"def f(x, name, fields):\n    {code}\n")
    (found,) = emissions(tmp_path)
    assert (found.events, found.fields) == (events, fields)
