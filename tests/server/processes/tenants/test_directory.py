from __future__ import annotations

import os
import pwd
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from jaxd_protocol.errors import ConfigurationError
from jaxd_server.config.argument_types import SAME_USER
from jaxd_server.config.options import ServerOptions
from jaxd_server.processes.tenants.directory import TenantDirectory

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")

FIRST = 300_000 + 10 * (os.getpid() % 1000)  # no other run of these tests ends what is ours


@pytest.fixture
def folder(runtime: Path) -> Path:
    """Where others can get to what is theirs."""
    runtime.chmod(0o711)
    return runtime / "kept"


@pytest.fixture
def options(folder: Path) -> ServerOptions:
    """For three accounts; the fourth number is the server's own."""
    return ServerOptions(
        worker_per_principal=True, worker_uids=(FIRST, FIRST + 3), cache_dir=str(folder)
    )


def test_folders_are_apart_and_stay_the_same(options: ServerOptions) -> None:
    """Whatever stands in the names."""
    names = ("account:a", "account:A", "uid:7", "account:a.b", "account:a-b", "account:" + "x" * 64)
    folders = [TenantDirectory(options, is_root=False).of(name).folder for name in names]
    assert len(set(folders)) == len(names)
    assert folders == [TenantDirectory(options, is_root=False).of(name).folder for name in names]
    assert {stat.S_IMODE(os.stat(folder).st_mode) for folder in folders} == {0o700}


def test_who_is_not_root_has_workers_of_one_user(options: ServerOptions) -> None:
    """And so has root that wants it."""
    tenants = TenantDirectory(options, is_root=False)
    assert tenants.share_user
    assert tenants.of("account:a").user is tenants.of("uid:7").user is None
    assert TenantDirectory(replace(options, worker_uids=SAME_USER), is_root=True).share_user


def test_without_a_cache_there_are_no_folders(options: ServerOptions, folder: Path) -> None:
    """Each worker is told so."""
    tenants = TenantDirectory(replace(options, cache_dir="none"), is_root=True)
    tenant = tenants.of("account:a")
    assert tenant.folder == "none"
    assert tenant.user is not None
    assert (tenant.user.uid, tenant.user.home) == (FIRST, "/")
    assert not folder.exists()


@as_root
def test_each_account_has_a_user_and_a_folder_of_its_own(
    options: ServerOptions, folder: Path
) -> None:
    """Also after a restart; see test_uid_table.py."""
    users = [TenantDirectory(options).of(f"account:{name}").user for name in "ab"]
    assert [user and (user.uid, user.gid, user.groups) for user in users] == [
        (FIRST + n, FIRST + n, ()) for n in range(2)
    ]
    status = os.stat(TenantDirectory(options).of("account:b").folder)
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (FIRST + 1, 0o700)
    assert stat.S_IMODE(os.stat(folder / "principals" / "users.json").st_mode) == 0o600


@as_root
def test_a_folder_that_was_not_given_away_yet_is(options: ServerOptions) -> None:
    """The host may end at any moment; but what has been used as another user stays as it is."""
    tenants = TenantDirectory(options)
    folders = [Path(tenants.of(f"account:{name}").folder) for name in "ab"]
    for folder in folders:
        os.chown(folder, 0, 0)
    (folders[1] / "v2").mkdir()
    assert [Path(tenants.of(f"account:{n}").folder).stat().st_uid for n in "ab"] == [FIRST, 0]


@as_root
def test_a_user_of_the_machine_stays_who_it_is(options: ServerOptions) -> None:
    """With its groups, as if it had logged in; root is root."""
    tenants = TenantDirectory(options)
    entry = pwd.getpwnam("nobody")
    user = tenants.of(f"uid:{entry.pw_uid}").user
    assert user is not None
    assert (user.uid, user.gid, user.home) == (entry.pw_uid, entry.pw_gid, entry.pw_dir)
    assert list(user.groups) == os.getgrouplist("nobody", entry.pw_gid)
    assert tenants.of("uid:0").user is None
    stranger = tenants.of("uid:62345").user
    assert stranger is not None
    assert (stranger.uid, stranger.gid, stranger.groups) == (62345, 65534, ())


