"""Puts and gets trees of arrays on the server, and names them."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from jaxd.dispatch.session import MAX_WORKERS
from jaxd.interop.jax_runtime import current_config, leaves_of, map_leaves
from jaxd.interop.remote_array import RemoteArray
from jaxd.remote_values.store import RemoteStore
from jaxd.request.arguments import ArgumentEncoder
from jaxd.results.reader import ResultReader
from jaxd_protocol.errors import ArgumentError, JaxdError, ValueDeleted, ValuesLost, WorkerReplaced
from jaxd_protocol.messages.data_locations import first_value_id, new_call_number, pack_ids
from jaxd_protocol.pytree import TreeEncoder

if TYPE_CHECKING:
    from jaxd.dispatch.caller import Caller


T = TypeVar("T")


def put(
    caller: Caller,
    tree: Any,
    name: str | None = None,
    ttl_s: float | None = None,
    *,
    replicate: bool = False,
) -> Any:
    """The tree with its arrays and numbers on the server; see `jaxd.put`."""

    def on(one: Caller) -> Any:
        return retry_in_new_session(one, lambda values: _put(values, tree, name, ttl_s))

    if not replicate:
        placed = on(caller)
        if name is not None and caller.breadth > 1:
            _forget_elsewhere(caller, placed, name)
        return placed
    first, *others = map(on, caller.everywhere())
    for array, *copies in zip(leaves_of(first), *map(leaves_of, others), strict=True):
        array.replicas = tuple(copies)
    return first


def _forget_elsewhere(caller: Caller, placed: Any, name: str) -> None:
    """A name is that of one tree: other members of a pool may have an older one under it."""
    fetchers = {id(leaf.fetcher) for leaf in leaves_of(placed)}
    for each in caller.everywhere(also_draining=True):
        with suppress(JaxdError):  # one that cannot be reached is asked last for a name
            if id(each.session.values()) not in fetchers:
                retry_in_new_session(each, lambda values: values.ask("unname", name))


def retry_in_new_session(caller: Caller, ask: Callable[[RemoteStore], T]) -> T:
    """What `ask` returns; where the session turns out to be over, in the one that follows.

    `ask` needs nothing of the old one, or raises by itself when that is gone.
    """
    for _ in range(MAX_WORKERS - 1):
        values = caller.session.values()
        worker = values.worker
        try:
            return ask(values)
        except WorkerReplaced:
            _switch_worker(caller, worker)
        except ValuesLost:
            if caller.session.values() is values:
                raise
    return ask(caller.session.values())


def _switch_worker(caller: Caller, worker: tuple[Any, ...]) -> None:
    """Switches to the next worker: this one accepts nothing new."""
    session = caller.session
    opened = session.current()
    if opened.connection.worker == worker:  # no other thread has switched yet
        session.drain(opened.connection)
        session.connection()


def _put(values: RemoteStore, tree: Any, name: str | None, ttl_s: float | None) -> Any:
    found = leaves_of(tree)
    arrays = iter(_send_leaves(values, [leaf for leaf in found if not _is_on_server(leaf, values)]))
    placed = map_leaves(lambda leaf: leaf if _is_on_server(leaf, values) else next(arrays), tree)
    if name is not None:
        _name_on_server(values, placed, name, ttl_s)
    return placed


def name_array(array: RemoteArray, ttl_s: float) -> tuple[str, str]:
    """Gives an array a name that cannot be guessed, for some seconds; its server, and the name.

    Raises:
        Exception: as `RemoteArray.block_until_ready`.
    """
    array.block_until_ready()
    values: Any = array.fetcher
    name = f"pickled-{secrets.token_hex(16)}"
    _name_on_server(values, array, name, ttl_s)
    return values.address, name


def _is_on_server(leaf: Any, values: RemoteStore) -> bool:
    return isinstance(leaf, RemoteArray) and leaf.fetcher is values


def _send_leaves(values: RemoteStore, leaves: list[Any]) -> list[RemoteArray]:
    if not leaves:
        return []
    pickled: dict[Any, Any] = {}
    encoder = ArgumentEncoder(pickled, values, gathers=True)
    encoder.node(tuple(leaves))
    if encoder.count != len(leaves) or pickled:
        odd = next(leaf for leaf in leaves if _is_not_one_array(leaf))
        raise ArgumentError(
            f"a {type(odd).__name__} cannot be put on the server: only arrays and numbers can, in "
            "dicts, lists and tuples, or, where jax is imported, in any pytree."
        )
    return values.put(encoder.skeleton, encoder.blob, current_config(), encoder)


def _is_not_one_array(leaf: Any) -> bool:
    pickled: dict[Any, Any] = {}
    encoder = ArgumentEncoder(pickled, gathers=True)
    encoder.node(leaf)
    return encoder.count != 1 or bool(pickled)


def _name_on_server(values: RemoteStore, tree: Any, name: str, ttl_s: float | None) -> None:
    ids = computed_ids(values, leaves_of(tree))
    structure = _StructureEncoder()
    structure.node(tree)
    values.ask("name", name, structure.skeleton, ids, None if ttl_s is None else float(ttl_s))


def computed_ids(values: RemoteStore, arrays: list[RemoteArray]) -> bytes:
    """The packed ids of arrays of a store, once these are computed.

    Raises:
        Exception: as `RemoteArray.block_until_ready`.
    """
    values.calls.check(arrays)
    for array in arrays:
        values.wait(array)
    return pack_ids(array.id for array in arrays)


class _StructureEncoder(TreeEncoder):
    """Writes what a tree of arrays on the server looks like, for any client to read."""

    def other(self, value: Any) -> None:
        """Appends an array or a named tuple."""
        if isinstance(value, RemoteArray):
            self.spec(value.leaf)
        elif isinstance(value, tuple) and hasattr(type(value), "_fields"):
            self._named_tuple(value)
        else:
            raise ArgumentError(
                f"a {type(value).__name__} cannot be found by its name in another process. Give "
                "names to dicts, lists and tuples of arrays."
            )


def find_named(caller: Caller, name: str) -> Any:
    """The tree under a name, its arrays on the server; see `jaxd.named`."""
    *others, last = caller.everywhere(also_draining=True)  # which get nothing new, and come last
    for each in others:
        with suppress(ValueDeleted):
            return retry_in_new_session(each, lambda values: _fetch_named(values, name))
    return retry_in_new_session(last, lambda values: _fetch_named(values, name))


def _fetch_named(values: RemoteStore, name: str) -> Any:
    number = new_call_number()
    value, _ = values.ask("named", name, number, makes=(number,))
    layout = ResultReader({}).layout(value[1])
    return layout.build(values.remote(first_value_id(number), layout.leaves))


def forget_named(caller: Caller, name: str) -> bool:
    """Removes a name; whether it was there."""
    replies = [
        retry_in_new_session(each, lambda values: values.ask("unname", name))
        for each in caller.everywhere(also_draining=True)
    ]
    return any(value[1] for value, _ in replies)


def fetch_tree(tree: Any) -> Any:
    """The tree with its arrays here; see `jaxd.get`."""
    arrays = [leaf for leaf in leaves_of(tree) if isinstance(leaf, RemoteArray)]
    for values in {id(array.fetcher): array.fetcher for array in arrays}.values():
        if isinstance(values, RemoteStore):
            own = [array for array in arrays if array.fetcher is values]
            values.calls.check(own)
            values.fetch_all(own)
    return map_leaves(lambda leaf: leaf.fetch() if isinstance(leaf, RemoteArray) else leaf, tree)


def wait(tree: Any) -> None:
    """Returns when all arrays of the tree are computed; see `jaxd.wait`."""
    for leaf in leaves_of(tree):
        if isinstance(leaf, RemoteArray):
            leaf.block_until_ready()
