from __future__ import annotations

import fcntl
import gc
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from jaxd_protocol.base import shared_memory
from jaxd_protocol.base.shared_memory import (
    available,
    check_sealed,
    create_sealed,
    map_file,
    write_fresh,
)
from jaxd_protocol.errors import ProtocolError

pytestmark = pytest.mark.skipif(not available(), reason="this system has no files in memory")

SIZE = 1 << 18


@pytest.fixture
def descriptor() -> Iterator[int]:
    descriptor = create_sealed(SIZE)
    yield descriptor
    os.close(descriptor)


def unsealed(nbytes: int, seals: int = 0) -> int:
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, nbytes)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def test_a_system_without_them_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS and Windows, for example."""
    monkeypatch.delattr(os, "memfd_create")
    assert not available()


def test_nobody_can_take_the_memory_away_again(descriptor: int) -> None:
    """Nor lift the seal, or add another."""
    check_sealed(descriptor, SIZE)
    for size in (0, SIZE - 1, SIZE + 1):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_a_process_that_is_started_does_not_have_it(descriptor: int) -> None:
    """The memory is gone with those that were given it."""
    assert not os.get_inheritable(descriptor)


def test_a_file_that_cannot_be_sealed_is_not_left_open() -> None:
    """As where the size is refused."""
    before = len(os.listdir("/dev/fd"))
    with pytest.raises(OSError, match="Invalid argument"):
        create_sealed(-1)
    assert len(os.listdir("/dev/fd")) == before


@pytest.mark.parametrize("seals", [0, fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_GROW])
def test_a_file_that_could_still_change_its_size_is_refused(seals: int) -> None:
    """Whoever touches what was cut off is killed by the system."""
    descriptor = unsealed(SIZE, seals)
    try:
        with pytest.raises(ProtocolError, match="take away again"):
            check_sealed(descriptor, SIZE)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("nbytes", [SIZE + 1, 1 << 40, 0, -1])
def test_a_file_that_is_smaller_than_announced_is_refused(descriptor: int, nbytes: int) -> None:
    """And a size that is none."""
    with pytest.raises(ProtocolError, match="262,144 bytes"):
        check_sealed(descriptor, nbytes)


def test_something_else_than_memory_is_refused(tmp_path: Path) -> None:
    """A file on a disk, a pipe, a closed descriptor."""
    file = tmp_path / "file"
    file.write_bytes(bytes(SIZE))
    on_disk = os.open(file, os.O_RDWR)
    reading, writing = os.pipe()
    for descriptor in (on_disk, reading, writing):
        with pytest.raises(ProtocolError):
            check_sealed(descriptor, SIZE)
        os.close(descriptor)
    with pytest.raises(ProtocolError, match="not a file in memory"):
        check_sealed(on_disk, SIZE)


def test_two_mappings_of_one_file_are_the_same_memory(descriptor: int) -> None:
    """Both begin at a page, and one of them can be read only."""
    ours = map_file(descriptor, SIZE, writable=True)
    theirs = map_file(descriptor, SIZE, writable=False)
    ours[5:8] = b"abc"
    assert bytes(theirs[5:8]) == b"abc"
    assert theirs.readonly
    assert np.frombuffer(theirs, "u1").ctypes.data % mmap.PAGESIZE == 0


def test_the_memory_stays_while_anything_made_of_it_exists() -> None:
    """Also when the descriptor is closed, and then no longer."""
    before = _mapped()
    descriptor = create_sealed(SIZE)
    view = map_file(descriptor, SIZE, writable=True)
    os.close(descriptor)
    view[:3] = b"abc"
    array = np.frombuffer(view, "u1")[1:3]
    del view
    gc.collect()
    assert bytes(array) == b"bc"
    assert _mapped() == before + 1
    del array
    gc.collect()
    assert _mapped() == before


def _mapped() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:jaxd")


@pytest.mark.parametrize("madvise", [True, False], ids=["new kernel", "old kernel"])
@pytest.mark.parametrize("offset", [0, 64, 5000])
def test_fresh_memory_is_written_by_way_of_the_file(
    descriptor: int, monkeypatch: pytest.MonkeyPatch, offset: int, madvise: bool
) -> None:
    """And seen in the mapping."""
    if not madvise:
        monkeypatch.setattr(shared_memory, "_POPULATE_WRITE", 9999)
    memory = map_file(descriptor, SIZE, writable=True)
    data = np.random.default_rng(0).bytes(100_000)
    write_fresh(descriptor, memory, offset, memoryview(data))
    assert memory[offset : offset + len(data)] == data
    assert not any(memory[:offset])
    assert not any(memory[offset + len(data) :])


def test_fresh_memory_is_written_in_as_many_parts_as_it_takes(
    descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system writes at most 2 GiB at once."""
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:70_000], at))
    memory = map_file(descriptor, SIZE, writable=True)
    data = np.random.default_rng(0).bytes(200_000)
    write_fresh(descriptor, memory, 3, memoryview(data))
    assert memory[3 : 3 + len(data)] == data
