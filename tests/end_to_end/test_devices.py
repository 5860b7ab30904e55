"""Calls on a server with several devices: which one they run on, and what that costs."""

from __future__ import annotations

import gc
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd import Client, connect
from jaxd.errors import ConfigurationError, ValueDeleted
from tests.end_to_end.counting import BUILT, WARM, costs
from tests.live_server import TOKEN, LiveServer

pytestmark = pytest.mark.own_server

EIGHT: Final = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
X: Final = np.arange(1 << 20, dtype="f4")
"""So large that a result of its size stays on the server, and is seen in a device's memory."""

MOVED: Final = {"executable_loads": 1}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """The server's own files, which another one finds later."""
    directory = Path(tempfile.mkdtemp(prefix="jaxd-", dir="/tmp"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def eight(folder: Path) -> Iterator[LiveServer]:
    """A server with eight devices."""
    server = LiveServer(folder, **EIGHT)
    yield server
    assert server.close() == 0


@pytest.fixture
def client(eight: LiveServer) -> Iterator[Client]:
    """The only client of the server, and so on its first device."""
    gc.collect()
    with connect(eight.unix) as client:
        yield client


def grown(client: Client, act: Callable[[], Any]) -> tuple[Any, set[int]]:
    """What `act` returns, and the devices on which it left something of the size of `X`."""
    before = [device.bytes_in_use for device in client.devices()]
    made = act()
    jax.block_until_ready(made)
    after = [device.bytes_in_use for device in client.devices()]
    limit = X.nbytes // 2
    return made, {i for i, (a, b) in enumerate(zip(before, after, strict=True)) if b - a > limit}


def here(client: Client) -> int:
    """The device of a client's session."""
    (mine,) = (device.index for device in client.devices() if device.is_yours)
    return mine


def doubled(x: Any) -> Any:
    return x * 2.0


def energy(x: Any, scale: Any = 1.0) -> Any:
    return jnp.sum(scale * x**3)


# f.on ----------------------------------------------------------------------------------------


def test_a_call_runs_on_the_device_that_its_function_says(client: Client) -> None:
    """Its result lies there, and there is where the next call finds it."""
    function = client.persistent_call(doubled)
    for index in (5, 2):
        result, places = grown(client, partial(function.on(device=index), X))
        assert places == {index}
        np.testing.assert_array_equal(np.asarray(result), X * 2)
    device = client.devices()[6]
    assert grown(client, lambda: function.on(device).remote(X))[1] == {6}
    assert grown(client, lambda: function.on(6).on(None)(X))[1] == {here(client)}
    assert function.on(6) is function.on(device)


def test_what_is_made_of_it_runs_there_as_well(client: Client) -> None:
    """Transformed before or after, submitted, mapped, as a method, under a client's own jax."""
    function = client.persistent_call(energy)
    for derived in (function.on(3).grad().vmap(), function.grad().on(3).vmap()):
        gradient, places = grown(client, partial(derived, X.reshape(2, -1)))
        assert places == {3}
        np.testing.assert_array_equal(np.asarray(gradient), 3 * X.reshape(2, -1) ** 2)
    twice = client.persistent_call(doubled).on(4)
    assert grown(client, lambda: twice.submit(X).result())[1] == {4}
    assert grown(client, lambda: list(twice.map([X])))[1] == {4}

    class Model:
        scale = 2.0
        apply: Any = client.persistent_call(lambda self, x: x * self.scale)

    assert grown(client, lambda: Model().apply.on(7)(X))[1] == {7}
    np.testing.assert_allclose(
        jax.grad(lambda x: function.on(5)(x, 2.0))(X[:4]), 6 * X[:4] ** 2, rtol=1e-6
    )


def test_a_device_that_is_not_there_is_an_error_that_says_how_many_there_are(
    client: Client,
) -> None:
    """Of every question; what is no index at all is refused at once."""
    function = client.persistent_call(doubled).on(8)
    for ask in (function, function.warm, function.jaxpr, lambda x: function.submit(x).result()):
        with pytest.raises(ConfigurationError, match="8 devices: 0 to 7"):
            ask(np.ones(3, "f4"))
    wrong: Any
    for wrong in (-1, 1.5, "0", True):
        with pytest.raises(ConfigurationError, match="no device of a server"):
            function.on(wrong)


def test_all_kinds_of_arguments_reach_another_device(client: Client) -> None:
    """Numbers, keys, weak types, text and functions; results are those of jax."""

    def mixed(tree: Any, key: Any, mode: str, f: Any) -> Any:
        noise = jax.random.normal(key, (3,))
        return {"y": f(tree["x"]) * tree["n"] + noise, "mode": mode == "up", "key": key}

    args = ({"x": np.arange(3), "n": 2.0}, jax.random.key(3), "up", jnp.sin)
    ours = client.persistent_call(mixed).on(6)(*args)
    theirs = jax.jit(mixed, static_argnums=(2, 3))(*args)
    assert str(jax.tree.structure(ours)) == str(jax.tree.structure(theirs))
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        same = jax.random.key_data if one.dtype == args[1].dtype else np.asarray
        np.testing.assert_array_equal(same(one), same(other))


# what it costs -------------------------------------------------------------------------------


def test_nothing_is_built_twice_for_two_devices(client: Client) -> None:
    """A program that names no device is moved; a warm call is one on each of them."""
    function = client.persistent_call(lambda x: jnp.tanh(x) * 3)
    with costs(client) as first:
        function(X)
    with costs(client) as elsewhere:
        function.on(1)(X)
        function.on(2)(X)
    with costs(client) as warm:
        function.on(1)(X)
        function.on(2)(X)
        function(X)
    assert (first, elsewhere) == (BUILT, {"executable_loads": 2})
    assert warm == {"executable_hits": 3}
    with costs(client) as same:
        function.on(0)(X)  # another key, and the same program
    assert same == MOVED
    other = client.persistent_call(lambda x: jnp.tanh(x) * 4)
    with costs(client) as together:
        calls = [other.on(index).submit(X[:8]) for index in range(1, 5)]
        results = [float(np.asarray(call.result())[1]) for call in calls]
    assert together == BUILT | {"executable_loads": 3}
    assert results == [results[0]] * 4


def test_many_clients_on_many_devices_have_one_thing_built(eight: LiveServer) -> None:
    """However many ask at once."""
    clients = [connect(eight.unix) for _ in range(4)]
    try:
        assert len({here(client) for client in clients}) == 4
        functions = [client.persistent_call(lambda x: jnp.cos(x) * 5) for client in clients]
        with costs(clients[0]) as spent, ThreadPoolExecutor(4) as pool:
            results = list(pool.map(lambda f: np.asarray(f(X[:8])), functions))
        assert {name: spent.get(name) for name in BUILT} == BUILT
        for result in results:
            np.testing.assert_array_equal(result, results[0])
    finally:
        for client in clients:
            client.close()


def test_a_program_that_cannot_be_written_is_made_for_each_device(client: Client) -> None:
    """One that calls Python, and what it prints is heard from either."""
    function = client.persistent_call(_printing)
    for index in (0, 3):
        with costs(client) as spent:
            result, places = grown(client, partial(function.on(index), X))
        assert places == {index}
        assert {name: spent.get(name) for name in BUILT} == BUILT
        np.testing.assert_array_equal(np.asarray(result), X + 1)


def _printing(x: Any) -> Any:
    return jax.pure_callback(lambda a: np.asarray(a) + 1, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


# values --------------------------------------------------------------------------------------


def test_a_value_moves_to_where_it_is_used(client: Client) -> None:
    """As an array does that jax has not been told to put anywhere; it stays where it was, too."""
    function = client.persistent_call(doubled)
    value, places = grown(client, lambda: function.on(1).remote(X))
    assert places == {1}
    result, places = grown(client, lambda: function.on(4).remote(value))
    assert places == {4}
    other, places = grown(client, lambda: function.remote(value))
    assert places == {here(client)}
    np.testing.assert_array_equal(np.asarray(result), np.asarray(other))
    np.testing.assert_array_equal(np.asarray(value), X * 2)
    assert grown(client, lambda: client.put(X))[1] == {here(client)}


def test_donation_across_devices_gives_the_memory_back(client: Client) -> None:
    """On the device where the value was."""
    value = client.persistent_call(doubled).on(1).remote(X)
    before = client.devices()[1].bytes_in_use
    taking = client.persistent_call(lambda x: x + 1, donate_argnums=0)
    result, places = grown(client, lambda: taking.on(5).remote(value))
    assert places == {5}
    assert client.devices()[1].bytes_in_use <= before - X.nbytes
    np.testing.assert_array_equal(np.asarray(result), X * 2 + 1)
    with pytest.raises(ValueDeleted):
        np.asarray(value)


# what names devices itself -------------------------------------------------------------------


def _sharded(x: Any) -> Any:
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("i",))
    where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))
    return jax.lax.with_sharding_constraint(x, where) * 2.0


