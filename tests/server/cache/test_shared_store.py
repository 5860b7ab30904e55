from __future__ import annotations

import hashlib
import logging
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.network.tokens import read_store_key
from jaxd_protocol.pytree import dump_literal
from jaxd_server.cache import shared_store
from jaxd_server.cache.directory import Directory, Kind
from jaxd_server.cache.record_file import FORMAT, Header, Record
from jaxd_server.cache.shared_store import SharedStore, Waiting
from jaxd_server.cache.store_files import FolderFiles
from jaxd_server.cache.writer import Troubles

KEY = "a-key-of-tests-0123456789-abcdefghij"
TARGET = "0123456789abcdef"
NAME = b"n" * 16
RECORD = Record((("name", "f"),), b"program")

Open = Callable[..., SharedStore]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the store."""
    folder = tmp_path / "store"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def open_(folder: Path) -> Open:
    """Opens the store as one more machine does."""

    def open_one(key: str = KEY, *, read_only: bool = False, target: str = TARGET) -> SharedStore:
        files = FolderFiles(Directory(str(folder), target), {"cpu": "any"})
        return SharedStore(files, key, Troubles(), read_only=read_only)

    return open_one


def file_of(folder: Path, kind: str = "programs") -> Path:
    """Where the record is."""
    return folder / "v2" / TARGET / kind / NAME.hex()


# records -----------------------------------------------------------------------------------------


def test_a_record_is_found_by_another_machine(open_: Open) -> None:
    """Whole, or without its payload."""
    open_().write("programs", NAME, RECORD)
    assert open_().read("programs", NAME) == RECORD
    assert open_().read("programs", NAME, payload=False) == Record(RECORD.content, b"")
    assert open_(target=TARGET[::-1]).read("programs", NAME) is None


def test_what_is_not_signed_with_the_key_is_not_there(
    open_: Open, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is warned of once, and replaced by who makes it anew."""
    open_(KEY[::-1]).write("programs", NAME, RECORD)
    with caplog.at_level(logging.WARNING, logger="jaxd"):
        store = open_()
        assert store.read("programs", NAME) is None
        assert store.read("programs", NAME) is None
        assert store.lacks("programs", NAME)
    assert [each.getMessage() for each in caplog.records] == ["store_entry_refused"]
    store.write("programs", NAME, RECORD)
    assert not store.lacks("programs", NAME)
    assert open_().read("programs", NAME) == RECORD
    file_of(folder).unlink()
    assert store.lacks("programs", NAME)


@pytest.mark.parametrize(
    "field",
    [{"signature": 7}, {"signature": "\u20ac"}, {"stored": "7"}, {"kind": b"calls"}],
    ids=str,
)
def test_what_was_made_up_is_not_there(open_: Open, folder: Path, field: dict[str, Any]) -> None:
    """Whatever its header holds, before anybody could look at the signature."""
    path = file_of(folder)
    path.parent.mkdir(parents=True)
    header = Header("programs", NAME, TARGET, (), "none", 0, 0, b"", b"")._replace(**field)
    data = dump_literal(tuple(header))
    prefix = struct.pack("!8sIQ", b"\x89jaxd\r\n\x1a", FORMAT, len(data))
    path.write_bytes(prefix + hashlib.blake2b(prefix + data, digest_size=16).digest() + data)
    assert open_().read("programs", NAME) is None


def test_a_sound_one_in_the_place_of_another_is_found(open_: Open) -> None:
    """Some other server has made it anew."""
    open_(KEY[::-1]).write("programs", NAME, RECORD)
    store = open_()
    assert store.read("programs", NAME) is None
    open_().write("programs", NAME, RECORD)
    assert store.read("programs", NAME) == RECORD


def test_a_signature_is_of_one_name_and_kind(open_: Open, folder: Path) -> None:
    """A record under another name, or among others, is none."""
    open_().write("programs", NAME, RECORD)
    other = b"o" * 16
    os.link(file_of(folder), file_of(folder).with_name(other.hex()))
    assert open_().read("programs", other) is None


