"""A call, ready to be sent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from jaxd.interop.handle_ranges import HandleRange
from jaxd.interop.remote_array import ResultBatch
from jaxd.request.call_request import CallRequest
from jaxd_protocol.messages.calls import MAY_REPEAT, ON_VALUES, STRICT
from jaxd_protocol.messages.data_locations import (
    BLOCK,
    DataLocation,
    ResultPolicy,
    pack_ids,
    unpack_locations,
)

SPEC: Any = SimpleNamespace(key=b"k" * 16)


def test_the_message_of_a_plain_call_says_nothing_of_values() -> None:
    """Neither what stays, nor what is elsewhere, nor what is gone."""
    call = CallRequest(SPEC, b"skeleton", b"blob", (), 1.5, "numpy")
    assert call.message() == (SPEC.key, b"skeleton", b"blob", 1.5, MAY_REPEAT, b"", b"", b"")


def test_the_message_of_a_call_on_values() -> None:
    """What stays and up to where its client has answers, where its data lies, what is gone."""
    array: Any = SimpleNamespace(number=2)
    values = [HandleRange(0, ResultBatch(array, 5, ()), 2, [array])]
    stay = ResultPolicy(9, -1, 64)
    call = CallRequest(SPEC, b"s", b"", (), None, "auto", True, values=values, result_policy=stay)
    rows = [DataLocation(0, BLOCK, 3, 64)]
    _, _, _, _, flags, told, elsewhere, drops = call.message(rows, 5, pack_ids([1]))
    assert flags == MAY_REPEAT | STRICT | ON_VALUES
    assert ResultPolicy.from_bytes(told) == stay._replace(acked=5)
    assert unpack_locations(elsewhere, 1) == rows
    assert drops == pack_ids([1])


def test_a_call_that_is_over_holds_no_data() -> None:
    """And knows what it was a call of."""
    array: Any = object()
    values = [HandleRange(0, ResultBatch(array, 5, ()), 2, [array])]
    buffers = [memoryview(b"data")]
    call = CallRequest(SPEC, b"s", b"blob", buffers, None, "auto", values=values, buffer_leaves=[0])
    over = call.without_data()
    assert (over.spec, over.skeleton) == (SPEC, b"s")
    assert not any((over.blob, over.buffers, over.values, over.data_locations))
