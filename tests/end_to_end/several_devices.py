"""A server with eight devices, and what a test sees of where arrays lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jax
import numpy as np

from jaxd import Client
from tests.xla_flags import devices

EIGHT: Final = devices(8)

X: Final = np.arange(1 << 20, dtype="f4")
"""So large that a result of its size stays on the server, and is seen in a device's memory."""

_kept: list[Any] = []

MOVED: Final = {"executable_loads": 1}


def grown(client: Client, act: Callable[[], Any]) -> tuple[Any, set[int]]:
    """What `act` returns, and the devices on which it left something of the size of `X`."""
    before = [device.bytes_in_use for device in client.devices()]
    made = act()
    jax.block_until_ready(made)
    _kept.append(made)  # what is let go of is freed at some time, perhaps in between the two looks
    after = [device.bytes_in_use for device in client.devices()]
    limit = X.nbytes // 2
    return made, {i for i, (a, b) in enumerate(zip(before, after, strict=True)) if b - a > limit}


def here(client: Client) -> int:
    """The device of a client's session."""
    (mine,) = (device.index for device in client.devices() if device.is_yours)
    return mine


def doubled(x: Any) -> Any:
    """On any device."""
    return x * 2.0


def spread_out(x: Any) -> Any:
    """The same, on all of them."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("i",))
    where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))
    return jax.lax.with_sharding_constraint(x, where) * 2.0
