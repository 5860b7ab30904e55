from __future__ import annotations

import pickle

import pytest

from jaxd_protocol.errors import CallbackError
from jaxd_protocol.live import Live


def test_it_stands_for_attributes_too() -> None:
    """However deep; and travels as what it is."""
    live = Live(3).bar.update
    assert (live.number, live.names) == (3, ("bar", "update"))
    copy = pickle.loads(pickle.dumps(live))
    assert (copy.number, copy.names) == (3, ("bar", "update"))


def test_it_is_of_no_use_on_a_server() -> None:
    """Nothing runs on a stand-in by mistake, and nothing asks it for what Python asks objects."""
    with pytest.raises(CallbackError, match="stays in the client's process"):
        Live(3)(1)
    with pytest.raises(AttributeError):
        _ = Live(3).__wrapped__
