from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from jaxd_protocol.errors import AuthenticationFailed
from jaxd_protocol.network.accounts import Account, add_account, remove_account
from jaxd_server.auth import accounts as module
from jaxd_server.auth.accounts import Accounts, ConnectedAccounts
from jaxd_server.config.options import ServerOptions
from tests.server.staging import logged_by


class TwoAccounts:
    """Alice and Bob are here, each on a connection of their own."""

    def __init__(self, folder: str, stack: ExitStack) -> None:
        self.forgotten: list[str] = []
        self.ends: dict[str, socket.socket] = {}
        for name in ("alice", "bob"):
            add_account(name, folder)
        self.accounts = Accounts(ServerOptions(token_dir=folder))
        self.connected_accounts = ConnectedAccounts(self.accounts, self.forgotten.append)
        for account in self.accounts.now():
            client, server = socket.socketpair()
            for end in (client, server):
                end.settimeout(30)
                stack.enter_context(end)
            stack.enter_context(self.connected_accounts.present(server, account))
            self.ends[account.principal] = client

    def is_out(self, principal: str) -> bool:
        """Whether a connection has ended."""
        end = self.ends[principal]
        end.setblocking(False)
        try:
            return end.recv(1) == b""
        except BlockingIOError:
            return False


@pytest.fixture
def folder(runtime: Path) -> str:
    """Of their tokens."""
    return str(runtime / "tokens")


@pytest.fixture
def hall(folder: str) -> Iterator[TwoAccounts]:
    """With both."""
    with ExitStack() as stack:
        yield TwoAccounts(folder, stack)


@pytest.mark.parametrize("seen_by", ["the next look", "a handshake"])
def test_whoever_was_revoked_is_shown_out(hall: TwoAccounts, folder: str, seen_by: str) -> None:
    """Nobody else is, nor who came without an account; what the one had is let go of, once."""
    hall.connected_accounts.poll()
    assert not any(map(hall.is_out, hall.ends))
    client, server = socket.socketpair()
    with client, server, hall.connected_accounts.present(server, None):
        remove_account("alice", folder)
        if seen_by == "a handshake":
            hall.accounts.now()
        for _ in range(2):
            hall.connected_accounts.poll()
        server.sendall(b"x")
    assert (hall.is_out("account:alice"), hall.is_out("account:bob")) == (True, False)
    assert hall.forgotten == ["account:alice"]


def test_whoever_came_since_the_last_look_is_forgotten_as_well(
    hall: TwoAccounts, folder: str
) -> None:
    """An account may be made, used and taken away between two looks."""
    add_account("carol", folder)
    carol = next(one for one in hall.accounts.now() if one.principal == "account:carol")
    with socket.socket() as sock, hall.connected_accounts.present(sock, carol):
        remove_account("carol", folder)
        hall.connected_accounts.poll()
    assert hall.forgotten == ["account:carol"]


def test_whoever_has_another_token_now_comes_again(hall: TwoAccounts, folder: str) -> None:
    """With it; what they had here is there still."""
    add_account("alice", folder, replace=True)
    hall.connected_accounts.poll()
    assert (hall.is_out("account:alice"), hall.is_out("account:bob")) == (True, False)
    assert hall.forgotten == []


def test_whoever_is_revoked_while_coming_in(hall: TwoAccounts, folder: str) -> None:
    """Does not slip through."""
    alice = hall.accounts.now()[0]
    remove_account("alice", folder)
    hall.accounts.now()
    with (
        socket.socket() as sock,
        pytest.raises(AuthenticationFailed, match="revoked"),
        hall.connected_accounts.present(sock, alice),
    ):
        pytest.fail("it is here")


def test_whoever_left_is_not_shown_out(hall: TwoAccounts, folder: str) -> None:
    """Its socket may be somebody else's by then."""
    bob = hall.accounts.now()[1]
    client, server = socket.socketpair()
    with client, server:
        with hall.connected_accounts.present(server, bob):
            pass
        remove_account("bob", folder)
        hall.connected_accounts.poll()
        server.sendall(b"x")


def test_a_warning_names_the_first_two_accounts_of_one_process(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once; with the option for who does not trust the others. A gateway has a worker for each."""
    for name in ("alice", "bob", "carol"):
        add_account(name, folder)
    accounts = Accounts(ServerOptions(token_dir=folder))
    alice, bob, carol = accounts.now()
    log = logged_by(module, monkeypatch)
    connected_accounts = ConnectedAccounts(accounts, share=True)

    def come(*accounts: Account) -> None:
        for account in accounts:
            with socket.socket() as sock, connected_accounts.present(sock, account):
                pass

    come(alice, alice)
    assert log == []
    come(bob, carol, alice)
    ((event, fields),) = log
    assert event == "accounts_share_a_worker"
    assert fields["accounts"] == ["account:alice", "account:bob"]
    assert "--worker-per-principal" in fields["means"]
    connected_accounts = ConnectedAccounts(accounts)  # of a gateway
    come(alice, bob)
    assert len(log) == 1
