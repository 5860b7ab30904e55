from __future__ import annotations

import socket
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import pytest
import rpyc
from rpyc.core import consts
from rpyc.utils.factory import unix_connect

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


def test_what_rpyc_exposes_by_itself_is_switched_off(stock: Connection) -> None:
    """Nothing that can be called is there, and attributes can neither be set nor deleted."""
    stock.ping()
    for name in ("get_service_name", "get_service_aliases"):
        assert getattr(stock.root, name) is None
    for name in ("ping", "call"):
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
    others: list[Any] = [[1, 2], "text", 3, None, bytearray(b"x"), {}]
    for wrong in others:  # nor what is no bytes
        with pytest.raises(TypeError):
            stock.root.call(cloudpickle.dumps(lambda: 1), wrong, cloudpickle.dumps(()))


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
