from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jaxd.cli.__main__ import main
from jaxd_protocol.network.accounts import default_token_dir
from jaxd_protocol.network.tokens import default_token_file, read_token_file

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


def test_names_are_made_listed_and_taken_away(
    runtime: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the folder where servers look; no secret is shown unasked."""
    assert main(["token", "--list"]) == 0
    assert "jaxd token --name" in capsys.readouterr().out
    assert main(["token", "--name", "alice"]) == main(["token", "--name", "bob"]) == 0
    said = capsys.readouterr().out
    path = f"{default_token_dir()}/alice"
    assert f"wrote {path}\n" in said
    assert "code in each other's answers" in said
    assert said.endswith("jaxd serve --worker-per-principal\n")
    assert read_token_file(path) not in said
    assert main(["token", "--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "NAME",
        "alice",
        "bob",
    ]
    assert main(["token", "--revoke", "alice"]) == 0
    assert "revoked alice" in capsys.readouterr().out
    assert main(["token", "--revoke", "alice"]) == 1
    assert "there are: bob" in capsys.readouterr().err


def test_a_name_gets_another_token_by_force(
    runtime: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the folder that is named."""
    folder = str(runtime / "mine")
    words = ["token", "--name", "alice", "--token-dir", folder, "--print"]
    assert main(words) == 0
    first = capsys.readouterr().out
    assert main(words) == 1
    capsys.readouterr()
    assert main([*words, "--force"]) == 0
    second = capsys.readouterr().out
    assert first != second == read_token_file(f"{folder}/alice") + "\n"
