"""`jaxd demo` as a command: what it says when it cannot run."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from jaxd.demo import main


def test_without_the_extras_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A light installation has the command too; it ends in the line to type."""
    find_spec = importlib.util.find_spec

    def hidden(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name in {"jax", "sklearn"} else find_spec(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", hidden)
    assert main([]) == 1
    assert "jax, sklearn not found. Run: pip install 'jaxd[server,demo]'" in capsys.readouterr().err


@pytest.mark.parametrize("epochs", ["0", "-1", "many"])
def test_a_number_of_epochs_that_makes_no_sense_is_a_usage_error(
    epochs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and the offending word, as for any other command line."""
    with pytest.raises(SystemExit, match="2"):
        main(["--epochs", epochs])
    assert epochs in capsys.readouterr().err


def test_an_output_directory_that_cannot_be_made_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody waits for six processes to learn that the plot has no place."""
    (tmp_path / "file").write_text("")
    assert main(["--output", str(tmp_path / "file" / "below")]) == 1
    assert "Choose another: --output DIR" in capsys.readouterr().err