@pytest.mark.parametrize("kind", ["code", "functions", "xla"])
def test_code_of_functions_is_not_shared(open_: Open, folder: Path, kind: Kind) -> None:
    """It is neither written nor read."""
    open_().write(kind, NAME, RECORD)
    assert list(folder.iterdir()) == []
    assert not open_().lacks(kind, NAME)


def test_a_link_or_a_pipe_in_its_place_is_no_record(open_: Open, folder: Path) -> None:
    """It is not followed, and nobody waits for it."""
    open_().write("programs", NAME, RECORD)
    path = file_of(folder)
    moved = path.rename(folder / "moved")
    path.symlink_to(moved)
    assert open_().read("programs", NAME) is None
    path.unlink()
    os.mkfifo(path)
    assert open_().read("programs", NAME) is None


def test_a_folder_that_is_a_link_is_not_written_to(
    open_: Open, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Others may be able to put one there."""
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "programs").mkdir(parents=True)
    (folder / "v2").mkdir()
    (folder / "v2" / TARGET).symlink_to(elsewhere)
    open_().write("programs", NAME, RECORD)
    assert [each.getMessage() for each in caplog.records] == ["store_not_written"]
    assert list((elsewhere / "programs").iterdir()) == []


@pytest.mark.parametrize(("mode", "of_files"), [(0o700, 0o600), (0o2775, 0o664)])
def test_it_is_open_to_whom_its_folder_is(
    open_: Open, folder: Path, mode: int, of_files: int
) -> None:
    """Whatever the umask is."""
    folder.chmod(mode)
    open_().write("programs", NAME, RECORD)
    path = file_of(folder)
    assert path.stat().st_mode & 0o7777 == of_files
    assert path.parent.stat().st_mode & 0o7777 == mode


def test_a_reader_writes_nothing(open_: Open, folder: Path) -> None:
    """Neither records nor leases."""
    reader = open_(read_only=True)
    reader.write("programs", NAME, RECORD)
    assert not reader.lacks("programs", NAME)
    with reader.lease(NAME, lambda: False, print) as lease:
        assert lease is None
    assert list(folder.iterdir()) == []


# the key -----------------------------------------------------------------------------------------


def test_processes_that_start_together_have_one_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them makes the file, and nobody reads half of it."""
    monkeypatch.delenv("JAXD_STORE_KEY", raising=False)
    monkeypatch.delenv("JAXD_STORE_KEY_FILE", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    code = "from jaxd_protocol.network.tokens import read_store_key as k; print(k())"
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(4)
    ]
    keys = {each.communicate()[0] for each in started}
    assert keys == {(read_store_key() + "\n").encode()}
    assert [path.name for path in (tmp_path / "jaxd").iterdir()] == ["store.key"]
    monkeypatch.setenv("JAXD_STORE_KEY", KEY)
    assert read_store_key() == KEY


@pytest.mark.parametrize(
    ("variable", "value"), [("JAXD_STORE_KEY", ""), ("JAXD_STORE_KEY_FILE", "/nowhere/key")]
)
def test_a_key_that_was_to_be_given_is_not_made(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    """A job that was not given the secret must not sign with another one."""
    monkeypatch.delenv("JAXD_STORE_KEY", raising=False)
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigurationError):
        read_store_key()


# leases ------------------------------------------------------------------------------------------


def test_one_at_a_time_holds_a_lease(open_: Open, folder: Path) -> None:
    """However many want it."""
    held: list[int] = []
    holding = threading.Lock()

    def build(number: int) -> None:
        with open_().lease(NAME, lambda: False, lambda _: None) as lease:
            if lease is not None:
                assert holding.acquire(blocking=False)
                held.append(number)
                holding.release()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(build, range(8)))
    assert held
    assert list((folder / "v2" / TARGET / "leases").iterdir()) == []


def test_what_is_there_needs_no_lease(open_: Open) -> None:
    """Nor is one waited for."""
    with open_().lease(NAME, lambda: False, print) as lease:
        assert lease is not None
        with open_().lease(NAME, lambda: True, print) as other:
            assert other is None


