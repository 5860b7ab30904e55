from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

import jaxd
from jaxd_protocol.errors import AuthenticationFailed, Busy
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.tokens import write_token_file
from jaxd_server.auth import authenticator
from jaxd_server.auth.accounts import Accounts
from jaxd_server.auth.authenticator import AuthenticatedPeer, authenticator_factory
from jaxd_server.config.options import ServerOptions
from tests.server.auth.test_authenticator import Handshake, with_token
from tests.server.in_process import InProcessServer


def test_the_token_guards_tcp_and_not_the_unix_socket(
    runtime: Path, open_in_process_server: Callable[..., InProcessServer]
) -> None:
    """Whose directory is the lock."""
    path = str(runtime / "token")
    token = write_token_file(path)
    in_process_server = open_in_process_server(token_file=path)
    for address, given in ((in_process_server.unix, None), (in_process_server.tcp, token)):
        with jaxd.connect(address, token=given) as client:
            assert client.statistics().connections == 1
    with pytest.raises(AuthenticationFailed):
        jaxd.connect(in_process_server.tcp, token="wrong-token-for-tests-only").statistics()


def test_wrong_tokens_are_remembered_at_all_listeners(runtime: Path) -> None:
    """Whoever has tried twenty at one finds no second chance at the next."""
    path = str(runtime / "token")
    write_token_file(path)
    options = ServerOptions(token_file=path, token_dir="none")
    authenticator_at = authenticator_factory(options, Accounts(options))

    def come(port: int) -> object:
        fetcher = authenticator_at(Address.tcp("127.0.0.1", port))
        with (
            socket.create_server(("127.0.0.1", 0)) as listener,
            socket.create_connection(listener.getsockname()) as client,
            listener.accept()[0] as accepted,
        ):
            return type(Handshake((client, accepted), fetcher, with_token("wrong")).client)

    assert {come(1) for _ in range(20)} == {AuthenticationFailed}
    assert come(2) is Busy


@pytest.mark.parametrize("guests", [(), (4321,)])
def test_the_options_say_who_else_may_come(
    guests: tuple[int, ...], runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a Unix socket another user, where the server was told so."""
    monkeypatch.setattr(authenticator, "peer_uid", lambda sock: 4321)
    options = ServerOptions(allow_uids=guests, token_dir="none")
    fetcher = authenticator_factory(options, Accounts(options))(Address.unix(f"{runtime}/s.sock"))
    client, accepted = socket.socketpair()
    with client, accepted:
        came = Handshake((client, accepted), fetcher, with_token(None)).server
    assert isinstance(came, AuthenticatedPeer if guests else AuthenticationFailed)


def test_an_open_loopback_is_reached_by_those_who_say_so(
    runtime: Path, open_in_process_server: Callable[..., InProcessServer]
) -> None:
    """As it asks for no proof, the address has to say that none is expected."""
    in_process_server = open_in_process_server(
        allow_unauthenticated_loopback=True, token_dir="none"
    )
    with jaxd.connect(f"{in_process_server.tcp}?insecure=1") as client:
        assert client.statistics().connections == 1
    with pytest.raises(AuthenticationFailed, match=r"no proof.*\?insecure=1"):
        jaxd.connect(in_process_server.tcp)
