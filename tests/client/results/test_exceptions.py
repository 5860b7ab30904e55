from __future__ import annotations

from typing import Any

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


def test_without_jax_its_variable_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A light client may ask for all frames too."""
    monkeypatch.setattr("jaxd.results.exceptions.loaded_jax", lambda: None)
    assert not exceptions.shows_all_frames()
    monkeypatch.setenv("JAX_TRACEBACK_FILTERING", "off")
    assert exceptions.shows_all_frames()
