"""jaxd: a warm JAX, one function call away.

    from jaxd import persistent_call

    @persistent_call
    def linear_transform(x, W, b):
        return x @ W + b

The function runs on a server that keeps it compiled; a fresh process gets its first result at
once. Importing this package loads neither jax nor numpy.
"""

from __future__ import annotations

from jaxd import errors
from jaxd.arrays_here import PRNGKeys
from jaxd.batching import BatchedFunction, vmap_auto
from jaxd.client import (
    Client,
    connect,
    devices,
    empty,
    forget,
    get,
    named,
    pickle_by_handle,
    put,
    shared_copy,
    statistics,
    wait,
)
from jaxd.counters import Statistics
from jaxd.decorator import CallOptions, persistent_call
from jaxd.devices import Device
from jaxd.last_error import last_error
from jaxd.lazy import LazyArray
from jaxd.persistent_function import PersistentFunction
from jaxd.remote_array import RemoteArray
from jaxd.settings import Settings
from jaxd_protocol import __version__
from jaxd_protocol.addresses import Address

__all__ = [
    "Address",
    "BatchedFunction",
    "CallOptions",
    "Client",
    "Device",
    "LazyArray",
    "PRNGKeys",
    "PersistentFunction",
    "RemoteArray",
    "Settings",
    "Statistics",
    "__version__",
    "connect",
    "devices",
    "empty",
    "errors",
    "forget",
    "get",
    "last_error",
    "named",
    "persistent_call",
    "pickle_by_handle",
    "put",
    "shared_copy",
    "statistics",
    "vmap_auto",
    "wait",
]


def __dir__() -> list[str]:
    return sorted(__all__)
