"""`jaxd.Client`: one server, by name, for those who want more than the default one."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, Unpack, overload

from jaxd.caller import Caller, default_caller
from jaxd.counters import Statistics
from jaxd.decorator import CallOptions, persistent_call
from jaxd.persistent_function import PersistentFunction
from jaxd.settings import Settings
from jaxd_protocol.addresses import Address
from jaxd_protocol.errors import NoServer

__all__ = ["Client", "connect", "statistics"]

P = ParamSpec("P")
R = TypeVar("R")


class Client:
    """One server, as seen from this process. Thread-safe; made by `jaxd.connect`.

    Use it as a context manager, or call `close`.

    Attributes:
        caller: what makes the calls.
    """

    def __init__(self, caller: Caller) -> None:
        self.caller = caller

    @overload
    def persistent_call(
        self, function: Callable[P, R], /, **options: Unpack[CallOptions]
    ) -> PersistentFunction[P, R]: ...
    @overload
    def persistent_call(
        self, function: None = None, /, **options: Unpack[CallOptions]
    ) -> Callable[[Callable[P, R]], PersistentFunction[P, R]]: ...

    def persistent_call(
        self, function: Callable[..., Any] | None = None, /, **options: Unpack[CallOptions]
    ) -> Any:
        """As `jaxd.persistent_call`, bound to this client's server."""
        options["client"] = self
        return persistent_call(function, **options)

    def statistics(self) -> Statistics:
        """The server's counters, as they are now.

        Raises:
            NoServer: when it cannot be reached.
        """
        return Statistics.from_report(self.caller.ask("statistics"))

    def info(self) -> dict[str, Any]:
        """What the server is: versions, devices, limits, and how this client reaches it.

        Raises:
            NoServer: when it cannot be reached.
        """
        server = self.caller.ask("info")
        return {**server, "address": str(self.caller.address), "session": self.caller.session}

    def close(self) -> None:
        """Ends the connection; calls that are open fail with `Cancelled`.

        The client may be used again: it then connects anew.
        """
        self.caller.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        caller = self.caller
        where = caller.address or caller.settings.server or "the local server"
        return f"<jaxd.Client of {where}, {'' if caller.connected else 'not '}connected>"


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
        NoServer: when none is there, none could be started, or `JAXD_INLINE=1` rules it out.
        AuthenticationFailed, VersionMismatch: when the handshake fails.
    """
    client = Client(Caller(_with_server(Settings.resolve(server, host, port, token))))
    client.caller.connection()
    return client


def statistics() -> Statistics:
    """The counters of the server that a persistent function would use.

    Raises:
        NoServer: when none is there, none could be started, or `JAXD_INLINE=1` rules it out.
    """
    return Client(default_caller(_with_server(Settings.resolve()))).statistics()


def _with_server(settings: Settings) -> Settings:
    if settings.inline:
        raise NoServer(
            "JAXD_INLINE=1 means that this process uses no server. Unset JAXD_INLINE to use one."
        )
    return settings
