from __future__ import annotations

import pytest

from jaxd_server.runtime.log_events import COMMON, EVENTS, FIELDS
from tests.server.log_event_table import Emission, emissions, parts_of_the_page, tables


@pytest.fixture(scope="module")
def found() -> list[Emission]:
    """All calls that log."""
    return list(emissions())


def test_what_is_logged_is_in_the_catalogue(found: list[Emission]) -> None:
    """Events and fields stand in the source, and in the catalogue."""
    assert len(found) > 100
    assert [one.place for one in found if one.events is None or one.fields is None] == []
    unknown = {
        (one.place, name, field)
        for one in found
        for name in one.events or ()
        for field in (one.fields or set()) | {""}
        if name not in EVENTS or (field and field not in EVENTS[name].fields)
    }
    assert unknown == set()


def test_what_is_in_the_catalogue_is_logged(found: list[Emission]) -> None:
    """Each event and each field, which has a meaning and hides none that every line has."""
    logged: dict[str, set[str]] = {}
    for one in found:
        for name in one.events or ():
            logged.setdefault(name, set()).update(one.fields or ())
    assert {name: set(event.fields) for name, event in EVENTS.items()} == logged
    named = {field for event in EVENTS.values() for field in event.fields}
    assert named - set(COMMON) == set(FIELDS)
    common = set(COMMON) - {"principal"}
    assert [name for name, event in EVENTS.items() if common & set(event.fields)] == []


def test_the_page_is_that_of_the_catalogue() -> None:
    """docs/log-events.md lists what there is."""
    _, written, _ = parts_of_the_page()
    assert written == tables(), "write it anew: python -m tests.server.log_event_table"
