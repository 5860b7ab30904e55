"""Checkpoints: orbax writes and reads the arrays of a session in the worker, shard by shard.

None of their data moves to the client, which says where they are to lie and what they are called.
They are written as dictionaries in dictionaries, which any program with orbax reads.
"""

from __future__ import annotations

import ctypes
import errno
import importlib
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from typing import Any, Final, NamedTuple
from weakref import WeakValueDictionary

import jax
import numpy as np

from jaxd_protocol.base.process import start_daemon
from jaxd_protocol.errors import (
    ConfigurationError,
    NotPermitted,
    ProtocolError,
    ValuesFull,
    WorkerLost,
)
from jaxd_protocol.jax_objects.arrays import key_array, key_data, weak_array
from jaxd_protocol.jax_objects.structures import nested, path_names
from jaxd_protocol.messages.calls import OK
from jaxd_protocol.messages.data_locations import first_value_id, unpack_ids
from jaxd_protocol.network.accounts import UNNAMED
from jaxd_server.config.options import ServerOptions
from jaxd_server.execution.admission import Admission
from jaxd_server.execution.call import Reply
from jaxd_server.jax_compat.placement import placed
from jaxd_server.rpc.services.values import skeleton_of, spec_of
from jaxd_server.runtime.logs import log_event
from jaxd_server.runtime.system_memory import host_spare, release_memory, trim
from jaxd_server.values.references import ReferencedData, copy_of
from jaxd_server.values.value import Value

Name = tuple[str, ...]
"""What leads to an array: keys, numbers and names of attributes, the outermost first."""

_GB: Final = 10**9
_AT_ONCE: Final = 128 * 10**6
_OWN: Final = "jaxd"
_ESCAPES: Final = (("%", "%25"), (".", "%2E"), ("/", "%2F"))
"""What orbax would take for a part of a path, in the names of arrays."""

_SHOWN: Final = 5

_TOKEN: Final = re.compile("[0-9a-f]{16}")
"""As clients make them: what is called so beside a checkpoint belongs to a save."""

_METADATA: Final = "_CHECKPOINT_METADATA"
_MANIFEST: Final = "manifest.ocdbt"
_OF_ORBAX: Final = re.compile(
    r"_CHECKPOINT_METADATA|_METADATA|_sharding|_strings\.json|array_metadatas|checkpoint"
    r"|commit_success\.txt|d|descriptor|manifest\.ocdbt|ocdbt\.process_\d+"
)
"""What orbax calls the files and folders of a checkpoint, beside those of single arrays."""

_ATTEMPTS: Final = 50
_ABSENT: Final = 5
_PAUSE_S: Final = 0.1
"""Between attempts to remove what a failed save has written, until there was nothing so often."""

_AT_FDCWD: Final = -100
_NOREPLACE: Final = 1
_EXCHANGE: Final = 2
_NOT_HERE: Final = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
"""What renameat2 says where the system or the file system has no such flag."""

_targets = WeakValueDictionary[str, threading.Lock]()
_targets_lock = threading.Lock()  # guards it


def check_permitted(options: ServerOptions, principal: str) -> None:
    """Returns when a principal may have files written and read as the user of this process.

    Raises:
        NotPermitted: when it may not.
    """
    if options.accept == "exported":
        raise NotPermitted(
            "this server takes programs only (--accept exported), which touch no files. Fetch the "
            "arrays with jaxd.get and save them where the client runs."
        )
    is_own = principal in (f"uid:{os.getuid()}", UNNAMED)
    if not (is_own or options.worker_per_principal):
        raise NotPermitted(
            f"{principal} may have no checkpoints written here: they would be files of the user "
            "who runs this server. Have it started with --worker-per-principal, use a server of "
            "your own, or save where the client runs: jaxd.get(tree)."
        )


