"""A cgroup of the tests' own, with a limit of memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.server.staging import until


class MemoryCgroup(NamedTuple):
    """A cgroup with a limit.

    Attributes:
        folder: its files.
        peak: the name of the one that says the most that it took.
    """

    folder: Path
    peak: str

    def put(self, pid: int) -> None:
        """Puts a process there; what that has taken so far is not counted."""
        (self.folder / "cgroup.procs").write_text(str(pid))

    def peak_bytes(self) -> int:
        """The most memory that its processes have had, with files that the system could drop."""
        return int((self.folder / self.peak).read_text())


@contextmanager
def memory_cgroup(most: int) -> Iterator[MemoryCgroup]:
    """A cgroup of that many bytes. Skips the test where none can be made."""
    first = Path("/sys/fs/cgroup/memory")
    second = Path("/sys/fs/cgroup")
    is_first = (first / "memory.limit_in_bytes").exists()
    folder = (first if is_first else second) / f"jaxd-test-{os.getpid()}"
    limit = "memory.limit_in_bytes" if is_first else "memory.max"
    try:
        if not is_first:
            (second / "cgroup.subtree_control").write_text("+memory")
        folder.mkdir()
        (folder / limit).write_text(str(most))
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        yield MemoryCgroup(folder, "memory.max_usage_in_bytes" if is_first else "memory.peak")
    finally:
        until(lambda: not (folder / "cgroup.procs").read_text().strip())
        folder.rmdir()
