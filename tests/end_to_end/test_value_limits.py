"""How much data may stay on a server, and what its users are told when that is too much."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jaxd import connect, get, wait
from jaxd.errors import ArgumentError, ValueDeleted, ValuesFull
from tests.live_server import LiveServer
from tests.server.staging import until

StartLive = Callable[..., LiveServer]

MIB = 1 << 20


def megabytes(count: int) -> Any:
    """An array of so many MiB."""
    return np.zeros(count * MIB, np.uint8)


def grow(x: Any) -> Any:
    import jax.numpy as jnp

    return jnp.concatenate([x, x])


def more(state: Any, by: Any) -> Any:
    return state + by


@pytest.mark.soak
def test_what_has_no_room_is_refused_and_nothing_is_lost(start_live: StartLive) -> None:
    """By a put and by a call; the error names the largest, and letting go of them helps."""
    live = start_live("--value-bytes", "10M")
    with connect(live.unix) as client:
        made = client.persistent_call(results="remote")(grow)
        held = client.put({"weights": megabytes(4)}, name="kept")
        one = made(held["weights"][: 2 * MIB])
        wait(one)
        with pytest.raises(
            ValuesFull, match=r"yours 10\.0 of 10\.0 MiB.*named 'kept' 4\.0 MiB; grow"
        ):
            client.put(megabytes(1))
        with pytest.raises(ValuesFull, match="--value-bytes"):
            wait(made(one))
        assert get(held)["weights"].shape == (4 * MIB,)
        assert one.fetch().shape == (4 * MIB,)
        del one
        gc.collect()  # the error above holds the frames that have seen it
        until(lambda: client.statistics().values == 1)
        client.put(megabytes(1))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Some donated buffers")  # as jax.jit says it
def test_a_call_without_room_does_not_cost_its_arguments(start_live: StartLive) -> None:
    """What it was to use up is still there, and a smaller one works."""
    live = start_live("--value-bytes", "10M")
    with connect(live.unix) as client:
        double = client.persistent_call(donate_argnums=0)(grow)
        add = client.persistent_call(donate_argnums=0)(more)
        state, other = client.put((megabytes(6), megabytes(3)))
        with pytest.raises(ValuesFull):
            wait(double(state))
        for _ in range(3):
            state = add(state, np.uint8(1))
        assert int(state[5]) == 3
        assert int(other[5]) == 0


@pytest.mark.soak
def test_one_user_has_a_share(start_live: StartLive) -> None:
    """Over all processes."""
    live = start_live("--value-bytes", "10M", "--value-share", "0.5")
    with connect(live.unix) as one, connect(live.unix) as two:
        held = one.put(megabytes(4))
        with pytest.raises(ValuesFull, match=r"yours 4.0 of 5.0 MiB"):
            two.put(megabytes(2))
        assert two.put(megabytes(1)).shape == (MIB,)
        assert held.shape == (4 * MIB,)


@pytest.mark.soak
def test_a_result_that_comes_home_needs_no_room(start_live: StartLive) -> None:
    """It does not stay."""
    live = start_live("--value-bytes", "1M")
    with connect(live.unix) as client:
        home = client.persistent_call(results="numpy")(grow)
        stays = client.persistent_call(grow)
        assert home(megabytes(1)).shape == (2 * MIB,)
        with pytest.raises(ValuesFull):
            stays(megabytes(1))
        assert client.statistics().values == 0


@pytest.mark.slow
def test_what_is_donated_cannot_be_needed_as_well(start_live: StartLive) -> None:
    """The error says what to do, and the array lives."""
    live = start_live()
    with connect(live.unix) as client:
        add = client.persistent_call(donate_argnums=0)(more)
        state = client.put(np.ones(100_000, np.float32))
        with pytest.raises(ArgumentError, match="given to a call twice"):
            wait(add(state, state))
        assert float(state[3]) == 1.0
        after = add(state, np.float32(1))
        assert float(after[3]) == 2.0
        with pytest.raises(ValueDeleted, match="more"):
            state.fetch()
