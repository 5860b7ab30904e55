from __future__ import annotations

import socket
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest
import rpyc
from rpyc.core import consts
from rpyc.utils.factory import unix_connect

from jaxd import Client
from tests.live_server import LiveServer

Connection = Any


@pytest.fixture
def stock(live: LiveServer) -> Iterator[Connection]:
    """A client that has only rpyc."""
    connection = connect(live)
    yield connection
    connection.close()


def connect(live: LiveServer) -> Connection:
    """As the documentation of rpyc has it."""
    return unix_connect(live.unix.removeprefix("unix://"))


def call(stock: Connection, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A call in cloudpickle bytes, and its result."""
    data = (cloudpickle.dumps(part) for part in (function, args, kwargs))
    return cloudpickle.loads(stock.root.call(*data))


def test_it_can_ping(stock: Connection) -> None:
    """Through the root, and through rpyc's own ping."""
    assert stock.root.ping() == "pong"
    stock.ping()


def test_it_can_call(stock: Connection) -> None:
    """Arrays come back as numpy arrays, in their tree."""
    result = call(
        stock,
        lambda x, *, w: {"y": x @ w, "n": [x.sum(), None]},
        np.ones((2, 2)),
        w=2.0 * np.eye(2),
    )
    assert type(result["y"]) is np.ndarray
    assert result["y"].tolist() == [[2, 2], [2, 2]]
    assert (float(result["n"][0]), result["n"][1]) == (4.0, None)


def test_equal_bytes_and_signature_compile_once(stock: Connection, client: Client) -> None:
    """Over connections, too; another shape compiles again."""
    function = cloudpickle.dumps(lambda x: x * 19 + 1)
    nothing = cloudpickle.dumps({})

    def ask(connection: Connection, size: int) -> int:
        before = client.statistics()
        connection.root.call(function, cloudpickle.dumps((np.ones(size),)), nothing)
        after = client.statistics()
        assert after.calls == before.calls + 1
        assert after.compiles - before.compiles == after.traces - before.traces
        return after.compiles - before.compiles

    with connect_again(client) as other:
        assert [ask(stock, 3), ask(stock, 3), ask(other, 3), ask(other, 4)] == [1, 0, 0, 1]


def connect_again(client: Client) -> Connection:
    """Another stock connection to the same server."""
    return unix_connect(client.info()["address"].removeprefix("unix://"))


@pytest.mark.parametrize("wrong", [[1, 2], "text", 3, None, bytearray(b"x"), {}])
def test_an_argument_that_is_not_bytes_is_refused(stock: Connection, wrong: Any) -> None:
    """Whether rpyc would send it by value or by reference."""
    good = cloudpickle.dumps(())
    with pytest.raises(TypeError):
        stock.root.call(cloudpickle.dumps(lambda: 1), wrong, good)
    assert stock.root.ping() == "pong"


def test_what_the_function_raises_arrives(stock: Connection) -> None:
    """In its own type where rpyc can make one, and the connection goes on."""

    def fail(x: Any) -> Any:
        raise ZeroDivisionError("at the third step")

    with pytest.raises(ZeroDivisionError, match="at the third step"):
        call(stock, fail, 1.0)
    assert float(call(stock, lambda x: x + 1, 1.0)) == 2.0


def test_code_that_cannot_be_read_arrives_as_an_error(stock: Connection) -> None:
    """The server does not suffer from it."""
    with pytest.raises(Exception, match=r"pickle|unpack|load key"):
        stock.root.call(b"no pickle", cloudpickle.dumps(()), cloudpickle.dumps({}))
    assert stock.root.ping() == "pong"


@pytest.mark.parametrize(
    "name",
    ["__class__", "__init__", "__dict__", "__reduce__", "_pipeline", "exposed_", "_connect", "x"],
)
def test_nothing_but_the_two_methods_can_be_reached(stock: Connection, name: str) -> None:
    """Asked for in rpyc's own words, past what its client resolves by itself."""
    root = stock.root
    with pytest.raises(AttributeError):
        stock.sync_request(consts.HANDLE_GETATTR, root, name)
    with pytest.raises(AttributeError):
        stock.sync_request(consts.HANDLE_GETATTR, root.call, name.replace("_pipeline", "__func__"))


@pytest.mark.parametrize("name", ["get_service_name", "get_service_aliases"])
def test_what_rpyc_exposes_by_itself_is_switched_off(stock: Connection, name: str) -> None:
    """Nothing that can be called is there."""
    assert getattr(stock.root, name) is None


@pytest.mark.parametrize("name", ["ping", "call"])
def test_attributes_cannot_be_set_or_deleted(stock: Connection, name: str) -> None:
    """The server's objects stay as they are."""
    with pytest.raises(AttributeError):
        stock.sync_request(consts.HANDLE_SETATTR, stock.root, name, 3)
    with pytest.raises(AttributeError):
        stock.sync_request(consts.HANDLE_DELATTR, stock.root, name)
    assert stock.root.ping() == "pong"


def test_the_root_cannot_be_pickled_nor_the_server_be_made_to_call_back(stock: Connection) -> None:
    """References from the client are refused, so no code of its runs on the server that way."""
    with pytest.raises(ValueError, match="pickling is disabled"):
        stock.sync_request(consts.HANDLE_PICKLE, stock.root, 2)
    with pytest.raises(TypeError, match="takes no references"):
        stock.root.call(lambda: b"", b"", b"")


def test_a_service_of_the_client_is_not_asked_for(live: LiveServer) -> None:
    """The server needs nothing from it."""

    class Curious(rpyc.Service):  # type: ignore[misc]
        def on_connect(self, connection: Any) -> None:
            self.connected = True

        def exposed_secret(self) -> str:
            raise AssertionError

    with unix_connect(live.unix.removeprefix("unix://"), service=Curious) as connection:
        assert connection.root.ping() == "pong"


def raw(live: LiveServer) -> socket.socket:
    """A plain socket."""
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(30)
    sock.connect(live.unix.removeprefix("unix://"))
    return sock


def bomb() -> bytes:
    """A frame that inflates to 512 MiB: one flushed block, again and again."""
    packer = zlib.compressobj(9)
    head = packer.compress(b"") + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    body = head + 512 * block
    return struct.pack("!LB", len(body), 1) + body + b"\n"


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (bomb(), "inflates beyond"),
        (struct.pack("!LB", 3, 1) + b"zzz\n", "compressed frame cannot be read"),
        (struct.pack("!LB", 5, 0) + b"brine\n", "message cannot be read"),
        (struct.pack("!LB", 1, 9) + b"x\n", "frame flags"),
        (struct.pack("!LB", 0xFFFFFFFF, 0), "over the limit"),
    ],
    ids=["bomb", "no zlib", "no message", "flags", "length"],
)
def test_a_frame_that_is_none_ends_its_connection_only(
    live: LiveServer, stock: Connection, frame: bytes, reason: str
) -> None:
    """With a line in the log; others go on."""
    assert stock.root.ping() == "pong"
    with live._heard:
        before = sum(reason in line.get("reason", "") for line in live.lines)
    with raw(live) as sock:
        sock.sendall(frame)
        assert sock.recv(1) == b""
    with live._heard:
        live._heard.wait_for(
            lambda: sum(reason in line.get("reason", "") for line in live.lines) > before, 30
        )
        assert sum(reason in line.get("reason", "") for line in live.lines) == before + 1
    assert stock.root.ping() == "pong"
    assert float(call(stock, lambda x: x + 1, 1.0)) == 2.0
