"""jaxd: a warm JAX, one function call away.

    from jaxd import persistent_call

    @persistent_call
    def linear_transform(x, W, b):
        return x @ W + b

The function runs on a server that keeps it compiled; a fresh process gets its first result at
once. Importing this package loads neither jax nor numpy, and what a call of a persistent function
does not need is loaded at its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from jaxd import errors
from jaxd_protocol import __version__
from jaxd_protocol.errors import FallbackWarning

if TYPE_CHECKING:
    from jaxd.api.batching import BatchedFunction, vmap_auto
    from jaxd.api.checkpoints import Saving
    from jaxd.api.client import (
        Client,
        connect,
        devices,
        empty,
        forget,
        get,
        kept,
        named,
        pickle_by_handle,
        put,
        restore,
        save,
        shared_copy,
        statistics,
        wait,
    )
    from jaxd.api.decorator import CallOptions, persistent_call
    from jaxd.api.function import PersistentFunction
    from jaxd.api.launch.process import install
    from jaxd.api.watcher import Watch, watch
    from jaxd.connection.settings import Settings
    from jaxd.dispatch.server_reports import Device, Statistics
    from jaxd.interop.jax_runtime import PRNGKeys
    from jaxd.interop.lazy_array import LazyArray
    from jaxd.interop.remote_array import RemoteArray
    from jaxd.remote_values.recovery import Kept
    from jaxd.tracing.derived_call import last_error
    from jaxd_protocol.network.addresses import Address
    from jaxd_protocol.pytree.padding import Bucket

__all__ = [
    "Address",
    "BatchedFunction",
    "Bucket",
    "CallOptions",
    "Client",
    "Device",
    "FallbackWarning",
    "Kept",
    "LazyArray",
    "PRNGKeys",
    "PersistentFunction",
    "RemoteArray",
    "Saving",
    "Settings",
    "Statistics",
    "Watch",
    "__version__",
    "connect",
    "devices",
    "empty",
    "errors",
    "forget",
    "get",
    "install",
    "kept",
    "last_error",
    "named",
    "persistent_call",
    "pickle_by_handle",
    "put",
    "restore",
    "save",
    "shared_copy",
    "statistics",
    "vmap_auto",
    "wait",
    "watch",
]


_LAZY_EXPORTS: Final = {
    **dict.fromkeys(("BatchedFunction", "vmap_auto"), "jaxd.api.batching"),
    **dict.fromkeys(("Client", "connect", "devices", "empty", "forget", "get"), "jaxd.api.client"),
    **dict.fromkeys(("named", "pickle_by_handle", "put", "shared_copy"), "jaxd.api.client"),
    **dict.fromkeys(("kept", "restore", "save", "statistics", "wait"), "jaxd.api.client"),
    **dict.fromkeys(("CallOptions", "persistent_call"), "jaxd.api.decorator"),
    "Address": "jaxd_protocol.network.addresses",
    "Bucket": "jaxd_protocol.pytree.padding",
    "Device": "jaxd.dispatch.server_reports",
    "Kept": "jaxd.remote_values.recovery",
    "LazyArray": "jaxd.interop.lazy_array",
    "PRNGKeys": "jaxd.interop.jax_runtime",
    "PersistentFunction": "jaxd.api.function",
    "RemoteArray": "jaxd.interop.remote_array",
    "Saving": "jaxd.api.checkpoints",
    "Settings": "jaxd.connection.settings",
    "Statistics": "jaxd.dispatch.server_reports",
    "Watch": "jaxd.api.watcher",
    "install": "jaxd.api.launch.process",
    "last_error": "jaxd.tracing.derived_call",
    "watch": "jaxd.api.watcher",
    **dict.fromkeys(("load_ipython_extension", "unload_ipython_extension"), "jaxd.cli.notebook"),
}
"""Public names, each with its module. No module has the name of one of them."""


def __getattr__(name: str) -> Any:
    """A public name, loaded at its first use."""
    from importlib import import_module

    module = _LAZY_EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(module), name)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
