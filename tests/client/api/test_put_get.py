"""Trees to the server and back; `end_to_end/test_values` has their numbers."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest

from jaxd import Client, RemoteArray
from jaxd.api import put_get
from jaxd.errors import ArgumentError, ValuesLost

Pair = namedtuple("Pair", "left right")  # noqa: PYI024  users have them


def test_what_lies_there_already_is_left_where_it_is(client: Client) -> None:
    """A tree may hold both."""
    there = client.put(np.ones(3))
    placed = client.put([there, 2.0])
    assert placed[0] is there
    assert isinstance(placed[1], RemoteArray)


def test_an_array_of_another_client_comes_home_first(live: Any, client: Client) -> None:
    """It lies in another session."""
    from jaxd import connect

    with connect(live.unix) as other:
        theirs = other.put(np.arange(3))
        ours = client.put(theirs)
        assert ours is not theirs
        np.testing.assert_array_equal(np.asarray(ours), np.arange(3))


def test_what_is_new_needs_nothing_of_a_session_that_is_over(client: Client) -> None:
    """As after the death of a worker, of which an idle client has not heard."""

    def ends() -> None:
        client.caller.session.connection().shut()
        client.caller.session.id = None

    old = client.put(np.ones(2000))  # so large that no copy of it is kept
    ends()
    tree = client.put({"x": np.arange(3)}, name="after-the-end")
    np.testing.assert_array_equal(np.asarray(tree["x"]), np.arange(3))
    ends()
    np.testing.assert_array_equal(np.asarray(client.named("after-the-end")["x"]), np.arange(3))
    ends()
    assert client.forget("after-the-end")
    lost, new = client.put([old, 2.0])
    assert float(new) == 2.0
    with pytest.raises(ValuesLost, match="needs 1 of them"):
        np.asarray(lost)


@pytest.mark.parametrize("odd", [object(), {1, 2}, b"bytes", range(3)])
def test_what_is_no_array_is_named(client: Client, odd: Any) -> None:
    """In the message."""
    with pytest.raises(ArgumentError, match=type(odd).__name__):
        client.put({"good": np.ones(2), "odd": odd})


def test_an_empty_tree_is_no_question(client: Client) -> None:
    """There is nothing to send."""
    trees: list[Any] = [{}, [], None, {"x": [None, ()]}]
    for tree in trees:
        assert client.put(tree) == tree
        assert put_get.fetch_tree(tree) == tree


def test_names_keep_containers(client: Client) -> None:
    """Dicts with an order and named tuples as well."""
    tree = OrderedDict(b=[np.float32(1)], a=Pair(np.int32(2), ()))
    client.put(tree, name="placed")
    found = client.named("placed")
    assert list(found) == ["b", "a"]
    assert found["a"]._fields == ("left", "right")
    assert float(found["b"][0]) == 1.0
    assert client.forget("placed")
