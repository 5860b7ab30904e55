"""Somebody between client and server, or in the server's place: found out before anything is said.

Each attack is tried by a process of another user where root runs the tests, and everywhere by one
of the same user of which the kernel is made to say that it is another's.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import jaxd
from jaxd import connect, errors
from jaxd.connection import connect as connecting
from jaxd.connection.connect import probe
from jaxd.connection.settings import Settings
from jaxd_protocol.network import tcp_owners
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.handshake import local_peer
from jaxd_server.auth.listeners import open_listeners
from tests.end_to_end.squatter import Squatter
from tests.end_to_end.test_trust import refused
from tests.live_server import TOKEN, LiveServer
from tests.ssh_program import install_ssh

pytestmark = pytest.mark.own_server

SOMEBODY = 54321
"""A user who is nobody on the machines of these tests."""

WELCOME = {
    **local_peer({"jax": "1"}).to_message(),
    "auth": "none",
    "session": "s",
    "slots": 4,
    "max_frame_bytes": 1 << 20,
    "epoch": 1,
    "pid": 1,
}
"""What a server says that asks for no proof."""


def written(message: dict[str, object]) -> bytes:
    """As it goes over the wire."""
    text = json.dumps(message).encode()
    return struct.pack("!H", len(text)) + text


def port_of(address: str) -> int:
    """Where a server listens."""
    return Address.parse(address).port


@pytest.fixture(params=["another user", "as the kernel says"])
def uid(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int | None:
    """The user that a squatter becomes; None: it is only said to be another's."""
    if request.param == "another user":
        if os.getuid() != 0:
            pytest.skip("only root can be somebody else; the other way is tried as well")
        return SOMEBODY
    monkeypatch.setattr(tcp_owners, "owner_of_peer", lambda sock: SOMEBODY)
    monkeypatch.setattr(connecting, "peer_uid", lambda sock: SOMEBODY)
    return None


