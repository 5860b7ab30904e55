"""How the commands of both ends speak to people."""

from __future__ import annotations

import pytest

from jaxd_protocol.base.terminal import Parser, ago, duration, size, table, truncate


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1.46e6, "1.46 MB"), (5e15, "5e+03 TB")]
)
def test_sizes(count: float, text: str) -> None:
    """Three digits and a unit."""
    assert size(count) == text


def test_columns_are_as_wide_as_they_have_to_be() -> None:
    """And nothing stands behind the last."""
    assert table([("a", "bb", "c"), ("aaa", "b", "")]) == "a    bb  c\naaa  b"


def test_a_usage_error_says_where_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    """And ends with 2."""
    with pytest.raises(SystemExit) as caught:
        Parser(prog="jaxd serve").parse_args(["--loud"])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert said == "jaxd: there is no option --loud. See: jaxd serve --help\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.00 s"),
        (0.25, "0.25 s"),
        (8.2, "8.2 s"),
        (78.4, "78 s"),
        (200, "3 min"),
        (8000, "2 h"),
        (2e5, "2 d"),
    ],
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
