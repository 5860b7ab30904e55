"""What a call says again after it was lost."""

from __future__ import annotations

from jaxd.heard_before import HeardBefore

FIRST, SECOND, CALL = object(), object(), object()


def says(heard: HeardBefore, connection: object, number: int, *texts: str) -> list[str]:
    """Those of the texts that are new."""
    return [text for text in texts if not heard.was_said(connection, number, ("print", text))]


def test_what_a_lost_call_has_said_is_not_said_again() -> None:
    """As often as it was said, in whatever order; what comes then is new."""
    heard = HeardBefore()
    assert says(heard, FIRST, 1, "a", "b", "a") == ["a", "b", "a"]
    waiting = [heard.is_waiting]
    heard.lost(CALL, FIRST, 1)
    waiting.append(heard.is_waiting)
    heard.again(CALL, SECOND, 7)
    assert [*waiting, heard.is_waiting] == [False, True, False]
    assert says(heard, SECOND, 7, "b", "a", "a", "a", "c") == ["a", "c"]


def test_it_may_be_lost_once_more() -> None:
    """All that it has said counts, whether it was said for the first time or not."""
    heard = HeardBefore()
    says(heard, FIRST, 1, "a")
    heard.lost(CALL, FIRST, 1)
    heard.again(CALL, SECOND, 1)
    assert says(heard, SECOND, 1, "a", "b") == ["b"]
    heard.lost(CALL, SECOND, 1)
    heard.again(CALL, FIRST, 2)
    assert says(heard, FIRST, 2, "a", "b", "c") == ["c"]


def test_other_calls_say_what_they_like() -> None:
    """Of the same function, over the same connection, and after a loss of one that said nothing."""
    heard = HeardBefore()
    says(heard, FIRST, 1, "a")
    heard.lost(CALL, FIRST, 1)
    heard.again(object(), SECOND, 1)
    assert says(heard, SECOND, 1, "a") == ["a"]
    heard.lost(object(), FIRST, 5)
    heard.again(CALL, SECOND, 2)
    assert not heard.is_waiting
    assert says(heard, SECOND, 2, "a") == []


def test_a_call_may_be_made_again_as_another_one() -> None:
    """One that says of itself how often it was lost."""
    heard, other = HeardBefore(), object()
    heard.goes_on_as(CALL, other)
    says(heard, FIRST, 1, "a")
    heard.lost(CALL, FIRST, 1)
    heard.goes_on_as(CALL, CALL)
    heard.goes_on_as(CALL, other)
    heard.again(CALL, SECOND, 1)
    heard.again(other, SECOND, 2)
    assert says(heard, SECOND, 1, "a") == ["a"]
    assert says(heard, SECOND, 2, "a") == []


def test_it_keeps_the_last_calls() -> None:
    """However many there are."""
    heard = HeardBefore()
    for number in range(1000):
        says(heard, FIRST, number, "a")
        heard.lost(object(), FIRST, number)
    assert len(heard._lost) <= 64
    for number in range(1000):
        says(heard, SECOND, number, "a")
    assert len(heard._said) <= 64
    heard.after_fork()
    assert not heard.is_waiting
