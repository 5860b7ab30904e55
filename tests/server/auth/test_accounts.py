from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.network.accounts import Account, add_account, remove_account
from jaxd_protocol.network.tokens import write_token_file
from jaxd_server.auth import accounts as module
from jaxd_server.auth.accounts import Accounts
from jaxd_server.config.options import ServerOptions
from tests.server.staging import Log, logged_by

Open = Callable[..., Accounts]


@pytest.fixture
def folder(runtime: Path) -> str:
    """Of named tokens."""
    return str(runtime / "tokens")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    """What is logged of accounts."""
    return logged_by(module, monkeypatch)


@pytest.fixture
def open_accounts(folder: str) -> Open:
    """Those of a server with these options."""
    return lambda **options: Accounts(ServerOptions(**{"token_dir": folder, **options}))


def principals(accounts: Accounts) -> list[str]:
    """Who may come in now."""
    return [account.principal for account in accounts.now()]


def test_where_nothing_is_said_there_is_nobody(open_accounts: Open, runtime: Path) -> None:
    """A Unix socket needs no account; a token file that is to be there and is not is a mistake."""
    assert open_accounts().now() == ()
    assert open_accounts(token_dir="none").now() == ()
    with pytest.raises(ConfigurationError, match="jaxd token"):
        open_accounts(token_file=str(runtime / "missing"))


def test_the_token_of_the_environment_has_no_name(
    open_accounts: Open, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside those that have."""
    monkeypatch.setenv("JAXD_TOKEN", "t0ken-for-tests-and-no-more")
    add_account("alice", folder)
    accounts = open_accounts()
    assert accounts.now()[0] == Account.unnamed("t0ken-for-tests-and-no-more")
    assert principals(accounts) == ["token", "account:alice"]
    assert principals(open_accounts(token_dir="none")) == ["token"]


def test_names_come_and_go(open_accounts: Open, folder: str, log: Log) -> None:
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


def test_whoever_is_here_may_stay_until_then(open_accounts: Open, folder: str) -> None:
    """With the token with which they came."""
    add_account("alice", folder)
    add_account("bob", folder)
    accounts = open_accounts()
    alice, bob = accounts.now()
    add_account("alice", folder, replace=True)
    remove_account("bob", folder)
    assert accounts.is_still_valid(alice)
    accounts.now()
    assert not accounts.is_still_valid(alice)
    assert not accounts.is_still_valid(bob)


def test_the_token_without_a_name_can_be_replaced_too(open_accounts: Open, runtime: Path) -> None:
    """`jaxd token --force` needs no restart."""
    path = str(runtime / "token")
    first = write_token_file(path)
    accounts = open_accounts(token_file=path)
    assert accounts.now() == (Account.unnamed(first),)
    second = write_token_file(path, replace=True)
    assert accounts.now() == (Account.unnamed(second),)
    os.unlink(path)
    assert accounts.now() == ()


@pytest.mark.parametrize("spoil", [lambda p: os.chmod(p, 0o644), lambda p: os.truncate(p, 0)])
def test_a_file_that_is_no_secret_lets_nobody_in(
    open_accounts: Open, folder: str, log: Log, spoil: Callable[[str], None]
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
    open_accounts: Open, folder: str, log: Log
) -> None:
    """Also when that comes about while the server runs."""
    add_account("alice", folder)
    accounts = open_accounts()
    os.chmod(folder, 0o777)
    assert [principals(accounts) for _ in range(3)] == [[]] * 3
    assert [event for event, _ in log] == ["account_ignored", "account_revoked"]
    os.chmod(folder, 0o700)
    assert principals(accounts) == ["account:alice"]


def test_two_names_with_one_token(open_accounts: Open, folder: str, log: Log) -> None:
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
    open_accounts: Open, folder: str, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever puts files there by hand finds it in the log."""
    for name in ("alice", "bob", "carol"):
        add_account(name, folder)
    monkeypatch.setattr(module, "MAX_ACCOUNTS", 2)
    assert principals(open_accounts()) == ["account:alice", "account:bob"]
    assert "more than 2" in log[0][1]["reason"]


def test_a_file_is_read_again_only_when_it_is_another(
    open_accounts: Open, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Handshakes do not wait for a thousand files."""
    add_account("alice", folder)
    accounts = open_accounts()
    monkeypatch.setattr(module, "read_token_file", lambda path: 1 / 0)
    assert principals(accounts) == ["account:alice"]


def test_changes_are_seen_at_once(open_accounts: Open, folder: str) -> None:
    """And told once, to whoever asks; also what a handshake has found: its folder is as it was."""
    add_account("alice", folder)
    accounts = open_accounts()
    assert [accounts.poll_changed() for _ in range(3)] == [True, False, False]
    remove_account("alice", folder)
    assert [accounts.poll_changed() for _ in range(2)] == [True, False]
    path, _ = add_account("alice", folder)
    assert [accounts.poll_changed() for _ in range(2)] == [True, False]
    Path(path).write_text("another")
    accounts.now()
    assert [accounts.poll_changed() for _ in range(2)] == [True, False]


def backdated(path: str, token: str) -> None:
    """Rewrites a file in place, with the length and the time that it had."""
    status = os.stat(path)
    with open(path, "r+") as file:
        file.write(token[::-1])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_file_that_was_rewritten_and_backdated_is_another(
    open_accounts: Open, folder: str, runtime: Path
) -> None:
    """With a name or without: the system keeps a time that its owner cannot set."""
    unnamed = str(runtime / "token")
    made = {unnamed: write_token_file(unnamed)}
    made.update([add_account("alice", folder)])
    accounts = open_accounts(token_file=unnamed)
    before = accounts.now()
    for path, token in made.items():
        backdated(path, token)
    assert accounts.poll_changed()
    assert {account.token for account in accounts.now()} == {t[::-1] for t in made.values()}
    assert not any(map(accounts.is_still_valid, before))


def test_the_content_counts_where_nothing_else_has_changed(
    runtime: Path, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file system that says nothing of it: each file is read once a second."""
    path, token = add_account("alice", folder)
    now = [0.0]
    accounts = Accounts(ServerOptions(token_dir=folder), lambda: now[0])
    (alice,) = accounts.now()
    state = os.stat(path)
    monkeypatch.setattr("jaxd_protocol.network.accounts.file_state", lambda status: (state.st_ino,))
    monkeypatch.setattr(module, "file_state", lambda status: (state.st_ino,))
    now[0] = 1.0
    accounts.poll_changed()
    backdated(path, token)
    assert not accounts.poll_changed()
    assert accounts.is_still_valid(alice)
    now[0] = 2.0
    assert accounts.poll_changed()
    assert not accounts.is_still_valid(alice)


def test_nobody_is_revoked_for_a_oom_handler_of_files(
    open_accounts: Open, folder: str, runtime: Path
) -> None:
    """While none can be opened, those that are as they were count; one that is gone does not."""
    unnamed = str(runtime / "token")
    write_token_file(unnamed)
    for name in ("alice", "bob"):
        add_account(name, folder)
    accounts = open_accounts(token_file=unnamed)
    before = accounts.now()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        found = accounts._load(anew=True)
        os.unlink(os.path.join(folder, "alice"))
        left = accounts._load(anew=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found == before
    assert [account.principal for account in left] == ["token", "account:bob"]
