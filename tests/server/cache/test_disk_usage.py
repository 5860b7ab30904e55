from __future__ import annotations

import os
from pathlib import Path

import pytest

from jaxd_server.cache import disk_usage as module
from jaxd_server.cache.disk_usage import (
    DiskUsage,
    FolderUsage,
    Usage,
    entries,
    foreign_targets,
    room,
    targets,
    usage,
)
from jaxd_server.cache.store import Store
from tests.server.cache.keeping import OTHER, TARGET, OpenStore, file_of, keep_call, unused_for
from tests.server.in_process import program_cache_in


def test_every_record_is_found(store: Store, root: Path) -> None:
    """With its kind, its room and its last use; of what is not finished nothing is seen."""
    keep_call(store, b"\x01", program=b"\x02")
    file_of(root, "calls", b"\x01").with_name(".1-ab.tmp").write_text("half")
    unused_for(500, file_of(root, "calls", b"\x01"))
    found = {entry.kind: entry for entry in entries(str(root))}
    assert set(found) == {"calls", "programs"}
    entry = found["calls"]
    assert entry.path == str(file_of(root, "calls", b"\x01"))
    assert entry.target == str(root / "v2" / TARGET)
    assert entry.bytes == 4096
    assert entry.used == file_of(root, "calls", b"\x01").stat().st_mtime


def test_one_target_can_be_looked_at(store: Store, open_: OpenStore, root: Path) -> None:
    """Or all of them."""
    keep_call(store, b"\x01")
    keep_call(open_(OTHER), b"\x01")
    assert targets(str(root)) == [TARGET, OTHER]
    assert usage(str(root), OTHER).files == {"calls": 1, "programs": 1}
    assert usage(str(root)).files == {"calls": 2, "programs": 2}


def test_a_folder_that_is_not_there_is_empty(root: Path) -> None:
    """No error: nothing is kept; a file takes whole blocks."""
    assert usage(str(root)) == Usage(0, {})
    assert targets(str(root)) == []
    assert [room(size) for size in (0, 1, 4096, 4097)] == [0, 4096, 4096, 8192]
    assert DiskUsage(None).now() == DiskUsage("/nowhere/at/all").now() == FolderUsage()


def test_only_what_says_so_is_a_target_of_another_version(root: Path) -> None:
    """A folder `v9` of the user's own is none of ours."""
    for name in ("v9/0123456789abcdef", "v9/notes", "v3/0123456789abcdef"):
        (root / name).mkdir(parents=True)
    (root / "v9/0123456789abcdef/target.json").write_text("{}")
    (root / "v9/notes/target.json").write_text("{}")
    assert foreign_targets(str(root)) == [f"{root}/v9/0123456789abcdef"]


OLD_S = 1_000_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A target's, with one record of each of two kinds, long ago."""
    for kind in ("calls", "programs"):
        (tmp_path / kind).mkdir()
        put(tmp_path / kind, "ab")
    return tmp_path


def put(kind: Path, name: str, size: int = 10) -> None:
    """Writes a file, and pretends that this was long ago: a second for each file that is there."""
    (kind / name).write_bytes(bytes(size))
    at = OLD_S + len(list(kind.iterdir()))
    os.utime(kind, (at, at))


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that were looked at, by kind."""
    seen: list[str] = []
    scanned = module._scanned

    def spied(folder: str, changed_ns: int) -> module._CachedScan:
        seen.append(os.path.basename(folder))
        return scanned(folder, changed_ns)._replace(took_s=0.0)

    monkeypatch.setattr(module, "_scanned", spied)
    return seen


def test_records_are_counted(folder: Path, runtime: Path) -> None:
    """In whole blocks of the disk; what is not finished does not count."""
    put(folder / "programs", "cd", 5000)
    put(folder / "programs", ".12-ab.tmp")
    assert DiskUsage(str(folder)).now() == FolderUsage(4 * 4096, 3)
    program_cache = program_cache_in(str(runtime / "cache"))
    program_cache.store.write("code", b"f" * 16, (), b"code")
    program_cache.flush()
    assert DiskUsage(program_cache.store.folder).now() == FolderUsage(4096, 1)
    program_cache.close()


def test_only_what_has_changed_is_looked_at_again(folder: Path, scans: list[str]) -> None:
    """However often somebody asks."""
    usage = DiskUsage(str(folder))
    first = usage.now()
    assert (usage.now(), sorted(scans)) == (first, ["calls", "programs"])
    del scans[:]
    put(folder / "calls", "cd")
    assert (usage.now(), scans) == (FolderUsage(3 * 4096, 3), ["calls"])


def test_a_folder_that_has_just_changed_is_looked_at_again(folder: Path, scans: list[str]) -> None:
    """The next change may be in the same tick of its clock."""
    usage = DiskUsage(str(folder))
    os.utime(folder / "calls")
    usage.now()
    usage.now()
    assert scans.count("calls") == 2


def test_no_more_than_a_share_of_the_time_goes_into_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large folder into which much is written is not looked at all the time."""
    scanned = module._scanned
    monkeypatch.setattr(module, "_scanned", lambda *args: scanned(*args)._replace(took_s=100.0))
    usage = DiskUsage(str(folder))
    first = usage.now()
    put(folder / "calls", "cd")
    assert usage.now() == first
