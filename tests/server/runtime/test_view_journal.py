from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from jaxd_protocol.messages.server_view import apply_change
from jaxd_server.runtime.view_journal import Journal, News


def applied(known: dict[str, Any], news: News) -> dict[str, Any]:
    """What a reader has after some news."""
    content = {name: value for name, value in news.change.items() if name != "at"}
    return apply_change({} if news.is_whole else known, content)


def test_only_what_has_changed_is_news() -> None:
    """Setting a row to what it is is no change."""
    journal = Journal()
    assert journal.put("t", "a", {"n": 1})
    first = journal.news(0, "")
    assert (first.is_whole, first.change["t"]) == (True, {"a": {"n": 1}})
    assert not journal.put("t", "a", {"n": 1})
    assert journal.news(first.sequence, first.source).change == {}
    journal.put("t", "b", {"n": 2})
    journal.put("t", "a", None)
    news = journal.news(first.sequence, first.source)
    assert (news.is_whole, news.change["t"]) == (False, {"b": {"n": 2}, "a": None})


def test_a_slow_reader_gets_the_last_state_once() -> None:
    """However often a row has changed; nothing is kept for it meanwhile."""
    journal = Journal()
    seen = journal.news(0, "")
    for number in range(1000):
        journal.put("t", "a", {"n": number})
    assert journal.news(1, journal.source).change["t"] == {"a": {"n": 999}}
    assert journal.news(seen.sequence, seen.source).change["t"] == {"a": {"n": 999}}
    assert len(journal._rows) == 1


def test_who_has_seen_another_journal_begins_anew() -> None:
    """Such as that of the worker before."""
    one, two = Journal(), Journal()
    one.put("t", "a", 1)
    two.put("t", "b", 2)
    two.put("t", "c", 3)
    seen = one.news(0, "")
    assert applied({"t": {"a": 1}}, two.news(seen.sequence, seen.source)) == {"t": {"b": 2, "c": 3}}


def test_removed_rows_are_not_remembered_without_end() -> None:
    """With too many of them, all readers begin anew."""
    journal = Journal(max_removed=10)
    journal.put("t", "stays", 0)
    seen = journal.news(0, "")
    for number in range(30):
        journal.put("t", str(number), number)
        journal.put("t", str(number), None)
    assert len(journal._rows) <= 11
    news = journal.news(seen.sequence, seen.source)
    assert news.is_whole
    assert applied({"t": {"gone": 1}}, news) == {"t": {"stays": 0}}


def test_a_row_that_is_not_shown_is_not_named_when_it_goes() -> None:
    """To somebody who may not see it."""
    journal = Journal()
    journal.put("t", "secret", {"whose": "alice"})
    journal.put("t", "open", {"whose": "bob"})
    seen = journal.news(0, "")
    journal.replace("t", {})

    def bobs(table: str, name: str, row: Any) -> bool:
        return bool(row["whose"] == "bob")

    assert journal.news(0, "", sees=bobs).change.get("t") is None
    assert journal.news(seen.sequence, seen.source, sees=bobs).change["t"] == {"open": None}


def test_the_oldest_rows_go_that_may() -> None:
    """As many as there are too many."""
    journal = Journal()
    for number in range(5):
        journal.put("t", str(number), number)
    journal.trim("t", 2, lambda row: row != 1)
    assert journal.names("t") == ["1", "4"]


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["t", "u"]),
            st.sampled_from(["a", "b", "c", "d"]),
            st.one_of(st.none(), st.integers(0, 2)),
        ),
        st.integers(1, 3),
    ),
    max_size=40,
)


@given(STEPS)
def test_news_in_pieces_lead_to_what_there_is(steps: list[Any]) -> None:
    """Whenever a reader reads, and how much at a time, while rows come, change and go."""
    journal = Journal(max_removed=2)
    known: dict[str, Any] = {}
    sequence, source = 0, ""
    for step in [*steps, *[100] * 3]:
        if isinstance(step, tuple):
            journal.put(*step)
            continue
        news = journal.news(sequence, source, step)
        known, sequence, source = applied(known, news), news.sequence, news.source
    there = {
        table: {name: journal.get(table, name) for name in journal.names(table)}
        for table in ("t", "u")
    }
    assert {t: rows for t, rows in known.items() if rows} == {t: r for t, r in there.items() if r}
