"""The demo's plot."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxd.demo.plot import write_plot
from jaxd.demo.runs import Run

HISTORY = ({"loss": 1.0, "accuracy": 0.8}, {"loss": 0.5, "accuracy": 0.9})


def test_the_plot_is_written_without_a_display(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A PNG appears where it was asked for, also on a machine that has no screen."""
    pytest.importorskip("matplotlib", reason="the demo extra is not installed")
    monkeypatch.delenv("DISPLAY", raising=False)
    runs = [Run(f"run {n}", 1.0, 0.5, 1.5, 2.0, 0.9, HISTORY, False) for n in range(4)]
    path = write_plot(runs, str(tmp_path))
    assert Path(path).read_bytes().startswith(b"\x89PNG")
