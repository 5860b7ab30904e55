"""How commands write times and long texts."""

from __future__ import annotations

import pytest

from jaxd.cli.terminal import ago, duration, truncate


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.00 s"), (0.25, "0.25 s"), (8.2, "8.2 s"), (200, "3 min"), (8000, "2 h"), (2e5, "2 d")],
)
def test_durations(seconds: float, text: str) -> None:
    """As people say them."""
    assert duration(seconds) == text
    assert ago(seconds) == f"{text} ago"


def test_what_never_was() -> None:
    """Has no duration."""
    assert ago(None) == "never"


def test_long_texts_are_cut() -> None:
    """To one line."""
    assert truncate("a\nb", 5) == "a b"
    assert truncate("abcdef", 5) == "abcd…"
