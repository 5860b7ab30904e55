"""The device's memory: its size, and how much is in use."""

from __future__ import annotations

from collections.abc import Mapping

import jax

from jaxd_server.runtime.memory import machine_bytes


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


def arrays_in_use() -> list[int]:
    """How many bytes each array has that there is."""
    return [array.nbytes for array in jax.live_arrays()]


def whole_device() -> str:
    """How much of the device's memory is in use, in a sentence."""
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


def in_words(size: int) -> str:
    """A number of bytes as people write it, such as `1.5 GiB`."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