class CheckpointService:
    """Saves and restores arrays of one session. Safe from any thread.

    Args:
        referenced_data: the arrays.
        saves: the checkpoints that the session has had begun, by token.
        admission: what a server that ends waits for.
        device: the index of the one that the session's arrays are put on.
    """

    def __init__(
        self,
        referenced_data: ReferencedData,
        saves: dict[str, Future[None]],
        admission: Admission,
        device: int,
    ) -> None:
        self._values = referenced_data.values
        self._own = referenced_data.own
        self._saves = saves
        self._admission = admission
        self._device = device
        self._verbs: Mapping[str, Callable[..., Reply]] = {
            "save": self._save,
            "saved": self._saved,
            "restore": self._restore,
        }

    def answer(self, verb: str, args: tuple[Any, ...]) -> Reply:
        """Answers a request.

        Args:
            verb: one of `CHECKPOINT_VERBS`.
            args: see `jaxd_protocol.messages.calls`.

        Raises:
            JaxdError, OSError, ValueError: when there is no answer.
        """
        return self._verbs[verb](*args)

    # saving ------------------------------------------------------------------------------------

    def _save(self, token: str, path: str, names: str, ids: bytes, overwrite: bool) -> Reply:
        """Begins a checkpoint, once; it is done already where memory has no room for copies."""
        if not _TOKEN.fullmatch(token):
            raise ProtocolError("the token of a checkpoint is none.")  # it becomes part of a path
        if token not in self._saves:
            save: Future[None] = Future()
            self._saves[token] = save
            try:
                self._begin(_Save(token, _target(path), overwrite, save), _names(names), ids)
            except BaseException:
                del self._saves[token]
                raise
        save = self._saves[token]
        if save.done():
            self._raise_failure(token, save)
        return (OK, save.done()), ()

    def _raise_failure(self, token: str, save: Future[None]) -> None:
        """Waits, and raises what went wrong; that is forgotten then: it would hold this frame."""
        try:
            save.result()
        except BaseException:
            self._saves.pop(token, None)
            raise

    def _begin(self, save: _Save, names: Sequence[Name], ids: bytes) -> None:
        values = [self._own.get(id_) for id_ in unpack_ids(ids)]
        if len(values) != len(names) or not values:
            raise ProtocolError("a checkpoint has another number of names than of arrays.")
        _orbax()
        if _exists(save):
            return save.outcome.set_result(None)  # another worker has written it
        os.makedirs(os.path.dirname(save.path), exist_ok=True)
        tree = _Tree.of(zip(names, values, strict=True))
        nbytes = sum(value.nbytes for value in values)
        with ExitStack() as held:
            held.enter_context(self._admission.shared("(save)"))
            # A call that is given these for good is given copies: they do not change meanwhile.
            held.enter_context(self._values.held(self._own.principal, values))
            if not self._has_room_for_copies(nbytes):
                return save.run(tree, held)
            start_daemon("jaxd-save", save.run, tree, held.pop_all())
        return None

    def _has_room_for_copies(self, nbytes: int) -> bool:
        """Whether calls may go on beside it: those that donate these arrays take copies."""
        if jax.default_backend() == "cpu" and host_spare() < 2 * nbytes:
            return False
        try:
            with self._values.room(self._own, nbytes):
                return True
        except ValuesFull:
            return False

    def _saved(self, token: str, path: str) -> Reply:
        """Returns when a checkpoint is complete."""
        save = self._saves.get(token)
        if save is not None:
            self._raise_failure(token, save)
        elif _token_in(_target(path)) != token:
            raise WorkerLost(
                f"the worker ended before the checkpoint {path} was complete: there is none, or "
                "the one that was there before. Save again."
            )
        return (OK, True), ()

    # restoring ---------------------------------------------------------------------------------

    def _restore(self, path: str, like: str, number: int, token: str, ids: bytes = b"") -> Reply:
        """Makes values of the arrays of a checkpoint; without `like`, of all, in order of names."""
        target = _target(path)
        if not os.path.isdir(target):
            raise FileNotFoundError(f"there is no checkpoint {path} on the server's machine.")
        stored = _Stored.read(target)
        if token and stored.kinds.get("token") != token:
            raise FileNotFoundError(f"the checkpoint {path} is another one by now.")
        wanted = _wanted(like)
        if wanted is not None:
            stored.check_like(path, wanted)
        names = sorted(stored.leaves) if wanted is None else [each.name for each in wanted]
        numbers = unpack_ids(ids) or range(first_value_id(number), first_value_id(number + 1))
        if ids and len(numbers) != len(names):
            raise ProtocolError("a checkpoint has another number of arrays than of ids.")
        nbytes = sum(leaf.nbytes for leaf in stored.leaves.values())
        with self._values.room(self._own, nbytes), placed(self._device):
            arrays = stored.load(target)
            release_memory()  # what was read lies beside it until then
            leaves = {name: spec_of(array) for name, array in arrays.items()}
            made = [
                Value(arrays[name], leaves[name], leaves[name].nbytes, "restored") for name in names
            ]
            self._values.add(self._own, dict(zip(numbers, made, strict=False)))
        found = str(stored.kinds.get("token", ""))
        return (OK, skeleton_of(made), json.dumps(names), found), ()


