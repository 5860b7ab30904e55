"""Which device a call runs on, that of its function or else of its session; and device memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import jax

from jaxd_protocol.errors import ConfigurationError
from jaxd_server.runtime.system_memory import machine_bytes


class Placed(Protocol):
    """A session, as far as it matters where its calls run.

    Attributes:
        device: the index of the one that they run on.
        connections: how many it has.
        used_executables: the executables that it has used.
    """

    device: int
    connections: int
    used_executables: set[int]


class Devices:
    """The devices of a worker. Thread-safe.

    Sessions are placed on *groups*: devices that follow one another, of which a session's calls use
    the first; what names its devices itself, as with a mesh, may use all there are.

    Args:
        per_session: how many devices a group has.
    """

    def __init__(self, per_session: int = 1) -> None:
        self._devices: Final = tuple(jax.devices())
        self._group = min(per_session, len(self._devices))
        kind = _kind(self._devices[0])
        self._alike = tuple(_kind(device) == kind for device in self._devices)
        self._index = {device.id: index for index, device in enumerate(self._devices)}

    def __len__(self) -> int:
        return len(self._devices)

    @property
    def platform(self) -> str:
        """What this worker computes on: `cpu`, `gpu`, `tpu`."""
        return jax.default_backend()

    def names(self) -> list[str]:
        """Of each its platform, its number there, and what it is."""
        return [f"{one.platform}:{one.id} {one.device_kind}" for one in self._devices]

    def memory(self) -> list[tuple[str, int, int, int]]:
        """Of each its name, and bytes in use, at most so far, and there; 0 where unknown."""
        kinds = ("bytes_in_use", "peak_bytes_in_use", "bytes_limit")
        found = [[int(_statistics(one).get(k) or 0) for k in kinds] for one in self._devices]
        return [
            (name, use, peak, limit)
            for name, (use, peak, limit) in zip(self.names(), found, strict=True)
        ]

    def of(self, wanted: int | None, session: int) -> int:
        """The index of the device that a call runs on.

        Args:
            wanted: the option of its function.
            session: the device of its session.

        Raises:
            ConfigurationError: when there is none of that index, or programs do not run on it.
        """
        if wanted is None:
            return session
        if type(wanted) is not int or not 0 <= wanted < len(self._devices):
            count = len(self._devices)
            there = "1 device: 0" if count == 1 else f"{count} devices: 0 to {count - 1}"
            raise ConfigurationError(
                f"device={wanted!r} is not there: this server has {there}. Choose one of "
                "jaxd.devices()."
            )
        if not self._alike[wanted]:
            raise ConfigurationError(
                f"device {wanted} is a {_kind(self._devices[wanted])}, and this server makes "
                f"programs for {_kind(self._devices[0])}. Start a server of its own for it, with "
                "--devices."
            )
        return wanted

    def least_used(self, sessions: Iterable[Placed], in_use: Sequence[int]) -> int:
        """The device for one more session: the first of the group that has least to do.

        That is the one with the fewest clients that have called something, then the fewest at all,
        then the fewest that are away and may come back, then the least memory in use.

        Args:
            sessions: those that there are.
            in_use: of `bytes_in_use`.
        """
        working: Counter[int] = Counter()
        present: Counter[int] = Counter()
        away: Counter[int] = Counter()
        for session in sessions:
            is_here = session.connections > 0
            away[session.device] += not is_here
            present[session.device] += is_here
            working[session.device] += is_here and bool(session.used_executables)

        def load(first: int) -> tuple[int, ...]:
            held = sum(in_use[first : first + self._group])
            return working[first], present[first], away[first], held

        return min(self._firsts(), key=load)

    def bytes_in_use(self) -> list[int]:
        """Of each device; a CPU does not report it, and there the arrays are counted."""
        reported = [_statistics(device).get("bytes_in_use") for device in self._devices]
        if None not in reported:
            return [int(number or 0) for number in reported]
        found = [0] * len(self._devices)
        for array in jax.live_arrays():
            if not array.is_deleted():
                part = math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize
                for device in array.sharding.device_set:  # also where it was deleted meanwhile
                    found[self._index[device.id]] += part
        return found

    def report(self, sessions: Iterable[Placed], own: Placed) -> list[dict[str, Any]]:
        """A description of each device, for clients.

        Args:
            sessions: all that there are.
            own: that of the requesting client.
        """
        there = (session for session in sessions if session.connections)
        placed = Counter(self._first_of(session.device) for session in there)
        held = self.bytes_in_use()
        mine = self._first_of(own.device)
        return [
            {
                "index": index,
                "platform": device.platform,
                "kind": device.device_kind,
                "bytes_in_use": held[index],
                "bytes_limit": _statistics(device).get("bytes_limit") or machine_bytes(),
                "sessions": placed[self._first_of(index)],
                "is_yours": self._first_of(index) == mine,
            }
            for index, device in enumerate(self._devices)
        ]

    def _firsts(self) -> tuple[int, ...]:
        """The first device of each whole group, all of whose devices are alike."""
        size = self._group
        starts = range(0, len(self._devices) - size + 1, size)
        return tuple(first for first in starts if all(self._alike[first : first + size])) or (0,)

    def _first_of(self, index: int) -> int:
        return index - index % self._group


def _kind(device: Any) -> str:
    return f"{device.device_kind} {getattr(device, 'compute_capability', '')}".strip()


def _statistics(device: Any) -> Mapping[str, int]:
    """The memory statistics of a device; empty on a CPU."""
    return device.memory_stats() or {}


def device_bytes_limit() -> int:
    """How much memory one device has for arrays and programs; on a CPU, that of the machine."""
    return int(_statistics(jax.local_devices()[0]).get("bytes_limit", 0)) or machine_bytes()


def all_devices_bytes() -> int:
    """How much all of them have together; CPU devices have the machine's in common."""
    count = len(jax.local_devices()) if "bytes_limit" in _statistics(jax.local_devices()[0]) else 1
    return count * device_bytes_limit()


def device_use() -> float:
    """Of the device that has the least memory left, how much is in use; 0 on a CPU."""
    shares = (
        found.get("bytes_in_use", 0) / found["bytes_limit"]
        for found in map(_statistics, jax.local_devices())
        if found.get("bytes_limit")
    )
    return max(shares, default=0.0)


def arrays_in_use() -> list[int]:
    """How many bytes each array has that there is."""
    return [array.nbytes for array in jax.live_arrays()]


def whole_device() -> str:
    """How much of the device's memory is in use, in a sentence."""
    statistics = [_statistics(device) for device in jax.local_devices()]
    if "bytes_in_use" not in statistics[0]:
        return f"The machine has {in_words(machine_bytes())}."
    used = [in_words(one.get("bytes_in_use", 0)) for one in statistics]
    if len(used) == 1:
        return f"Of the device's {in_words(device_bytes_limit())}, {used[0]} are in use."
    limits = [in_words(one.get("bytes_limit", 0)) for one in statistics]
    pairs = zip(used, limits, strict=True)
    each = (f"{one} of {limit} on device {i}" for i, (one, limit) in enumerate(pairs))
    return f"In use are {', '.join(each)}."


def in_words(size: int) -> str:
    """A number of bytes as people write it, such as `1.5 GiB`."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
