"""The value service: put, fetch, index, name and list the arrays of a session.

None of it is for a thread that reads: all of it may wait for the device.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, Final

import jax
import numpy as np

from jaxd_protocol.errors import (
    ArgumentError,
    ConfigurationError,
    LimitExceeded,
    ProtocolError,
    ValueDeleted,
)
from jaxd_protocol.jax_objects.arrays import exact_array, key_array, key_data, key_spec, weak_array
from jaxd_protocol.jit.settings import when_run
from jaxd_protocol.messages.calls import OK
from jaxd_protocol.messages.data_locations import (
    NOT_IN_MESSAGE,
    VALUE,
    first_value_id,
    leaves_located_in,
    unpack_ids,
    unpack_locations,
)
from jaxd_protocol.pytree import Layout, Leaf, LeafOffset, TreeEncoder
from jaxd_protocol.pytree.leaves import is_exact
from jaxd_server.codec.arguments import parse_arguments, read_leaf, read_leaves
from jaxd_server.codec.results import ResultLayout, host_data
from jaxd_server.execution.call import Reply
from jaxd_server.execution.memory_room import OutOfMemoryHandler
from jaxd_server.jax_compat.config import configured
from jaxd_server.jax_compat.placement import placed
from jaxd_server.rpc.services.peers import PeerService
from jaxd_server.values.held_snapshots import HeldSnapshots
from jaxd_server.values.references import ReferencedData, copy_of
from jaxd_server.values.value import Value

_MAX_NAME: Final = 200
_BASIC_INDEX_TYPES: Final = frozenset({int, slice, type(None), type(...)})

_WIDE: Final = (("jax_enable_x64", True),)
"""Settings under which arrays of 64 bits stay what they were."""


class ValueService:
    """The values of one session, for one connection. Safe from any thread.

    Args:
        referenced_data: what there is.
        oom_handler: makes room on the device.
        max_result_bytes: the most that is sent at once.
        device: the index of the one that the session's arrays are put on.
        peers: gives arrays to other members of the pool, and takes theirs; None: there are none.
    """

    def __init__(
        self,
        referenced_data: ReferencedData,
        oom_handler: OutOfMemoryHandler,
        max_result_bytes: int,
        device: int = 0,
        peers: PeerService | None = None,
    ) -> None:
        self._referenced_data = referenced_data
        self._values = referenced_data.values
        self._own = referenced_data.own
        self._oom_handler = oom_handler
        self._most = max_result_bytes
        self._device = device
        self._peers = peers
        self._verbs: Mapping[str, Callable[..., Reply]] = {
            "put": self._put,
            "fetch": self._fetch,
            "part": self._part,
            "name": self._name,
            "named": self._named,
            "unname": self._unname,
            "values": self._holders,
            "offer": self._offer,
            "take": self._take,
            "hold": self._hold,
            "held": self._held,
        }

    def answer(self, verb: str, args: tuple[Any, ...], buffers: Sequence[memoryview]) -> Reply:
        """Answers a request.

        Args:
            verb: one of `VALUE_VERBS`.
            args: see `jaxd_protocol.messages.calls`.
            buffers: those beside the message.

        Raises:
            JaxdError: when there is no answer.
        """
        return self._verbs[verb](*args, **({"buffers": buffers} if verb == "put" else {}))

    def _put(
        self,
        number: int,
        skeleton: bytes,
        blob: bytes,
        elsewhere: bytes,
        config: tuple[Any, ...],
        ids: bytes = b"",
        *,
        buffers: Sequence[memoryview],
    ) -> Reply:
        layout = parse_arguments(skeleton)
        if not _is_flat(layout):
            raise ProtocolError("what is put is not a flat tuple of arrays and numbers.")
        numbers = unpack_ids(ids)
        if numbers and len(numbers) != len(layout.leaves):
            raise ProtocolError("what is put has another number of ids than of arrays.")
        rows = unpack_locations(elsewhere, len(layout.leaves))
        if any(row.kind == VALUE for row in rows):
            raise ProtocolError("what is put is on the server already.")
        absent = leaves_located_in(rows, NOT_IN_MESSAGE)
        with placed(self._device):
            leaves = read_leaves(layout.without(absent), blob, buffers)
            self._referenced_data.fill(rows, layout, leaves, ())
        return self._kept(number, layout, leaves, config, numbers)

    def _kept(
        self,
        number: int,
        layout: Layout,
        leaves: Sequence[Any],
        config: tuple[Any, ...],
        ids: Sequence[int] = (),
    ) -> Reply:
        """Makes values of what was received, and says what they look like."""
        with self._values.room(self._own, _size_of(layout)):
            return self._made(number, leaves, config, ids)

    def _made(
        self, number: int, leaves: Sequence[Any], config: tuple[Any, ...], ids: Sequence[int] = ()
    ) -> Reply:
        """The same, within the room that they take."""
        with configured(when_run(config)), placed(self._device):
            # Each has memory of its own: what was received may be shared with the client.
            arrays = self._oom_handler.retried_on_oom(
                lambda: jax.block_until_ready(list(map(copy_of, leaves)))
            )
        made = [_value(array, "put") for array in arrays]
        self._add(number, made, ids)
        return (OK, skeleton_of(made)), ()

    def _offer(self, ids: bytes) -> Reply:
        """A ticket with which another member can take some values, once."""
        numbers, peers = unpack_ids(ids), self._required_peers()
        offered = [self._own.get(id_) for id_ in numbers]
        self._check_size(sum(value.nbytes for value in offered))

        def give() -> tuple[bytes, Sequence[memoryview]]:
            found = [self._own.get(id_) for id_ in numbers]  # unless they were dropped meanwhile
            return skeleton_of(found), [_data_of(value) for value in found]

        return (OK, peers.offer(skeleton_of(offered), give), peers.peers.own), ()

    def _take(self, member: str, ticket: str, config: tuple[Any, ...], ids: bytes) -> Reply:
        """Makes values of those that another member has offered, once there is room for them."""
        peers, numbers = self._required_peers(), unpack_ids(ids)
        looks = peers.look(member, ticket)
        layout = ResultLayout.of(looks, ()).layout
        if not _is_flat(layout):
            raise _no_arrays()
        if len(numbers) != len(layout.leaves):
            raise ProtocolError("what is to be taken has another number of ids than of arrays.")
        with self._values.room(self._own, _size_of(layout)):
            skeleton, buffers = peers.take(member, ticket)
            if skeleton != looks or len(buffers) != len(layout.leaves):
                raise _no_arrays()
            return self._made(0, self._exact(layout, buffers), config, numbers)

    def _exact(self, layout: Layout, buffers: Sequence[memoryview]) -> list[Any]:
        """Arrays with their dtypes: the settings of the caller are not those that made them."""
        with placed(self._device):
            return [
                exact_array(read_leaf(leaf, LeafOffset(buffer=place), b"", buffers))
                for place, leaf in enumerate(layout.leaves)
            ]

    def _hold(self, secret: str, number: int, ids: bytes) -> Reply:
        """Writes a snapshot of values, which outlives this process."""
        found = [self._own.get(id_) for id_ in unpack_ids(ids)]
        data = [_data_of(value) for value in found]
        self._required_snapshots().write(self._own, secret, number, skeleton_of(found), data)
        return (OK,), ()

    def _held(self, secret: str, number: int, ids: bytes) -> Reply:
        """Makes values of a snapshot again."""
        skeleton, buffers = self._required_snapshots().read(self._own, secret, number)
        layout, numbers = ResultLayout.of(skeleton, ()).layout, unpack_ids(ids)
        if len(numbers) != len(layout.leaves):
            raise ProtocolError("a snapshot has another number of arrays than of ids.")
        with self._values.room(self._own, _size_of(layout)):
            return self._made(0, self._exact(layout, buffers), _WIDE, numbers)

    def _required_snapshots(self) -> HeldSnapshots:
        if self._values.snapshots is None:
            raise ConfigurationError(
                "this server keeps no snapshots (--snapshot-bytes). Save checkpoints: "
                "jaxd.save(state, path)."
            )
        return self._values.snapshots

    def _required_peers(self) -> PeerService:
        if self._peers is None:
            raise ConfigurationError(
                "this server is no member of a pool that exchanges arrays. Fetch them and put "
                "them there."
            )
        return self._peers

    def _add(self, number: int, values: Sequence[Value], ids: Sequence[int] = ()) -> None:
        first = first_value_id(number)
        self._values.add(self._own, dict(zip(ids or count(first), values, strict=False)))

    def _fetch(self, ids: bytes, places: bytes) -> Reply:
        found = [self._own.get(id_) for id_ in unpack_ids(ids)]
        self._check_size(sum(value.nbytes for value in found))
        data = [_data_of(value) for value in found]
        if not places:
            return (OK,), data
        self._referenced_data.write(unpack_ids(places), data)
        return (OK,), ()

    def _check_size(self, total: int) -> None:
        """Returns when so many bytes may be sent at once."""
        if total > self._most:
            raise LimitExceeded(
                f"{total:,} bytes are over the limit of {self._most:,} that this server sends at "
                "once. Fetch a part, as in h[:1000], or start it with a larger --max-result-bytes."
            )

    def _part(self, id: int, index: tuple[Any, ...], above: int, number: int) -> Reply:  # noqa: A002
        whole = self._own.get(id)
        with placed(self._device):
            part = _value(_indexed(whole, index), whole.maker)
        skeleton = skeleton_of([part])
        if part.nbytes <= above:
            return (OK, skeleton), [host_data(part.array)]
        with self._values.room(self._own, part.nbytes):
            self._add(number, [part])
        return (OK, skeleton), ()

    def _name(self, name: str, skeleton: bytes, ids: bytes, ttl_s: float | None) -> Reply:
        if not 0 < len(name) <= _MAX_NAME:
            raise ArgumentError(f"a name has 1 to {_MAX_NAME} characters. Choose another one.")
        if ttl_s is not None and not ttl_s > 0:
            raise ArgumentError(f"ttl_s is {ttl_s}. Give the seconds that the name is to live.")
        values = [self._own.get(id_) for id_ in unpack_ids(ids)]
        if ResultLayout.of(skeleton, ()).layout.leaves != tuple(value.leaf for value in values):
            raise ProtocolError("what is given a name does not look as it is said to.")
        self._values.name(self._own.principal, name, skeleton, values, ttl_s)
        return (OK,), ()

    def _named(self, name: str, number: int) -> Reply:
        named = self._values.named(self._own.principal, name)
        self._add(number, named.values)
        return (OK, named.skeleton), ()

    def _unname(self, name: str) -> Reply:
        return (OK, self._values.unname(self._own.principal, name)), ()

    def _holders(self) -> Reply:
        rows = self._values.holders(self._own.principal)
        totals = {
            "values": len(self._values),
            "bytes": self._values.nbytes,
            "limit_bytes": self._values.limit,
        }
        kept = self._values.kept(self._own.principal)
        return json.dumps({"holders": rows, "totals": totals, "kept": kept}), ()


def _size_of(layout: Layout) -> int:
    """Bytes of the arrays."""
    return sum(leaf.nbytes for leaf in layout.leaves if leaf.tag in "AK")


def _no_arrays() -> ProtocolError:
    return ProtocolError("what a member gives is no flat tuple of the arrays that it has offered.")


def _is_flat(layout: Layout) -> bool:
    """Whether a tree is a flat tuple of what can be put."""
    numbers = tuple(range(len(layout.leaves)))
    return layout.outline(numbers) == numbers and all(
        leaf.tag in "AKFIBC" for leaf in layout.leaves
    )


def _value(array: Any, maker: str) -> Value:
    leaf = spec_of(array)
    return Value(array, leaf, leaf.nbytes, maker)


def _data_of(value: Value) -> memoryview:
    """Its bytes, unless a call that came before has been given it meanwhile."""
    data = host_data(value.array)
    if value.array.is_deleted():
        raise _given_away()
    return data


def _given_away() -> ValueDeleted:
    return ValueDeleted(
        "an array on the server was donated to a call while it was being read. Use the result of "
        "that call instead."
    )


def spec_of(array: Any) -> Leaf:
    """What an array looks like in a skeleton."""
    key = key_spec(array.aval)
    if key is not None:
        return Leaf("K", key.dtype, key.shape, impl=key.impl)
    dtype, weak = array.dtype.name, bool(array.aval.weak_type)
    return Leaf("A", dtype, array.shape, weak, exact=is_exact(dtype, weak))


def skeleton_of(values: Sequence[Value]) -> bytes:
    """What values look like, as a flat tuple."""
    encoder = TreeEncoder()
    encoder.specs(value.leaf for value in values)
    return encoder.skeleton


def _indexed(value: Value, index: tuple[Any, ...]) -> Any:
    """A part, with memory of its own. On a CPU without a program for each index."""
    if not set(map(type, index)) <= _BASIC_INDEX_TYPES:
        raise ProtocolError("a part is asked for by something else than integers and slices.")
    array, leaf = value.array, value.leaf
    try:
        if leaf.tag == "K":
            return key_array(leaf.impl, np.array(_keys_at(key_data(array), index, array.ndim)))
        if next(iter(array.devices())).platform != "cpu":
            return array[index]
        part = np.array(np.asarray(array)[index])
    except (TypeError, ValueError, OverflowError) as error:
        raise IndexError(str(error)) from error
    except RuntimeError as error:
        if array.is_deleted():
            raise _given_away() from error
        raise
    return weak_array(part) if leaf.weak else exact_array(part)


def _keys_at(data: Any, index: tuple[Any, ...], ndim: int) -> Any:
    """The numbers of some keys; the dimensions behind the first `ndim` are those of one key."""
    if sum(item is not None and item is not ... for item in index) > ndim:
        raise IndexError("too many indices for an array of keys")
    of_key = [slice(None)] * (data.ndim - ndim) if ... in index else [...]
    return data[(*index, *of_key)]
