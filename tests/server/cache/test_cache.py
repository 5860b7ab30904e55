from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxd_server.cache import record_file
from jaxd_server.cache import store as module
from jaxd_server.cache.directory import KINDS
from jaxd_server.cache.record_file import Record
from jaxd_server.cache.store import Store, open_store
from jaxd_server.cache.sweep import sweep
from tests.server.cache.keeping import (
    OTHER,
    TARGET,
    OpenStore,
    file_of,
    keep_call,
    open_here,
    unused_for,
    usage_of,
)
from tests.server.staging import until


def test_what_was_written_is_there_after_a_restart(open_: OpenStore) -> None:
    """Closing puts everything on disk; the content and the payload come back as they were."""
    first = open_()
    for kind in KINDS:
        first.write(kind, b"\x01", (kind, 1.5), b"payload of " + kind.encode())
    assert first.close()
    second = open_()
    for kind in KINDS:
        assert second.read(kind, b"\x01") == Record((kind, 1.5), b"payload of " + kind.encode())
        assert second.has(kind, b"\x01")
        assert second.names(kind) == [b"\x01"]


def test_what_waits_is_found_at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody compiles anew because the disk is slow."""
    go = threading.Event()
    write_file = record_file.write_file

    def slow(path: str, pieces: tuple[bytes, ...]) -> None:
        assert go.wait(20)
        write_file(path, pieces)

    monkeypatch.setattr(module, "write_file", slow)
    store.write("programs", b"slow", 0, b"slow")
    store.write("calls", b"\x01", 1)
    assert store.read("calls", b"\x01") == Record(1, b"")
    assert store.has("calls", b"\x01")
    assert store.names("calls") == [b"\x01"]
    assert not store.flush(0)
    go.set()
    assert store.flush(20)
    assert store.read("programs", b"slow") == Record(0, b"slow")


def test_what_is_not_there_is_none(store: Store, warned: Callable[[], list[str]]) -> None:
    """Without a warning."""
    assert store.read("calls", b"\x01") is None
    assert not store.has("calls", b"\x01")
    assert store.names("calls") == []
    store.remove("calls", b"\x01")
    assert warned() == []


def test_records_are_read_replaced_and_removed(store: Store) -> None:
    """Those that wait and those on disk; a header comes without its payload."""
    store.write("programs", b"\x01", ("inputs", 2), b"x" * 1000)
    assert store.read("programs", b"\x01", payload=False) == Record(("inputs", 2), b"")
    assert store.flush(20)
    assert store.read("programs", b"\x01", payload=False) == Record(("inputs", 2), b"")
    store.write("calls", b"\x01", 1)
    assert store.flush(20)
    store.write("calls", b"\x01", 2)
    assert store.read("calls", b"\x01") == Record(2, b"")
    assert store.flush(20)
    assert store.read("calls", b"\x01") == Record(2, b"")
    store.write("calls", b"\x01", 1)
    assert store.flush(20)
    store.write("calls", b"\x02", 1)
    for name in (b"\x01", b"\x02"):
        store.remove("calls", name)
        assert store.read("calls", name) is None
    assert store.flush(20)
    assert store.names("calls") == []


def test_a_record_that_is_removed_while_it_is_written_is_gone_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the moment when its file is there already."""
    is_there, goes_on = threading.Event(), threading.Event()
    write_file = record_file.write_file

    def slow(path: str, pieces: tuple[bytes, ...]) -> None:
        write_file(path, pieces)
        is_there.set()
        assert goes_on.wait(20)

    store.write("calls", b"first", 0)
    assert store.flush(20)
    monkeypatch.setattr(module, "write_file", slow)
    store.write("calls", b"\x01", 1)
    assert is_there.wait(20)
    store._writer.drop("calls", b"\x01")  # `remove` less the removal of the file
    assert os.listdir(f"{store.folder}/calls").count("01") == 1
    assert store.read("calls", b"\x01") is None
    assert not store.has("calls", b"\x01")
    goes_on.set()
    assert store.flush(20)
    assert store.names("calls") == [b"first"]


@pytest.mark.parametrize("name", [b"", b"jit_" + b"f" * 300])
def test_names_may_be_of_any_length(store: Store, name: bytes) -> None:
    """jax's own keys hold the name of a function."""
    store.write("xla", name, (), b"x")
    assert store.flush(20)
    assert store.has("xla", name)
    assert store.read("xla", name) == Record((), b"x")


