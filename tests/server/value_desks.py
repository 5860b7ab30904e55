"""The values of one session, as a client uses them, without the wire."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxd.interop.remote_array import RemoteArray
from jaxd.request.arguments import ArgumentEncoder, encode_arguments
from jaxd_protocol.jit.static_args import infer_static_args
from jaxd_protocol.messages.data_locations import (
    KEEP_ALL,
    DataLocation,
    ResultPolicy,
    first_value_id,
    pack_ids,
    pack_locations,
)
from jaxd_protocol.pytree import Leaf, TreeEncoder, parse_skeleton
from jaxd_protocol.pytree.leaves import numpy_leaf
from jaxd_server.execution.call import Call
from jaxd_server.execution.memory_room import OutOfMemoryHandler
from jaxd_server.rpc.services import check_arguments
from jaxd_server.rpc.services.values import ValueService
from jaxd_server.runtime.memory_reclaimer import Reclaimer
from jaxd_server.values.client_memory import ClientMemory
from jaxd_server.values.references import ReferencedData
from jaxd_server.values.store import ValueStore
from jaxd_server.values.value import SessionValues
from tests.client.fake_fetcher import single_array
from tests.server.in_process import Source


class Blocks(ClientMemory):
    """Memory that is shared with a client: one block for each number."""

    def __init__(self, **blocks: bytearray) -> None:
        super().__init__(1 << 30)
        self._blocks = {int(name[1:]): memoryview(data) for name, data in blocks.items()}


class ValueServiceRig:
    """A rig, and what a client would ask it. Numbers of calls are given out in order."""

    def __init__(
        self,
        values: ValueStore | None = None,
        principal: str = "uid:1",
        blocks: Blocks | None = None,
        most: int = 1 << 30,
        peers: Any = None,
    ) -> None:
        self.values = ValueStore() if values is None else values
        self.own = SessionValues(principal)
        self.referenced_data = ReferencedData(self.values, self.own, blocks or Blocks())
        self.rig = ValueService(
            self.referenced_data,
            OutOfMemoryHandler(Reclaimer(), lambda: ""),
            most,
            peers=peers,
        )
        self.number = 0

    def ask(self, verb: str, *args: Any, buffers: Sequence[memoryview] = ()) -> tuple[Any, Any]:
        """The answer."""
        check_arguments(verb, args)
        return self.rig.answer(verb, args, buffers)

    def put(
        self, *leaves: Any, rows: Sequence[DataLocation] = (), config: Any = ()
    ) -> tuple[int, ...]:
        """The ids of what was put."""
        encoder = ArgumentEncoder({})
        encoder.node(leaves)
        message = (encoder.skeleton, encoder.blob, pack_locations(rows), config)
        self.number += 1
        value, _ = self.ask("put", self.number, *message, buffers=encoder.buffers)
        return tuple(first_value_id(self.number) + i for i in range(len(specs(value[1]))))

    def fetch(self, *ids: int) -> list[Any]:
        """The arrays as numpy's."""
        _, buffers = self.ask("fetch", pack_ids(ids), b"")
        leaves = [self.own.get(number).leaf for number in ids]
        return [local_array(leaf, data) for leaf, data in zip(leaves, buffers, strict=True)]

    def part(self, number: int, *index: Any, above: int = 1 << 30) -> Any:
        """What basic indexing gives; the id of a new value when it is above that many bytes."""
        self.number += 1
        value, buffers = self.ask("part", number, index, above, self.number)
        (leaf,) = specs(value[1])
        return local_array(leaf, buffers[0]) if buffers else first_value_id(self.number)

    def name(self, name: str, *ids: int, ttl_s: float | None = None) -> None:
        """Gives them a name, as a tuple."""
        leaves = [self.own.get(number).leaf for number in ids]
        self.ask("name", name, skeleton_of(*leaves), pack_ids(ids), ttl_s)

    def named(self, name: str) -> tuple[int, ...]:
        """The ids of what has that name."""
        self.number += 1
        value, _ = self.ask("named", name, self.number)
        return tuple(first_value_id(self.number) + i for i in range(len(specs(value[1]))))

    def ref(self, number: int) -> RemoteArray:
        """What a client has of a value."""
        return single_array(self, number, self.own.get(number).leaf)

    def drop(self, ids: range) -> None:
        """A handle is gone; nobody is told."""

    def call(self, source: Source, *args: Any, above: int = KEEP_ALL, home: int = -1) -> Call:
        """A call of this session, on values where `args` has what `ref` returned."""
        self.number += 1
        statics = infer_static_args(source.function, source.options)
        encoded = encode_arguments(args, {}, statics, {}, self)
        call = Call(source.key, encoded.skeleton, encoded.blob, encoded.buffers, source)
        call.stay, call.referenced_data = (
            ResultPolicy(self.number, above, home),
            self.referenced_data,
        )
        call.elsewhere = pack_locations([each.row for each in encoded.values])
        return call

    def holders(self) -> dict[str, Any]:
        """Who holds what."""
        value, _ = self.rig.answer("values", (), ())
        report: dict[str, Any] = json.loads(value)
        return report


def specs(skeleton: bytes) -> tuple[Leaf, ...]:
    """The leaves of a flat tuple."""
    return parse_skeleton(skeleton, lambda *_: tuple).leaves


def skeleton_of(*leaves: Leaf) -> bytes:
    """That of a flat tuple."""
    encoder = TreeEncoder()
    encoder.specs(leaves)
    return encoder.skeleton


def local_array(leaf: Leaf, data: memoryview) -> Any:
    """The array as numpy's."""
    place = parse_skeleton(skeleton_of(leaf), lambda *_: tuple).whole.places[0]
    if place.buffer >= 0:
        return np.array(numpy_leaf(leaf, place, b"", [data]))
    return np.array(numpy_leaf(leaf, place, bytes(data), []))
