from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jaxd.cli import main
from jaxd_protocol.tokens import default_token_file, read_token_file

if TYPE_CHECKING:
    import pytest


def test_it_writes_where_both_ends_look(runtime: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And does not show the secret unasked."""
    assert main(["token"]) == 0
    token = read_token_file(default_token_file())
    assert capsys.readouterr().out == f"wrote {default_token_file()}\n"
    assert len(token) == 43


def test_it_prints_the_token_on_request(runtime: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Alone on its line, for a script to catch."""
    path = str(runtime / "mine")
    assert main(["token", "--file", path, "--print"]) == 0
    assert capsys.readouterr().out == read_token_file(path) + "\n"


def test_it_replaces_only_by_force(runtime: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A token in use is not lost by typing a command twice."""
    assert main(["token"]) == 0
    before = read_token_file(default_token_file())
    assert main(["token"]) == 1
    assert "--force" in capsys.readouterr().err
    assert read_token_file(default_token_file()) == before
    assert main(["token", "--force"]) == 0
    assert read_token_file(default_token_file()) != before
