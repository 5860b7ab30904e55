from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jaxd_server.cache import writer as module
from jaxd_server.cache.directory import Kind
from jaxd_server.cache.record_file import Record
from jaxd_server.cache.writer import Troubles, Writer


class Disk:
    """Stands for the disk: notes what is written, and can be made to wait or to fail."""

    def __init__(self) -> None:
        self.written: list[tuple[bytes, Any, bytes]] = []
        self.discarded: list[bytes] = []
        self.fails: Exception | None = None
        self.started = threading.Event()
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.writer = Writer(self._write, self._discard, lambda: None, Troubles())

    def _write(self, _: Kind, name: bytes, record: Record) -> None:
        self.started.set()
        assert self.goes_on.wait(20)
        if self.fails:
            raise self.fails
        self.written.append((name, *record))

    def _discard(self, _: Kind, name: bytes) -> None:
        self.discarded.append(name)

    def stuck(self) -> None:
        """Returns when the thread hangs in a write, of the record `first`."""
        self.goes_on.clear()
        self.writer.put("calls", b"first", Record(0, b""))
        assert self.started.wait(20)


@pytest.fixture
def disk() -> Iterator[Disk]:
    """A writer on a disk that can be made to wait."""
    disk = Disk()
    yield disk
    disk.goes_on.set()
    assert disk.writer.close(20)


def test_records_are_written_in_their_order(disk: Disk) -> None:
    """The program before the call that names it."""
    for i in range(20):
        disk.writer.put("calls", b"%d" % i, Record(i, b"p"))
    assert disk.writer.flush(20)
    assert disk.written == [(b"%d" % i, i, b"p") for i in range(20)]


@pytest.mark.parametrize(
    ("steps", "written", "discarded"),
    [
        ([(b"second", content) for content in range(5)], [0, 4], []),
        ([(b"first", 1)], [0, 1], []),
        ([(b"second", 2), (b"first", None), (b"second", None)], [0], [b"first"]),
        ([(b"first", None), (b"first", 1)], [0, 1], [b"first"]),
    ],
    ids=["the last of several", "put", "dropped", "dropped and put again"],
)
def test_what_comes_while_a_record_is_written(
    disk: Disk, steps: list[tuple[bytes, int | None]], written: list[int], discarded: list[bytes]
) -> None:
    """What nobody will read is not written, what is dropped does not come back, no news is lost."""
    disk.stuck()
    for name, content in steps:
        if content is None:
            disk.writer.drop("calls", name)
        else:
            disk.writer.put("calls", name, Record(content, b""))
    assert disk.writer.hides("calls", b"first") == bool(discarded)
    disk.goes_on.set()
    assert disk.writer.flush(20)
    assert ([each[1] for each in disk.written], disk.discarded) == (written, discarded)
    assert not disk.writer.hides("calls", b"first")


def test_the_thread_outlives_an_error(disk: Disk, warned: Callable[[], list[str]]) -> None:
    """Whatever it is; one warning, and the next record is written."""
    disk.fails = KeyError("odd")
    disk.writer.put("calls", b"a", Record(0, b""))
    disk.writer.put("calls", b"b", Record(0, b""))
    assert disk.writer.flush(20)
    disk.fails = None
    disk.writer.put("calls", b"c", Record(0, b""))
    assert disk.writer.flush(20)
    assert [each[0] for each in disk.written] == [b"c"]
    assert warned() == ["cache_failed"]


@pytest.mark.parametrize("limit", [("_MOST_WAITING", 3), ("_MOST_BYTES", 30)])
def test_a_disk_that_hangs_does_not_fill_the_memory(
    disk: Disk,
    warned: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    limit: tuple[str, int],
) -> None:
    """What comes when too much waits is not kept, with one warning."""
    monkeypatch.setattr(module, *limit)
    disk.stuck()
    for i in range(10):
        disk.writer.put("calls", b"%d" % i, Record(0, b"." * 12))
    assert len(disk.writer.names("calls")) == 3
    disk.goes_on.set()
    assert disk.writer.flush(20)
    disk.writer.put("calls", b"later", Record(0, b"." * 12))
    assert disk.writer.flush(20)
    assert disk.written[-1][0] == b"later"
    assert warned() == ["cache_too_slow"]


def test_each_kind_of_trouble_is_said_once(warned: Callable[[], list[str]]) -> None:
    """A broken disk does not fill the log."""
    troubles = Troubles()
    for about in ("28", "28", "30"):
        troubles.warn("cache_not_written", about)
    assert warned() == ["cache_not_written", "cache_not_written"]


def test_housekeeping_is_done_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when nothing is written for a long time."""
    monkeypatch.setattr(module, "_PAUSE_S", 0.001)
    pauses = threading.Semaphore(0)
    writer = Writer(lambda *_: None, lambda *_: None, pauses.release, Troubles())
    for _ in range(3):
        assert pauses.acquire(timeout=20)
    assert writer.close(20)
