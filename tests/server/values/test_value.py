"""Values of one session, by the numbers of the calls that made them."""

from __future__ import annotations

import pytest

from jaxd_protocol.errors import ValueDeleted
from jaxd_protocol.messages.data_locations import first_value_id
from jaxd_protocol.messages.failures import ForwardedFailure, encode_failure
from jaxd_server.values.value import SessionValues


def test_the_failure_of_a_call_is_what_its_results_say() -> None:
    """Those of other calls are just not there; only the last failures are known."""
    own = SessionValues("uid:1")
    for number in range(300):
        own.failures[number] = encode_failure(ZeroDivisionError(f"in call {number}"))
    with pytest.raises(ForwardedFailure) as failed:
        own.get(first_value_id(299) + 3)
    assert "in call 299" in str(failed.value.failure)
    for number in (0, 300):
        with pytest.raises(ValueDeleted):
            own.get(first_value_id(number))


# names ----------------------------------------------------------------------------------------
