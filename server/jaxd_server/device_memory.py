"""What there is of the device's memory, and what uses it, in words."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

import jax

from jaxd_server.executable import Executable
from jaxd_server.memory import machine_bytes
from jaxd_server.programs import Program
from jaxd_server.values import Values

__all__ = [
    "all_devices_bytes",
    "device_bytes_limit",
    "device_use",
    "in_words",
    "memory_in_use",
]

_NAMED = 3
"""How many of the largest programs are named."""


def device_bytes_limit() -> int:
    """How much memory one device has for arrays and programs; on a CPU, that of the machine."""
    return int(_statistics().get("bytes_limit", 0)) or machine_bytes()


def all_devices_bytes() -> int:
    """How much all of them have together; CPU devices have the machine's in common."""
    count = len(jax.local_devices()) if "bytes_limit" in _statistics() else 1
    return count * device_bytes_limit()


def device_use() -> float:
    """Of the device that has the least memory left, how much is in use; 0 on a CPU."""
    shares = [0.0]
    for device in jax.local_devices():
        found = device.memory_stats() or {}
        if found.get("bytes_limit"):
            shares.append(found.get("bytes_in_use", 0) / found["bytes_limit"])
    return max(shares)


def memory_in_use(executables: Iterable[Executable], values: Values) -> str:
    """What takes memory now, in a few sentences.

    Args:
        executables: those that are in memory.
        values: arrays that clients hold.
    """
    executables = list(executables)
    arrays = [array.nbytes for array in jax.live_arrays()]
    programs: dict[Program, list[str]] = {}
    for one in executables:
        programs.setdefault(one.program, []).append(one.name)
    total = sum(map(_bytes_of, programs))
    text = (
        f"Now {_counted(len(arrays), 'array')} of {in_words(sum(arrays))} and "
        f"{_counted(len(programs), 'program')} of {in_words(total)} are in memory"
    )
    largest = heapq.nlargest(_NAMED, programs, key=_bytes_of)
    if largest and len({one.principal for one in executables}) == 1:  # others' are not named
        named = (f"{programs[one][0]} with {in_words(_bytes_of(one))}" for one in largest)
        text += f", the largest: {', '.join(named)}"
    text = f"{text}. {_whole_device()}"
    if not len(values):
        return text
    held = f"{in_words(values.nbytes)} in {len(values)}"
    return f"{text} Values that clients hold take {held}; `jaxd values` lists them."


def _whole_device() -> str:
    statistics = _statistics()
    if "bytes_in_use" not in statistics:
        return f"The machine has {in_words(machine_bytes())}."
    devices = jax.local_devices()
    if len(devices) > 1:
        each = (_of_one(number, device.memory_stats()) for number, device in enumerate(devices))
        return f"In use are {', '.join(each)}."
    return (
        f"Of the device's {in_words(device_bytes_limit())}, "
        f"{in_words(int(statistics['bytes_in_use']))} are in use."
    )


def _of_one(number: int, said: Mapping[str, int] | None) -> str:
    numbers = said or {}
    used, limit = (int(numbers.get(name, 0)) for name in ("bytes_in_use", "bytes_limit"))
    return f"{in_words(used)} of {in_words(limit)} on device {number}"


def _statistics() -> dict[str, int]:
    """What the device says of its memory; empty on a CPU."""
    return jax.local_devices()[0].memory_stats() or {}


def _bytes_of(program: Program) -> int:
    """What it takes where arrays are, too: a CPU says nothing of that, and it is the host's."""
    return program.device_bytes or program.host_bytes


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def in_words(size: int) -> str:
    """A number of bytes as people write it, such as `1.5 GiB`."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
