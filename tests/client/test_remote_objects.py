from __future__ import annotations

import copy
import pickle

from jaxd.remote_objects import RemoteObject
from jaxd_protocol.keepsakes import keep

ONE = RemoteObject(b"1" * 16, "function f of m", "step")


def test_it_says_what_it_is() -> None:
    """And whose result it was in."""
    assert repr(ONE) == "<RemoteObject: function f of m, on the server; from a result of step>"


def test_it_is_equal_to_another_with_its_token() -> None:
    """So tree structures with it can be compared."""
    same = RemoteObject(b"1" * 16, "it", "other")
    other = RemoteObject(b"2" * 16, "it", "other")
    assert same == ONE
    assert hash(ONE) == hash(same)
    assert other != ONE
    assert ONE != b"1" * 16


def test_it_can_be_copied_with_what_holds_it() -> None:
    """A copy is the same object there."""
    assert copy.deepcopy([ONE])[0] is copy.copy(ONE) is ONE


def test_it_becomes_the_object_where_that_is() -> None:
    """It travels as its token."""
    thing = ["a", "b"]
    assert pickle.loads(pickle.dumps(RemoteObject(keep(thing), "list", "f"))) is thing
