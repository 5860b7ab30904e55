"""From an address to a connection."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any, NoReturn

import pytest

from jaxd import errors
from jaxd.connection import connect
from jaxd.connection.connect import Patience, dial, open_connection, probe
from jaxd.connection.settings import Settings
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.certificates import certificate_of, fingerprint_of, server_context
from jaxd_protocol.wire.tls_socket import TlsSocket
from jaxd_server.auth.handshake_slots import refuse_busy
from tests.certificates import Pem, authority, signed
from tests.live_server import TOKEN, LiveServer


class NullHandler:
    """Answers nothing."""

    def answer_request(self, verb: str, args: tuple[Any, ...]) -> Any:
        raise KeyError(verb)

    def call_back(self, *_: Any) -> Any:
        raise AssertionError("no call is open")

    def event(self, *_: Any) -> None:
        raise AssertionError("no call is open")


def test_sockets_wait_without_end_and_without_delay(live: LiveServer) -> None:
    """No timeout that a busy server would run into, no Nagle, and dead peers are noticed."""
    connection, _ = open_connection(
        Address.parse(live.tcp), Settings(token=TOKEN), None, NullHandler()
    )
    sock = connection._channel.stream.sock
    assert sock.gettimeout() is None
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    connection.shut()


def test_without_unix_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says which address to use instead."""
    monkeypatch.delattr(socket, "AF_UNIX")
    with pytest.raises(errors.ConfigurationError, match="tcp://"):
        probe(Address.unix("/tmp/any.sock"), Settings())


def _silent(peer: socket.socket) -> None:
    while peer.recv(4096):
        pass


def _hangs_up(peer: socket.socket) -> None:
    peer.recv(1)


def _strange_server(path: Path, behave: Callable[[socket.socket], None]) -> Thread:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()

    def serve() -> None:
        with listening, listening.accept()[0] as peer:
            behave(peer)
            if behave is not _hangs_up:
                _silent(peer)

    thread = Thread(target=serve)
    thread.start()
    return thread


def _refuses(peer: socket.socket) -> None:
    reason = b'{"error": "Odd", "text": "because"}'
    peer.sendall(len(reason).to_bytes(2, "big") + reason)


@pytest.mark.parametrize(
    ("behave", "error", "hint"),
    [
        (_silent, errors.NoServer, "jaxd status"),
        (_hangs_up, errors.ProtocolError, "jaxd doctor"),
        (lambda peer: peer.sendall(b"\0\x02{}"), errors.ProtocolError, None),
        (lambda peer: peer.sendall(b"\0\x02[]"), errors.ProtocolError, None),
        (lambda peer: peer.sendall(b"\xff\xff"), errors.ProtocolError, None),
        (_refuses, errors.NoServer, "because"),
    ],
    ids=["silent", "hangs up", "empty", "list", "endless", "refuses"],
)
def test_a_strange_server(
    runtime: Path,
    monkeypatch: pytest.MonkeyPatch,
    behave: Callable[[socket.socket], None],
    error: type[Exception],
    hint: str | None,
) -> None:
    """Each ends in a typed error, in time."""
    monkeypatch.setattr(connect, "HANDSHAKE_TIMEOUT_S", 0.2)
    thread = _strange_server(runtime / "s.sock", behave)
    with pytest.raises(error, match=hint):
        probe(Address.unix(f"{runtime}/s.sock"), Settings())
    thread.join()


Serve = Callable[[Callable[[socket.socket], None]], int]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a server for one client; returns its port."""
    threads: list[threading.Thread] = []

    def start(behave: Callable[[socket.socket], None]) -> int:
        listening = socket.create_server(("127.0.0.1", 0))

        def accept() -> None:
            with listening:
                sock, _ = listening.accept()
                with sock, suppress(OSError, EOFError):
                    behave(sock)

        threads.append(threading.Thread(target=accept))
        threads[-1].start()
        port: int = listening.getsockname()[1]
        return port

    yield start
    for thread in threads:
        thread.join()


def has_no_room(sock: socket.socket) -> None:
    """Says what a server does that takes nobody now, before TLS is there."""
    refuse_busy(sock, None, errors.Busy("full."))


def test_a_server_without_room_says_so_before_tls_is_there(serve: Serve) -> None:
    """In an alert, which the client takes for what it is: it may come again."""
    address = Address.tls("127.0.0.1", serve(has_no_room), "0" * 64)
    with pytest.raises(errors.Busy, match="has no room"):
        dial(address, Settings())


def test_a_server_that_loses_its_room_while_tls_is_set_up_says_so(serve: Serve) -> None:
    """Its alert comes in plain text to a client that has keys already."""

    def behave(sock: socket.socket) -> None:
        TlsSocket(sock, server_context(*signed()), server_side=True).do_handshake()
        refuse_busy(sock, None, errors.Busy("full."))

    address = Address.tls("127.0.0.1", serve(behave), PIN)
    with pytest.raises(errors.Busy, match="has no room"):
        probe(address, Settings(token=TOKEN))


def shows(pem: Pem) -> Callable[[socket.socket], None]:
    """Shakes hands over TLS with that certificate, and sends back what comes."""

    def behave(sock: socket.socket) -> None:
        line = TlsSocket(sock, server_context(*pem), server_side=True)
        line.do_handshake()
        line.sendall(line.recv(99))

    return behave


def echo(address: Address, settings: Settings) -> bytes:
    """What comes back."""
    line = dial(address, settings)
    line.settimeout(20)
    line.sendall(b"word")
    found = line.recv(99)
    line.close()
    return found


PIN = fingerprint_of(certificate_of(signed().certificate))


def test_a_certificate_that_the_address_does_not_name(serve: Serve) -> None:
    """The error comes before a byte of ours, and says what to do."""
    heard: list[bytes] = []
    done = threading.Event()

    def behave(sock: socket.socket) -> None:
        line = TlsSocket(sock, server_context(*authority()), server_side=True)
        line.do_handshake()
        heard.append(line.recv(99))

        done.set()

    port = serve(behave)
    with pytest.raises(errors.AuthenticationFailed, match="line that it printed"):
        dial(Address.tls("localhost", port, PIN), Settings(ca_file=authority().certificate))
    assert done.wait(20)
    assert heard == [b""]


def test_a_certificate_is_checked_by_name(serve: Serve) -> None:
    """Somebody has to vouch for it whom this machine, or the settings, trust."""
    trusting = Settings(ca_file=authority().certificate)
    port = serve(shows(signed()))
    assert echo(Address.tls("localhost", port), trusting) == b"word"
    port = serve(shows(signed()))
    with pytest.raises(errors.AuthenticationFailed, match=r"#sha256=.*JAXD_CA_FILE"):
        dial(Address.tls("localhost", port), Settings())
    port = serve(shows(signed()))
    with pytest.raises(errors.AuthenticationFailed, match=r"(?i)ip address mismatch"):
        dial(Address.tls("127.0.0.1", port), trusting)


def old_tls(sock: socket.socket) -> None:
    """Shakes hands as servers did before 2018."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*signed())
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    TlsSocket(sock, context, server_side=True).do_handshake()


