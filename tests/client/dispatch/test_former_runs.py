"""What is known of functions that no server could answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxd.dispatch.local_runs import FormerRuns, FunctionRuns


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where it is kept."""
    monkeypatch.setenv("JAXD_CACHE_DIR", str(tmp_path))
    import jax  # noqa: F401  whose place says which packages are installed

    return tmp_path / "refused"


def one() -> None:
    """A function of the user's."""


def wrapped(name: str) -> Callable[..., Any]:
    """As a library makes them: of one code, called as what is in it."""

    def inside() -> None:
        """Calls it."""

    inside.__qualname__ = name
    return inside


def refused(known: FormerRuns, function: Callable[..., Any], reason: str = "no") -> FunctionRuns:
    """A call of it that no server can answer."""
    runs = known.of(function)
    assert runs is not None
    runs.calls += 1
    runs.here += 1
    runs.reason = reason
    return runs


def asked(known: FormerRuns, function: Callable[..., Any], server: str | None = None) -> str | None:
    """What is known before the first call."""
    runs = known.of(function)
    assert runs is not None
    return known.refusal(runs, server)


def test_a_refusal_is_known_in_the_next_process_and_for_that_server_alone() -> None:
    """For a day."""
    first = FormerRuns()
    assert asked(first, one) is None
    refused(first, one)
    first.write(None)
    assert asked(FormerRuns(), one) == "no"
    assert asked(FormerRuns(), one, "unix:///other.sock") is None


def test_it_is_known_for_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """From when it was tried on: that it was known in between does not count."""
    began_s = time.time()
    first = FormerRuns()
    refused(first, one)
    first.write(None)
    monkeypatch.setattr(time, "time", lambda: began_s + 80_000)
    second = FormerRuns()
    assert asked(second, one) == "no"
    refused(second, one)
    second.write(None)
    monkeypatch.setattr(time, "time", lambda: began_s + 90_000)
    assert asked(FormerRuns(), one) is None


def test_what_was_answered_is_none() -> None:
    """Also when it was not, before."""
    first, second = FormerRuns(), FormerRuns()
    refused(first, one)
    first.write(None)
    refused(second, one).calls += 1
    second.write(None)
    assert asked(FormerRuns(), one) is None


def test_many_refusals_of_one_code_are_enough_in_one_process(folder: Path) -> None:
    """Where all have the same reason; what was not tried is not written down."""
    known = FormerRuns()
    for number in range(5):
        assert asked(known, wrapped(f"f{number}")) is None
        refused(known, wrapped(f"f{number}"))
    assert asked(known, wrapped("f5")) == "no"
    refused(known, wrapped("f5"))
    known.write(None)
    (file,) = folder.iterdir()
    assert "f4" in file.read_text()
    assert "f5" not in file.read_text()
    answered = known.of(wrapped("f6"))
    assert answered is not None
    answered.calls += 1
    assert asked(known, wrapped("f7")) is None


def test_different_reasons_say_nothing_of_others() -> None:
    """Each function was refused for what it does itself."""
    known = FormerRuns()
    for number in range(8):
        refused(known, wrapped(f"f{number}"), f"reason {number}")
    assert asked(known, wrapped("other")) is None
