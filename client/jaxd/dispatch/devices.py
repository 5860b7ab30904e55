"""The devices of a server, and the choice of one for calls."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, SupportsIndex

from jaxd_protocol.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a server, as it was at the time of the question; `f.on(device=…)` takes it.

    Attributes:
        index: its number: `jax.devices()[index]` inside of a function.
        platform: `cpu`, `gpu` or `tpu`.
        kind: what jax calls it, such as `NVIDIA H100 80GB HBM3`.
        bytes_in_use: of its memory; on a CPU, what lies there in arrays.
        bytes_limit: how much it has for arrays and programs; on a CPU, that of the machine.
        sessions: clients that are connected and whose calls run on it, or on one of its group.
        is_yours: whether this client is one of them.
    """

    index: int
    platform: str
    kind: str
    bytes_in_use: int
    bytes_limit: int
    sessions: int
    is_yours: bool

    def __index__(self) -> int:
        return self.index

    @classmethod
    def from_report(cls, row: Mapping[str, Any]) -> Device:
        """Reads what a server answered."""
        return cls(**{name: row[name] for name in cls.__slots__})


def device_index(device: SupportsIndex | None) -> int | None:
    """A device as it stands in a function's options.

    Raises:
        ConfigurationError: when it is no index.
    """
    if device is None:
        return None
    try:
        index = -1 if isinstance(device, bool) else operator.index(device)
    except TypeError:
        index = -1
    if index < 0:
        raise ConfigurationError(
            f"device={device!r} is no device of a server. Give its index, such as 0, or one of "
            "jaxd.devices()."
        )
    return index
