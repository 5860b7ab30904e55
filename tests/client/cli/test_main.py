from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jaxd.cli.__main__ import _COMMANDS, Forwarded, main
from jaxd.cli.commands import token
from jaxd.connection import discovery
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


USAGE = {
    **dict.fromkeys(("dance", "status --nonsense", "status extra", "token --file"), ""),
    **dict.fromkeys(("warm", "warm --record", "warm --record --check f", "warm a b"), ""),
    **dict.fromkeys(("why", "why --recent 0", "why --recent many", "why a:b --recent"), ""),
    "why --recent -1": "",
    "demo --epochs 0": "0",
    "demo --epochs -1": "-1",
    "demo --epochs many": "many",
    **{
        f"dashboard --port={port}": "is no port: 1 to 65535, or 0 for a free one"
        for port in ("-1", "65536", "x", "1.5")
    },
}


@pytest.mark.parametrize("words", USAGE)
def test_a_usage_error_exits_with_2(capsys: pytest.CaptureFixture[str], words: str) -> None:
    """One line that says where to read on."""
    with pytest.raises(SystemExit, match="2"):
        main(words.split())
    said = capsys.readouterr().err
    assert said.startswith("jaxd: ")
    assert USAGE[words] in said
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
    became: list[tuple[str, list[str]]] = []

    def become(program: str, words: list[str]) -> None:
        became.append((program, words))
        raise SystemExit

    monkeypatch.setattr(os, "execv", become)
    monkeypatch.setattr(discovery, "has_server_extra", lambda: True)
    words = ["--help", "--listen", "unix:///x", "more"]
    with pytest.raises(SystemExit):
        main([name, *words])
    command = _COMMANDS[name]
    assert isinstance(command, Forwarded)
    expected = [sys.executable, "-P", "-m", command.module, *words]
    assert became == [(sys.executable, expected)]
