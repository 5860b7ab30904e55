"""The processes that the demo times."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxd.demo import runs
from jaxd.demo.runs import DemoFailed, run_training


def test_a_process_that_fails_is_named_with_its_exit_code(
    runtime: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The message says which run it was; what the process printed stands before it."""
    with pytest.raises(DemoFailed, match=r"'a run' ended with code 2"):
        run_training("a run", "neither", 1, {})  # type: ignore[arg-type]
    assert "invalid choice: 'neither'" in capfd.readouterr().err


def test_settings_that_would_spoil_the_comparison_do_not_reach_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Plain jax runs without a disk cache and jaxd with its server, whatever the user has set."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/somewhere")
    monkeypatch.setenv("JAXD_INLINE", "1")
    monkeypatch.setenv("KEPT", "yes")
    seen = runs._environment({"JAXD_SERVER": "unix:///there"})
    assert "JAX_COMPILATION_CACHE_DIR" not in seen
    assert "JAXD_INLINE" not in seen
    assert (seen["KEPT"], seen["JAXD_SERVER"]) == ("yes", "unix:///there")
