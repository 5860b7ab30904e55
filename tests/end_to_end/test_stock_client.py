"""Clients that have only rpyc and cloudpickle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import cloudpickle as ser
import numpy as np
import pytest
import rpyc
from rpyc.utils.factory import unix_connect

from jaxd import Client
from jaxd_protocol.network.addresses import Address
from tests.live_server import LiveServer

pytestmark = pytest.mark.own_server  # they know no TLS and no token


@contextmanager
def stock(live: LiveServer) -> Iterator[Any]:
    """A stock rpyc connection over the server's Unix socket."""
    connection = unix_connect(Address.parse(live.unix).path)
    try:
        yield connection
    finally:
        connection.close()


def call(connection: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """One call as a stock client makes it."""
    return ser.loads(connection.root.call(ser.dumps(function), ser.dumps(args), ser.dumps(kwargs)))


def test_ping(live: LiveServer) -> None:
    """The server is there."""
    with stock(live) as connection:
        assert connection.root.ping() == "pong"


def test_a_call(live: LiveServer) -> None:
    """Arrays come home as numpy arrays, in whatever tree the function returns."""
    with stock(live) as connection:
        result = call(connection, lambda x, scale: {"y": x * scale}, np.ones(3), scale=2.0)
    assert type(result["y"]) is np.ndarray
    np.testing.assert_array_equal(result["y"], np.full(3, 2, np.float32))


def test_a_large_call(live: LiveServer) -> None:
    """A compressed frame each way, as stock rpyc sends them."""
    with stock(live) as connection:
        result = call(connection, lambda x: x + 1, np.zeros(1 << 20, np.float32))
    np.testing.assert_array_equal(result, np.ones(1 << 20, np.float32))


def test_equal_bytes_and_signature_compile_once(live: LiveServer, client: Client) -> None:
    """Over two connections; another shape compiles again."""

    def cube(x: Any) -> Any:
        return x * x * x

    before = client.statistics()
    for size in (2, 2, 3):
        with stock(live) as connection:
            call(connection, cube, np.ones(size, np.float32))
    after = client.statistics()
    assert (after.traces - before.traces, after.compiles - before.compiles) == (2, 2)


def test_an_exception_of_the_function(live: LiveServer) -> None:
    """It arrives as rpyc delivers exceptions, and the connection goes on."""

    def broken(x: Any) -> Any:
        raise ValueError("not that")

    with stock(live) as connection:
        with pytest.raises(Exception, match="not that"):
            call(connection, broken, 1.0)
        assert float(call(connection, lambda x: x, 1.0)) == 1.0


@pytest.mark.parametrize("arguments", [([], b"", b""), (b"",), ("text", b"", b"")], ids=str)
def test_arguments_that_are_not_bytes(live: LiveServer, arguments: Any) -> None:
    """No references travel; the connection goes on."""
    with stock(live) as connection:
        with pytest.raises(TypeError):
            connection.root.call(*arguments)
        assert connection.root.ping() == "pong"


@pytest.mark.parametrize("name", ["_pipeline", "exposed_ping.__globals__", "__class__"])
def test_nothing_else_can_be_reached(live: LiveServer, name: str) -> None:
    """The root shows its two methods, and no way from there into the server."""

    def reach(found: Any) -> None:
        for part in name.split("."):
            found = rpyc.core.netref.syncreq(found, rpyc.core.consts.HANDLE_GETATTR, part)

    with stock(live) as connection:
        root = connection.root
        with pytest.raises((AttributeError, TypeError)):
            reach(root)


# The client of the document that this project grew from, in our words: `fn` becomes a function
# whose calls go to a server on `port`. The one difference is `ser.loads` around the call.


def persistent_call(fn: Callable[..., Any], port: int) -> Callable[..., Any]:
    """Makes `fn` run on the server at localhost."""
    connection = rpyc.connect("localhost", port)
    code = ser.dumps(fn)

    def persistent_fn(*args: Any, **kw: Any) -> Any:
        return ser.loads(connection.root.call(code, ser.dumps(args), ser.dumps(kw)))

    persistent_fn.close = connection.close  # type: ignore[attr-defined]
    return persistent_fn


def linear_transform() -> Callable[..., Any]:
    """The example that goes with it; made here, because cloudpickle names what has a module."""
    return lambda x, w, b: x @ w + b


@pytest.mark.soak
def test_the_first_client_of_all(start_live: Callable[..., LiveServer]) -> None:
    """It works where it was allowed to, and compiles once for two such clients."""
    server = start_live("--allow-unauthenticated-loopback")
    x, w, b = np.ones((2, 3), np.float32), np.ones((3, 4), np.float32), np.ones(4, np.float32)
    for _ in range(2):
        function: Any = persistent_call(linear_transform(), port=Address.parse(server.tcp).port)
        np.testing.assert_array_equal(function(x, w, b), np.full((2, 4), 4, np.float32))
        function.close()
    from jaxd import connect

    with connect(server.tcp, token="a-token-for-tests-only") as ours:
        assert (ours.statistics().traces, ours.statistics().compiles) == (1, 1)
