"""jaxd: a warm JAX, one function call away.

    from jaxd import persistent_call

    @persistent_call
    def linear_transform(x, W, b):
        return x @ W + b

The function runs on a server that keeps it compiled; a fresh process gets its first result at
once. Importing this package loads neither jax nor numpy.
"""

from __future__ import annotations

from jaxd.client import Client, default_client
from jaxd.decorator import CallOptions, persistent_call
from jaxd.lazy import LazyArray
from jaxd.persistent_function import PersistentFunction
from jaxd.results import PRNGKeys
from jaxd.settings import Settings
from jaxd.statistics import Statistics
from jaxd_protocol import __version__, errors
from jaxd_protocol.addresses import Address

__all__ = [
    "Address",
    "CallOptions",
    "Client",
    "LazyArray",
    "PRNGKeys",
    "PersistentFunction",
    "Settings",
    "Statistics",
    "__version__",
    "connect",
    "errors",
    "persistent_call",
    "statistics",
]


def connect(
    server: str | Address | None = None,
    *,
    host: str | None = None,
    port: int | None = None,
    token: str | None = None,
) -> Client:
    """A client of its own, connected at once.

    Args:
        server: `unix:///path` or `tcp://host:port`; by default the server that a persistent
            function would use.
        host: a TCP host instead of `server`.
        port: a TCP port instead of `server`.
        token: what a server over TCP asks for; else `JAXD_TOKEN` or `JAXD_TOKEN_FILE`.

    Returns:
        The client; use it as a context manager or call its `close`.

    Raises:
        NoServer: when none is there, or none could be started.
        AuthenticationFailed, VersionMismatch: when the handshake fails.
    """
    client = Client(Settings.resolve(server, host, port, token))
    client.connection()
    return client


def statistics() -> Statistics:
    """The counters of the server that a persistent function would use.

    Raises:
        NoServer: when none is there, or none could be started.
    """
    return default_client(Settings.resolve()).statistics()


def __dir__() -> list[str]:
    return sorted(__all__)