@pytest.fixture
def everybodys() -> Iterator[Path]:
    """A folder such as /tmp: all may write there, and remove what is theirs."""
    folder = Path(tempfile.mkdtemp(prefix="jaxd-", dir="/tmp"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


def test_who_relays_tcp_is_found_out(live: LiveServer, uid: int | None) -> None:
    """From [::1], where the server does not listen; the error names what helps."""
    with (
        Squatter(("::1", 0), uid, target=port_of(live.tcp)) as squatter,
        pytest.raises(errors.AuthenticationFailed, match=r"tls://.*ssh://.*\?insecure=1"),
    ):
        connect(f"tcp://[::1]:{squatter.port}", token=TOKEN)
    assert b"JAXD" in squatter.heard
    assert b'"session"' not in squatter.said, "it is in the middle of an open connection"


def test_the_server_finds_out_who_relays_as_well(live: LiveServer) -> None:
    """Although the client trusts whoever stands in between."""
    if os.getuid() != 0:
        pytest.skip(
            "only root can be somebody else; tests/server/auth/test_authenticator.py has the rest"
        )
    with (
        refused(live, f"is user {SOMEBODY}"),
        Squatter(("127.0.0.1", 0), SOMEBODY, target=port_of(live.tcp)) as squatter,
        pytest.raises(errors.AuthenticationFailed, match="--insecure-plaintext"),
    ):
        connect(f"tcp://127.0.0.1:{squatter.port}?insecure=1", token=TOKEN)
    assert b'"session"' not in squatter.said


def test_who_relays_plain_text_into_tls_is_found_out(live: LiveServer) -> None:
    """From the port of a server that is gone, as whatever user: it would read and change all."""
    with (
        refused(live, "one end of the connection speaks"),
        Squatter(("127.0.0.1", 0), None, target=port_of(live.tls), tls=True) as squatter,
        pytest.raises(errors.AuthenticationFailed, match="one end of the connection speaks"),
    ):
        connect(f"tcp://127.0.0.1:{squatter.port}", token=TOKEN)
    assert b'"session"' not in squatter.said


@pytest.mark.slow
def test_a_relay_that_both_ends_accept(
    start_live: Callable[..., LiveServer], uid: int | None
) -> None:
    """A tunnel looks like any other; each end has said so in words of its own."""
    server = start_live("--insecure-plaintext")
    with (
        Squatter(("127.0.0.1", 0), uid, target=port_of(server.tcp)) as tunnel,
        connect(f"tcp://127.0.0.1:{tunnel.port}?insecure=1", token=TOKEN) as client,
    ):
        assert float(client.persistent_call(lambda x: x + 1)(1.0)) == 2.0
    with (
        Squatter(("127.0.0.1", 0), uid, target=port_of(server.tcp)) as tunnel,
        pytest.raises(errors.AuthenticationFailed, match=r"\?insecure=1"),
    ):
        connect(f"tcp://127.0.0.1:{tunnel.port}", token=TOKEN)


def test_a_forwarded_port_goes_on_working_over_tls(live: LiveServer) -> None:
    """Whoever passes it on, and under whatever port."""
    uid = SOMEBODY if os.getuid() == 0 else None
    address = Address.parse(live.tls)
    with (
        Squatter(("127.0.0.1", 0), uid, target=address.port) as tunnel,
        connect(address._replace(port=tunnel.port), token=TOKEN) as client,
    ):
        assert float(client.persistent_call(lambda x: x + 1)(1.0)) == 2.0
    assert TOKEN.encode() not in tunnel.heard


def test_localhost_is_the_same_place_for_both_ends(
    live: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a resolver says of it: nobody is asked."""
    find = socket.getaddrinfo

    def no_name(host: str, *others: object, **more: object) -> object:
        assert host != "localhost"
        return find(host, *others, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", no_name)
    with connect(f"tcp://localhost:{port_of(live.tcp)}", token=TOKEN) as client:
        assert client.statistics().connections >= 1
    with open_listeners([Address.tcp("localhost", 0)]) as (listener,):
        assert listener.socket.getsockname()[0] == "127.0.0.1"


def test_a_server_that_asks_for_no_proof(runtime: Path) -> None:
    """It may be anybody's; where it is meant, the address says so."""
    said = written(WELCOME)
    with (
        Squatter(("127.0.0.1", 0), None, answer=said) as squatter,
        pytest.raises(errors.AuthenticationFailed, match=r"\?insecure=1"),
    ):
        probe(Address.tcp("127.0.0.1", squatter.port), Settings())
    assert squatter.heard.endswith(b"}"), "nothing but a greeting"
    assert jaxd.__version__.encode() not in squatter.heard
    assert b'"session"' not in squatter.heard


def test_a_unix_socket_of_another_user(everybodys: Path, uid: int | None) -> None:
    """Nothing at all is said to whoever listens there; the error says how to name the server's."""
    path = f"{everybodys}/server.sock"
    with (
        Squatter(path, uid, answer=written(WELCOME)) as squatter,
        pytest.raises(errors.AuthenticationFailed, match=rf"\?uid={SOMEBODY}"),
    ):
        probe(Address.parse(f"unix://{path}"), Settings())
    assert squatter.heard == b""


def test_the_server_of_a_user_who_is_named(runtime: Path, uid: int | None) -> None:
    """As a service of the machine is."""
    folder = runtime / "service"
    folder.mkdir(mode=0o755)
    runtime.chmod(0o755)
    if uid is not None:
        os.chown(folder, uid, uid)
    path = f"{folder}/server.sock"
    with Squatter(path, uid, answer=written(WELCOME)) as service:
        welcome = probe(Address.parse(f"unix://{path}?uid={SOMEBODY}"), Settings())
        assert welcome["session"] == "s"
    assert service.heard.startswith(b"JAXD")


def test_a_folder_in_which_others_can_write(everybodys: Path) -> None:
    """Also with a server of one's own in it, which somebody else could replace tomorrow."""
    path = f"{everybodys}/server.sock"
    with (
        Squatter(path, None, answer=written(WELCOME)) as squatter,
        pytest.raises(errors.AuthenticationFailed, match="others can put a socket"),
    ):
        probe(Address.parse(f"unix://{path}"), Settings())
    assert squatter.heard == b""


def test_a_socket_of_another_user_at_the_far_end_of_ssh(
    everybodys: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs over there looks at it as the client does here."""
    install_ssh(runtime, monkeypatch)
    path = f"{everybodys}/server.sock"
    uid = SOMEBODY if os.getuid() == 0 else None  # else it is the folder that gives it away
    with (
        Squatter(path, uid, answer=written(WELCOME)) as squatter,
        pytest.raises(errors.NoServer, match=r"\?uid=|others can put a socket"),
    ):
        probe(Address.parse(f"ssh://host{path}"), Settings())
    assert squatter.heard == b""
