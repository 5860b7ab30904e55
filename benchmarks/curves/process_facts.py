"""What a process takes, as Linux counts it."""

from __future__ import annotations

from pathlib import Path


def resident_bytes(pid: int | str = "self") -> int:
    """Memory of a process that is in use, without what is only mapped from files."""
    return 1024 * int(_status(pid)["RssAnon"].split()[0])


def thread_count(pid: int | str = "self") -> int:
    """Threads of a process."""
    return int(_status(pid)["Threads"])


def _status(pid: int | str) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
