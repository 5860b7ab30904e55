"""The known holes of rpyc, tried in both directions, and what else one end could do to the other.

Stock rpyc makes references that run code of their peer when they are copied or made into arrays
(`__reduce_ex__`, `__array__`), opens attributes by default, inflates whatever it is sent, and makes
exceptions of any type that the peer names. Here each payload would leave a folder behind.
"""

from __future__ import annotations

import copy
import gc
import importlib
import os
import pickle
import resource
import socket
import struct
import sys
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rpyc.core import brine, consts
from rpyc.utils.factory import unix_connect

from jaxd import Client, connect, errors
from jaxd.dispatch import retry
from jaxd.transfer import dedup
from jaxd_protocol.base.buffers import deflate
from jaxd_protocol.errors import JaxdError
from jaxd_protocol.messages.calls import FAILED, OK
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.handshake import UNIX, handshake_with_server
from tests.client.fake_server import FakeServer, Request
from tests.client.results.test_reader import instance, literal, named, registered
from tests.live_server import TOKEN, LiveServer
from tests.shared.wire.test_connection import FORGED, message

pytestmark = pytest.mark.own_server


class Bomb:
    """Leaves a folder behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def framed(body: bytes, flags: int = 0) -> bytes:
    """As it stands on the wire."""
    return struct.pack("!LB", len(body), flags) + body + b"\n"


def zlib_bomb() -> bytes:
    """A frame of half a megabyte that inflates to 512 MiB."""
    packer = zlib.compressobj(9)
    head = packer.compress(b"") + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return framed(head + 512 * block, 1)


def peak_mib() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


# a server against our client ----------------------------------------------------------------------


class EvilServer(FakeServer):
    """Answers a call with bytes of its own, or with a reply that is none.

    Attributes:
        heard: messages of the client after that: what a reference would have asked for.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path, call=self._on_call)
        self.raw = b""
        self.reply: Any = None
        self.answered: list[Any] = []

    def _on_call(self, asked: Request) -> Any:
        if self.raw:
            with suppress(OSError):  # the client has hung up meanwhile
                self._connections[-1]._channel.stream.sock.sendall(self.raw)
            return (None, "nothing"), ()
        return self.reply


@pytest.fixture
def evil(runtime: Path) -> Iterator[EvilServer]:
    """One that a client has been led to."""
    server = EvilServer(f"{runtime}/evil.sock")
    yield server
    server.close()


