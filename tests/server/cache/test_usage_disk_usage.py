"""What is said of the disk, and how rarely it is looked at."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jaxd_server.cache import usage as module
from jaxd_server.cache.usage import DiskUsage, FolderUsage
from tests.server.in_process import program_cache_in

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


def test_records_are_counted(folder: Path) -> None:
    """In whole blocks of the disk; what is not finished does not count."""
    put(folder / "programs", "cd", 5000)
    put(folder / "programs", ".12-ab.tmp")
    assert DiskUsage(str(folder)).now() == FolderUsage(4 * 4096, 3)


def test_where_nothing_is_kept_there_is_nothing() -> None:
    """And a folder that is gone has nothing either."""
    assert DiskUsage(None).now() == DiskUsage("/nowhere/at/all").now() == FolderUsage()


def test_it_is_that_of_a_store(runtime: Path) -> None:
    """The kinds and names are the store's."""
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