def test_a_folder_is_shared_by_those_of_one_target(store: Store, open_: OpenStore) -> None:
    """Two servers share what they compile; for other devices or another version it is not there."""
    store.write("programs", b"\x01", (), b"x")
    assert store.flush(20)
    assert open_(OTHER).read("programs", b"\x01") is None
    first, second = open_(), open_()
    first.write("calls", b"\x01", 1)
    assert first.flush(20)
    assert second.read("calls", b"\x01") == Record(1, b"")


def test_the_target_is_described_for_people(store: Store, root: Path) -> None:
    """In a file of its own, in the folder that carries its digest; again when that was removed."""
    assert store.folder == f"{root}/v2/{TARGET}"
    for _ in range(2):
        assert json.loads(Path(store.folder, "target.json").read_text()) == {"jax": "1.2.3"}
        shutil.rmtree(root)
        store.write("calls", b"\x01", 1)
        assert store.flush(20)


def test_without_a_folder_that_can_be_used_there_is_no_store(
    root: Path, caplog: pytest.LogCaptureFixture, warned: Callable[[], list[str]]
) -> None:
    """Switched off, nothing is made; one warning says which folder is not trusted, and why."""
    assert open_store(TARGET, {}, "none") is None
    assert (root.exists(), warned()) == (False, [])
    root.mkdir()
    root.chmod(0o777)
    assert open_store(TARGET, {}, str(root)) is None
    assert warned() == ["cache_refused"]
    assert f"run: chmod go-w {root}" in caplog.records[-1].__dict__["fields"]["reason"]


def age_s(file: Path) -> float:
    """Seconds since a record was used."""
    return time.time() - file.stat().st_mtime


def test_what_is_used_stays_young(store: Store, root: Path) -> None:
    """What is loaded or noted; not what is only looked at, and what is not there is not made."""
    loaded, listed, noted = (file_of(root, "programs", name) for name in (b"1", b"2", b"3"))
    for name in (b"1", b"2", b"3"):
        store.write("programs", name, (), b"x")
    assert store.flush(20)
    unused_for(5000, loaded, listed, noted)
    store.read("programs", b"1")
    store.read("programs", b"2", payload=False)
    store.touch("programs", b"3")
    store.touch("programs", b"4")
    assert store.flush(20)
    assert max(age_s(loaded), age_s(noted)) < 1000 < age_s(listed)
    assert not store.has("programs", b"4")
    unused_for(5000, noted)
    store.touch("programs", b"3")
    store.write("calls", b"\x02", 1)
    until(lambda: age_s(noted) < 1000)  # by itself: who is killed has let nothing grow old


def test_the_limit_is_kept_while_writing(open_: OpenStore, root: Path) -> None:
    """Nobody has to ask for it; what was used last stays."""
    store = open_(disk_bytes=100_000)
    for i in range(30):
        keep_call(store, b"%d" % i)
        unused_for(1000 - i, file_of(root, "calls", b"%d" % i))
    assert store.flush(20)
    assert usage_of(store).bytes <= 100_000
    assert store.has("calls", b"29")
    assert not store.has("calls", b"0")


def test_the_share_of_one_is_kept_while_writing(open_: OpenStore, root: Path) -> None:
    """It pushes out its own, and nobody else's."""
    store = open_(of_one=100_000)
    keep_call(store, b"bobs", principal="bob")
    unused_for(5000, file_of(root, "calls", b"bobs"))
    for i in range(30):
        keep_call(store, b"%d" % i, principal="ann")
        unused_for(1000 - i, file_of(root, "calls", b"%d" % i))
    assert store.flush(20)
    assert usage_of(store).bytes < 100_000 * 5 // 4 + 20_000
    assert store.has("calls", b"bobs")
    assert store.has("calls", b"29")
    assert not store.has("calls", b"0")
    sweep(str(root), TARGET, 1 << 30, principal_limit=100_000)
    assert usage_of(store).bytes < 100_000 + 20_000


def test_a_smaller_limit_holds_after_a_restart(open_: OpenStore) -> None:
    """What an earlier server has left counts."""
    first = open_()
    for i in range(10):
        keep_call(first, b"%d" % i)
    assert first.close()
    second = open_(disk_bytes=50_000)
    second.write("calls", b"x", 0)
    assert second.flush(20)
    assert usage_of(second).bytes <= 50_000


def test_nothing_is_written_after_the_end(root: Path) -> None:
    """What is there can still be read."""
    store = open_here(root)
    store.write("calls", b"\x01", 1)
    assert store.close()
    store.write("calls", b"\x02", 1)
    assert store.close()
    assert os.listdir(f"{store.folder}/calls") == ["01"]
    assert store.read("calls", b"\x01") == Record(1, b"")
