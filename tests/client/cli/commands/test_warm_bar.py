"""The progress bar of builds."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

from jaxd.cli.commands.warm import BuildBar

if TYPE_CHECKING:
    import pytest


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal_in_place(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Takes the place of stderr."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    return terminal


def test_it_says_how_many_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is gone in the end."""
    terminal = terminal_in_place(monkeypatch)
    bar = BuildBar(2, shown=True)
    bar.advance()
    bar.advance()
    bar.close()
    parts = [part for part in terminal.getvalue().split("\r") if part.strip()]
    assert parts == ["[##########..........] 1/2", "[####################] 2/2"]
    assert terminal.getvalue().endswith(" \r")


def test_a_failure_has_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar goes on below it."""
    terminal = terminal_in_place(monkeypatch)
    bar = BuildBar(2, shown=True)
    bar.advance("f failed")
    assert terminal.getvalue().startswith("\rf failed\n")
    assert terminal.getvalue().endswith("\r[##########..........] 1/2")


def test_without_a_terminal_only_failures_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    """As plain lines."""
    bar = BuildBar(2, shown=False)
    bar.advance()
    bar.advance("f failed")
    bar.close()
    assert capsys.readouterr().err == "f failed\n"


def test_what_is_under_way_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """When it takes long; what was built, and why, is not told for each."""
    monkeypatch.setattr("jaxd.events.progress._SHOW_AFTER_S", 0.0)
    monkeypatch.setattr("jaxd.events.progress._TICK_S", 0.0)
    terminal = terminal_in_place(monkeypatch)
    bar = BuildBar(2, shown=True)
    bar.event("c", 1, "stage", {"stage": "compile", "function": "train_step"})
    assert bar._ticker is not None
    while "] 0/2  compiling train_step … 0 s" not in terminal.getvalue():
        bar._ticker.join(0.01)
    bar.event("c", 1, "built", {"function": "train_step", "reason": "first call"})
    ticker = bar._ticker
    bar.finish("c", 1)
    ticker.join()
    assert "first call" not in terminal.getvalue()
    assert "ready after" not in terminal.getvalue()
