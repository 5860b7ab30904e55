"""Whether calls run in this process that the server cannot answer: the option, and the default."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from jaxd.connection.settings import Settings
from jaxd.dispatch import local_runs
from jaxd.interop.jax_runtime import jax_changes
from jaxd_protocol import errors


def session(platform: str, chosen: str | None = None, current: Any = None) -> Any:
    """One with a server that computes on that."""
    return SimpleNamespace(
        settings=Settings(fallback=chosen), platform=platform, current=current or (lambda: None)
    )


def test_by_default_on_the_servers_kind_of_device() -> None:
    """Never silently a thousand times slower."""
    assert local_runs.runs_locally(session("cpu"), None)
    assert not local_runs.runs_locally(session("gpu"), None)
    assert not local_runs.runs_locally(session("tpu"), None)


def test_by_default_on_jaxs_default_device() -> None:
    """As it is set in this thread, and not the one that jax would have taken."""
    with jax.default_device(jax.devices("cpu")[0]):
        assert not local_runs.runs_locally(session("gpu"), None)
        assert local_runs.runs_locally(session("cpu"), None)


def test_no_accelerator_is_taken_to_find_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where jax has no backend, the server's GPU is not asked for."""
    monkeypatch.setattr(local_runs, "started_platform", lambda: None)
    monkeypatch.setattr(jax, "default_backend", lambda: pytest.fail("asked"))
    assert not local_runs.runs_locally(session("gpu"), None)


def test_what_is_chosen_wins() -> None:
    """The option over the client, and either over the default."""
    assert local_runs.runs_locally(session("gpu", "local"), None)
    assert local_runs.runs_locally(session("gpu"), "local")
    assert local_runs.runs_locally(session("cpu", "error"), "local")
    assert not local_runs.runs_locally(session("cpu", "local"), "error")
    assert not local_runs.runs_locally(session("cpu", "error"), None)


def test_without_jax_the_default_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A light client stays light."""
    monkeypatch.delitem(sys.modules, "jax")
    assert not local_runs.runs_locally(session("cpu"), None)


def test_without_a_server_nothing_is_known_of_it() -> None:
    """Then the error stays what it is, unless a run here was asked for."""

    def none_there() -> None:
        raise errors.NoServer("none")

    assert not local_runs.runs_locally(session("cpu", current=none_there), None)
    assert local_runs.runs_locally(session("cpu", current=none_there), "local")


def _refused(file: str) -> Any:
    names: dict[str, Any] = {}
    exec(compile("def step(x): return x", file, "exec"), names)
    return names["step"]


def test_only_functions_in_files_of_the_user_are_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One place of a library, or of a program without a file, is many functions."""
    monkeypatch.setenv("JAXD_CACHE_DIR", str(tmp_path / "cache"))
    runs = local_runs.FormerRuns()
    assert runs.of(_refused(f"{tmp_path}/site-packages/a_library.py")) is None
    assert runs.of(_refused("<string>")) is None
    mine = runs.of(_refused(f"{tmp_path}/mine.py"))
    assert mine is not None
    derived = runs.of(jax.grad(_refused(f"{tmp_path}/mine.py")))
    assert derived is not None
    assert derived.place.startswith(f"{mine.place}:")  # one may be answered where the other is not
    mine.calls = mine.here = 1
    mine.reason = "why"
    monkeypatch.setattr(jax_changes, "were_found", True)
    runs.write(None)
    assert local_runs.FormerRuns().refusal(mine, None) is None
    monkeypatch.undo()
    monkeypatch.setenv("JAXD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(runs, "_begun_s", time.time() + 60)
    runs.write(None)
    assert local_runs.FormerRuns().refusal(mine, None) == "why"
