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
from jaxd_server.cache.sweep import SweepResult, sweep
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


def test_the_header_comes_without_the_payload(store: Store) -> None:
    """What a program is costs no reading of all its bytes."""
    store.write("programs", b"\x01", ("inputs", 2), b"x" * 1000)
    assert store.read("programs", b"\x01", payload=False) == Record(("inputs", 2), b"")
    assert store.flush(20)
    assert store.read("programs", b"\x01", payload=False) == Record(("inputs", 2), b"")


def test_a_later_record_takes_the_place_of_an_earlier_one(store: Store) -> None:
    """In memory and on disk."""
    store.write("calls", b"\x01", 1)
    assert store.flush(20)
    store.write("calls", b"\x01", 2)
    assert store.read("calls", b"\x01") == Record(2, b"")
    assert store.flush(20)
    assert store.read("calls", b"\x01") == Record(2, b"")


def test_a_removed_record_is_gone(store: Store) -> None:
    """Whether it was on disk or still waited."""
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


def test_another_target_finds_nothing(store: Store, open_: OpenStore) -> None:
    """A program for other devices or another version is not there at all."""
    store.write("programs", b"\x01", (), b"x")
    assert store.flush(20)
    assert open_(OTHER).read("programs", b"\x01") is None


def test_two_stores_on_one_folder_find_what_the_other_wrote(open_: OpenStore) -> None:
    """Two servers share what they compile."""
    first, second = open_(), open_()
    first.write("calls", b"\x01", 1)
    assert first.flush(20)
    assert second.read("calls", b"\x01") == Record(1, b"")


def test_the_target_is_described_for_people(store: Store, root: Path) -> None:
    """In a file of its own, in the folder that carries its digest."""
    assert store.folder == f"{root}/v2/{TARGET}"
    assert json.loads(Path(store.folder, "target.json").read_text()) == {"jax": "1.2.3"}


def test_the_cache_can_be_switched_off(root: Path, warned: Callable[[], list[str]]) -> None:
    """Nothing is made, and nobody is warned."""
    assert open_store(TARGET, {}, "none") is None
    assert (root.exists(), warned()) == (False, [])


def test_a_folder_that_cannot_be_trusted_means_no_store(
    root: Path, caplog: pytest.LogCaptureFixture, warned: Callable[[], list[str]]
) -> None:
    """The server works on without; one warning says which folder, and what to do."""
    root.mkdir()
    root.chmod(0o777)
    assert open_store(TARGET, {}, str(root)) is None
    assert warned() == ["cache_refused"]
    reason = caplog.records[-1].__dict__["fields"]["reason"]
    assert f"run: chmod go-w {root}" in reason


def age_s(file: Path) -> float:
    """Seconds since a record was used."""
    return time.time() - file.stat().st_mtime


def test_reading_a_payload_is_a_use_and_listing_is_not(store: Store, root: Path) -> None:
    """What is loaded stays; what is only looked at grows old."""
    for name in (b"\x01", b"\x02"):
        store.write("programs", name, (), b"x")
    assert store.flush(20)
    loaded, listed = (file_of(root, "programs", name) for name in (b"\x01", b"\x02"))
    unused_for(5000, loaded, listed)
    store.read("programs", b"\x01")
    store.read("programs", b"\x02", payload=False)
    assert store.flush(20)
    assert age_s(loaded) < 1000 < age_s(listed)


def test_a_use_can_be_noted(store: Store, root: Path) -> None:
    """By who holds the program in memory; what is not there is not made by it."""
    store.write("calls", b"\x01", 1)
    assert store.flush(20)
    unused_for(5000, file_of(root, "calls", b"\x01"))
    store.touch("calls", b"\x01")
    store.touch("calls", b"\x02")
    assert store.flush(20)
    assert age_s(file_of(root, "calls", b"\x01")) < 1000
    assert not store.has("calls", b"\x02")


def test_uses_reach_the_disk_by_themselves(store: Store, root: Path) -> None:
    """A server that only answers from memory and is killed has not let its programs grow old."""
    store.write("calls", b"\x01", 1)
    assert store.flush(20)
    unused_for(5000, file_of(root, "calls", b"\x01"))
    store.touch("calls", b"\x01")
    store.write("calls", b"\x02", 1)
    assert store._writer.flush(20)
    assert age_s(file_of(root, "calls", b"\x01")) < 1000


def test_usage_counts_what_is_on_disk(store: Store, open_: OpenStore) -> None:
    """Room and files, by kind, of this target."""
    keep_call(store, b"\x01", size=10_000)
    keep_call(store, b"\x02", size=10_000)
    keep_call(open_(OTHER), b"\x03", size=10_000)
    used = usage_of(store)
    assert used.files == {"calls": 2, "programs": 2}
    assert 20_000 < used.bytes < 40_000


def swept(store: Store, limit: int, of_one: int = 0) -> SweepResult:
    """What a sweep removes from the folder of a store."""
    assert store.flush(20)
    root = Path(store.folder).parent.parent
    return sweep(str(root), TARGET, limit, principal_limit=of_one)


def test_a_sweep_keeps_to_the_limit(store: Store) -> None:
    """What was removed is said, and gone."""
    for i in range(10):
        keep_call(store, b"%d" % i)
    result = swept(store, 50_000)
    assert result.left == usage_of(store).bytes <= 50_000
    assert result.files == 20 - sum(usage_of(store).files.values())
    assert swept(store, 50_000).files == 0


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
    swept(store, 1 << 30, of_one=100_000)
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


def test_the_target_is_described_again_when_the_folder_was_removed(
    store: Store, root: Path
) -> None:
    """As people do who want an empty cache."""
    shutil.rmtree(root)
    store.write("calls", b"\x01", 1)
    assert store.flush(20)
    assert json.loads(Path(store.folder, "target.json").read_text()) == {"jax": "1.2.3"}
