"""Calls on values; `end_to_end/test_values` has what users see of them."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import jaxd
from jaxd import Client
from jaxd.errors import LimitExceeded, ResultError
from jaxd.value_calls import stay_for
from jaxd_protocol.elsewhere import EVERYTHING, HOME_BYTES, NOTHING, unpack_ids
from tests.end_to_end.gates import wait_until


@pytest.mark.parametrize(
    ("results", "on_values", "expected"),
    [
        ("remote", False, (EVERYTHING, -1)),
        ("remote", True, (EVERYTHING, -1)),
        ("auto", False, (HOME_BYTES, HOME_BYTES)),
        ("auto", True, (EVERYTHING, HOME_BYTES)),
        ("numpy", True, (NOTHING, NOTHING)),
        ("jax", True, (NOTHING, NOTHING)),
    ],
)
def test_what_stays(results: Any, on_values: bool, expected: tuple[int, int]) -> None:
    """By the form in which results are wanted, and whether there are values among the arguments."""
    stay = stay_for(results, on_values=on_values)
    assert stay is not None
    assert (stay.above, stay.home) == expected


def test_a_call_that_knows_nothing_of_values_says_nothing_of_them() -> None:
    """All of its result comes home, as it always did."""
    assert stay_for("numpy", on_values=False) is None


def test_forms_are_told_apart_by_what_lies_on_the_server(client: Client) -> None:
    """The same skeleton may give up another array."""
    add = client.persistent_call(lambda x, y: x + y, donate_argnums=0)
    x, y = np.ones(1 << 15, np.float32), client.put(np.ones(1 << 15, np.float32))
    add(x, y)
    calls = client.caller.values().calls
    assert len(calls._forms) == 1
    add(client.put(x), y)
    assert len(calls._forms) == 2
    assert {given_up for _, given_up, _ in calls._forms.values()} == {(), (0,)}


def test_waiting_for_all_raises_what_the_first_one_raised(client: Client) -> None:
    """Those that are done already count no more."""
    client.put(np.ones(1))
    client.caller.values().calls.wait_for_all()


def test_after_another_structure_than_before_the_next_call_is_right(client: Client) -> None:
    """And nothing of the result that did not fit stays on the server."""
    before = client.statistics().values + 1
    one = client.persistent_call(lambda x: x + 1)
    two = client.persistent_call(lambda x: (x + 1, x + 2))
    x = client.put(np.ones(1 << 15, np.float32))
    jaxd.wait((one(x), two(x)))
    wait_until(lambda: client.statistics().values == before)
    forms = client.caller.values().calls._forms
    first, second = forms
    forms[second] = forms[first]  # as if it had returned one array before
    with pytest.raises(ResultError, match="Call it again"):
        np.asarray(two(x))
    np.testing.assert_array_equal(np.asarray(two(x)[1]), np.full(1 << 15, 3))
    gc.collect()  # the error and the array hold each other
    jaxd.wait(x)
    wait_until(lambda: client.statistics().values == before)


def test_a_result_belongs_to_the_session_in_which_it_was_made(client: Client) -> None:
    """Also when another one has begun before it is read."""
    make = client.persistent_call(lambda x: x + 1)
    array = make(np.ones(1 << 15, np.float32))
    values, connection = client.caller.values(), client.caller.connection()
    assert connection.remote is values
    other: Any = object()
    client.caller.remote = other
    try:
        again = make(np.ones(1 << 15, np.float32))
    finally:
        client.caller.remote = values
    assert again.keeper is array.keeper is values


def test_what_a_message_could_not_tell_is_told_by_another(client: Client) -> None:
    """A call that is refused takes nothing with it."""
    values = client.caller.values()
    values.drops._is_awake = True  # its thread leaves it to the calls
    values.drop(7)
    large = np.ones(1 << 20)
    connection = client.caller.connection()
    connection._channel.writer.max_frame_bytes, limit = 1 << 10, 1 << 30
    connection.passes_descriptors = False
    with pytest.raises(LimitExceeded):
        client.persistent_call(lambda x: x + 1)(large)
    connection._channel.writer.max_frame_bytes = limit
    assert 7 in unpack_ids(values.drops.take())
