from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxd_protocol.accounts import Account, add_account, remove_account
from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.tokens import write_token_file
from jaxd_server import accounts as module
from jaxd_server.accounts import Accounts
from jaxd_server.options import ServerOptions
from tests.server.staging import Log, logged_by


@pytest.fixture
def folder(runtime: Path) -> str:
    """Of named tokens."""
    return str(runtime / "tokens")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    """What is logged of accounts."""
    return logged_by(module, monkeypatch)


@pytest.fixture
def open_accounts(folder: str) -> Callable[..., Accounts]:
    """Those of a server with these options."""
    return lambda **options: Accounts(ServerOptions(**{"token_dir": folder, **options}))


def old(path: str) -> None:
    """Gives a file or folder a date at which nobody looks twice."""
    os.utime(path, ns=(10**18, 10**18))


def principals(accounts: Accounts) -> list[str]:
    """Who may come in now."""
    return [account.principal for account in accounts.now()]


def test_where_nothing_is_said_there_is_nobody(open_accounts: Callable[..., Accounts]) -> None:
    """And that is no error: a Unix socket needs no account."""
    assert open_accounts().now() == ()
    assert open_accounts(token_dir="none").now() == ()


def test_the_token_of_the_environment_has_no_name(
    open_accounts: Callable[..., Accounts], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside those that have."""
    monkeypatch.setenv("JAXD_TOKEN", "t0ken")
    add_account("alice", folder)
    accounts = open_accounts()
    assert accounts.now()[0] == Account.unnamed("t0ken")
    assert principals(accounts) == ["token", "account:alice"]
    assert principals(open_accounts(token_dir="none")) == ["token"]


def test_names_come_and_go(open_accounts: Callable[..., Accounts], folder: str, log: Log) -> None:
    """From one handshake to the next; each change is a line in the log."""
    accounts = open_accounts()
    assert accounts.now() == ()
    _, token = add_account("alice", folder)
    assert accounts.now() == (Account.named("alice", token),)
    add_account("alice", folder, replace=True)
    assert accounts.now() != (Account.named("alice", token),)
    remove_account("alice", folder)
    assert accounts.now() == ()
    events = ["account_added", "account_replaced", "account_revoked"]
    assert log == [(event, {"principal": "account:alice"}) for event in events]


def test_whoever_is_here_may_stay_until_then(
    open_accounts: Callable[..., Accounts], folder: str
) -> None:
    """With the token with which they came."""
    add_account("alice", folder)
    add_account("bob", folder)
    accounts = open_accounts()
    alice, bob = accounts.now()
    add_account("alice", folder, replace=True)
    remove_account("bob", folder)
    assert accounts.may_stay(alice)
    accounts.now()
    assert not accounts.may_stay(alice)
    assert not accounts.may_stay(bob)


def test_the_token_without_a_name_can_be_replaced_too(
    open_accounts: Callable[..., Accounts], runtime: Path
) -> None:
    """`jaxd token --force` needs no restart."""
    path = str(runtime / "token")
    first = write_token_file(path)
    accounts = open_accounts(token_file=path)
    assert accounts.now() == (Account.unnamed(first),)
    second = write_token_file(path, replace=True)
    assert accounts.now() == (Account.unnamed(second),)
    os.unlink(path)
    assert accounts.now() == ()


def test_a_token_file_that_is_not_there_at_the_start(
    open_accounts: Callable[..., Accounts], runtime: Path
) -> None:
    """Is a mistake; later it lets nobody in."""
    with pytest.raises(ConfigurationError, match="jaxd token"):
        open_accounts(token_file=str(runtime / "missing"))


@pytest.mark.parametrize("spoil", [lambda p: os.chmod(p, 0o644), lambda p: os.truncate(p, 0)])
def test_a_file_that_is_no_secret_lets_nobody_in(
    open_accounts: Callable[..., Accounts], folder: str, log: Log, spoil: Callable[[str], None]
) -> None:
    """The others are let in; the log says it once, and not what stands there."""
    path, token = add_account("alice", folder)
    add_account("bob", folder)
    spoil(path)
    accounts = open_accounts()
    assert [principals(accounts) for _ in range(3)] == [["account:bob"]] * 3
    ((event, fields),) = log
    assert (event, fields["account"]) == ("account_ignored", path)
    assert path in fields["reason"]
    assert token not in str(log)


def test_a_folder_that_others_can_change_lets_nobody_in(
    open_accounts: Callable[..., Accounts], folder: str, log: Log
) -> None:
    """Also when that comes about while the server runs."""
    add_account("alice", folder)
    accounts = open_accounts()
    os.chmod(folder, 0o777)
    assert [principals(accounts) for _ in range(3)] == [[]] * 3
    assert [event for event, _ in log] == ["account_ignored", "account_revoked"]
    os.chmod(folder, 0o700)
    assert principals(accounts) == ["account:alice"]


def test_two_names_with_one_token(
    open_accounts: Callable[..., Accounts], folder: str, log: Log
) -> None:
    """It cannot be told who comes, so the second one does not count, and the log says so once."""
    path, _ = add_account("alice", folder)
    other = Path(folder, "bob")
    other.touch(mode=0o600)
    other.write_bytes(Path(path).read_bytes())
    accounts = open_accounts()
    assert [principals(accounts) for _ in range(3)] == [["account:alice"]] * 3
    assert [(event, fields["account"]) for event, fields in log] == [
        ("account_ignored", str(other))
    ]


def test_no_more_than_so_many_are_held(
    open_accounts: Callable[..., Accounts],
    folder: str,
    log: Log,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever puts files there by hand finds it in the log."""
    for name in ("alice", "bob", "carol"):
        add_account(name, folder)
    monkeypatch.setattr(module, "MOST_ACCOUNTS", 2)
    assert principals(open_accounts()) == ["account:alice", "account:bob"]
    assert "more than 2" in log[0][1]["reason"]


def test_a_file_is_read_again_only_when_it_is_another(
    open_accounts: Callable[..., Accounts], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Handshakes do not wait for a thousand files."""
    add_account("alice", folder)
    accounts = open_accounts()
    monkeypatch.setattr(module, "read_token_file", lambda path: 1 / 0)
    assert principals(accounts) == ["account:alice"]


def test_changes_are_seen_at_a_glance(open_accounts: Callable[..., Accounts], folder: str) -> None:
    """A folder that is as it was is not read; one that was changed just now is, to be sure."""
    add_account("alice", folder)
    accounts = open_accounts()
    assert accounts.have_changed()
    assert accounts.have_changed()
    old(folder)
    assert [accounts.have_changed() for _ in range(3)] == [True, False, False]
    remove_account("alice", folder)
    assert accounts.have_changed()


def test_what_a_handshake_has_found_is_news(
    open_accounts: Callable[..., Accounts], folder: str
) -> None:
    """A file that is written over leaves its folder as it was."""
    path, _ = add_account("alice", folder)
    old(folder)
    accounts = open_accounts()
    assert [accounts.have_changed() for _ in range(2)] == [True, False]
    Path(path).write_text("another")
    accounts.now()
    assert [accounts.have_changed() for _ in range(2)] == [True, False]