class _Save(NamedTuple):
    """One checkpoint.

    Attributes:
        token: identifies it.
        path: where it will lie.
        overwrite: whether it takes the place of another one.
        outcome: done when it is complete.
    """

    token: str
    path: str
    overwrite: bool
    outcome: Future[None]

    def run(self, tree: _Tree, held: ExitStack) -> None:
        """Writes it, and releases what is held for that; does not raise."""
        began = time.monotonic()
        with held:
            try:
                self._write(tree)
            except BaseException as error:  # noqa: BLE001  raised for whoever waits for it
                log_event("checkpoint_failed", path=self.path, reason=repr(error))
                self.outcome.set_exception(_stripped(error))
            else:
                self.outcome.set_result(None)
                seconds = round(time.monotonic() - began, 3)
                log_event("checkpoint_saved", path=self.path, bytes=tree.nbytes, seconds=seconds)

    def _write(self, tree: _Tree) -> None:
        ocp = _orbax()
        place = f"{self.path}.{self.token}"
        with _lock_of(self.path):
            if _exists(self):
                return
            _remove(place)  # a worker that ended may have left it
            try:
                handler = _handler(ocp, tree.largest_part, tree.largest)
                with ocp.Checkpointer(handler) as checkpointer:
                    checkpointer.save(
                        place,
                        args=ocp.args.PyTreeSave(tree.arrays),
                        custom_metadata={_OWN: {**tree.kinds, "token": self.token}},
                    )
                self._move(place)
            except BaseException as error:
                _stripped(error)
                release_memory()  # orbax has circles, and its writes go on while these are there
                _remove_failed(place)
                raise
            _remove(place)

    def _move(self, place: str) -> None:
        """To its path in one step; what was there is at `place` then.

        Raises:
            FileExistsError: when there is something by now that it may not replace.
        """
        try:
            _rename_new(place, self.path)
        except FileExistsError:
            _exists(self)
            _exchange(place, self.path)


class _Tree(NamedTuple):
    """What orbax is given.

    Attributes:
        arrays: dictionaries in dictionaries.
        kinds: what orbax does not keep of arrays.
        nbytes: of all of them.
        largest: the bytes of the largest.
        largest_part: of the largest part of one that lies on one device.
    """

    arrays: dict[str, Any]
    kinds: dict[str, Any]
    nbytes: int
    largest: int
    largest_part: int

    @classmethod
    def of(cls, named: Iterable[tuple[Name, Value]]) -> _Tree:
        """The tree of these arrays.

        Raises:
            ValueError: when two have one name, or all are empty.
        """
        arrays: dict[Name, Any] = {}
        kinds: dict[str, Any] = {"keys": [], "weak": [], "committed": [], "empty": []}
        found = list(named)
        for name, value in found:
            leaf, array = value.leaf, value.array
            if name in arrays:
                raise ValueError(f"two arrays are called {'/'.join(name)}. Rename a key.")
            if not value.nbytes:
                kinds["empty"].append([name, leaf.dtype, leaf.shape])
            arrays[name] = array
            if leaf.tag == "K":
                arrays[name] = key_data(array)
                kinds["keys"].append([name, leaf.impl])
            elif len(array.devices()) == 1 and array.committed:
                kinds["committed"].append(name)
            if leaf.weak:
                kinds["weak"].append(name)
        full = {name: arrays[name] for name, value in found if value.nbytes}
        if not full:
            raise ValueError("there is nothing to save: all arrays are empty.")
        sizes = [value.nbytes for _, value in found]
        parts = (nbytes for array in full.values() for nbytes in _parts_of(array))
        escaped = ((tuple(map(_escaped, name)), array) for name, array in full.items())
        return cls(nested(escaped), kinds, sum(sizes), max(sizes), max(parts))


def _parts_of(array: Any) -> list[int]:
    """Bytes of an array on each of its devices; of one of numpy, all of them."""
    shards = getattr(array, "addressable_shards", ())
    return [one.data.nbytes for one in shards] or [array.nbytes]


class _Wanted(NamedTuple):
    """An array as the client expects it; dtype empty: any."""

    name: Name
    dtype: str
    shape: tuple[int, ...]


class _Leaf(NamedTuple):
    """An array of a checkpoint."""

    dtype: str
    shape: tuple[int, ...]
    sharding: Any = None

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * _dtype(self.dtype).itemsize

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