@pytest.mark.parametrize(
    "behave",
    [
        lambda sock: sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        lambda sock: sock.recv(9),
        old_tls,
    ],
    ids=["http", "hangs up", "TLS 1.2"],
)
def test_somebody_who_does_not_speak_tls(
    serve: Serve, behave: Callable[[socket.socket], None]
) -> None:
    """Is no server of ours; the error says which address may be meant."""
    with pytest.raises(errors.ProtocolError, match="tcp://"):
        dial(Address.tls("127.0.0.1", serve(behave), PIN), Settings())


def test_nobody_there() -> None:
    """The error has the command that starts one, without the fingerprint."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    for address in (Address.tcp("127.0.0.1", port), Address.tls("127.0.0.1", port, PIN)):
        with pytest.raises(errors.NoServer, match=rf"--listen {address.kind}://127.0.0.1:{port}\)"):
            dial(address, Settings())
    with pytest.raises(errors.NoServer, match="unix:///nowhere"):
        dial(Address.unix("/nowhere"), Settings())


@pytest.mark.parametrize(
    ("address", "advice"),
    [
        (
            "unix:///a/b?uid=7",
            "Start one there (jaxd serve --listen unix:///a/b), or set JAXD_SERVER to another.",
        ),
        (
            "tcp://[::1]:5",
            "Start one there (jaxd serve --listen tcp://[::1]:5), or set JAXD_SERVER to another.",
        ),
        (
            "tcp://gpu:5?insecure=1",
            (
                "Start one on gpu (jaxd serve --listen tcp://0.0.0.0:5), or have the way there "
                "checked from here (jaxd doctor --server tcp://gpu:5?insecure=1)."
            ),
        ),
        (
            "ssh://me@gpu",
            (
                "Start one on gpu (jaxd start), or have the way there checked from here "
                "(jaxd doctor --server ssh://me@gpu)."
            ),
        ),
    ],
)
def test_the_advice_fits_the_address(address: str, advice: str) -> None:
    """It starts a server where the address points, and none here for one elsewhere."""
    assert Address.parse(address).advice == advice


def test_a_host_without_an_address_is_to_be_corrected(monkeypatch: pytest.MonkeyPatch) -> None:
    """No server can be started there."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(errors.NoServer, match="Correct the host"):
        dial(Address.tls("gp", 1, PIN), Settings())


def test_a_name_that_is_not_found_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller's time counts while the system looks it up; the next one waits for the same."""
    gate, asked = threading.Event(), []
    real = socket.getaddrinfo

    def slow(host: str, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("flags"):
            return real(host, *args, **kwargs)
        asked.append(host)
        gate.wait(60)
        return real("127.0.0.1", *args, **kwargs)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        monkeypatch.setattr(socket, "getaddrinfo", slow)
        address = Address.tcp("slow.example", port)
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(errors.NoServer, match=r"lookup of slow\.example takes too long"):
                dial(address, Settings(), Patience(began + 0.2))
            assert time.monotonic() - began < 20
        assert asked == ["slow.example"]
        gate.set()
        dial(address, Settings(), Patience(time.monotonic() + 30)).close()


def test_a_name_that_stands_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is the system's own error, with a limit and without."""

    def unknown(*args: Any, **kwargs: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    address = Address.tcp("nowhere.example", 1)
    for patience in (Patience(), Patience(time.monotonic() + 30)):
        with pytest.raises(errors.NoServer, match="not known"):
            dial(address, Settings(), patience)
