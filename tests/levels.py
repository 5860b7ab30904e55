"""What a process takes of its machine."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import NamedTuple, Self

_MIB = 1 << 20


class Levels(NamedTuple):
    """Of one process, now."""

    rss_mib: float
    maps: int
    files: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> Self:
        """What the system says.

        Raises:
            OSError: when there is no such process any more.
        """
        folder = Path(f"/proc/{pid}")
        resident = int((folder / "statm").read_text().split()[1]) * resource.getpagesize()
        return cls(
            resident / _MIB,
            (folder / "maps").read_bytes().count(b"\n"),
            len(os.listdir(folder / "fd")),
            len(os.listdir(folder / "task")),
        )

    def __str__(self) -> str:
        return (
            f"{self.rss_mib:.0f} MiB, {self.maps} maps, {self.files} files, {self.threads} threads"
        )
