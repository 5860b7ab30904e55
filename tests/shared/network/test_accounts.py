from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.network import accounts as module
from jaxd_protocol.network.accounts import (
    Account,
    add_account,
    default_token_dir,
    remove_account,
    token_files,
)
from jaxd_protocol.network.tokens import read_token_file


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Where tokens may go; it does not exist yet."""
    return str(tmp_path / "jaxd" / "tokens")


def names_in(folder: str) -> list[str]:
    return [file.name for file in token_files(folder)]


def test_the_folder_lies_beside_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where both ends look for settings."""
    monkeypatch.setenv("XDG_CONFIG_HOME", "/x")
    assert default_token_dir() == "/x/jaxd/tokens"


def test_an_account_is_a_file(folder: str) -> None:
    """Of its owner alone, in a folder of its owner alone; each has a token of its own."""
    path, token = add_account("alice", folder)
    assert path == os.path.join(folder, "alice")
    assert read_token_file(path) == token
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert add_account("bob", folder)[1] != token
    assert names_in(folder) == ["alice", "bob"]


def test_a_token_is_not_lost_by_accident(folder: str) -> None:
    """It is replaced on request only; one that is not there can be forced as well."""
    first = add_account("alice", folder, replace=True)[1]
    with pytest.raises(ConfigurationError, match=r"exists already.*--force"):
        add_account("alice", folder)
    before = token_files(folder)
    assert add_account("alice", folder, replace=True)[1] != first
    assert token_files(folder)[0].state != before[0].state


def test_an_account_is_taken_away(folder: str) -> None:
    """Once; then the error says who is left."""
    add_account("alice", folder)
    add_account("bob", folder)
    remove_account("alice", folder)
    assert names_in(folder) == ["bob"]
    with pytest.raises(ConfigurationError, match=r"no account 'alice'.*bob.*--list"):
        remove_account("alice", folder)


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "a/b", "../token", "a b", "a\0b", "é", "x" * 65, "-f", "a\n"]
)
def test_what_is_no_name(folder: str, name: str) -> None:
    """Nothing outside of the folder can be named, made or removed."""
    for change in (add_account, remove_account):
        with pytest.raises(ConfigurationError, match="not a name for an account"):
            change(name, folder)


def test_what_else_lies_there_is_passed_over(folder: str) -> None:
    """Drafts, hidden files, folders and links to nothing."""
    add_account("alice", folder)
    for name in (".alice.swp", "a b"):
        Path(folder, name).touch()
    Path(folder, "folder").mkdir()
    Path(folder, "nothing").symlink_to("/nowhere")
    assert names_in(folder) == ["alice"]


def test_no_folder_is_no_account(folder: str) -> None:
    """A server need not have any."""
    assert token_files(folder) == []


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_folder_that_others_can_change(folder: str, mode: int) -> None:
    """Whoever can put a file there has an account; so nobody has one."""
    add_account("alice", folder)
    os.chmod(folder, mode)
    with pytest.raises(ConfigurationError, match=f"chmod 700 {folder}"):
        token_files(folder)


def test_a_folder_of_somebody_else(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same; root's may be used."""
    add_account("alice", folder)
    monkeypatch.setattr(os, "getuid", lambda: os.stat(folder).st_uid + 1)
    if os.stat(folder).st_uid:  # these tests may be run by root
        with pytest.raises(ConfigurationError, match="others can put tokens"):
            token_files(folder)
    else:
        assert names_in(folder) == ["alice"]


def test_something_that_is_no_folder(tmp_path: Path) -> None:
    """Named, with the option that chooses another."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"cannot read .*--token-dir"):
        token_files(str(tmp_path / "file"))


def test_there_are_not_too_many(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server holds each proof against all of them."""
    monkeypatch.setattr(module, "MAX_ACCOUNTS", 1)
    add_account("alice", folder)
    with pytest.raises(ConfigurationError, match="--revoke"):
        add_account("bob", folder)
    add_account("alice", folder, replace=True)


def test_no_repr_shows_a_token() -> None:
    """It may end in a log."""
    assert "secret" not in repr([Account.named("alice", "secret"), Account.unnamed("secret")])
