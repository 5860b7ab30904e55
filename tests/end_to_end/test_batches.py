"""What a call returned is one batch on the server, of which each array may go another way."""

from __future__ import annotations

import time
import weakref
from typing import Any, Final

import jax.numpy as jnp
import numpy as np
import pytest

import jaxd
from jaxd import Client
from jaxd.errors import ValueDeleted
from jaxd_server.values.store import ValueStore
from jaxd_server.values.value import SessionValues
from tests.server.in_process import InProcessServer
from tests.server.staging import until

COUNT: Final = 20
SIZE: Final = 1 << 15
"""Numbers of four bytes in each array: too many to be fetched along with others."""


@pytest.fixture
def client(in_process_server: InProcessServer) -> Client:
    """A client of it."""
    return in_process_server.client()


def values_of(server: InProcessServer) -> ValueStore:
    """All that it holds."""
    return server.parts._worker_context.values


def first_state() -> dict[str, Any]:
    """Arrays of numbers that differ."""
    return {f"w{i}": np.full(SIZE, i, "f4") for i in range(COUNT)}


def advance(state: dict[str, Any]) -> dict[str, Any]:
    """Each array plus one."""
    return {name: array + 1 for name, array in state.items()}


def own(server: InProcessServer) -> SessionValues:
    """The values of the only session that has any."""
    (found,) = values_of(server)._sessions
    return found


def expect(state: dict[str, Any], more: int) -> None:
    """Each array is what it was at first, and so much more."""
    for i in range(COUNT):
        np.testing.assert_array_equal(np.asarray(state[f"w{i}"]), np.full(SIZE, i + more, "f4"))


@pytest.mark.slow
def test_a_state_that_goes_round_is_one_object(
    client: Client, in_process_server: InProcessServer
) -> None:
    """No array of it is anything by itself, with donation and without."""
    for donated in ((0,), ()):
        step = client.persistent_call(advance, donate_argnums=donated)
        state = step(first_state())
        for _ in range(5):
            state = step(state)
        jaxd.wait(state)
        until(lambda: len(values_of(in_process_server)) == COUNT)
        values = own(in_process_server)
        assert values.values == {}
        assert [batch.count for batch in values.batches.values()] == [COUNT]
        assert values_of(in_process_server).nbytes == COUNT * SIZE * 4
        expect(state, 6)
        del state
        until(lambda: len(values_of(in_process_server)) == 0)


@pytest.mark.parametrize("donated", [(0,), ()])
def test_an_array_that_is_replaced_is_seen(client: Client, donated: tuple[int, ...]) -> None:
    """Also when the new one is of the same result, or of another one, or of this process."""
    step = client.persistent_call(advance, donate_argnums=donated)
    state = step(step(first_state()))
    other = client.put(np.full(SIZE, 100, "f4"))
    state["w3"], state["w7"], state["w9"] = np.full(SIZE, 50, "f4"), other, other * 1
    state["w4"], state["w5"] = state["w5"], state["w4"]
    state = step(state)
    found = {name: float(np.asarray(array)[0]) for name, array in state.items()}
    wanted = {f"w{i}": i + 3.0 for i in range(COUNT)} | {"w3": 51, "w7": 101, "w9": 101}
    assert found == wanted | {"w4": 8, "w5": 7}


def test_an_array_that_is_read_at_each_step_is_still_part_of_the_state(client: Client) -> None:
    """It is one by itself on the server then, in the middle of the others."""
    step = client.persistent_call(advance, donate_argnums=0)
    state = step(first_state())
    for turn in range(1, 6):
        assert np.asarray(state["w7"])[0] == 7 + turn
        assert np.asarray(state["w11"])[-1] == 11 + turn
        before, state = state, step(state)
        with pytest.raises(ValueDeleted, match="donated to"):
            np.asarray(before["w7"] + 0)
    expect(state, 6)


@pytest.mark.slow
def test_what_is_dropped_of_a_result_is_freed_soon(
    client: Client, in_process_server: InProcessServer
) -> None:
    """Within 50 ms of an idle machine, without another call, and only that."""
    state = client.persistent_call(advance)(first_state())
    state = client.persistent_call(advance)(state)
    jaxd.wait(state)
    until(lambda: len(values_of(in_process_server)) == COUNT)
    (batch,) = own(in_process_server).batches.values()
    arrays = [weakref.ref(array) for array in batch.arrays]
    took = []
    for left in range(COUNT - 1, 9, -1):
        began = time.monotonic()
        del state[f"w{left}"]
        until(lambda left=left: len(values_of(in_process_server)) == left)  # type: ignore[misc]
        took.append(time.monotonic() - began)
    assert min(took) < 0.05
    until(lambda: [array() is None for array in arrays].count(True) == 10)
    assert values_of(in_process_server).nbytes == 10 * SIZE * 4


@pytest.mark.slow
def test_an_array_that_is_kept_does_not_keep_the_others(
    client: Client, in_process_server: InProcessServer
) -> None:
    """Neither while it is part of the batch, nor when it was asked for by itself, nor by name."""
    step = client.persistent_call(advance)
    for ask in (False, True):
        state = step(client.put(first_state()))
        jaxd.wait(state)
        until(lambda: len(values_of(in_process_server)) == COUNT)
        (batch,) = own(in_process_server).batches.values()
        arrays = [weakref.ref(array) for array in batch.arrays]
        kept = state["w5"]
        if ask:
            assert jnp.sum(kept) == 6 * SIZE
        del state, batch
        until(lambda: len(values_of(in_process_server)) == 1)
        until(lambda: [ref() is None for ref in arrays].count(False) == 1)  # noqa: B023
        assert values_of(in_process_server).nbytes == SIZE * 4
        assert np.asarray(kept)[0] == 6
        del kept
        until(lambda: len(values_of(in_process_server)) == 0)


def test_a_part_of_a_state_is_donated(client: Client, in_process_server: InProcessServer) -> None:
    """The rest stays what it is, and each value is counted once."""

    def halves(low: dict[str, Any], high: dict[str, Any]) -> tuple[Any, Any]:
        return advance(low), advance(high)

    step = client.persistent_call(halves, donate_argnums=1)
    state = first_state()
    low = {name: array for name, array in state.items() if int(name[1:]) < 10}
    high = {name: array for name, array in state.items() if int(name[1:]) >= 10}
    low, high = step(low, high)
    for _ in range(4):
        before, (low, high) = (low, high), step(low, high)
        assert not any(array.is_deleted() for array in before[0].values())
        assert all(array.is_deleted() for array in before[1].values())
    expect({**low, **high}, 5)
    assert float(np.asarray(before[0]["w3"])[0]) == 3 + 4
    del before
    until(lambda: len(values_of(in_process_server)) == COUNT)


@pytest.mark.slow
def test_what_is_sent_for_a_state_does_not_grow_with_it(client: Client) -> None:
    """Neither with the call, nor with its reply: where the arrays are is said in ranges."""
    moved = []
    for size in (COUNT, 10 * COUNT):
        step = client.persistent_call(advance, donate_argnums=0)
        state: Any = {f"w{i}": np.zeros(SIZE, "f4") for i in range(size)}
        for _ in range(8):
            state = step(state)
        jaxd.wait(state)
        before = client.statistics()
        for _ in range(50):
            state = step(state)
        jaxd.wait(state)
        after = client.statistics()
        moved.append(
            (after.bytes_received - before.bytes_received, after.bytes_sent - before.bytes_sent)
        )
    (few_in, few_out), (many_in, many_out) = moved
    assert many_in < few_in + 50 * 16
    assert many_out < few_out + 50 * 16
