from __future__ import annotations

import functools
import pickle

import pytest

from jaxd_protocol.errors import CallbackError
from jaxd_protocol.fingerprint.client_object import ClientObject, holds_function
from tests.ids import row


def test_it_stands_for_attributes_too() -> None:
    """However deep; and travels as what it is."""
    for listed in (False, True):
        live = ClientObject(3, listed=listed).bar.update
        copy = pickle.loads(pickle.dumps(live))
        for each in (live, copy):
            assert (each.number, each.names, each.listed) == (3, ("bar", "update"), listed)


def test_it_is_of_no_use_on_a_server() -> None:
    """Nothing runs on a stand-in by mistake, and nothing asks it for what Python asks objects."""
    with pytest.raises(CallbackError, match="stays in the client's process"):
        ClientObject(3)(1)
    with pytest.raises(AttributeError):
        _ = ClientObject(3).__wrapped__


class Network:
    """As modules of libraries are."""

    def __call__(self) -> None:
        """Is called by whom it was given to."""


def test_what_holds_a_function() -> None:
    """A model may be called, and is none."""
    rows: list[tuple[object, bool]] = [
        (len, True),
        ([1, (len,)], True),
        ({"k": {"l": Network}}, True),
        ({Network: 1}, True),
        (functools.partial(len), True),
        ("text".format, True),
        (Network().__call__, True),
        (ClientObject(0), True),
        (Network(), False),
        ({"k": [Network(), 1, "text", None]}, False),
    ]
    for value, wanted in rows:
        with row((value, wanted)):
            assert holds_function(value) is wanted
