from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxd.cli.__main__ import main
from jaxd.connection import discovery
from jaxd_protocol.errors import ConfigurationError


def test_this_process_becomes_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals and the terminal are the server's, with no process in between."""
    became: list[tuple[str, list[str]]] = []

    def become(program: str, words: list[str]) -> None:
        became.append((program, words))
        raise SystemExit

    monkeypatch.setattr(os, "execv", become)
    monkeypatch.setattr(discovery, "has_server_extra", lambda: True)
    with pytest.raises(SystemExit):
        main(["serve", "--slots", "3"])
    expected = [sys.executable, "-P", "-m", "jaxd_server", "--slots", "3"]
    assert became == [(sys.executable, expected)]


def test_without_jax_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is started."""
    monkeypatch.setattr(discovery, "has_server_extra", lambda: False)
    assert main(["serve"]) == 1
    assert "pip install 'jaxd[server]'" in capsys.readouterr().err
    assert ConfigurationError.blame == "caller"


@pytest.mark.slow
def test_its_help_is_the_servers(runtime: Path) -> None:
    """Also where no server could run, and also by `jaxd help`."""
    said, helped = (
        subprocess.run(
            [sys.executable, "-P", "-m", "jaxd.cli", *words],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for words in (["serve", "--help-all"], ["help", "serve"])
    )
    assert "--worker-per-principal" in helped
    assert said.startswith("usage: jaxd serve ")
    assert "--insecure-plaintext" in said
