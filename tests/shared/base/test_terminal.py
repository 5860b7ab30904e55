"""How the commands of both ends speak to people."""

from __future__ import annotations

import pytest

from jaxd_protocol.base.terminal import Parser, size, table


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
    assert said == "jaxd: unrecognized arguments: --loud. See: jaxd serve --help\n"