class _Stored(NamedTuple):
    """A checkpoint on disk.

    Attributes:
        tree: its structure, as orbax has it.
        leaves: its arrays.
        kinds: what was noted beside them; empty where it was not saved here.
    """

    tree: Any
    leaves: dict[Name, _Leaf]
    kinds: dict[str, Any]

    @classmethod
    def read(cls, target: str) -> _Stored:
        """What lies there.

        Raises:
            ValueError: when it is no checkpoint.
        """
        meta = _metadata(target)
        tree = getattr(meta.item_metadata, "tree", None)
        if tree is None:
            raise ValueError(f"{target} is no checkpoint that orbax can read.")
        leaves = {
            _name_of(path): _Leaf(np.dtype(leaf.dtype).name, tuple(leaf.shape), leaf.sharding)
            for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
        }
        kinds = dict((meta.custom_metadata or {}).get(_OWN) or {})
        leaves |= {
            tuple(name): _Leaf(dtype, tuple(shape)) for name, dtype, shape in kinds.get("empty", ())
        }
        return cls(tree, leaves, kinds)

    def check_like(self, path: str, wanted: Sequence[_Wanted]) -> None:
        """Returns when it has just these arrays.

        Raises:
            ValueError: when it has not; names the first that differ.
        """
        odd = [*self._differences(wanted)]
        if odd:
            more = f"; and {len(odd) - _SHOWN} more" if len(odd) > _SHOWN else ""
            raise ValueError(
                f"the checkpoint {path} is not like the given tree: {'; '.join(odd[:_SHOWN])}"
                f"{more}. Restore it without like=, or with a tree of that kind."
            )

    def _differences(self, wanted: Sequence[_Wanted]) -> Iterator[str]:
        for name, dtype, shape in wanted:
            found = self.leaves.get(name)
            if found is None:
                yield f"it has no {'/'.join(name)}"
            elif (dtype or found.dtype, shape) != (found.dtype, found.shape):
                expected = _Leaf(dtype or found.dtype, shape)
                yield f"{'/'.join(name)} is {found} there, and {expected} in the tree"
        known = {each.name for each in wanted}
        for name in sorted(self.leaves.keys() - known):
            yield f"the tree has no {'/'.join(name)}"

    def load(self, target: str) -> dict[Name, Any]:
        """All arrays, as they were; those of one device on the one where arrays are put."""
        ocp = _orbax()
        specs = {
            name: jax.ShapeDtypeStruct(leaf.shape, _dtype(leaf.dtype), sharding=_sharding(leaf))
            for name, leaf in self.leaves.items()
            if leaf.nbytes
        }
        largest = max((leaf.nbytes for leaf in self.leaves.values()), default=0)
        tree = jax.tree_util.tree_map_with_path(lambda path, _: specs[_name_of(path)], self.tree)
        part = max(map(_part_bytes, specs.values()), default=0)
        try:
            found = _read(ocp, target, tree, part)
        except Exception:  # noqa: BLE001  it may lie there in other parts, which are read as a whole
            found = _read(ocp, target, tree, 3 * largest)
        flat = {_name_of(path): x for path, x in jax.tree_util.tree_flatten_with_path(found)[0]}
        del found
        release_memory()  # orbax has circles, which hold the arrays as well
        keys = {tuple(name): impl for name, impl in self.kinds.get("keys", ())}
        weak, committed = (set(map(tuple, self.kinds.get(k, ()))) for k in ("weak", "committed"))
        for name, leaf in self.leaves.items():
            array = flat.pop(name, None)
            if array is None:
                array = np.zeros(leaf.shape, _dtype(leaf.dtype))
            if name in keys:
                array = key_array(keys[name], np.asarray(array))
            elif isinstance(array, np.ndarray) or len(array.devices()) == 1:
                array = _as_put(array, weak=name in weak, committed=name in committed)
            flat[name] = array
        array = None  # or the last one would be there twice
        _take_into_own_memory(flat)
        return flat


def _part_bytes(spec: Any) -> int:
    """Bytes of an array on one of its devices."""
    shape = spec.sharding.shard_shape(spec.shape)
    return _Leaf(spec.dtype.name, shape).nbytes


