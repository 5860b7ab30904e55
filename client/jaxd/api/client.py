"""`jaxd.Client`: one server, for programs that use more than the default one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, Self, SupportsIndex, TypeVar, Unpack, overload

from jaxd.api import put_get
from jaxd.api.decorator import CallOptions, new_caller, persistent_call
from jaxd.api.function import PersistentFunction
from jaxd.api.options import check_option_values
from jaxd.connection.settings import Fallbacks, Places, Settings
from jaxd.dispatch.caller import Caller, default_caller
from jaxd.dispatch.server_reports import Device, Devices, Statistics, device_index
from jaxd.interop.remote_array import RemoteArray, handle_reducer
from jaxd.transfer import shared_arrays
from jaxd.transfer.shared_memory import shared_pool
from jaxd_protocol.errors import NoServer
from jaxd_protocol.network.addresses import Address

if TYPE_CHECKING:
    from jaxd.api import checkpoints
    from jaxd.remote_values.recovery import Kept

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
        return Statistics.from_report(self.caller.session.ask("statistics"))

    def info(self) -> dict[str, Any]:
        """Versions, devices and limits of the server, and how this client reaches it.

        Raises:
            NoServer: when it cannot be reached.
        """
        session = self.caller.session
        server = session.ask("info")
        return {**server, "address": str(session.address), "session": session.id}

    def devices(self) -> tuple[Device, ...]:
        """As `jaxd.devices`, of this client's server."""
        return Devices(map(Device.from_report, self.caller.session.ask("devices")["devices"]))

    def put(
        self,
        tree: Any,
        *,
        name: str | None = None,
        ttl_s: float | None = None,
        replicate: bool = False,
    ) -> Any:
        """As `jaxd.put`, on this client's server."""
        return put_get.put(self.caller, tree, name, ttl_s, replicate=replicate)

    def named(self, name: str) -> Any:
        """As `jaxd.named`, of this client's server."""
        return put_get.find_named(self.caller, name)

    def forget(self, name: str) -> bool:
        """As `jaxd.forget`, on this client's server."""
        return put_get.forget_named(self.caller, name)

    def get(self, tree: Any) -> Any:
        """As `jaxd.get`."""
        return put_get.fetch_tree(tree)

    def save(
        self, tree: Any, path: str | os.PathLike[str], *, overwrite: bool = False
    ) -> checkpoints.Saving:
        """As `jaxd.save`, by this client's server."""
        from jaxd.api import checkpoints  # few processes have any

        return checkpoints.save(self.caller, tree, path, overwrite=overwrite)

    def restore(self, path: str | os.PathLike[str], like: Any = None) -> Any:
        """As `jaxd.restore`, by this client's server."""
        from jaxd.api import checkpoints  # few processes have any

        return checkpoints.restore(self.caller, path, like)

    def kept(self) -> Kept:
        """As `jaxd.kept`, for the arrays of this client."""
        from jaxd.remote_values.recovery import Kept  # few processes ask

        session = self.caller.session
        settings = session.settings
        if not settings.snapshot_s:
            return Kept()
        found = [each.recovery().report() for each in session.stores if each.recovery is not None]
        if not found:
            return Kept(True, settings.snapshot_bytes, limit_seconds=settings.lineage_s)
        return Kept.together(found)

    def close(self) -> None:
        """Ends the connection; calls that are open fail with `Cancelled`.

        The client may be used again: it then opens a new connection.
        """
        self.caller.finish()
        self.caller.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        session = self.caller.session
        where = session.address or session.settings.server or "the local server"
        return f"<jaxd.Client of {where}, {'' if session.connected else 'not '}connected>"