@as_root
def test_folders_that_their_owners_cannot_enter_are_refused(
    options: ServerOptions, runtime: Path
) -> None:
    """At the start, not with the first client."""
    runtime.chmod(0o700)
    with pytest.raises(ConfigurationError, match="chmod o\\+x"):
        TenantDirectory(options)


@as_root
def test_what_an_account_has_left_behind_is_ended(
    options: ServerOptions, caplog: pytest.LogCaptureFixture
) -> None:
    """And nothing of others: neither of other accounts, nor of those who can log in."""
    tenants = TenantDirectory(options)
    mine, other = tenants.of("account:a"), tenants.of("account:b")
    nobody = tenants.of(f"uid:{pwd.getpwnam('nobody').pw_uid}")
    sleeping = {
        tenant.principal: subprocess.Popen(
            ["/bin/sleep", "60"], start_new_session=True, **tenant.process()
        )
        for tenant in (mine, other, nobody)
    }
    try:
        assert tenants.with_processes_or_folders() == {"account:a", "account:b"}
        for tenant in (mine, nobody):
            tenants.end_processes(tenant.principal)
        assert sleeping["account:a"].wait(30) == -9
        assert sleeping["account:b"].poll() is None
        tenants.end_all_processes()
        assert sleeping["account:b"].wait(30) == -9
        assert sleeping[nobody.principal].poll() is None
        tenants.end_processes("account:a")  # which has none by now
        assert "processes_not_ended" not in caplog.text
    finally:
        for process in sleeping.values():
            process.kill()
            process.wait()


@as_root
def test_another_token_finds_nothing_that_the_holder_of_the_old_one_has_kept(
    options: ServerOptions, folder: Path, runtime: Path
) -> None:
    """It may be code; and it is removed with the rights of its user, wherever links lead."""
    secret = runtime / "roots"
    secret.mkdir()
    (secret / "file").touch()
    old = Path(TenantDirectory(options).of("account:a", "old").folder)
    (old / "v2").mkdir()
    (old / "v2" / "program").touch()
    (old / "link").symlink_to(secret)
    for path in (old, *old.rglob("*")):
        os.chown(path, FIRST, FIRST, follow_symlinks=False)
    tenants = TenantDirectory(options)
    assert tenants.of("account:a", "old").folder == str(old)
    other = Path(tenants.of("account:b", "old").folder)
    new = Path(tenants.of("account:a", "new").folder)
    assert new.stat().st_uid == FIRST
    assert list(new.iterdir()) == []
    tenants.remove_old_folders("account:a")
    assert not old.exists()
    assert other.exists()
    assert new.exists()
    assert (secret / "file").exists()
    assert tenants.with_processes_or_folders() == {"account:a", "account:b"}
    tenants.forget("account:a")
    tenants.remove_old_folders("account:a")
    assert not new.exists()
    assert tenants.with_processes_or_folders() == {"account:b"}


@as_root
def test_what_root_keeps_in_a_folder_is_not_removed_for_its_user(
    options: ServerOptions, caplog: pytest.LogCaptureFixture
) -> None:
    """No more goes than the user could remove; the log says what is left."""
    tenants = TenantDirectory(options)
    folder = Path(tenants.of("account:a", "old").folder)
    (folder / "roots").mkdir()
    (folder / "roots" / "file").touch()
    tenants.forget("account:a")
    tenants.remove_old_folders("account:a")
    assert (folder / "roots" / "file").exists()
    assert "folder_not_removed" in caplog.text


def test_workers_of_one_user_keep_their_folder_with_another_token(options: ServerOptions) -> None:
    """They are not kept from each other's anyway."""
    tenants = TenantDirectory(options, is_root=False)
    assert tenants.of("account:a", "old").folder == tenants.of("account:a", "new").folder