@pytest.fixture
def trap(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is there once a module `springs` was imported, or a bomb unpickled."""
    (runtime / "springs.py").write_text(
        f"import os\nos.mkdir({str(runtime / 'sprung')!r})\nclass Error(Exception): pass\n"
    )
    monkeypatch.syspath_prepend(str(runtime))
    return runtime / "sprung"


def called(victim: Client) -> Any:
    """What a client makes of the reply, whatever that is."""
    return victim.persistent_call(lambda x: x + 1)(1.0)


def test_a_reference_of_a_server_is_not_made(victim: Client, evil: EvilServer) -> None:
    """So nothing is asked of it, and nothing of it can be copied, pickled or made into an array."""
    for case in [name for name in FORGED if "reference" in name or "rpyc's request" in name]:
        evil.raw = framed(bytes(FORGED[case]))
        before = len(evil.asked)
        with pytest.raises(errors.JaxdError):
            copy.deepcopy(np.asarray(called(victim)))
        assert {asked.verb for asked in evil.asked[before:]} <= {"call"}


def test_a_server_does_not_pickle_or_open_what_a_client_has(
    victim: Client, evil: EvilServer
) -> None:
    """Whatever of rpyc's requests it makes: it gets no answer, and the connection ends."""
    handlers = [getattr(consts, name) for name in dir(consts) if name.startswith("HANDLE_")]
    root = (consts.LABEL_LOCAL_REF, ("jaxd.root", 0, 0))
    for handler in set(handlers) - {consts.HANDLE_PING, consts.HANDLE_CLOSE}:
        named = (consts.LABEL_TUPLE, (root, (consts.LABEL_VALUE, "__class__")))
        body = brine.dump((consts.MSG_REQUEST, 7, (handler, named)))
        evil.raw = framed(bytes(body))
        with pytest.raises(errors.JaxdError):
            called(victim)
    assert evil.answered == []


def test_a_bomb_of_a_server_does_not_go_off(victim: Client, evil: EvilServer) -> None:
    """Our own servers do not compress, so nothing is inflated, or allocated for what comes."""
    before = peak_mib()
    for raw in (zlib_bomb(), struct.pack("!LB", 0xFFFFFFF0, 0)):
        evil.raw = raw
        with pytest.raises(errors.JaxdError):
            called(victim)
    assert peak_mib() - before < 50


@pytest.mark.parametrize("kind", [("springs", "Error"), ("os", "system"), ("builtins", "exec")])
def test_a_server_names_no_exception_of_its_choice(
    victim: Client, evil: EvilServer, trap: Path, kind: tuple[str, str]
) -> None:
    """No module is imported for one, and nothing but an exception is called."""
    path = str(trap)
    more = 0.0, "text", (), (), (), (), (), ("", "")
    for args in (brine.dump((path,)), None):
        reply = FAILED, (*kind, path, args, *more)
        evil.reply = reply, ()
        with pytest.raises(errors.JaxdError):
            called(victim)
    for number in range(1, 9):  # that of the call is among them
        raised = message(consts.MSG_EXCEPTION, number, (kind, (path,), (), "text"))
        evil.raw += framed(bytes(raised))
    with pytest.raises(errors.JaxdError):
        called(victim)
    assert "springs" not in sys.modules
    assert not trap.exists()


def test_nothing_of_a_server_is_unpickled(victim: Client, evil: EvilServer, trap: Path) -> None:
    """Neither in a result, nor where its blob or its buffers belong."""
    bomb = pickle.dumps(Bomb(trap))
    count = struct.pack("<I", 0)
    for skeleton in (b"P" + count, b"P" + struct.pack(">I", 0), bomb):
        evil.reply = (OK, skeleton, bomb, b"", b""), [memoryview(bomb)]
        with pytest.raises((errors.JaxdError, ValueError, TypeError)):
            called(victim)
    assert not trap.exists()


def test_a_result_is_no_object_that_acts(victim: Client, evil: EvilServer, runtime: Path) -> None:
    """One of numpy's removes the folder that it is told to when it is dropped; others write."""
    import jax  # registers the nodes

    kept, written = runtime / "kept", runtime / "written"
    kept.mkdir()
    state = {"_istmpdest": literal(True), "_destpath": literal(str(kept))}
    savetxt = named("i", "numpy", "savetxt")
    args = b"T\0\0\0\1" + literal(str(written))
    for skeleton in (
        instance("numpy.lib._datasource", "DataSource", **state),
        instance("numpy.lib.npyio", "DataSource", **state),
        registered("jax.tree_util", "Partial", savetxt, args, b"N"),
        registered("collections", "defaultdict", b"T\0\0\0\2" + savetxt + b"T\0\0\0\0"),
        savetxt,
    ):
        evil.reply = (OK, skeleton, b"", b"", b""), ()
        with suppress(errors.JaxdError, TypeError):
            called(victim)(np.ones(2))
    assert jax.tree_util.Partial(np.sin).func is np.sin
    gc.collect()
    assert kept.exists()
    assert not written.exists()


def test_an_exception_is_none_that_a_library_has(victim: Client, evil: EvilServer) -> None:
    """Its class may run code when it is made, shown or dropped: a RemoteError has its name."""
    for kind in (("json.decoder", "JSONDecodeError"), ("numpy.linalg", "LinAlgError")):
        importlib.import_module(kind[0])
        more = (), (), (), (), (), ("", "")
        evil.reply = (FAILED, (*kind, "text", None, 0.0, "text", *more)), ()
        with pytest.raises(errors.RemoteError, match="text") as caught:
            called(victim)
        assert caught.value.type_name == ".".join(kind)


# a client against our server ----------------------------------------------------------------------


@pytest.fixture
def dial(live: LiveServer) -> Callable[[], socket.socket]:
    """Makes plain connections to a real server."""

    def dial() -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(30)
        sock.connect(Address.parse(live.unix).path)
        return sock

    return dial


@pytest.fixture
def unharmed(live: LiveServer) -> Iterator[None]:
    """The same worker answers afterwards."""
    worker = live.worker_pid()
    yield
    with connect(live.unix) as client:
        assert float(client.persistent_call(lambda x: x + 1)(1.0)) == 2.0
    assert live.worker_pid() == worker


@pytest.mark.parametrize("case", FORGED)
@pytest.mark.usefixtures("unharmed")
def test_a_forged_message_of_a_client_ends_its_connection(
    dial: Callable[[], socket.socket], case: str
) -> None:
    """And nothing else: the server asks nothing of a reference."""
    with dial() as sock:
        handshake_with_server(sock, UNIX, {}, None, None)
        sock.sendall(framed(bytes(FORGED[case])))
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(1 << 16) == b""


@pytest.mark.usefixtures("unharmed")
def test_a_stock_client_cannot_have_its_objects_used(live: LiveServer, trap: Path) -> None:
    """Neither as an array, nor copied, nor pickled: they do not come that far."""
    touched: list[str] = []

    class Trap:
        def __getattr__(self, name: str) -> Any:
            touched.append(name)
            raise AttributeError(name)

        def __array__(self, *_: Any, **__: Any) -> Any:
            os.mkdir(trap)
            return np.zeros(1)

        def __reduce_ex__(self, protocol: Any) -> Any:
            os.mkdir(trap)
            return int, ()

    config = {"allow_all_attrs": True, "allow_pickle": True, "allow_public_attrs": True}
    with unix_connect(Address.parse(live.unix).path, config=config) as stock:
        for args in ((Trap(), b"", b""), (b"", Trap(), b""), ([Trap()], Trap(), Trap())):
            with pytest.raises(TypeError, match="takes no references"):
                stock.root.call(*args)
        for name in ("__array__", "__reduce_ex__", "__class__", "__init__", "_pipeline", "share"):
            with pytest.raises(AttributeError):
                stock.sync_request(consts.HANDLE_GETATTR, stock.root, name)
    assert not trap.exists()


def peak_mib_of(server: LiveServer) -> int:
    """The most memory that its worker has had."""
    lines = Path(f"/proc/{server.worker_pid()}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) >> 10


@pytest.mark.soak
def test_compressed_arrays_of_a_client_do_not_go_off(
    start_live: Callable[..., LiveServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """1.5 MB that become 1.5 GB are refused before any of it is there; so are many at once."""
    array = np.zeros(15 << 20, np.uint8)
    small = memoryview(deflate(array.data))
    monkeypatch.setattr(dedup, "compressed", lambda data, link_speed: small)
    monkeypatch.setenv("JAXD_COMPRESS", "1")
    monkeypatch.setattr(retry, "_MAX_BUSY_S", 0.1)  # nobody comes again
    server = start_live("--budget-bytes", "256M")

    def send(count: int) -> int | JaxdError:
        try:
            with connect(server.tcp, token=TOKEN) as client:
                return int(client.persistent_call(lambda *xs: len(xs))(*[array] * count))
        except JaxdError as error:
            return error

    assert send(1) == 1
    before = peak_mib_of(server)
    assert type(send(100)) is errors.LimitExceeded
    assert peak_mib_of(server) - before < 50
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(send, [12] * 8))
    assert all(one == 12 or type(one) is errors.Busy for one in found)
    assert 12 in found
    assert peak_mib_of(server) - before < 2 * 256 + 100  # what is held, and copies of it
    assert send(2) == 2


@pytest.mark.usefixtures("unharmed")
def test_a_bomb_of_a_client_does_not_go_off(
    live: LiveServer, dial: Callable[[], socket.socket]
) -> None:
    """Our own clients do not compress, so nothing is inflated; of stock ones only so much is."""
    before = peak_mib_of(live)
    with dial() as sock:
        handshake_with_server(sock, UNIX, {}, None, None)
        try:
            sock.sendall(zlib_bomb())
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(1 << 16):
                pass
        except OSError:
            pass  # it has hung up already
    assert peak_mib_of(live) - before < 50
