"""Who is let in: settled before a byte is unpickled, and without harm to the server."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from jaxd import Client, connect, errors
from jaxd_protocol.network import handshake
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.certificates import client_context
from jaxd_protocol.wire.tls_socket import TlsSocket
from tests.end_to_end.gates import advice
from tests.live_server import TOKEN, LiveServer, live_server, source_environment
from tests.server.staging import until


@pytest.fixture
def served(live: LiveServer) -> Iterator[LiveServer]:
    """The server, of which it is shown afterwards that the same worker still answers."""
    worker = live.worker_pid()
    yield live
    with connect(live.tcp, token=TOKEN) as client:
        assert float(client.persistent_call(lambda x: x + 1)(1.0)) == 2.0
        assert client.info()["pid"] == worker == live.worker_pid()


def dial(address: str) -> socket.socket:
    """A plain socket to a server."""
    place = Address.parse(address)
    if place.needs_token:
        return socket.create_connection((place.host, place.port), 30)
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(30)
    sock.connect(place.path)
    return sock


def rest_of(sock: socket.socket) -> bytes:
    """All that the server still sends until it hangs up."""
    received = b""
    try:
        while part := sock.recv(1 << 16):
            received += part
    except ConnectionResetError:  # it hung up with bytes of ours unread
        pass
    return received


@contextmanager
def refused(live: LiveServer, words: str) -> Iterator[None]:
    """Waits at the end for a new line in the log that says so, with those words as the reason."""

    def count() -> int:
        lines = [line for line in list(live.lines) if line["event"] == "client_refused"]
        return sum(words in line["reason"] for line in lines)

    before = count()
    yield
    until(lambda: count() > before)


# silence ------------------------------------------------------------------------------------------

PLACES = 64
CLIENTS = 12


def says(data: bytes) -> Callable[[str], socket.socket]:
    """Connects, and says only that."""

    def come(address: str) -> socket.socket:
        sock = dial(address)
        sock.sendall(data)
        return sock

    return come


def only_tls(address: str) -> socket.socket:
    """Connects, does TLS, and says nothing in it."""
    line = TlsSocket(dial(address), client_context(pinned=True))
    line.settimeout(30)
    with suppress(EOFError, OSError):  # another one has its place already
        line.do_handshake()
    return line.raw


@contextmanager
def silent_crowd(address: str, come: Callable[[str], socket.socket]) -> Iterator[None]:
    """All places are taken, and four more are asked for each second, a thousand at most.

    A client has 16 s.
    """
    over = threading.Event()
    with ExitStack() as stack:
        for _ in range(PLACES):
            stack.enter_context(come(address))

        def go_on() -> None:
            for _ in range(1000):
                if over.wait(1 / 4):
                    return
                with suppress(OSError):
                    stack.enter_context(come(address))

        thread = threading.Thread(target=go_on, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


SILENT = {
    "tcp-nothing": ("tcp", says(b"")),
    "tcp-magic": ("tcp", says(handshake.MAGIC)),
    "tls-nothing": ("tls", says(b"")),
    "tls-half-a-hello": ("tls", says(b"\x16\x03\x01\x02\x00\x01")),
    "tls-no-more-than-tls": ("tls", only_tls),
}


@pytest.fixture(scope="module")
def crowded() -> Iterator[LiveServer]:
    """A server of its own: so many refusals use up the lines that its log has for an address."""
    with live_server() as server:
        yield server


@pytest.mark.slow
@pytest.mark.own_server
@pytest.mark.parametrize("name", SILENT)
def test_silent_connections_do_not_shut_a_port(crowded: LiveServer, name: str) -> None:
    """Clients that come from the same address all get in, one after the other and together."""
    scheme, come = SILENT[name]
    address = getattr(crowded, scheme)

    def session(_: int) -> str:
        with connect(address, token=TOKEN) as client:
            return str(client.info()["session"])

    with silent_crowd(address, come), ThreadPoolExecutor(3) as pool:
        assert len(set(pool.map(session, range(CLIENTS)))) == CLIENTS


# tokens -------------------------------------------------------------------------------------------


def test_a_wrong_token(served: LiveServer) -> None:
    """A typed error, and a line in the log; the token itself stands in neither."""
    with (
        refused(served, "wrong token"),
        pytest.raises(errors.AuthenticationFailed, match="wrong token") as caught,
    ):
        connect(served.tcp, token="another-token-for-tests-only")
    assert "jaxd token" in advice(caught.value)
    assert TOKEN not in "".join(served.raw)
    assert "another-token-for-tests-only" not in "".join(served.raw)


def test_no_token(served: LiveServer, runtime: Path) -> None:
    """The client says where to put the one that the server asks for."""
    with pytest.raises(errors.AuthenticationFailed, match="JAXD_TOKEN_FILE"):
        connect(served.tcp)


def test_the_right_token(served: LiveServer) -> None:
    """A client over TCP is as good as one over the Unix socket."""
    with connect(served.tcp, token=TOKEN) as client:
        assert float(client.persistent_call(lambda x: x * 2)(4.0)) == 8.0


def test_a_token_file_that_others_can_read(served: LiveServer, runtime: Path) -> None:
    """A client does not use it; tests/server/auth/test_listen_policy.py has the other end."""
    path = runtime / "open-token"
    path.write_text(TOKEN)
    path.chmod(0o644)
    program = (
        "import jaxd\ntry: jaxd.connect()\nexcept jaxd.errors.ConfigurationError as e: print(e)"
    )
    tcp = {"JAXD_SERVER": served.tcp, "JAXD_TOKEN": "", "JAXD_TOKEN_FILE": str(path)}
    assert f"chmod 600 {path}" in served.run(program, **tcp).stdout


def serve(runtime: Path, *arguments: str) -> tuple[int, str]:
    """Exit code and stderr of a server that is not expected to start."""
    finished = subprocess.run(
        [sys.executable, "-P", "-m", "jaxd_server", *arguments],
        env=source_environment(runtime),
        capture_output=True,
        text=True,
        check=False,
    )
    return finished.returncode, finished.stderr


def test_a_server_does_not_open_itself_to_other_machines(runtime: Path) -> None:
    """Unless told so in words that say what it means."""
    code, said = serve(runtime, "--listen", "tcp://0.0.0.0:0")
    assert code == 1
    assert "--listen tls://0.0.0.0:0" in advice(said)
    assert "--insecure-plaintext" in advice(said)


# garbage ------------------------------------------------------------------------------------------

GARBAGE = {
    "random": bytes(range(7, 256)) * 40,
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "nothing": b"",
    "half a magic": b"JA",
    "magic only": handshake.MAGIC,
    "endless greeting": handshake.MAGIC + b"\xff\xff" + b"x" * 70000,
    "greeting of nothing": handshake.MAGIC + b"\x00\x00",
    "greeting that is no JSON": handshake.MAGIC + b"\x00\x04\xff\xfe{}",
    "greeting that is no object": handshake.MAGIC + b"\x00\x02[]",
    "greeting without content": handshake.MAGIC + b"\x00\x02{}",
    "greeting of nonsense": handshake.MAGIC + b'\x00\x21{"protocol": [], "python": "3.11"}',
    "deep greeting": handshake.MAGIC + struct.pack("!H", 4000) + b"[" * 4000,
    "truncated frame": struct.pack("!LB", 100, 0) + b"\x01\x02",
    "huge frame": struct.pack("!LB", 0xFFFFFFF0, 0),
    "unknown flags": struct.pack("!LB", 3, 0x80) + b"abc\n",
    "huge buffers": struct.pack("!LB", 1, 2) + b"x\n" + struct.pack("!LQ", 1, 1 << 62),
    "countless buffers": struct.pack("!LB", 1, 2) + b"x\n" + b"\xff" * 4,
    "a zlib bomb": struct.pack("!LB", 5, 1) + b"xxxxx\n",
    "no brine": struct.pack("!LB", 4, 0) + b"\xff\xff\xff\xff\n",
}  # fmt: skip


@pytest.mark.parametrize("scheme", ["unix", "tcp", "tls"])
def test_garbage(served: LiveServer, scheme: str) -> None:
    """The server hangs up, and goes on."""
    for name, data in GARBAGE.items():
        with dial(getattr(served, scheme)) as sock:
            with suppress(OSError):  # it has hung up already
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
            try:
                rest_of(sock)
            except TimeoutError:
                pytest.fail(f"the server goes on listening: {name}")


def test_garbage_leaves_a_line_in_the_log(served: LiveServer) -> None:
    """With the reason, and without a traceback: it is no fault of the server."""
    for address, reason in ((served.unix, "unknown frame flags"), (served.tcp, "speak jaxd")):
        with refused(served, reason), dial(address) as sock:
            sock.sendall(struct.pack("!LB", 3, 0x80) + b"abc\n")
            rest_of(sock)
    failed = [line for line in list(served.lines) if line["event"] == "client_failed"]
    assert not failed, json.dumps(failed, indent=1)  # whole, with its traceback


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def test_nothing_is_unpickled_before_the_token_was_proved(
    served: LiveServer, runtime: Path
) -> None:
    """Whatever a stranger sends, and in whatever frame."""
    bomb = cloudpickle.dumps(Bomb(runtime / "exploded"))
    greeting = handshake.MAGIC + struct.pack("!H", len(bomb)) + bomb
    for data in (bomb, struct.pack("!LB", len(bomb), 0) + bomb + b"\n", greeting, stock_call(bomb)):
        with dial(served.tcp) as sock:
            sock.sendall(data)
            with suppress(OSError):  # the server may have dropped us already
                sock.shutdown(socket.SHUT_WR)
            rest_of(sock)
    assert not (runtime / "exploded").exists()


def test_a_stock_client_over_tcp_is_refused(served: LiveServer) -> None:
    """It cannot prove the token; the log says what to do."""
    words = "--allow-unauthenticated-loopback"
    with refused(served, words), dial(served.tcp) as sock:
        sock.sendall(stock_call(b"anything"))
        assert rest_of(sock) == b""


def stock_call(argument: bytes) -> bytes:
    """The frames by which a stock rpyc client asks for the root and calls a method of it."""
    from rpyc.core import brine, consts

    get_root = brine.dump((consts.MSG_REQUEST, 1, (consts.HANDLE_GETROOT, (1, ()))))
    call = brine.dump((consts.MSG_REQUEST, 2, (consts.HANDLE_PICKLE, (1, (argument,)))))
    return b"".join(struct.pack("!LB", len(b), 0) + b + b"\n" for b in (get_root, call))


def test_two_users_do_not_share_a_session(served: LiveServer, client: Client) -> None:
    """Who comes over TCP with a token does not resume the session of a Unix client."""
    session = client.info()["session"]
    with dial(served.tcp) as sock:
        welcome = handshake.handshake_with_server(
            sock, handshake.ChannelBinding("tcp", sock=sock), {}, TOKEN, session
        )
    assert welcome["session"] != session
    with dial(served.unix) as sock:
        welcome = handshake.handshake_with_server(sock, handshake.UNIX, {}, None, session)
    assert welcome["session"] == session


def test_garbage_behind_the_handshake_leaves_a_line(served: LiveServer) -> None:
    """A client that was let in and then talks nonsense is dropped, and nobody else is."""
    before = sum(line["event"] == "connection_dropped" for line in list(served.lines))
    with dial(served.unix) as sock:
        handshake.handshake_with_server(sock, handshake.UNIX, {}, None, None)
        sock.sendall(GARBAGE["no brine"])
        rest_of(sock)
    served.wait_for("connection_dropped", before + 1)