def connect(
    server: str | Address | None = None,
    *,
    host: str | None = None,
    port: int | None = None,
    token: str | None = None,
    device: SupportsIndex | None = None,
    fallback: Fallbacks | None = None,
    verify: bool | None = None,
    place: Places | None = None,
) -> Client:
    """A client of its own, connected at once.

    Args:
        server: `unix:///path`, `tcp://host:port`, `tls://host:port#sha256=…`, `ssh://user@host`, or
            `pool://host:port#sha256=…`; by default the server that a persistent function would use.
        host: a TCP host instead of `server`.
        port: a TCP port instead of `server`.
        token: that of a server over TCP or TLS; else `JAXD_TOKEN` or `JAXD_TOKEN_FILE`.
        device: the server's device that its calls run on, by index; else `JAXD_DEVICE`, else the
            server chooses.
        fallback: what happens with calls that the server cannot answer, as of `persistent_call`;
            else `JAXD_FALLBACK`.
        verify: whether the programs that answer are compared with what this process makes of the
            functions, as of `persistent_call`; else `JAXD_VERIFY`.
        place: where its calls run once their program is known, as of `persistent_call`; else
            `JAXD_PLACE`.

    Returns:
        The client; use it as a context manager or call its `close`.

    Raises:
        NoServer: when none is there, none could be started, or `JAXD_INLINE=1` rules it out.
        Busy: when it has no room for a minute.
        AuthenticationFailed, VersionMismatch: when the handshake fails.
        ConfigurationError: when the server has no such device.
    """
    settings = _with_server(Settings.resolve(server, host, port, token))
    if device is not None:
        settings = settings.replaced(device=device_index(device))
    options = {"fallback": fallback, "verify": verify, "place": place}
    given = {name: value for name, value in options.items() if value is not None}
    check_option_values(given)
    client = Client(new_caller(settings.replaced(**given)))
    client.caller.session.connection()
    return client


def statistics() -> Statistics:
    """The counters of the server that a persistent function would use.

    Raises:
        NoServer: when none is there, none could be started, or `JAXD_INLINE=1` rules it out.
    """
    return _default_client().statistics()


def devices() -> tuple[Device, ...]:
    """The devices of the server that a persistent function would use, in jax's order.

    With `JAXD_INLINE=1` those of this process.

    Raises:
        NoServer: when there is no server, or with `JAXD_INLINE=1` no jax.
    """
    settings = Settings.resolve()
    if settings.inline:
        from jaxd.tracing.inline import local_devices

        return local_devices()
    return Client(default_caller(settings, new_caller)).devices()


def put(
    tree: Any, *, name: str | None = None, ttl_s: float | None = None, replicate: bool = False
) -> Any:
    """The tree with its arrays and numbers on the server, as `RemoteArray`s.

    They live as long as this process holds them. dtypes become what `jax.device_put` makes of them.

    Args:
        tree: arrays and numbers in dicts, lists and tuples; any pytree where jax is imported.
        name: also keep them on the server under this name, for every process of this user.
        ttl_s: seconds until the name is forgotten; by default it lives as long as the server's
            worker, or until `jaxd.forget`.
        replicate: whether each member of a pool is to have a copy: calls take that of the member
            which makes them, and the arrays live as long as one of these members.

    Raises:
        NoServer: when there is none; with `JAXD_INLINE=1` the tree is returned as it is.
        ValuesFull: when there is no room.
        ArgumentError: when something in the tree is neither array nor number.
    """
    settings = Settings.resolve()
    return tree if settings.inline else Client(default_caller(settings, new_caller)).put(
        tree, name=name, ttl_s=ttl_s, replicate=replicate
    )  # fmt: skip


def get(tree: Any) -> Any:
    """The tree with the data of all its `RemoteArray`s, fetched in few messages; waits for them.

    Raises:
        BaseException: what a call raised that was to compute one of them.
        ValueDeleted, ValuesLost: when one is gone.
    """
    return put_get.fetch_tree(tree)


def wait(tree: Any) -> Any:
    """Returns the tree when all of its `RemoteArray`s are computed; moves nothing.

    Raises:
        BaseException: what a call raised that was to compute one of them.
    """
    put_get.wait(tree)
    return tree


def empty(shape: int | tuple[int, ...], dtype: Any = "float64") -> Any:
    """A numpy array that costs nothing to send to a server on this machine.

    As of `numpy.empty`. It lies in memory that the server can map; so does every slice of it. A
    call on it is over when its result is here: it never returns before. Without such memory, or
    below 64 kB, an ordinary array.

    A process that is forked has the same memory, not a copy: what it writes there is seen here.
    """
    return shared_arrays.empty(shared_pool(), shape, dtype)


