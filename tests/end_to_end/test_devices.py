"""Calls on a server with several devices: which one they run on, and what that costs."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd import Client, connect
from jaxd.errors import ConfigurationError, ValueDeleted
from tests.end_to_end.counting import BUILT, costs
from tests.end_to_end.several_devices import MOVED, X, doubled, grown, here, spread_out
from tests.live_server import LiveServer

pytestmark = pytest.mark.own_server


@pytest.fixture
def client(eight: LiveServer) -> Iterator[Client]:
    """The only client of the server, and so on its first device."""
    gc.collect()
    with connect(eight.unix) as client:
        yield client


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


@pytest.mark.slow
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
    value = jax.block_until_ready(client.persistent_call(doubled).on(1).remote(X))
    before = client.devices()[1].bytes_in_use
    taking = client.persistent_call(lambda x: x + 1, donate_argnums=0)
    result, places = grown(client, lambda: taking.on(5).remote(value))
    assert places == {5}
    assert client.devices()[1].bytes_in_use <= before - X.nbytes
    np.testing.assert_array_equal(np.asarray(result), X * 2 + 1)
    with pytest.raises(ValueDeleted):
        np.asarray(value)


# what names devices itself -------------------------------------------------------------------


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
        (spread_out, lambda x: x * 2),
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


@pytest.mark.slow
def test_where_its_arguments_lie_is_part_of_what_a_program_is(client: Client) -> None:
    """The same function on an array of one device and on one that lies on all, in turns."""
    spread = client.persistent_call(spread_out).remote(X)
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


@pytest.mark.slow
def test_whatever_is_called_where_gives_what_numpy_gives(eight: LiveServer) -> None:
    """Two clients, all devices, values of either kind, given up or not, in an order by lot."""
    lot = random.Random(7)
    plain: list[Any] = [lambda x, y: x * 2 + y, lambda x, y: x - y * 3]
    with connect(eight.unix) as one, connect(eight.unix) as other:
        for client in (one, other):
            keep = [client.persistent_call(function) for function in plain]
            give = [client.persistent_call(function, donate_argnums=0) for function in plain]
            spread = client.persistent_call(spread_out)
            start = np.arange(1024, dtype="f4").reshape(8, 128) % 7
            pairs = [(client.put(start), start)]
            for _ in range(40):
                kind = lot.randrange(2)
                function = lot.choice((keep, give))[kind]
                device = lot.choice((None, *range(8)))
                x, expected = pairs.pop(lot.randrange(len(pairs)))
                y, other_expected = lot.choice([*pairs, (start, start)])
                result = function.on(device).remote(x, y)
                wanted = plain[kind](expected, other_expected) % 11
                pairs.append((client.persistent_call(_remainder).on(device).remote(result), wanted))
                if lot.random() < 0.2:
                    pairs.append((spread.remote(pairs[-1][0]), wanted * 2))
                if lot.random() < 0.4 or not pairs:
                    pairs.append((client.put(start), start))
            for value, wanted in pairs:
                np.testing.assert_array_equal(np.asarray(value), wanted)


def _remainder(x: Any) -> Any:
    return x % 11
