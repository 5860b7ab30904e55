from __future__ import annotations

import traceback
from typing import Any

import jax
import pytest

from jaxd.results import exceptions
from jaxd.results.exceptions import exception_of
from jaxd_protocol.errors import ArgumentError
from jaxd_protocol.messages.failures import encode_failure

READER: Any = None
STEP = ("step", READER, "tcp://host:1")
NOTE = "Raised in the call of step on the jaxd server at tcp://host:1."


def failure(error: Exception) -> Any:
    """What a server says of it."""

    def fail() -> Any:
        raise error

    with pytest.raises(type(error)) as caught:
        fail()
    return encode_failure(caught.value)


def test_a_note_names_call_and_server() -> None:
    """Of errors of the user's own, not of ours, which say by themselves what to do."""
    assert exception_of(failure(KeyError("a")), *STEP).__notes__ == [NOTE]
    own = exception_of(failure(ArgumentError("a")), *STEP)
    assert not hasattr(own, "__notes__")


def test_jaxs_frames_are_shown_where_jax_shows_them() -> None:
    """By its own setting in this process."""

    def fail() -> Any:
        return jax.numpy.ones(3) @ jax.numpy.ones(4)

    filtering = jax.config.jax_traceback_filtering  # type: ignore[attr-defined]
    counts = []
    try:
        jax.config.update("jax_traceback_filtering", "off")
        with pytest.raises(TypeError) as caught:
            fail()
        found = encode_failure(caught.value)
        for setting in ("off", "auto"):
            jax.config.update("jax_traceback_filtering", setting)
            error = exception_of(found, *STEP)
            names = [f.f_globals["__name__"] for f, _ in traceback.walk_tb(error.__traceback__)]
            counts.append(sum(name.startswith("jax.") for name in names))
            assert names[0] == __name__
    finally:
        jax.config.update("jax_traceback_filtering", filtering)
    assert counts[0] > counts[1] == 0


def test_without_jax_its_variable_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A light client may ask for all frames too."""
    monkeypatch.setattr("jaxd.results.exceptions.loaded_jax", lambda: None)
    assert not exceptions.shows_all_frames()
    monkeypatch.setenv("JAX_TRACEBACK_FILTERING", "off")
    assert exceptions.shows_all_frames()
