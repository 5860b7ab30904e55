from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxd_protocol.base.buffers import deflate
from jaxd_protocol.errors import Busy, JaxdError, ProtocolError
from jaxd_protocol.messages.data_locations import (
    BLOCK,
    CACHED_AS_VALUE,
    COMPRESSED,
    VALUE,
    DataLocation,
    pack_locations,
)
from jaxd_server.codec.arguments import parse_arguments
from jaxd_server.execution.call import Call, deliver_inline
from tests.server.builds import executable
from tests.server.in_process import Source, encode
from tests.server.value_desks import Blocks, ValueServiceRig

X: Any = np.arange(3, dtype=np.float32)


def add(x: Any, y: Any) -> Any:
    return x + y


def given(call: Call, **more: Any) -> list[Any]:
    """The leaves of its arguments."""
    return call.leaves(parse_arguments(call.skeleton), **more)


def test_what_is_in_the_message_is_read() -> None:
    """Nothing lies elsewhere by default; a call to warm up brings no data, and gets zeros."""
    call = Source(add).call((X, 2.0))
    first, second = given(call)
    assert (first.tolist(), second) == ([0, 1, 2], 2.0)
    skeleton, _, _ = encode((X, 2.0))
    first, second = given(Call(b"k", skeleton, b"", (), Source(add), warm_only=True))
    assert (first.tolist(), second) == ([0, 0, 0], 0.0)


def test_what_lies_elsewhere_is_found_there() -> None:
    """The skeleton is the same, and the message holds what is left."""
    rig = ValueServiceRig()
    (number,) = rig.put(X)
    call = rig.call(Source(add), rig.ref(number), X + 1)
    assert call.skeleton == Source(add).call((X, X)).skeleton
    first, second = given(call)
    assert first is rig.own.get(number).array
    assert second.tolist() == [1, 2, 3]
    assert [row.kind for row in call.rows(parse_arguments(call.skeleton))] == [VALUE]


def test_what_is_kept_is_in_the_message() -> None:
    """It takes its room there, what lies in a block does not."""
    rig = ValueServiceRig(blocks=Blocks(b1=bytearray((X + 5).tobytes())))
    skeleton, blob, _ = encode((X, X))
    call = Call(b"k", skeleton, blob[:12], (), Source(add))
    call.referenced_data = rig.referenced_data
    call.elsewhere = pack_locations(
        [DataLocation(0, CACHED_AS_VALUE, 9), DataLocation(1, BLOCK, 1)]
    )
    first, second = given(call)
    assert (first.tolist(), second.tolist()) == ([0, 1, 2], [5, 6, 7])
    assert rig.fetch(9)[0].tolist() == [0, 1, 2]


def test_what_cannot_be_referred_to_is_refused() -> None:
    """By who has no values, as a stock client, or with rows that do not fit the call."""
    rig = ValueServiceRig()
    (number,) = rig.put(X)
    call = rig.call(Source(add), rig.ref(number), X)
    call.referenced_data = None
    with pytest.raises(ProtocolError, match="there can be none"):
        given(call)
    rig = ValueServiceRig()
    call = rig.call(Source(add), X, X)
    call.elsewhere = pack_locations([DataLocation(2, VALUE, 1)])
    with pytest.raises(ProtocolError, match="impossible data location"):
        given(call)


def test_a_result_goes_home_whole() -> None:
    """With the structure that its executable knows."""
    made = executable()
    (kind, skeleton, blob), buffers = deliver_inline([], made)
    assert (kind, skeleton, blob, list(buffers)) == (0, made.form.skeleton, b"", [])


# compressed data ----------------------------------------------------------------------------------

LARGE: Any = np.zeros(50_000, np.float32)


def packed(announced: int = LARGE.nbytes, inflated: int | JaxdError = LARGE.nbytes) -> Call:
    """A call with one compressed array, which says that it becomes so many bytes."""
    call = Source(np.sum).call((LARGE,))
    call.buffers = [memoryview(deflate(call.buffers[0]))]
    call.referenced_data = ValueServiceRig().referenced_data
    call.elsewhere = pack_locations([DataLocation(0, COMPRESSED, announced)])
    call.inflated = inflated
    return call


def test_what_is_compressed_is_inflated() -> None:
    """To what was announced; a call without room fails when its turn comes."""
    (found,) = given(packed())
    assert np.array_equal(found, LARGE)
    with pytest.raises(Busy, match="no room"):
        given(packed(inflated=Busy("no room.")))


def test_what_is_not_as_long_as_it_was_announced_is_not_inflated() -> None:
    """Nor what nobody has admitted, each time that it is tried."""
    for announced in (0, LARGE.nbytes - 1, LARGE.nbytes + 1):
        with pytest.raises(ProtocolError, match="than was announced"):
            given(packed(announced))
    for room in (0, LARGE.nbytes - 1):
        call = packed(inflated=room)
        for _ in range(2):
            with pytest.raises(ProtocolError, match="than was announced"):
                given(call)