def test_after_a_holder_without_success_all_build_at_the_same_time(open_: Open) -> None:
    """What it could not make, or not keep, is no better when each waits for the one before."""
    all_inside = threading.Barrier(3)
    waiting = threading.Semaphore(0)

    def build() -> bool:
        with open_().lease(NAME, lambda: False, lambda _: waiting.release()) as lease:
            all_inside.wait(30)
            return lease is None

    with ThreadPoolExecutor(3) as threads:
        with open_().lease(NAME, lambda: False, print):
            builds = [threads.submit(build) for _ in range(3)]
            for _ in range(9):  # each looks at least once
                waiting.acquire()
        assert [each.result() for each in builds] == [True] * 3


@pytest.mark.parametrize("what", ["pipe", "link", "large number"])
def test_what_others_put_in_the_place_of_a_lease(
    open_: Open, folder: Path, what: str, tmp_path: Path
) -> None:
    """It is neither waited for nor followed, and nothing else is removed."""
    leases = folder / "v2" / TARGET / "leases"
    leases.mkdir(parents=True)
    secret = tmp_path / "secret"
    secret.write_text("secret")
    if what == "pipe":
        os.mkfifo(leases / f"{NAME.hex()}.0")
        os.utime(leases / f"{NAME.hex()}.0", (0, 0))
    elif what == "link":
        (leases / f"{NAME.hex()}.0").symlink_to(secret)
    else:
        (leases / f"{NAME.hex()}.123456789012345").write_text("")
    waited: list[Waiting] = []
    with open_().lease(NAME, lambda: False, waited.append) as lease:
        assert lease is not None
    assert waited == []
    assert secret.read_text() == "secret"


HOLD = """
import sys
from tests.server.cache.test_shared_store import *
store = SharedStore(FolderFiles(Directory(sys.argv[1], TARGET), {}), KEY, Troubles())
with store.lease(NAME, lambda: False, print) as lease:
    print(lease is not None, flush=True)
    sys.stdin.read()
"""


def test_the_lease_of_a_killed_process_is_taken_over(
    open_: Open, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it was not touched for long enough; until then, who waits knows for whom."""
    monkeypatch.setattr(shared_store, "LEASE_S", 0.2)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).resolve().parents[3],
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"True\n"
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdin.close()
    holder.stdout.close()
    waited: list[Waiting] = []
    with open_().lease(NAME, lambda: False, waited.append) as lease:
        assert lease is not None
    assert {each.host for each in waited} == {os.uname().nodename}
    assert list((folder / "v2" / TARGET / "leases").iterdir()) == []


@pytest.mark.slow
def test_a_lease_that_is_touched_is_waited_for(
    open_: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For as long as its holder lives; who waits may give up."""
    monkeypatch.setattr(shared_store, "LEASE_S", 0.3)
    monkeypatch.setattr(shared_store, "_BEAT_S", 0.02)
    began = time.monotonic()

    def give_up(_: Waiting) -> None:
        if time.monotonic() - began > 1.0:
            raise KeyboardInterrupt

    with open_().lease(NAME, lambda: False, print) as held:
        assert held is not None
        with (
            pytest.raises(KeyboardInterrupt),
            open_().lease(NAME, lambda: False, give_up),
        ):
            raise AssertionError
    with open_().lease(NAME, lambda: False, give_up) as lease:
        assert lease is not None


def test_a_lease_of_long_ago_is_over_at_once(open_: Open, folder: Path) -> None:
    """Its job has ended with its machine."""
    leases = folder / "v2" / TARGET / "leases"
    leases.mkdir(parents=True)
    old = leases / f"{NAME.hex()}.0"
    old.write_text("gone")
    os.utime(old, (time.time() - 7200,) * 2)
    waited: list[Waiting] = []
    with open_().lease(NAME, lambda: False, waited.append) as lease:
        assert lease is not None
    assert waited == []


def test_what_fails_gives_its_lease_back(open_: Open) -> None:
    """The next one may try."""
    with pytest.raises(ZeroDivisionError), open_().lease(NAME, lambda: False, print):
        raise ZeroDivisionError
    with open_().lease(NAME, lambda: False, print) as lease:
        assert lease is not None
