"""Short names for skeletons."""

from __future__ import annotations

from typing import Any

import pytest

from jaxd.shapes import Shapes
from jaxd_protocol.elsewhere import MOST_NAMED_BYTES, WORTH_A_NAME
from jaxd_protocol.errors import ProtocolError
from jaxd_server.belongings import Belongings
from jaxd_server.sessions import Session
from jaxd_server.values import Values

LONG = b"T" * WORTH_A_NAME


def server() -> Belongings:
    """The end that is told."""
    return Belongings(Session("1", "ann"), Values(), 0)


def test_a_skeleton_is_said_until_it_was_heard() -> None:
    """The server reads the same in either case."""
    shapes, own = Shapes(), server()
    first, second = shapes.told(LONG), shapes.told(LONG)
    assert [own.skeleton(told) for told in (first, second)] == [LONG, LONG]
    assert len(first) > len(LONG)
    shapes.heard(first)
    short = shapes.told(LONG)
    assert len(short) == 2
    assert own.skeleton(short) == LONG


def test_short_ones_are_said() -> None:
    """They are not worth a name, and the server needs none for them."""
    assert Shapes().told(LONG[1:]) == LONG[1:]
    assert server().skeleton(LONG[1:]) == LONG[1:]


def test_no_name_is_given_twice() -> None:
    """When there are no more, skeletons are said as they are."""
    shapes, own = Shapes(), server()
    skeletons = [LONG + bytes([n % 256, n // 256]) for n in range(300)]
    told = [shapes.told(skeleton) for skeleton in skeletons]
    for each in told:
        shapes.heard(each)
    assert [own.skeleton(each) for each in told] == skeletons
    again = [shapes.told(skeleton) for skeleton in skeletons]
    assert [len(each) for each in again[:256]] == [2] * 256
    assert again[256:] == skeletons[256:]
    assert [own.skeleton(each) for each in again] == skeletons


@pytest.mark.parametrize("told", [b"\0\7", b"\0", b"\1", b"\1" + bytes(MOST_NAMED_BYTES)])
def test_a_name_that_nobody_has_is_refused(told: Any) -> None:
    """The connection is of no use any more."""
    with pytest.raises(ProtocolError, match="nobody knows"):
        server().skeleton(told)


def test_the_child_of_a_fork_begins_anew() -> None:
    """It has a session of its own."""
    shapes = Shapes()
    shapes.heard(shapes.told(LONG))
    shapes.after_fork()
    assert len(shapes.told(LONG)) > 2
