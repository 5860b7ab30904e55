"""From an address to a connected socket."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from jaxd import errors
from jaxd.dialling import dial
from jaxd.settings import Settings
from jaxd_protocol.addresses import Address
from jaxd_protocol.certificates import certificate_of, fingerprint_of, server_context
from jaxd_protocol.wire.tls_socket import TlsSocket
from jaxd_server.strangers import turn_away
from tests.certificates import Pem, authority, signed

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
    turn_away(sock, None, errors.Busy("full."))


def test_a_server_without_room_says_so_before_tls_is_there(serve: Serve) -> None:
    """In an alert, which the client takes for what it is: it may come again."""
    address = Address.tls("127.0.0.1", serve(has_no_room), "0" * 64)
    with pytest.raises(errors.Busy, match="has no room"):
        dial(address, Settings())


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


def test_a_certificate_that_the_address_names(serve: Serve) -> None:
    """Whoever made it, and whatever name stands in it."""
    port = serve(shows(signed()))
    assert echo(Address.tls("127.0.0.1", port, PIN), Settings()) == b"word"


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
        with pytest.raises(errors.NoServer, match=f"--listen {address.kind}://127.0.0.1:{port}\\)"):
            dial(address, Settings())
    with pytest.raises(errors.NoServer, match="unix:///nowhere"):
        dial(Address.unix("/nowhere"), Settings())
