"""Checkpoints of arrays on the server, which its worker writes and reads; see `jaxd.save`."""

from __future__ import annotations

import json
import os
import secrets
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from jaxd.api.put_get import computed_ids, put, retry_in_new_session
from jaxd.interop.jax_runtime import loaded_jax, map_leaves
from jaxd.interop.remote_array import RemoteArray
from jaxd.remote_values.lineage import RestoredLineage
from jaxd.results.reader import specs_in
from jaxd_protocol.errors import ArgumentError, ProtocolError
from jaxd_protocol.jax_objects.structures import nested, path_names
from jaxd_protocol.messages.data_locations import first_value_id, new_call_number
from jaxd_protocol.packages.installed import warn_user

if TYPE_CHECKING:
    from jaxd.dispatch.caller import Caller
    from jaxd.dispatch.session import Session
    from jaxd.remote_values.store import RemoteStore

Name = tuple[str, ...]
"""What leads to a leaf of a tree: keys, numbers and names of attributes, the outermost first."""

_ONLY: Final = ("array",)
"""The name of an array that is no part of a tree."""

_NUMBERS: Final = (bool, int, float, complex)


class Saving:
    """A checkpoint that the server writes; `jaxd.save` returns it.

    Attributes:
        path: where it will lie on the server's machine.
    """

    def __init__(self, caller: Caller, token: str, path: str, *, is_done: bool) -> None:
        self.path = path
        self._caller = caller
        self._token = token
        self._is_done = is_done

    def wait(self) -> None:
        """Returns when it is complete.

        Raises:
            WorkerLost: when the worker ended before that: save again.
            Exception: why it could not be written.
        """
        session = self._caller.session
        if not self._is_done:
            try:
                session.request("saved", (self._token, self.path))
            except Exception:
                self._forget(session)  # it is said here, and not once more by the next one
                raise
        self._is_done = True
        self._forget(session)

    def _forget(self, session: Session) -> None:
        if session.saving is self:
            session.saving = None

    def finish(self) -> None:
        """As `wait`, at the exit of this process: warns where it could not be written."""
        try:
            self.wait()
        except Exception as error:  # noqa: BLE001  nobody is there any more to catch it
            warn_user(f"the checkpoint {self.path} is not complete: {error}", RuntimeWarning)

    def __repr__(self) -> str:
        return f"<jaxd.Saving of {self.path}>"


def save(caller: Caller, tree: Any, path: str | os.PathLike[str], *, overwrite: bool) -> Saving:
    """Has the server write a tree; see `jaxd.save`."""
    before, caller.session.saving = caller.session.saving, None
    if before is not None:
        before.wait()
    target, token = _path_for(caller, path), secrets.token_hex(8)

    def ask(values: RemoteStore) -> Saving:
        named = list(_named_leaves(put(caller, tree)))
        names, ids = [name for name, _ in named], computed_ids(values, [leaf for _, leaf in named])
        value, _ = values.ask("save", token, target, json.dumps(names), ids, overwrite)
        return Saving(caller, token, target, is_done=bool(value[1]))

    saving = caller.session.saving = retry_in_new_session(caller, ask)
    return saving


def restore(caller: Caller, path: str | os.PathLike[str], like: Any = None) -> Any:
    """The tree of a checkpoint, its arrays on the server; see `jaxd.restore`."""
    target = _path_for(caller, path)
    wanted = None if like is None else list(_named_leaves(like))
    specs = "" if wanted is None else json.dumps([_spec(name, leaf) for name, leaf in wanted])

    def ask(values: RemoteStore) -> Any:
        number = new_call_number()
        value, _ = values.ask("restore", target, specs, number, "", makes=(number,))
        lineage = None
        if values.recovery is not None:
            lineage = RestoredLineage(number, target, specs, str(value[3]))
        arrays = values.remote(first_value_id(number), specs_in(value[1]), lineage=lineage)
        if wanted is not None:
            rest = iter(arrays)
            return map_leaves(lambda _: next(rest), like)
        names = _read_names(value[2], len(arrays))
        tree = nested(zip(names, arrays, strict=True))
        return tree[_ONLY[0]] if names == [_ONLY] else tree

    return retry_in_new_session(caller, ask)


def _path_for(caller: Caller, path: str | os.PathLike[str]) -> str:
    """The path for the server: on its own machine, from the folder where this process is."""
    text = os.fspath(path)
    if not isinstance(text, str):
        raise ArgumentError("the path of a checkpoint is bytes. Give it as text.")
    is_here = caller.session.connection().address.startswith("unix:") and "://" not in text
    # The server resolves `..`, as a link may come before it.
    return os.path.join(os.getcwd(), os.path.expanduser(text)) if is_here else text


def _read_names(text: Any, count: int) -> list[Name]:
    names = json.loads(text) if isinstance(text, str) else None
    if not isinstance(names, list) or len(names) != count or not all(names):
        raise ProtocolError("the server does not say readably what is in a checkpoint.")
    return [tuple(map(str, name)) for name in names]


def _named_leaves(tree: Any) -> Iterator[tuple[Name, Any]]:
    """The leaves, in the order of `map_leaves`, each with its name."""
    jax = loaded_jax()
    if jax is None:
        yield from ((name or _ONLY, leaf) for name, leaf in _walked(tree, ()))
        return
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        yield path_names(path) or _ONLY, leaf


def _walked(tree: Any, name: Name) -> Iterator[tuple[Name, Any]]:
    """As jax walks, where it is not loaded, but for the order of dictionaries."""
    if tree is None:
        return
    if isinstance(tree, dict | OrderedDict):
        children: Any = tree.items()
    elif isinstance(tree, tuple) and hasattr(tree, "_fields"):
        children = zip(tree._fields, tree, strict=True)
    elif isinstance(tree, list | tuple):
        children = enumerate(tree)
    else:
        yield name, tree
        return
    for key, child in children:
        yield from _walked(child, (*name, str(key)))


def _spec(name: Name, leaf: Any) -> tuple[Name, str, tuple[int, ...]]:
    """Name, dtype and shape of a leaf of the tree that a checkpoint has to be like.

    Raises:
        ArgumentError: when it is nothing that has these.
    """
    if isinstance(leaf, RemoteArray):
        return name, leaf.leaf.dtype, leaf.leaf.shape
    if isinstance(leaf, _NUMBERS):
        return name, "", ()
    shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    if shape is None or dtype is None:
        raise ArgumentError(
            f"{'/'.join(name)} in like= is a {type(leaf).__name__}, which has no shape. Give "
            "arrays, or what jax.eval_shape returns."
        )
    jax = loaded_jax()
    if jax is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        numbers = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(shape, dtype))
        shape, dtype = numbers.shape, numbers.dtype
    return name, dtype.name, tuple(shape)
