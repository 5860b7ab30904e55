from __future__ import annotations

import grp
import json
import os
import pwd
from pathlib import Path

import pytest

from jaxd_protocol.errors import ConfigurationError, LimitExceeded
from jaxd_server.processes.tenants import uid_table as module
from jaxd_server.processes.tenants.uid_table import UidTable, name_of_user

FIRST = 70000


@pytest.fixture(autouse=True)
def _nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As any of them; other tests may run at the same time."""
    monkeypatch.setattr(module, "living_processes", dict)


@pytest.fixture
def folder(runtime: Path) -> str:
    """Where it is written down."""
    return str(runtime)


def numbers(folder: str | None, last: int = FIRST + 3) -> UidTable:
    """Three, and one for the server."""
    return UidTable(folder, (FIRST, last))


def test_each_account_has_its_own_and_the_server_has_one(folder: str) -> None:
    """The same ones after a restart."""
    here = numbers(folder)
    assert [here.of(f"account:{name}") for name in "abc"] == [FIRST, FIRST + 1, FIRST + 2]
    with pytest.raises(LimitExceeded, match="--worker-uids"):
        here.of("account:d")
    again = numbers(folder)
    assert (again.of("account:b"), again.ender) == (FIRST + 1, FIRST + 3)
    assert again.known() == here.known()
    assert here.ender not in here.known().values()


def test_the_number_of_the_server_is_none_that_an_account_has(folder: str) -> None:
    """Also where a table was written when the server had none, or another range."""
    Path(folder, "users.json").write_text(json.dumps({"account:a": FIRST + 3}))
    assert numbers(folder).ender == FIRST + 2
    assert numbers(folder).of("account:a") == FIRST + 3
    assert UidTable(folder, (FIRST + 10, FIRST + 11)).ender == FIRST + 11
    Path(folder, "users.json").write_text(json.dumps({"account:a": FIRST}))
    with pytest.raises(ConfigurationError, match="one of --worker-uids for itself"):
        numbers(folder, last=FIRST)
    with pytest.raises(ConfigurationError, match=f"has uid {FIRST}, which is not among"):
        UidTable(folder, (FIRST + 1, FIRST + 3)).of("account:a")
    Path(folder, "users.json").write_text("[]")  # it is not guessed: two would be one user
    with pytest.raises(ConfigurationError, match="table of uids and accounts"):
        numbers(folder)


def test_a_number_that_could_not_be_written_down_is_not_given(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next server gives it to somebody else, who finds what the first one left."""
    here = numbers(folder)
    with monkeypatch.context() as full:
        full.setattr(os, "replace", _no_room)
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="Free some room"):
                here.of("account:a")
    assert here.known() == {}
    assert here.of("account:b") == numbers(folder).of("account:b") == FIRST


def _no_room(*_: str) -> None:
    raise OSError(28, "No space left on device")


def test_what_is_written_down_is_on_the_disk_before_it_counts(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that is empty after a power cut would be no table."""
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def fsynced(descriptor: int) -> None:
        done.append("fsync")
        fsync(descriptor)

    def replaced(old: str, new: str) -> None:
        done.append("replace")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", fsynced)
    monkeypatch.setattr(os, "replace", replaced)
    numbers(folder)
    assert done == ["fsync", "replace"]


def test_a_number_that_is_somebodys_is_not_given(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither that of a user, nor of a group, nor one as which something runs."""
    monkeypatch.setattr(pwd, "getpwuid", _known(FIRST, pwd.getpwuid(0)))
    monkeypatch.setattr(grp, "getgrgid", _known(FIRST + 1, grp.getgrgid(0)))
    monkeypatch.setattr(module, "living_processes", lambda: {FIRST + 2: {7}})
    assert numbers(folder, last=FIRST + 4).of("account:a") == FIRST + 3


def test_a_number_that_is_a_users_by_now_is_not_used(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker would run as that user, and whoever holds the token could be it."""
    here = numbers(folder)
    here.of("account:a")
    ender = here.ender
    root = pwd.getpwuid(0)
    monkeypatch.setattr(pwd, "getpwuid", _known(FIRST, root))
    with pytest.raises(ConfigurationError, match=r"now belongs to user root as well.*users\.json"):
        here.of("account:a")
    assert name_of_user(FIRST) == "root"
    monkeypatch.setattr(pwd, "getpwuid", _known(ender, root))
    assert numbers(folder).ender == FIRST + 2


def _known(number: int, entry: object) -> object:
    def of(asked: int) -> object:
        if asked != number:
            raise KeyError(asked)
        return entry

    return of
