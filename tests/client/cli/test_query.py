"""Commands that only ask."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxd.cli.__main__ import main
from jaxd.cli.query import ask_server
from tests.client.fake_server import FakeServer


@pytest.mark.parametrize(
    "words", [["functions"], ["values"], ["why", "--recent"]], ids=lambda words: words[0]
)
def test_without_a_server_they_exit_with_3_and_start_none(
    words: list[str], runtime: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Asking is not calling."""
    assert main(words) == 3
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("jaxd: no server runs at ")
    assert said.err.endswith("jaxd start\n")
    assert not (runtime / "jaxd").exists()


def test_an_answer_says_who_gave_it(runtime: Path) -> None:
    """Beside what was asked."""
    server = FakeServer(f"{runtime}/s.sock", values={"holders": []})
    try:
        assert ask_server(server.address, "values") == {"server": server.address, "holders": []}
    finally:
        server.close()
