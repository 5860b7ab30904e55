from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jaxd.cli.__main__ import _COMMANDS, Forwarded, main
from jaxd.cli.commands import token
from jaxd_protocol.errors import ConfigurationError

FORWARDED = [name for name, command in _COMMANDS.items() if isinstance(command, Forwarded)]
OWN = [name for name in _COMMANDS if name not in FORWARDED]
PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


@pytest.mark.parametrize("name", _COMMANDS)
def test_the_page_on_configuration_has_every_command(name: str) -> None:
    """With a row, or several."""
    assert re.search(rf"^\| `jaxd {name}\b", PAGE.read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", OWN)
def test_each_command_has_help_with_an_example(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """One that can be copied."""
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    assert re.search(rf"^example: .*jaxd {name}", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize(
    "words", [["dance"], ["status", "--nonsense"], ["status", "extra"], ["token", "--file"]]
)
def test_a_usage_error_exits_with_2(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    """One line that says where to read on."""
    with pytest.raises(SystemExit, match="2"):
        main(words)
    said = capsys.readouterr().err
    assert said.startswith("jaxd: ")
    assert said.endswith("--help\n")
    assert said.count("\n") == 1


def test_an_error_is_one_line_without_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On stderr, with exit code 1."""
    monkeypatch.setattr(token, "run", raising(ConfigurationError("wrong. Do that.")))
    assert main(["token"]) == 1
    assert capsys.readouterr() == ("", "jaxd: wrong. Do that.\n")


def test_ctrl_c_exits_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Quietly, as shells expect."""
    monkeypatch.setattr(token, "run", raising(KeyboardInterrupt()))
    assert main(["token"]) == 130
    assert capsys.readouterr() == ("", "")


def raising(error: BaseException) -> object:
    """A command that does nothing but raise."""

    def run(_: object) -> int:
        raise error

    return run


def test_a_closed_pipe_is_no_traceback(runtime: Path) -> None:
    """`jaxd … | head` reads what it wants and goes."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "jaxd.cli", "status", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr as stderr:
        said = stderr.read()
    assert process.wait() != 0
    assert "Traceback" not in said
    assert "Exception ignored" not in said


@pytest.mark.parametrize("name", FORWARDED)
def test_some_commands_read_their_own_words(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Whatever follows, also what looks like an option of ours."""
    became: list[list[str]] = []

    def become(_: str, program: list[str]) -> None:
        became.append(program)
        raise SystemExit

    monkeypatch.setattr(os, "execv", become)
    with pytest.raises(SystemExit):
        main([name, "--help", "--listen", "unix:///x", "more"])
    (program,) = became
    assert program[-4:] == ["--help", "--listen", "unix:///x", "more"]