def shared_copy(tree: Any) -> Any:
    """The tree with its arrays copied as numpy arrays like those of `empty`.

    A process that is forked shares their memory as well.
    """
    return shared_arrays.shared_copy(shared_pool(), tree)


def named(name: str) -> Any:
    """The tree that `put(…, name=name)` left on the server, as `RemoteArray`s.

    Raises:
        ValueDeleted: when there is none of that name.
        NoServer: when there is no server.
    """
    return _default_client().named(name)


def forget(name: str) -> bool:
    """Removes a name from the server; whether it was there.

    Raises:
        NoServer: when there is no server.
    """
    return _default_client().forget(name)


def save(tree: Any, path: str | os.PathLike[str], *, overwrite: bool = False) -> checkpoints.Saving:
    """Has the server write a tree as a checkpoint of orbax; what is on the server moves nowhere.

    Returns once the arrays are held: calls that donate them take copies from then on. Where memory
    has no room for these, it returns when all is written. One checkpoint is written at a time: this
    waits for the one before, and raises what went wrong with it.

    Args:
        tree: arrays and numbers, as for `put`.
        path: of a folder on the server's machine that does not exist; for a server of this machine
            it may be relative to the folder of this process.
        overwrite: whether a checkpoint that is there is replaced, once the new one is complete; one
            with files in its folder that orbax has not written never is.

    Returns:
        The checkpoint, for which one can `wait`.

    Raises:
        FileExistsError: when something is there, and is not to be replaced.
        ConfigurationError: when the server has no orbax, or the path is none of its machine.
        NotPermitted: when the server writes no files for this user.
        WorkerLost: when the worker ended before the checkpoint before was complete.
        NoServer: when there is no server.
    """
    return _default_client().save(tree, path, overwrite=overwrite)


def restore(path: str | os.PathLike[str], like: Any = None) -> Any:
    """The tree of a checkpoint, with its arrays on the server, on the devices where they were.

    Args:
        path: as of `save`; also of a checkpoint that orbax has written elsewhere.
        like: a tree of the same structure, of arrays or of what `jax.eval_shape` returns; also of
            arrays that are lost. None: the result is dictionaries in dictionaries.

    Raises:
        FileNotFoundError: when there is no checkpoint.
        ValueError: when it is not like the tree; says what differs.
        ValuesFull: when there is no room.
        ConfigurationError, NotPermitted, NoServer: as `save`.
    """
    return _default_client().restore(path, like)


def kept() -> Kept:
    """What this process keeps so that its arrays on the server can be made again.

    And what could not be: `lost_with_worker` says why, and how many bytes that is.
    """
    return _default_client().kept()


@contextmanager
def pickle_by_handle(ttl_s: float = 3600.0) -> Iterator[None]:
    """Within this context, this thread pickles each `RemoteArray` as a reference to the server.

    Unpickled in any process of this user that reaches the server, it is a `RemoteArray` again; its
    data has not moved. Unpickling raises NoServer when the server cannot be reached, ValueDeleted
    when the time is over.

    Args:
        ttl_s: seconds for which the server keeps each array for that.
    """

    def instead(array: RemoteArray) -> tuple[Any, ...]:
        return _load_pickled_handle, put_get.name_array(array, ttl_s)

    token = handle_reducer.set(instead)
    try:
        yield
    finally:
        handle_reducer.reset(token)


def _load_pickled_handle(server: str, name: str) -> Any:
    """What a pickle by handle stands for."""
    return _default_client(server).named(name)


def _default_client(server: str | None = None) -> Client:
    return Client(default_caller(_with_server(Settings.resolve(server)), new_caller))


def _with_server(settings: Settings) -> Settings:
    if settings.inline:
        raise NoServer(
            "JAXD_INLINE=1 means that this process uses no server. Unset JAXD_INLINE to use one."
        )
    return settings
