"""Facts about the machine that ratios depend on; nothing that identifies it."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("jax", "jaxlib", "rpyc", "numpy", "cloudpickle", "flax", "optax", "ray", "dask")


def machine_facts() -> dict[str, str]:
    """Processor, system, interpreter and package versions, in the order of the table."""
    facts = {
        "processor": _processor(),
        "cores": str(_usable_cores()),
        "system": f"{platform.system()} {platform.machine()}",
        "Python": platform.python_version(),
    }
    congestion = _first_line("/proc/sys/net/ipv4/tcp_congestion_control")
    if congestion:
        facts["TCP congestion control"] = congestion
    return facts | {name: found for name in _PACKAGES if (found := _version(name))}


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> str:
    for line in _lines("/proc/cpuinfo"):
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _first_line(path: str) -> str:
    return next(iter(_lines(path)), "")


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
