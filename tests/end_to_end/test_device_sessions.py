"""Clients of a server with several devices: where each is placed, and what a restart leaves."""

from __future__ import annotations

import gc
import json
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jaxd import connect
from jaxd.errors import ConfigurationError
from tests.end_to_end.counting import WARM, costs
from tests.end_to_end.several_devices import EIGHT, X, doubled, grown, here, spread_out
from tests.live_server import TOKEN, LiveServer

pytestmark = pytest.mark.own_server

# sessions ------------------------------------------------------------------------------------


def test_sessions_are_placed_on_the_freest_device(eight: LiveServer) -> None:
    """One that only asks is in nobody's way, and one that has ended leaves its place."""
    gc.collect()
    with connect(eight.unix) as first:
        np.asarray(first.persistent_call(doubled)(X[:4]))
        with connect(eight.unix) as asking, connect(eight.unix) as second:
            np.asarray(second.persistent_call(doubled)(X[:4]))
            places = [here(one) for one in (first, asking, second)]
            assert len(set(places)) == 3
            rows = first.devices()
            assert [rows[place].sessions for place in places] == [1, 1, 1]
            left = places[2]
        with connect(eight.unix) as third:
            assert here(third) != here(first)
        assert first.devices()[left].sessions == 0


def test_a_client_may_say_where_it_computes(
    eight: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by its environment; a device that is not there is an error when it connects."""
    with connect(eight.unix, device=6) as client:
        assert here(client) == 6
        assert grown(client, lambda: client.persistent_call(doubled)(X))[1] == {6}
        assert grown(client, lambda: client.put(X))[1] == {6}
    monkeypatch.setenv("JAXD_DEVICE", "5")
    with connect(eight.tcp, token=TOKEN) as client:
        assert here(client) == 5
    with pytest.raises(ConfigurationError, match="8 devices: 0 to 7"):
        connect(eight.tcp, token=TOKEN, device=8)


def test_a_session_keeps_its_place_when_its_connection_is_lost(eight: LiveServer) -> None:
    """With its values; and a put and a call go there."""
    with connect(eight.unix) as first, connect(eight.unix) as client:
        np.asarray(first.persistent_call(doubled)(X[:4]))
        place = here(client)
        value, places = grown(client, lambda: client.put(X))
        assert places == {place} != {here(first)}
        connection: Any = client.caller.session.connection()
        connection.shut()
        assert here(client) == place
        assert client.caller.session.connection() is not connection
        result, places = grown(client, lambda: client.persistent_call(doubled).remote(value))
        assert places == {place}
        np.testing.assert_array_equal(np.asarray(result), X * 2)


@pytest.mark.slow
def test_clients_without_jax_choose_as_well(eight: LiveServer) -> None:
    """And the command lists the devices."""
    program = """
import sys, numpy as np, jaxd
from jaxd import persistent_call

@persistent_call
def doubled(x):
    return x * 2

x = np.ones(1 << 20, "f4")
before = jaxd.devices()
y = doubled.on(device=5).remote(x)
jaxd.wait(y)
after = jaxd.devices()
print([b.index for a, b in zip(before, after) if b.bytes_in_use - a.bytes_in_use > 1 << 20])
print(len(after), after[5].platform, after[5].kind, sum(d.is_yours for d in after))
print(float(doubled.on(after[2])(y)[0]), "jax" in sys.modules)
"""
    done = eight.run(program)
    assert (done.stderr, done.stdout.splitlines()) == (
        "",
        ["[5]", "8 cpu cpu 1", "4.0 False"],
    )
    done = eight.run(
        "import sys; from jaxd.cli.__main__ import main; sys.exit(main(['devices', '--json']))"
    )
    rows = json.loads(done.stdout)["devices"]
    assert [row["index"] for row in rows] == list(range(8))
    assert all(row["bytes_limit"] > 0 and row["sessions"] >= 0 for row in rows)


@pytest.mark.soak
def test_after_a_restart_programs_are_loaded_for_the_device_that_is_asked_for(
    eight: LiveServer, folder_of_eight: Path
) -> None:
    """Not traced, not compiled, whichever device they were compiled for, and run there."""
    with connect(eight.unix) as client:
        client.persistent_call(_kept).on(3)(X)
        client.persistent_call(_kept_too)(X)
        spread = client.persistent_call(_kept_sharded).remote(X)
        client.persistent_call(_kept_sum)(spread)
        client.persistent_call(_kept).on(3).warm(X)  # returns when all is written
    again = LiveServer(folder_of_eight, "--devices-per-session", "4", name="again", **EIGHT)
    try:
        with connect(again.unix) as first, connect(again.unix) as client:
            np.asarray(first.persistent_call(doubled)(X[:4]))
            assert [device.index for device in client.devices() if device.is_yours] == [4, 5, 6, 7]
            with costs(client) as spent:
                places = [
                    grown(client, partial(f.remote, X))[1]
                    for f in (
                        client.persistent_call(_kept).on(3),
                        client.persistent_call(_kept_too),
                        client.persistent_call(_kept_too).on(2),
                    )
                ]
                spread = client.persistent_call(_kept_sharded).remote(X)
                total = client.persistent_call(_kept_sum)(spread)
            assert places == [{3}, {4}, {2}]
            assert float(total) == float(np.sum(X * 2.0 > 3))
            assert spent == {"executable_loads": 5}
    finally:
        assert again.close() == 0


def _kept(x: Any) -> Any:
    return jnp.exp(-x)


def _kept_too(x: Any) -> Any:
    return jnp.exp(-x) * 7


def _kept_sharded(x: Any) -> Any:
    return spread_out(x)


def _kept_sum(x: Any) -> Any:
    return jnp.sum(x > 3)


def test_a_server_with_one_device_has_one(live: LiveServer) -> None:
    """Which is the first, by any name."""
    with connect(live.unix) as client:
        (only,) = client.devices()
        assert (only.index, only.is_yours) == (0, True)
        function = client.persistent_call(lambda x: x - 7)
        with costs(client) as spent:
            function(2.0)
            assert float(function.on(0)(2.0)) == -5.0
        assert spent["compiles"] == 1
        with pytest.raises(ConfigurationError, match="1 device: 0"):
            function.on(1)(2.0)
        assert spent != WARM
