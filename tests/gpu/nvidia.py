"""The GPUs of this machine and how much of their memory is taken, as the driver says."""

from __future__ import annotations

import subprocess
import time
from typing import Final, NamedTuple

MIB: Final = 1 << 20

_PATIENCE_S: Final = 30.0
_PAUSE_S: Final = 0.2


class Gpu(NamedTuple):
    """One of them, now; memory in MiB."""

    name: str
    driver: str
    total_mib: int
    used_mib: int


def gpus() -> list[Gpu]:
    """All of them; none where there is no driver."""
    command = ["nvidia-smi", "--format=csv,noheader,nounits"]
    command += ["--query-gpu=name,driver_version,memory.total,memory.used"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in said.stdout.splitlines()]
    return [
        Gpu(name, driver, int(total), int(used))
        for name, driver, total, used in (row for row in rows if len(row) == 4)
        if total.isdecimal() and used.isdecimal()
    ]


def used_mib() -> int:
    """What all processes of all machines that share them have taken."""
    return sum(gpu.used_mib for gpu in gpus())


def falls_to(limit_mib: int) -> bool:
    """Whether no more than that is taken within half a minute: the driver frees in its own time."""
    end = time.monotonic() + _PATIENCE_S
    while used_mib() > limit_mib:
        if time.monotonic() > end:
            return False
        time.sleep(_PAUSE_S)
    return True