def _read(ocp: Any, target: str, tree: Any, largest_part: int) -> Any:
    """The arrays of a checkpoint, as orbax gives them."""
    with ocp.Checkpointer(_handler(ocp, largest_part)) as checkpointer:
        args = ocp.args.PyTreeRestore(
            item=tree, restore_args=ocp.checkpoint_utils.construct_restore_args(tree)
        )
        return checkpointer.restore(target, args=args)


def _as_put(array: Any, *, weak: bool, committed: bool) -> Any:
    """An array of one device, where arrays of this thread are put."""
    data = np.asarray(array)
    if committed:
        own = copy_of(data)
        return jax.device_put(own, next(iter(own.devices())))
    return weak_array(data) if weak else copy_of(data)


def _is_sharded_on_host(array: Any) -> bool:
    """Whether an array is spread over several devices of a CPU."""
    return isinstance(array, jax.Array) and {
        len(array.devices()) > 1,
        *(device.platform == "cpu" for device in array.devices()),
    } == {True}


def _take_into_own_memory(arrays: dict[Name, Any]) -> None:
    """Copies sharded arrays into memory of jax's, shard by shard.

    orbax has read them into memory of numpy's, which jax gives to no program: a step that is given
    the state for good would take as much again, a device at a time.
    """
    freed = 0
    for name in [name for name, array in arrays.items() if _is_sharded_on_host(array)]:
        arrays[name] = _in_own_memory(arrays, name)
        freed += arrays[name].nbytes
        if freed > _AT_ONCE:  # else it stays with the threads that have read it
            trim()
            freed = 0


def _in_own_memory(arrays: dict[Name, Any], name: Name) -> Any:
    """A copy of an array, which is taken out."""
    array = arrays.pop(name)
    shape, sharding = array.shape, array.sharding
    parts = [shard.data for shard in array.addressable_shards]
    del array
    for index in range(len(parts)):
        parts[index] = jax.block_until_ready(jax.device_put(parts[index], may_alias=False))
    return jax.make_array_from_single_device_arrays(shape, sharding, parts)


def _sharding(leaf: _Leaf) -> Any:
    """Where it was, as far as there are such devices; else on the first."""
    first = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    if leaf.sharding is None:
        return first
    try:
        found = leaf.sharding.to_jax_sharding()
    except (ValueError, TypeError, KeyError, NotImplementedError):  # it had other devices
        return first
    return first if isinstance(found, jax.sharding.SingleDeviceSharding) else found


# names and places --------------------------------------------------------------------------------


def _target(path: str) -> str:
    """The path, of this machine.

    Raises:
        ConfigurationError: when it is none.
    """
    if "://" in path or "\0" in path or not os.path.isabs(os.path.expanduser(path)):
        raise ConfigurationError(
            f"{path!r} is no place for a checkpoint: give an absolute path on the server's machine."
        )
    return os.path.realpath(os.path.expanduser(path))


def _exists(save: _Save) -> bool:
    """Whether this very checkpoint is there already.

    Raises:
        FileExistsError: when something else is.
    """
    if not os.path.lexists(save.path):
        return False
    if _token_in(save.path) == save.token:
        return True
    if not save.overwrite:
        raise FileExistsError(
            f"{save.path} exists on the server's machine. Save to another path, or with "
            "overwrite=True."
        )
    if not os.path.isfile(f"{save.path}/{_METADATA}"):
        raise FileExistsError(f"{save.path} is no checkpoint, and is not overwritten. Remove it.")
    foreign = _foreign(save.path)
    if foreign:
        raise FileExistsError(
            f"{save.path} has files in it that orbax has not written ({', '.join(foreign)}), and "
            "is not overwritten. Move them elsewhere, or save to another path."
        )
    return False


def _foreign(target: str) -> list[str]:
    """The first things in a checkpoint that are no part of it.

    Raises:
        FileExistsError: when it cannot be read as a checkpoint.
    """
    try:
        tree = _Stored.read(target).tree
    except Exception as error:
        raise FileExistsError(
            f"{target} cannot be read as a checkpoint ({type(error).__name__}), and is not "
            "overwritten. Remove it, or save to another path."
        ) from error
    entries = set(os.listdir(target))
    if _MANIFEST not in entries:  # each array has a folder of its own
        paths = (path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0])
        entries.difference_update(".".join(path_names(path)) for path in paths)
    return sorted(entry for entry in entries if not _OF_ORBAX.fullmatch(entry))[:_SHOWN]


def _token_in(target: str) -> str | None:
    """The token of the checkpoint there; None when there is none that was saved here."""
    with suppress(Exception):  # whatever else lies there
        token = _metadata(target).custom_metadata[_OWN]["token"]
        return token if isinstance(token, str) else None
    return None