def _collective(x: Any) -> Any:
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("i",))
    spec = jax.sharding.PartitionSpec("i")

    def part(y: Any) -> Any:
        return y + jax.lax.psum(jnp.sum(y), "i")

    return jax.shard_map(part, mesh=mesh, in_specs=spec, out_specs=spec)(x)


def _mapped(x: Any) -> Any:
    return jax.pmap(lambda y: y * jax.lax.axis_index("i"), axis_name="i")(x)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (_sharded, lambda x: x * 2),
        (_collective, lambda x: x + x.sum()),
        (_mapped, lambda x: x * np.arange(8, dtype="f4")[:, None]),
    ],
    ids=["sharding", "shard_map", "pmap"],
)
def test_a_function_with_a_mesh_sees_all_devices(
    client: Client, function: Any, expected: Any
) -> None:
    """Wherever its session is; the result lies on them all, and comes home whole."""
    small = np.arange(64, dtype="f4").reshape(8, 8)
    made = client.persistent_call(function)
    with costs(client) as spent:
        np.testing.assert_array_equal(np.asarray(made(small)), expected(small))
        np.testing.assert_array_equal(np.asarray(made.on(3)(small)), expected(small))
    assert {name: spent.get(name) for name in BUILT} == BUILT
    before = [device.bytes_in_use for device in client.devices()]
    kept = made.remote(X.reshape(8, -1))
    jax.block_until_ready(kept)
    after = [device.bytes_in_use for device in client.devices()]
    assert all(b - a >= X.nbytes // 8 for a, b in zip(before, after, strict=True))


def test_functions_that_use_all_devices_wait_for_each_other(eight: LiveServer) -> None:
    """Clients that call different ones at the same time: no device begins with another one."""
    sums = [_collective, lambda x: _collective(x * 2) + 1]
    clients = [connect(eight.unix) for _ in sums]
    try:
        pairs = zip(clients, sums, strict=True)
        functions = [client.persistent_call(function) for client, function in pairs]
        small = np.ones(8, "f4")
        with ThreadPoolExecutor(2) as pool:
            many = pool.map(lambda f: [np.asarray(y) for y in f.map([small] * 50)], functions)
            for results, expected in zip(many, (9.0, 19.0), strict=True):
                assert {float(y) for result in results for y in result} == {expected}
    finally:
        for client in clients:
            client.close()


def test_where_its_arguments_lie_is_part_of_what_a_program_is(client: Client) -> None:
    """The same function on an array of one device and on one that lies on all, in turns."""
    spread = client.persistent_call(_sharded).remote(X)
    function = client.persistent_call(lambda x: jnp.sqrt(x) + 1)
    one = client.put(X * 2)
    expected = np.asarray(jax.jit(lambda x: jnp.sqrt(x) + 1)(X * 2))
    with costs(client) as spent:
        for value in (one, spread, one, spread):
            np.testing.assert_array_equal(np.asarray(function(value)), expected)
    assert spent["traces"] == spent["compiles"] == 2
    with costs(client) as again:
        made, places = grown(client, lambda: function.on(2).remote(one))
        function.on(2)(spread)
    assert places == {2}
    assert again.keys() <= {"executable_loads", "executable_hits"}
    del made


def test_arrays_that_were_put_on_two_devices_do_not_meet(client: Client) -> None:
    """jax's own error, as for arrays that are committed here."""

    def put_on(index: int) -> Any:
        def put(x: Any) -> Any:
            where = jax.sharding.SingleDeviceSharding(jax.devices()[index])
            return jax.jit(lambda y: y + 1, out_shardings=where)(x)

        return client.persistent_call(put)

    one, places = grown(client, lambda: put_on(3).remote(X))
    assert places == {3}
    other = put_on(5).remote(X)
    add = client.persistent_call(lambda x, y: x + y)
    with pytest.raises(ValueError, match="incompatible devices"):
        np.asarray(add(one, other))
    result, places = grown(client, lambda: add.remote(one, X))
    assert places == {3}
    np.testing.assert_array_equal(np.asarray(result), 2 * X + 1)


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
        connection: Any = client.caller.connection()
        connection.shut()
        assert here(client) == place
        assert client.caller.connection() is not connection
        result, places = grown(client, lambda: client.persistent_call(doubled).remote(value))
        assert places == {place}
        np.testing.assert_array_equal(np.asarray(result), X * 2)


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
    done = eight.run("import sys; from jaxd.cli import main; sys.exit(main(['devices', '--json']))")
    rows = json.loads(done.stdout)["devices"]
    assert [row["index"] for row in rows] == list(range(8))
    assert all(row["bytes_limit"] > 0 and row["sessions"] >= 0 for row in rows)


def test_after_a_restart_programs_are_loaded_for_the_device_that_is_asked_for(
    eight: LiveServer, folder: Path
) -> None:
    """Not traced, not compiled, whichever device they were compiled for, and run there."""
    with connect(eight.unix) as client:
        client.persistent_call(_kept).on(3)(X)
        client.persistent_call(_kept_too)(X)
        spread = client.persistent_call(_kept_sharded).remote(X)
        client.persistent_call(_kept_sum)(spread)
        client.persistent_call(_kept).on(3).warm(X)  # returns when all is written
    again = LiveServer(folder, "--devices-per-session", "4", name="again", **EIGHT)
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
    return _sharded(x)


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
