from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxd.request.arguments import ArgumentEncoder
from jaxd_protocol.errors import (
    LimitExceeded,
    ProtocolError,
    ValueDeleted,
    ValuesFull,
)
from jaxd_protocol.jax_objects.arrays import exact_array, key_data
from jaxd_protocol.messages.data_locations import (
    BLOCK,
    VALUE,
    DataLocation,
    pack_ids,
    pack_locations,
)
from jaxd_protocol.pytree import Leaf
from jaxd_server.rpc.services.values import spec_of
from jaxd_server.values.store import ValueStore
from jaxd_server.values.value import Value
from tests.ids import row
from tests.server.value_desks import Blocks, ValueServiceRig, skeleton_of, specs

X64 = (("jax_enable_x64", True),)
MIB = 1 << 20

ARRAYS: dict[str, Any] = {
    "float32": np.arange(6, dtype=np.float32).reshape(2, 3),
    "large": np.arange(10_000, dtype=np.int32),
    "0-d": np.float32(2.5),
    "empty": np.zeros((3, 0, 2), np.float32),
    "bool": np.array([True, False]),
    "complex": np.array([1 + 2j], np.complex64),
    "bfloat16": np.arange(5).astype(ml_dtypes.bfloat16),
    "int4": np.arange(-8, 8).astype(ml_dtypes.int4),
    "float8": np.arange(4).astype(ml_dtypes.float8_e4m3fn),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_what_is_put_comes_back_bit_for_bit(name: str) -> None:
    """With its dtype and shape."""
    rig, array = ValueServiceRig(), ARRAYS[name]
    (number,) = rig.put(array)
    (back,) = rig.fetch(number)
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert back.tobytes() == array.tobytes()
    assert rig.values.nbytes == array.nbytes


def test_the_payload_of_a_nan_is_kept() -> None:
    """In any float, and its sign."""
    rig = ValueServiceRig()
    singles = np.array([0x7FC12345, 0xFFC00001, 0x7F800001], np.uint32).view(np.float32)
    doubles = np.array([0x7FF8000000012345, 0xFFF0000000000001], np.uint64).view(np.float64)
    halves = np.array([0x7E01, 0xFE02], np.uint16).view(np.float16)
    for array in (singles, halves):
        assert rig.fetch(*rig.put(array))[0].tobytes() == array.tobytes()
    assert rig.fetch(*rig.put(doubles, config=X64))[0].tobytes() == doubles.tobytes()


def test_dtypes_become_what_device_put_makes_of_them() -> None:
    """With the client's setting, weak types as well."""
    rows: list[Any] = [np.arange(3.0), np.arange(3), 2.5, 7, True, 1j, np.uint64(3)]
    others: list[Any] = [(), X64]
    for leaf in rows:
        for config in others:
            with row((leaf, config)):
                rig = ValueServiceRig()
                (number,) = rig.put(leaf, config=config)
                with jax.enable_x64(bool(config)):
                    expected = jax.device_put(leaf)
                found = rig.own.get(number)
                assert (found.array.dtype, found.array.shape) == (expected.dtype, expected.shape)
                assert found.leaf.weak == expected.weak_type
                assert np.asarray(found.array).tolist() == np.asarray(expected).tolist()


@pytest.mark.parametrize("kind", [VALUE, BLOCK])
def test_what_is_put_has_to_be_there(kind: int) -> None:
    """A value is no such thing: two numbers would stand for one array, and one give it away."""
    rig = ValueServiceRig()
    (number,) = rig.put(np.ones(3, np.float32))
    rows = pack_locations([DataLocation(0, kind, number)])
    with pytest.raises(ProtocolError):
        rig.ask("put", 2, skeleton_of(Leaf("A", "float32", (3,))), b"", rows, ())
    assert len(rig.values) == 1


def test_only_a_flat_tuple_can_be_put() -> None:
    """Neither another tree nor anything that is no array."""
    rig = ValueServiceRig()
    for tree in ([1.0], (1.0, (2.0,)), {"a": 1.0}, ("text",), (None,), (Leaf,)):
        encoder = ArgumentEncoder({})
        encoder.node(tree)
        message = (encoder.skeleton, encoder.blob, b"", ())
        with pytest.raises(ProtocolError, match="flat tuple"):
            rig.ask("put", 1, *message, buffers=encoder.buffers)
    assert len(rig.values) == 0


def test_what_has_no_room_is_not_put() -> None:
    """And nothing of it stays."""
    rig = ValueServiceRig(ValueStore(limit=MIB))
    rig.put(np.zeros(MIB // 2, np.uint8))
    with pytest.raises(ValuesFull, match=r"put 0\.5 MiB"):
        rig.put(np.zeros(8, np.uint8), np.zeros(MIB // 2, np.uint8))
    assert (len(rig.values), rig.values.nbytes) == (1, MIB // 2)


# fetch ----------------------------------------------------------------------------------------


def test_several_are_fetched_at_once() -> None:
    """In the order in which they were asked for, the same one twice if that is wanted."""
    rig = ValueServiceRig()
    one, two = rig.put(np.arange(3, dtype=np.int8), np.float32(7))
    found = rig.fetch(two, one, two)
    assert [array.tolist() for array in found] == [7.0, [0, 1, 2], 7.0]


def test_results_go_into_the_clients_memory() -> None:
    """Where it wants them, and nowhere else."""
    memory = bytearray(64)
    rig = ValueServiceRig(blocks=Blocks(b5=memory))
    ids = rig.put(np.arange(4, dtype=np.uint8), np.arange(9, 12, dtype=np.uint8))
    _, buffers = rig.ask("fetch", pack_ids(ids), pack_ids([5, 8, 5, 20]))
    assert list(buffers) == []
    assert bytes(memory) == bytes(8) + bytes(range(4)) + bytes(8) + bytes([9, 10, 11]) + bytes(41)
    for places in ([5, 62, 5, 0], [6, 0, 5, 0], [5, 0]):
        with pytest.raises(ProtocolError):
            rig.ask("fetch", pack_ids(ids), pack_ids(places))


def test_too_much_at_once_is_refused() -> None:
    """A part can be had."""
    rig = ValueServiceRig(most=1000)
    (number,) = rig.put(np.zeros(2000, np.uint8))
    with pytest.raises(LimitExceeded, match="Fetch a part"):
        rig.fetch(number)
    assert rig.part(number, slice(0, 10)).shape == (10,)


def test_what_was_given_away_is_not_read_as_something_else() -> None:
    """A call may have been given an array while another thread of its client fetches it."""
    rig = ValueServiceRig()
    gone = jnp.arange(3.0) + 1
    rig.values.add(rig.own, {7: Value(gone, spec_of(gone), 12, "f")})
    gone.delete()
    with pytest.raises(ValueDeleted, match="donated"):
        rig.fetch(7)
    with pytest.raises(ValueDeleted, match="donated"):
        rig.part(7, 0)
    with pytest.raises(ValueDeleted, match="not there"):
        rig.fetch(8)
    with pytest.raises(ProtocolError):
        rig.ask("fetch", b"123", b"")


# a part ---------------------------------------------------------------------------------------

A = slice(None)
INDICES: list[tuple[Any, ...]] = [
    (), (0,), (-1,), (1, 2), (1, 2, 3), (A,), (slice(1, 3),), (slice(None, None, -1),),
    (slice(10, 0, -3),), (slice(5, 5),), (slice(-100, 100),), (...,), (..., 0), (0, ...),
    (0, ..., 1), (None,), (None, 0, None), (..., None), (A, slice(1, None), 2), (A, A, A),
]  # fmt: skip


def test_a_part_is_what_jax_gives() -> None:
    """With its dtype and shape."""
    rows: list[Any] = [(np.float32, index) for index in INDICES]
    rows += [
        (dtype, index)
        for dtype in (ml_dtypes.bfloat16, ml_dtypes.int4)
        for index in ((), (1, 2, 3), (slice(1, 3),), (..., None))
    ]
    for dtype, index in rows:
        with row((dtype, index)):
            rig, array = ValueServiceRig(), np.arange(60).reshape(3, 4, 5).astype(dtype)
            (number,) = rig.put(array)
            part, expected = rig.part(number, *index), np.asarray(jnp.asarray(array)[index])
            assert (part.dtype, part.shape) == (expected.dtype, expected.shape)
            assert part.tolist() == expected.tolist()


@pytest.mark.parametrize("index", [(0,), (slice(1, 3),), (..., 1), (None, 2), (1, ...), (A, 1)])
def test_a_part_of_keys_is_keys(index: tuple[Any, ...]) -> None:
    """An index never reaches the numbers of a key."""
    rig, keys = ValueServiceRig(), jax.random.split(jax.random.key(1), (3, 4))
    (number,) = rig.put(keys)
    assert rig.part(number, *index).tolist() == key_data(keys[index]).tolist()
    for wrong in ((0, 0, 0), (..., 0, 0, 0), (3,)):
        with pytest.raises(IndexError):
            rig.part(number, *wrong)


def test_a_part_of_something_weak_is_weak() -> None:
    """As jax has it."""
    rig, weak = ValueServiceRig(), jnp.broadcast_to(jnp.asarray(1.5), (4,))
    rig.values.add(rig.own, {1: Value(weak, spec_of(weak), 16, "f")})
    part = rig.own.get(rig.part(1, slice(1, 3), above=0)).array
    assert (part.weak_type, part.dtype, part.shape) == (True, np.float32, (2,))


def test_a_large_part_becomes_a_value() -> None:
    """Of its own: it outlives what it was taken from, and is counted."""
    rig = ValueServiceRig()
    (number,) = rig.put(np.arange(1000, dtype=np.float32))
    part = rig.part(number, slice(500, None), above=100)
    assert rig.values.nbytes == 4000 + 2000
    rig.values.drop(rig.own, [range(number, number + 1)])
    assert rig.fetch(part)[0].tolist() == list(range(500, 1000))


def test_a_part_that_has_no_room_is_none() -> None:
    """But it can be sent home."""
    rig = ValueServiceRig(ValueStore(limit=5000))
    (number,) = rig.put(np.arange(1000, dtype=np.float32))
    with pytest.raises(ValuesFull):
        rig.part(number, slice(500, None), above=100)
    assert rig.part(number, slice(500, None)).shape == (500,)
    assert len(rig.values) == 1


def test_64_bits_stay_64_bits_in_a_part() -> None:
    """Whatever jax's settings are here."""
    rig = ValueServiceRig()
    (number,) = rig.put(np.arange(5, dtype=np.int64) + (1 << 40), config=X64)
    assert rig.own.get(rig.part(number, slice(2, 4), above=0)).array.dtype == np.int64
    assert rig.part(number, 3).tolist() == (1 << 40) + 3


class Offered:
    """Another member of the pool, which offers some arrays under any ticket."""

    def __init__(self, *arrays: Any) -> None:
        self.skeleton = skeleton_of(*map(spec_of, map(exact_array, arrays)))
        self.buffers = [memoryview(array.reshape(-1).view("u1")) for array in arrays]

        self.has_given = False

    def look(self, *_: object) -> bytes:
        """What it offers."""
        return self.skeleton

    def take(self, *_: object) -> tuple[bytes, Sequence[memoryview]]:
        """What it gives."""
        self.has_given = True
        return self.skeleton, self.buffers


def test_what_another_member_gives_keeps_its_64_bits() -> None:
    """Whatever the settings of the caller are, who has left `enable_x64` meanwhile."""
    wide = np.arange(5, dtype=np.int64) + (1 << 40)
    rig = ValueServiceRig(peers=Offered(wide))
    value, _ = rig.ask("take", "m1", "0" * 32, (), pack_ids([7]))
    assert specs(value[1])[0].dtype == "int64"
    assert rig.fetch(7)[0].tolist() == wide.tolist()


def test_what_another_member_gives_has_the_ids_that_it_is_to_have() -> None:
    """As many as there are arrays."""
    rig = ValueServiceRig(peers=Offered(np.zeros(3, "f4"), np.ones(2, "f4")))
    with pytest.raises(ProtocolError, match="another number of ids"):
        rig.ask("take", "m1", "0" * 32, (), pack_ids([7]))
    rig.ask("take", "m1", "0" * 32, (), pack_ids([9, 4]))
    assert [rig.fetch(number)[0].tolist() for number in (9, 4)] == [[0.0] * 3, [1.0] * 2]


def test_what_has_no_room_is_not_taken() -> None:
    """No byte of it comes."""
    offered = Offered(np.zeros(1000, np.float32))
    rig = ValueServiceRig(ValueStore(limit=3999), peers=offered)
    with pytest.raises(ValuesFull):
        rig.ask("take", "m1", "0" * 32, (), pack_ids([7]))
    assert not offered.has_given


def test_what_is_too_much_at_once_or_not_there_is_not_offered() -> None:
    """As of a fetch."""
    offers: list[Any] = []
    known = SimpleNamespace(own="m0")
    peers = SimpleNamespace(offer=lambda *offer: offers.extend(offer), peers=known)
    rig = ValueServiceRig(most=1000, peers=peers)
    small, large = rig.put(np.zeros(10, np.float32), np.zeros(251, np.float32))
    with pytest.raises(LimitExceeded):
        rig.ask("offer", pack_ids([small, large]))
    with pytest.raises(ValueDeleted):
        rig.ask("offer", pack_ids([large + 1]))
    assert not offers
    rig.ask("offer", pack_ids([small]))
    assert offers


@pytest.mark.parametrize("index", [("a",), (1.5,), (True,), ((0, 1),), (b"x",)])
def test_another_index_is_refused(index: tuple[Any, ...]) -> None:
    """The client brings the whole array home for those."""
    rig = ValueServiceRig()
    (number,) = rig.put(np.arange(5, dtype=np.int8))
    with pytest.raises(ProtocolError, match="integers and slices"):
        rig.part(number, *index)
    for wrong in [(5,), (0, 0), (..., ...), (1 << 80,), (slice(0, 5, 0),), (slice("a", 1),)]:
        with pytest.raises(IndexError):
            rig.part(number, *wrong)


# names ----------------------------------------------------------------------------------------


def test_what_has_a_name_is_found_by_another_session() -> None:
    """Of the same principal, under numbers of its own, also when the first has ended."""
    values = ValueStore()
    one, two, other = (
        ValueServiceRig(values),
        ValueServiceRig(values),
        ValueServiceRig(values, "uid:2"),
    )
    ids = one.put(np.arange(3, dtype=np.int8), np.float32(7))
    one.name("weights", *ids)
    values.end(one.own)
    found = two.named("weights")
    assert [array.tolist() for array in two.fetch(*found)] == [[0, 1, 2], 7.0]
    with pytest.raises(ValueDeleted, match="You have none here"):
        other.named("weights")
    assert values.nbytes == 7  # once, whoever holds it
    assert two.ask("unname", "weights")[0][1] is True
    assert two.ask("unname", "weights")[0][1] is False
    assert two.fetch(found[1])[0].tolist() == 7.0


def test_a_name_stands_for_what_is_there() -> None:
    """Not for what is described in another way, or gone."""
    rig = ValueServiceRig()
    (number,) = rig.put(np.float32(7))
    leaf = Leaf("A", "float32", ())
    for skeleton in (skeleton_of(), skeleton_of(leaf, leaf), skeleton_of(Leaf("A", "int32", ()))):
        with pytest.raises(ProtocolError):
            rig.ask("name", "n", skeleton, pack_ids([number]), None)
    with pytest.raises(ValueDeleted):
        rig.ask("name", "n", skeleton_of(leaf), pack_ids([number + 1]), None)
    with pytest.raises(ValueDeleted):
        rig.named("n")


# who holds what -------------------------------------------------------------------------------


def test_who_holds_what_is_said() -> None:
    """In all, and row by row; of others no more than how much."""
    values = ValueStore(limit=1000)
    one, two = ValueServiceRig(values), ValueServiceRig(values, "uid:2")
    one.name("w", *one.put(np.zeros(100, np.uint8)), ttl_s=60.0)
    two.put(np.zeros(200, np.uint8))
    report = one.holders()
    assert report["totals"] == {"values": 2, "bytes": 300, "limit_bytes": 1000}
    told = [(row["what"], row["bytes"]) for row in report["holders"]]
    assert told == [("values of uid:2", 200), ("named 'w'", 100)]
    assert 50 < report["holders"][1]["ttl_s"] <= 60


def test_what_an_array_looks_like_is_what_a_skeleton_says() -> None:
    """Also for 64 bits, and for what is weakly typed."""
    assert spec_of(exact_array(np.zeros(3))) == Leaf("A", "float64", (3,), exact=True)
    assert spec_of(jnp.asarray(1.0)) == Leaf("A", "float32", (), weak=True)