def _metadata(target: str) -> Any:
    ocp = _orbax()
    with ocp.Checkpointer(_handler(ocp, 0)) as checkpointer:
        return checkpointer.metadata(target)


def _names(text: str) -> list[Name]:
    return [tuple(map(str, name)) for name in json.loads(text)]


def _wanted(text: str) -> list[_Wanted] | None:
    if not text:
        return None
    return [
        _Wanted(tuple(map(str, name)), str(dtype), tuple(map(int, shape)))
        for name, dtype, shape in json.loads(text)
    ]


def _escaped(part: str) -> str:
    for character, code in _ESCAPES:
        part = part.replace(character, code)
    return part


def _name_of(path: Sequence[Any]) -> Name:
    """The name of what jax finds at a path of dictionaries and sequences."""
    return tuple(map(_unescaped, path_names(path)))


def _unescaped(part: str) -> str:
    for character, code in reversed(_ESCAPES):
        part = part.replace(code, character)
    return part


def _dtype(name: str) -> np.dtype[Any]:
    return np.dtype(jax.numpy.dtype(name))


# files and failures ------------------------------------------------------------------------------


def _lock_of(target: str) -> threading.Lock:
    """Held by whoever writes a checkpoint there, in this process."""
    with _targets_lock:
        return _targets.setdefault(target, threading.Lock())


def _remove(place: str) -> bool:
    """Removes what a save has there, complete or not; whether there was anything."""
    folder, name = os.path.split(place)
    own = re.compile(rf"{re.escape(name)}(\.orbax-checkpoint-tmp.*)?", re.DOTALL)
    found: list[str] = []
    with suppress(OSError):  # why it could not be written is what matters
        found += filter(own.fullmatch, os.listdir(folder))
    for entry in found:
        shutil.rmtree(os.path.join(folder, entry), ignore_errors=True)
    return bool(found)


def _remove_failed(place: str) -> None:
    """Removes it until it stays away: threads of orbax end what they have begun to write."""
    absent = 0
    for _ in range(_ATTEMPTS):
        absent = 0 if _remove(place) else absent + 1
        if absent > _ABSENT:
            return
        time.sleep(_PAUSE_S)


def _rename_new(place: str, path: str) -> None:
    """Renames a folder.

    Raises:
        FileExistsError: when there is something at the path.
    """
    if _renameat2(place, path, _NOREPLACE):
        return
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, "File exists", path)
    os.rename(place, path)


def _exchange(place: str, path: str) -> None:
    """Gives each of two folders the name of the other one, in one step where the system can."""
    if _renameat2(place, path, _EXCHANGE):
        return
    old = f"{place}.old"
    os.rename(path, old)
    try:
        os.rename(place, path)
    except OSError:
        os.rename(old, path)
        raise
    os.rename(old, place)


def _renameat2(source: str, target: str, flag: int) -> bool:
    """Renames on Linux; returns False where that flag is unknown."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # another system
        return False
    if not rename(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), flag):
        return True
    error = ctypes.get_errno()
    if error in _NOT_HERE:
        return False
    raise OSError(error, os.strerror(error), target)


def _stripped(error: BaseException) -> BaseException:
    """The error without the frames that it went through, which hold the arrays."""
    for each in getattr(error, "exceptions", ()):
        _stripped(each)
    error.__cause__ = error.__context__ = error.__traceback__ = None
    return error


# orbax -------------------------------------------------------------------------------------------


def _orbax() -> Any:
    """orbax, imported when the first checkpoint needs it.

    Raises:
        ConfigurationError: when it is not installed.
    """
    try:
        return importlib.import_module("orbax.checkpoint")
    except ImportError as error:
        raise ConfigurationError(
            "checkpoints need orbax-checkpoint where the server runs, and it cannot be imported "
            f"there ({error}). Install it there: pip install 'jaxd[checkpoint]'."
        ) from error


def _handler(ocp: Any, largest_part: int, largest: int = 0) -> Any:
    """Writes and reads 128 MB at a time, or the largest part; takes a gigabyte off a device."""
    most = max(_AT_ONCE, largest_part + 1) / _GB
    return ocp.PyTreeCheckpointHandler(
        save_concurrent_gb=most,
        restore_concurrent_gb=most,
        save_device_host_concurrent_gb=1 + largest // _GB,
    )
