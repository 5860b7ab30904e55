from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from jaxd_protocol.network import tcp_owners
from jaxd_protocol.network.tcp_owners import owner_of_peer

Pair = tuple[socket.socket, socket.socket]

PLACES = {
    "IPv4": (socket.AF_INET, "127.0.0.1", socket.AF_INET, "127.0.0.1"),
    "IPv6": (socket.AF_INET6, "::1", socket.AF_INET6, "::1"),
    "IPv4 at a socket for both": (socket.AF_INET6, "::", socket.AF_INET, "127.0.0.1"),
}

ANOTHER = """
import os, socket, sys
family, host, port, uid = sys.argv[1:]
os.setuid(int(uid))
sock = socket.socket(int(family))
sock.connect((host, int(port)))
sys.stdin.read()
"""


@pytest.fixture(params=PLACES)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Both ends of a connection."""
    family, host, client_family, there = PLACES[request.param]
    with socket.socket(family) as listener, socket.socket(client_family) as client:
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
        listener.bind((host, 0))
        listener.listen()
        client.connect((there, listener.getsockname()[1]))
        with listener.accept()[0] as accepted:
            yield client, accepted


@pytest.fixture(params=["asked", "read"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the kernel tells: it is asked, or its table is read where it cannot be."""
    if request.param == "read":
        monkeypatch.delattr(socket, "AF_NETLINK")
    return str(request.param)


def test_both_ends_know_each_others_user(pair: Pair, way: str) -> None:
    """Over every family, and in either way."""
    assert [owner_of_peer(sock) for sock in pair] == [os.getuid()] * 2
    assert [os.fstat(sock.fileno()).st_uid for sock in pair] == [os.getuid()] * 2


@pytest.mark.parametrize("place", PLACES)
def test_another_users_end_is_known(place: str, way: str) -> None:
    """Whoever listens learns who has connected."""
    if os.getuid() != 0:
        pytest.skip("only root can be somebody else")
    family, host, client_family, there = PLACES[place]
    with socket.socket(family) as listener:
        listener.bind((host, 0))
        listener.listen()
        words = (str(int(client_family)), there, str(listener.getsockname()[1]), "54321")
        client = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", ANOTHER, *words], stdin=subprocess.PIPE
        )
        with listener.accept()[0] as accepted:
            assert owner_of_peer(accepted) == 54321
            client.communicate()
            assert owner_of_peer(accepted) is None, "it has gone"


def test_a_socket_that_nobody_has_accepted_is_nobodys(way: str) -> None:
    """Of such a one the kernel says that it is root's."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        assert owner_of_peer(client) is None
        with listener.accept()[0]:
            assert owner_of_peer(client) == os.getuid()


def test_a_socket_that_was_closed_is_nobodys(way: str) -> None:
    """Although the connection is still open in one direction."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        listener.accept()[0].close()
        assert owner_of_peer(client) is None


def test_who_listens_at_the_port_does_not_count(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel tells of him where it knows no such connection."""
    client, _ = pair
    here = tcp_owners._endpoint(client.getsockname())
    there = tcp_owners._endpoint(client.getpeername())
    assert tcp_owners._by_netlink(there, here) is not None
    assert tcp_owners._by_netlink(there, here._replace(port=1)) is None
    assert tcp_owners._by_tables(there, here._replace(port=1)) is None


def test_a_user_without_a_number_here_is_not_known(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All those of other namespaces have the same one."""
    found = tcp_owners._SocketInfo(1, 65534, 7)
    monkeypatch.setattr(tcp_owners, "_by_netlink", lambda local, remote: found)
    assert owner_of_peer(pair[0]) is None


def test_where_the_system_tells_nothing_nobody_is_known(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on systems that are not Linux."""
    monkeypatch.delattr(socket, "AF_NETLINK")
    monkeypatch.setattr(tcp_owners, "_SOCKET_TABLES", (("/nowhere", 12), ("/nowhere", 0)))
    assert owner_of_peer(pair[0]) is None


def test_what_is_not_connected_has_no_other_end() -> None:
    """As when the peer has left in between."""
    with socket.socket() as sock:
        assert owner_of_peer(sock) is None
