"""What a submitted call is made again of."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from jaxd.dispatch import retry
from jaxd.dispatch.retry import RetryBudget, RetryCopy
from jaxd.request.call_request import CallRequest
from jaxd.transfer.routing import CallTransfer
from jaxd_protocol.messages.data_locations import BLOCK, VALUE, DataLocation


def call_of(*buffers: bytearray, sources: dict[int, Any] | None = None) -> CallRequest:
    """A call with these arrays, the leaves 0, 1, 2, …."""
    owners = range(len(buffers))
    spec: Any = None
    data = [memoryview(one) for one in buffers]
    return CallRequest(
        spec, b"s", b"b", data, None, "auto", buffer_leaves=owners, sources=sources or {}
    )


def test_it_does_not_change_with_the_callers_arrays() -> None:
    """Those in a block are there already, those of jax stay what they are, the rest is copied."""
    sent, shared, of_jax = bytearray(b"sent"), bytearray(b"shared"), bytearray(b"of jax")
    call = call_of(sent, shared, of_jax, sources={2: object()})
    shares: list[int] = []
    block: Any = SimpleNamespace(number=5, view=memoryview(b"....shared"))
    block.retain, block.release = (partial(shares.append, 1), partial(shares.append, -1))
    load = CallTransfer(
        [DataLocation(1, BLOCK, 5, 4), DataLocation(2, VALUE, 77)], [memoryview(sent)], [(block, 4)]
    )
    spare = RetryCopy.of(call, load, RetryBudget(4))
    assert spare is not None
    for array in (sent, shared):
        array[:] = bytes(len(array))
    assert [bytes(one) for one in spare.call.buffers] == [b"sent", b"shared", b"of jax"]
    assert (spare.nbytes, shares) == (4, [1])
    spare.release()
    assert shares == [1, -1]


def test_what_is_pickled_is_copied_too() -> None:
    """Its buffers have no leaf of their own; perhaps not all are listed."""
    first, second = bytearray(b"first"), bytearray(b"second")
    call = call_of(first, second)._replace(buffer_leaves=[-1])
    spare = RetryCopy.of(call, CallTransfer((), call.buffers), RetryBudget())
    assert spare is not None
    first[:] = second[:5] = bytes(5)
    assert [bytes(one) for one in spare.call.buffers] == [b"first", b"second"]


def test_an_array_that_the_server_has_and_its_owner_may_change_is_copied() -> None:
    """The next worker does not have it."""
    array = bytearray(b"hashed")
    spare = RetryCopy.of(
        call_of(array), CallTransfer([DataLocation(0, VALUE, 77)], []), RetryBudget()
    )
    assert spare is not None
    array[:] = bytes(6)
    assert bytes(spare.call.buffers[0]) == b"hashed"


def test_there_is_room_for_so_many_bytes() -> None:
    """Of all calls together; what is given back can be taken again."""
    room, call = RetryBudget(10), call_of(bytearray(6))
    load = CallTransfer((), call.buffers)
    first = RetryCopy.of(call, load, room)
    assert first is not None
    assert RetryCopy.of(call, load, room) is None
    first.release()
    assert RetryCopy.of(call, load, room) is not None


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_copy_that_is_not_made_takes_no_room(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """Without memory for it the call goes out all the same."""
    room, call = RetryBudget(10), call_of(bytearray(6))

    def copy(data: memoryview) -> bytes:
        raise error

    monkeypatch.setattr(retry, "bytes", copy, raising=False)
    with pytest.raises(KeyboardInterrupt) if error is KeyboardInterrupt else nullcontext():
        assert RetryCopy.of(call, CallTransfer((), call.buffers), room) is None
    assert room.reserve(10)


def test_a_fork_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another thread of the parent held or had taken counts no more."""
    room = RetryBudget(10)
    assert room.reserve(10)
    monkeypatch.setattr(room, "_lock", held := threading.Lock())
    with held:
        room.after_fork()
        room.release(10)  # what the parent had taken
    assert [room.reserve(10), room.reserve(1)] == [True, False]
