"""`jaxd.Client`, `jaxd.connect` and `jaxd.statistics`."""

from __future__ import annotations

import pickle
import re
from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxd
from jaxd import Client, RemoteArray, connect, errors
from jaxd.api import put_get
from jaxd.connection.settings import Settings
from jaxd.dispatch.caller import Caller
from jaxd.errors import ValuesLost
from jaxd_protocol.network.addresses import Address
from tests.live_server import TOKEN, LiveServer
from tests.warm_clients import run_light


def test_connect_connects_at_once(live: LiveServer) -> None:
    """By address, or by host and port with a token."""
    tcp = Address.parse(live.tcp)
    for client in (
        connect(live.unix),
        connect(Address.parse(live.unix)),
        connect(host=tcp.host, port=tcp.port, token=TOKEN),
    ):
        with client:
            assert client.caller.session.connected
        assert not client.caller.session.connected


def test_a_client_says_where_it_is_connected(live: LiveServer) -> None:
    """In its repr, before and after."""
    fresh = Client(Caller(Settings(server=Address.parse(live.unix))))
    assert repr(fresh) == f"<jaxd.Client of {live.unix}, not connected>"
    with connect(live.unix) as client:
        assert repr(client) == f"<jaxd.Client of {live.unix}, connected>"
    assert "the local server" in repr(Client(Caller(Settings())))


def test_info_says_what_the_server_is(live: LiveServer, client: Client) -> None:
    """Versions, devices, limits, and how this client reaches it."""
    info = client.info()
    assert info["address"] == live.unix
    assert info["epoch"] >= 1
    assert info["pid"] == live.worker_pid()
    assert {"jax", "jaxlib", "numpy"} <= info["versions"].keys()
    assert info["devices"][0].startswith("cpu:0")
    assert {"slots", "max_frame_bytes", "max_result_bytes"} <= info["limits"].keys()
    assert len(info["session"]) >= 32


def test_statistics_are_a_snapshot(client: Client) -> None:
    """They count calls, also failed ones, and bytes; and do not change later."""

    def broken(x: float) -> float:
        raise ValueError

    before = client.statistics()
    client.persistent_call(lambda x: x * 2)(1.0)
    with pytest.raises(ValueError):  # noqa: PT011  it has no message
        client.persistent_call(broken)(1.0)
    after = client.statistics()
    assert (after.calls - before.calls, after.failed_calls - before.failed_calls) == (2, 1)
    assert after.bytes_received > before.bytes_received
    assert after.bytes_sent > before.bytes_sent
    assert after.uptime_s > before.uptime_s
    with pytest.raises(AttributeError):
        after.calls = 0  # type: ignore[misc]


def test_the_default_servers_client_is_shared(
    live: LiveServer, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Functions without an address and `jaxd.statistics` use one connection."""
    monkeypatch.setenv("JAXD_SERVER", live.unix)
    jaxd.statistics()
    before = jaxd.statistics().connections
    assert float(jaxd.persistent_call(lambda x: x * 2)(2.0)) == 4.0
    assert float(jaxd.persistent_call(lambda x: x * 3)(2.0)) == 6.0
    assert jaxd.statistics().connections == before


UNPICKLE = """
import pickle, sys
import jaxd

tree = pickle.loads(bytes.fromhex(sys.argv[1]))
print(type(tree["x"]).__name__, tree["x"].is_here, float(tree["x"].sum()), tree["y"])
"""


def test_a_pickle_by_handle_is_read_in_another_process(live: LiveServer, client: Client) -> None:
    """It holds no data, and the array still lies on the server when it is read."""
    array = client.put(np.arange(1000.0, dtype=np.float32))
    with jaxd.pickle_by_handle(ttl_s=60):
        pickled = pickle.dumps({"x": array, "y": 3})
    assert len(pickled) < 300
    assert not array.is_here
    done = run_light(live, UNPICKLE, pickled.hex())
    assert (done.stdout, done.stderr) == ("RemoteArray False 499500.0 3\n", "")


def test_a_pickle_by_handle_outlives_the_handle(client: Client) -> None:
    """But not its name; and only what is pickled meanwhile is one."""
    array = client.put(np.arange(3))
    assert b"pickled-" not in pickle.dumps(array)
    with jaxd.pickle_by_handle():
        pickled = pickle.dumps(array)
    del array
    np.testing.assert_array_equal(np.asarray(pickle.loads(pickled)), [0, 1, 2])
    (name,) = re.findall(r"pickled-\w{32}", pickled.decode("latin-1"))
    assert client.forget(name)
    with pytest.raises(errors.ValueDeleted, match="no values are named"):
        pickle.loads(pickled)


def test_a_pickle_by_handle_needs_its_server(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so where there is none."""
    with jaxd.pickle_by_handle(ttl_s=1):
        pickled = pickle.dumps(client.put(np.arange(3)))
    monkeypatch.setenv("JAXD_INLINE", "1")
    with pytest.raises(errors.NoServer):
        pickle.loads(pickled)


def test_a_deleted_array_is_not_pickled_by_handle(client: Client) -> None:
    """Nothing is left of it."""
    array = client.put(np.arange(3))
    array.delete()
    with jaxd.pickle_by_handle(), pytest.raises(errors.ValueDeleted):
        pickle.dumps(array)


Pair = namedtuple("Pair", "left right")  # noqa: PYI024  users have them


def test_what_lies_there_already_is_left_where_it_is(client: Client) -> None:
    """A tree may hold both."""
    there = client.put(np.ones(3))
    placed = client.put([there, 2.0])
    assert placed[0] is there
    assert isinstance(placed[1], RemoteArray)


def test_an_array_of_another_client_comes_home_first(live: Any, client: Client) -> None:
    """It lies in another session."""
    from jaxd import connect

    with connect(live.unix) as other:
        theirs = other.put(np.arange(3))
        ours = client.put(theirs)
        assert ours is not theirs
        np.testing.assert_array_equal(np.asarray(ours), np.arange(3))


def test_what_is_new_needs_nothing_of_a_session_that_is_over(client: Client) -> None:
    """As after the death of a worker, of which an idle client has not heard."""

    def ends() -> None:
        client.caller.session.connection().shut()
        client.caller.session.id = None

    recovery = client.caller.session.values().recovery
    assert recovery is not None
    recovery().snapshots.kept.limit = 0
    old = client.put(np.ones(2000))  # of which nothing is kept
    ends()
    tree = client.put({"x": np.arange(3)}, name="after-the-end")
    np.testing.assert_array_equal(np.asarray(tree["x"]), np.arange(3))
    ends()
    np.testing.assert_array_equal(np.asarray(client.named("after-the-end")["x"]), np.arange(3))
    ends()
    assert client.forget("after-the-end")
    lost, new = client.put([old, 2.0])
    assert float(new) == 2.0
    with pytest.raises(ValuesLost, match="needs 1 of them"):
        np.asarray(lost)


def test_an_empty_tree_is_no_question(client: Client) -> None:
    """There is nothing to send."""
    trees: list[Any] = [{}, [], None, {"x": [None, ()]}]
    for tree in trees:
        assert client.put(tree) == tree
        assert put_get.fetch_tree(tree) == tree


def test_names_keep_containers(client: Client) -> None:
    """Dicts with an order and named tuples as well."""
    tree = OrderedDict(b=[np.float32(1)], a=Pair(np.int32(2), ()))
    client.put(tree, name="placed")
    found = client.named("placed")
    assert list(found) == ["b", "a"]
    assert found["a"]._fields == ("left", "right")
    assert float(found["b"][0]) == 1.0
    assert client.forget("placed")
