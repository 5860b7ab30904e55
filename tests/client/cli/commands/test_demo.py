"""`jaxd demo`: what it says when it cannot run, its verdict, and its processes."""

from __future__ import annotations

import importlib.util
import os
import signal
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from jaxd.cli.__main__ import main
from jaxd.cli.commands import demo
from jaxd.connection import control_client, local_server
from jaxd_protocol.errors import JaxdError

RUN: dict[str, Any] = {"label": "a run", "accuracy": 0.98, "imports_jax": False}
JAXD = RUN | {"traces": 0, "compiles": 0}


def test_without_the_extras_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A light installation has the command too; it ends in the line to type."""
    find_spec = importlib.util.find_spec

    def hidden(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name in {"jax", "sklearn"} else find_spec(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", hidden)
    assert main(["demo"]) == 1
    said = capsys.readouterr().err
    assert said.endswith(
        "the demo needs jax and sklearn, not installed here. Run: pip install 'jaxd[server,demo]'\n"
    )


def test_a_second_process_without_trace_and_compile_is_a_success() -> None:
    """Nothing is complained about."""
    assert demo.complaints([JAXD | {"traces": 1, "compiles": 1}, JAXD, RUN]) == []


@pytest.mark.parametrize(
    ("number", "wrong", "complaint"),
    [
        (1, {"traces": 1}, "The second process caused 1 traces"),
        (1, {"compiles": 2}, "The second process caused 2 compiles"),
        (2, {"accuracy": 0.5}, "50.0% of the test digits"),
        (0, {"imports_jax": True}, "imported jax"),
    ],
)
def test_what_is_not_as_promised_is_complained_about(
    number: int, wrong: dict[str, Any], complaint: str
) -> None:
    """A compile of the second process, a network that did not learn, and a heavy client."""
    runs = [JAXD, JAXD, RUN]
    runs[number] = runs[number] | wrong
    (said,) = demo.complaints(runs)
    assert complaint in said


def test_a_process_that_fails_is_named_with_its_exit_code(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says which run it was; what the process printed stands before it."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no digits here >&2\nexit 2\n")
    python.chmod(0o700)
    monkeypatch.setattr("sys.executable", str(python))
    with pytest.raises(JaxdError, match=r"a run ended with code 2"):
        demo.run_script("a run", "persistent", 1)
    assert "no digits here" in capfd.readouterr().err


def test_an_interrupt_during_the_start_stops_the_server_that_was_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It could not be stopped before it listens, and would run on."""
    steps: list[str] = []

    def start(*_: Any, **__: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        steps.append("started")

    monkeypatch.setattr(local_server, "start_background", start)
    monkeypatch.setattr(control_client, "stop_and_wait", lambda *_, **__: steps.append("stopped"))
    with pytest.raises(KeyboardInterrupt), demo.server_in("folder"):
        steps.append("used")
    assert steps == ["started", "stopped"]


def test_settings_that_would_spoil_the_comparison_do_not_reach_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Plain jax runs without a disk cache and jaxd with its server, whatever the user has set."""
    settings = {"JAX_COMPILATION_CACHE_DIR": "/somewhere", "JAXD_INLINE": "1", "KEPT": "yes"}
    monkeypatch.setattr(os, "environ", settings)
    demo.hide_settings()
    assert settings == {"KEPT": "yes", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
