"""Calls on values; `end_to_end/test_values` has what users see of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxd import Client
from jaxd.value_calls import stay_for
from jaxd_protocol.elsewhere import EVERYTHING, HOME_BYTES, NOTHING


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
    assert {given_up for _, given_up in calls._forms.values()} == {(), (0,)}


def test_waiting_for_all_raises_what_the_first_one_raised(client: Client) -> None:
    """Those that are done already count no more."""
    client.put(np.ones(1))
    client.caller.values().calls.wait_for_all()
