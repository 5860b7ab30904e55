"""Calls on values; `end_to_end/test_values` has what users see of them."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import jaxd
from jaxd import Client
from jaxd.remote_values.pipelined_calls import SkeletonTable
from jaxd.request.call_request import result_policy_for
from jaxd_protocol.errors import LimitExceeded, ProtocolError, ResultError
from jaxd_protocol.messages.data_locations import (
    INLINE_RESULT_BYTES,
    KEEP_ALL,
    KEEP_NONE,
    MAX_INDEXED_BYTES,
    MIN_INDEXED_BYTES,
)
from jaxd_server.rpc.sessions import Session, SessionState
from jaxd_server.values.store import ValueStore
from tests.server.staging import until
from tests.spans import ids_in


@pytest.mark.parametrize(
    ("results", "on_values", "expected"),
    [
        ("remote", False, (KEEP_ALL, -1)),
        ("remote", True, (KEEP_ALL, -1)),
        ("auto", False, (INLINE_RESULT_BYTES, INLINE_RESULT_BYTES)),
        ("auto", True, (KEEP_ALL, INLINE_RESULT_BYTES)),
        ("numpy", True, (KEEP_NONE, KEEP_NONE)),
        ("jax", True, (KEEP_NONE, KEEP_NONE)),
    ],
)
def test_what_stays(results: Any, on_values: bool, expected: tuple[int, int]) -> None:
    """By the form in which results are wanted, and whether there are values among the arguments."""
    stay = result_policy_for(results, on_values=on_values)
    assert stay is not None
    assert (stay.above, stay.home) == expected


def test_a_call_that_knows_nothing_of_values_says_nothing_of_them() -> None:
    """All of its result comes home, as it always did."""
    assert result_policy_for("numpy", on_values=False) is None


def test_after_another_structure_than_before_the_next_call_is_right(client: Client) -> None:
    """And nothing of the result that did not fit stays on the server."""
    before = client.statistics().values + 1
    one = client.persistent_call(lambda x: x + 1)
    two = client.persistent_call(lambda x: (x + 1, x + 2))
    x = client.put(np.ones(1 << 15, np.float32))
    jaxd.wait((one(x), two(x)))
    until(lambda: client.statistics().values == before)
    forms = client.caller.session.values().calls._result_shapes
    first, second = forms
    forms[second] = forms[first]  # as if it had returned one array before
    with pytest.raises(ResultError, match="Call it again"):
        np.asarray(two(x))
    np.testing.assert_array_equal(np.asarray(two(x)[1]), np.full(1 << 15, 3))
    gc.collect()  # the error and the array hold each other
    jaxd.wait(x)
    until(lambda: client.statistics().values == before)


def test_a_result_belongs_to_the_session_in_which_it_was_made(client: Client) -> None:
    """Also when another one has begun before it is read."""
    make = client.persistent_call(lambda x: x + 1)
    array = make(np.ones(1 << 15, np.float32))
    values = client.caller.session.values()
    assert client.caller.session.current().values is values
    other: Any = object()
    client.caller.session.store = other
    try:
        again = make(np.ones(1 << 15, np.float32))
    finally:
        client.caller.session.store = values
    assert again.fetcher is array.fetcher is values


LONG = b"T" * MIN_INDEXED_BYTES


def server() -> SessionState:
    """The end that is told."""
    return SessionState(Session("1", "ann"), ValueStore(), 0)


def test_a_skeleton_is_said_until_it_was_heard() -> None:
    """The server reads the same in either case."""
    shapes, own = SkeletonTable(), server()
    first, second = shapes.encode(LONG), shapes.encode(LONG)
    assert [own.skeleton(told) for told in (first, second)] == [LONG, LONG]
    assert len(first) > len(LONG)
    shapes.confirm(first)
    short = shapes.encode(LONG)
    assert len(short) == 2
    assert own.skeleton(short) == LONG


def test_short_ones_are_said() -> None:
    """They are not worth a name, and the server needs none for them."""
    assert SkeletonTable().encode(LONG[1:]) == LONG[1:]
    assert server().skeleton(LONG[1:]) == LONG[1:]


def test_no_name_is_given_twice() -> None:
    """When there are no more, skeletons are said as they are."""
    shapes, own = SkeletonTable(), server()
    skeletons = [LONG + bytes([n % 256, n // 256]) for n in range(300)]
    told = [shapes.encode(skeleton) for skeleton in skeletons]
    for each in told:
        shapes.confirm(each)
    assert [own.skeleton(each) for each in told] == skeletons
    again = [shapes.encode(skeleton) for skeleton in skeletons]
    assert [len(each) for each in again[:256]] == [2] * 256
    assert again[256:] == skeletons[256:]
    assert [own.skeleton(each) for each in again] == skeletons


@pytest.mark.parametrize("told", [b"\0\7", b"\0", b"\1", b"\1" + bytes(MAX_INDEXED_BYTES)])
def test_a_name_that_nobody_has_is_refused(told: Any) -> None:
    """The connection is of no use any more."""
    with pytest.raises(ProtocolError, match="does not have"):
        server().skeleton(told)


def test_the_child_of_a_fork_begins_anew() -> None:
    """It has a session of its own."""
    shapes = SkeletonTable()
    shapes.confirm(shapes.encode(LONG))
    shapes.after_fork()
    assert len(shapes.encode(LONG)) > 2


def test_what_a_message_could_not_tell_is_told_by_another(client: Client) -> None:
    """A call that is refused takes nothing with it."""
    values = client.caller.session.values()
    values.release_queue._is_woken = True  # its thread leaves it to the calls
    values.drop(range(7, 8))
    large = np.ones(1 << 20)
    connection = client.caller.session.connection()
    connection._channel.writer.max_frame_bytes, limit = 1 << 10, 1 << 30
    connection.passes_descriptors = False
    with pytest.raises(LimitExceeded):
        client.persistent_call(lambda x: x + 1)(large)
    connection._channel.writer.max_frame_bytes = limit
    assert 7 in ids_in(values.release_queue.take_all())
