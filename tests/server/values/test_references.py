from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd_protocol.errors import ArgumentError, JaxdError, ProtocolError, ValueDeleted
from jaxd_protocol.jax_objects.arrays import key_data
from jaxd_protocol.messages.calls import OK
from jaxd_protocol.messages.data_locations import (
    BLOCK,
    CACHED_AS_VALUE,
    CACHED_BY_CONTENT,
    VALUE,
    DataLocation,
    content_id,
    pack_ids,
)
from jaxd_protocol.pytree import Layout, Leaf
from jaxd_protocol.pytree.leaves import spec_bytes
from jaxd_server.rpc.services.values import spec_of
from jaxd_server.values.references import Given, ReferencedData, copy_of
from jaxd_server.values.store import ContentStore, ValueStore
from jaxd_server.values.value import SessionValues, Value
from tests.server.value_desks import Blocks

F3 = Leaf("A", "float32", (3,))
DATA: Any = np.arange(3, dtype=np.float32)


class ReferencedDataBench:
    """ReferencedData with one value under number 7, and a block with number 5."""

    def __init__(self, limit: int = 0) -> None:
        self.values = ValueStore(limit, contents=ContentStore(1000))
        self.own = SessionValues("uid:1")
        self.memory = bytearray(DATA.tobytes() * 4)
        self.referenced_data = ReferencedData(self.values, self.own, Blocks(b5=self.memory))
        self.array = jnp.asarray(DATA) + 10
        self.values.add(self.own, {7: Value(self.array, F3, 12, "f")})

    def fill(
        self,
        *rows: DataLocation,
        leaves: Any = (None, None),
        donated: Any = (),
        looks: Any = (F3, F3),
    ) -> list[Any]:
        """The leaves with what the rows refer to."""
        found = list(leaves)
        self.referenced_data.fill(rows, Layout(looks, tuple), found, donated)
        return found


def test_what_is_to_be_kept_becomes_a_value() -> None:
    """With the dtype that it was sent with; all of it or none, and half of the room stays free."""
    bench = ReferencedDataBench()
    wide: Any = np.arange(3) + (1 << 40)
    leaf = Leaf("A", "int64", (3,))
    (given,) = bench.fill(DataLocation(0, CACHED_AS_VALUE, 9), leaves=(wide,), looks=(leaf,))
    assert (given.dtype, given.tolist()) == (np.int64, wide.tolist())
    kept = bench.own.get(9).array
    assert (type(given), kept.dtype, kept.tolist()) == (np.ndarray, np.int64, wide.tolist())
    assert (len(bench.values), bench.values.nbytes) == (2, 36)
    (again,) = bench.fill(DataLocation(0, VALUE, 9), leaves=(None,), looks=(leaf,))
    assert (type(again), again.tolist()) == (np.ndarray, wide.tolist())
    bench = ReferencedDataBench(limit=70)
    leaves: Any = [DATA, DATA]
    rows = [DataLocation(0, CACHED_AS_VALUE, 8), DataLocation(1, CACHED_AS_VALUE, 9)]
    assert bench.referenced_data.fill(rows, Layout((F3, F3), tuple), leaves, ())[0] == (8, 9)
    assert [leaf.tolist() for leaf in leaves] == [[0, 1, 2]] * 2
    assert len(bench.values) == 1
    assert bench.referenced_data.fill(rows[:1], Layout((F3, F3), tuple), leaves, ())[0] == ()
    assert bench.values.nbytes == 24


def stored(leaf: int, data: Any) -> DataLocation:
    """The row that says the truth."""
    spec = spec_bytes("A", data.dtype.name, data.shape)
    return DataLocation(
        leaf, CACHED_BY_CONTENT, *content_id(spec, data.reshape(-1).view("u1").data)
    )


def test_what_is_stored_can_become_a_value_later() -> None:
    """Under each id that its client likes, and only of its own."""
    bench, row = ReferencedDataBench(), stored(0, DATA)
    (given,) = bench.fill(row, leaves=(DATA,), looks=(F3,))
    assert (given.tolist(), len(bench.values)) == (DATA.tolist(), 1)
    asked = pack_ids([row.a, row.b, row.b, row.a])
    assert bench.referenced_data.adopt(asked, pack_ids([20, 21])) == (OK, bytes([1, 0]))
    assert bench.own.get(20).array is given
    assert bench.own.get(20).copied
    assert bench.referenced_data.adopt(asked, pack_ids([30, 31])) == (OK, bytes([1, 0]))
    assert bench.values.nbytes == 24
    other = ReferencedData(bench.values, SessionValues("uid:2"), Blocks())
    assert other.adopt(asked, pack_ids([1, 2])) == (OK, bytes([0, 0]))
    bench, row = ReferencedDataBench(limit=20), stored(0, DATA)
    bench.fill(row, leaves=(DATA,), looks=(F3,))
    assert bench.referenced_data.adopt(pack_ids([row.a, row.b]), pack_ids([20])) == (OK, bytes(1))


def test_what_is_stored_has_to_be_what_its_client_says() -> None:
    """Also its dtype and its shape; a question has two numbers for each id."""
    bench = ReferencedDataBench()
    for lie in (DATA + 1, DATA.reshape(3, 1), DATA.view(np.int32)):
        with pytest.raises(ProtocolError, match="not what its client says"):
            bench.fill(stored(0, lie), leaves=(DATA,), looks=(F3,))
    assert len(bench.values.contents) == 0
    with pytest.raises(ProtocolError, match="readably"):
        ReferencedDataBench().referenced_data.adopt(pack_ids([1, 2, 3]), pack_ids([4]))


def test_what_is_held_and_given_up_at_once_is_copied() -> None:
    """What is kept or stored is not what the call uses up."""
    bench, row = ReferencedDataBench(), stored(0, DATA)
    (lent,) = bench.fill(row, leaves=(DATA,), donated={0}, looks=(F3,))
    bench.referenced_data.adopt(pack_ids([row.a, row.b]), pack_ids([20]))
    assert lent is not bench.own.get(20).array
    bench = ReferencedDataBench()
    (lent,) = bench.fill(
        DataLocation(0, CACHED_AS_VALUE, 9), leaves=(DATA,), donated={0}, looks=(F3,)
    )
    assert lent is not bench.own.get(9).array


HOSTILE = [
    DataLocation(1, VALUE, 8),  # not there
    DataLocation(1, BLOCK, 5, 37),  # behind its end
    DataLocation(1, BLOCK, 6),  # not there
    DataLocation(1, CACHED_BY_CONTENT, 1, 2),  # not what is in it
]


@pytest.mark.parametrize("row", HOSTILE)
def test_what_cannot_be_changes_nothing(row: DataLocation) -> None:
    """Not even what stands before it in the same call."""
    bench = ReferencedDataBench()
    with pytest.raises(JaxdError):
        bench.fill(DataLocation(0, CACHED_AS_VALUE, 9), row, leaves=(DATA, DATA))
    assert (len(bench.values), bench.values.nbytes) == (1, 12)
    assert bench.own.values.keys() == {7}


@pytest.mark.parametrize("kind", [VALUE, BLOCK, CACHED_AS_VALUE])
@pytest.mark.parametrize("tag", ["F", "I", "B", "C", "P"])
def test_only_arrays_lie_elsewhere(kind: int, tag: str) -> None:
    """Neither a number nor a pickle."""
    bench = ReferencedDataBench()
    row = DataLocation(0, kind, {VALUE: 7, BLOCK: 5, CACHED_AS_VALUE: 9}[kind])
    with pytest.raises(ProtocolError):
        bench.fill(row, leaves=(1.0,), looks=(Leaf(tag),))
    assert len(bench.values) == 1


@pytest.mark.parametrize(
    "leaf",
    [
        Leaf("A", "float32", (4,)),
        Leaf("A", "int32", (3,)),
        Leaf("A", "float32", (3,), weak=True),
        Leaf("K", "uint32", (2,), impl="threefry2x32"),
    ],
)
def test_a_value_has_to_be_what_the_call_says(leaf: Leaf) -> None:
    """The program was made for that."""
    with pytest.raises(ProtocolError, match="not what the call says"):
        ReferencedDataBench().fill(DataLocation(0, VALUE, 7), looks=(leaf,))


def test_a_row_may_speak_of_several_values() -> None:
    """Those that are donated are the call's, one by one, and cannot be in two ranges."""
    bench = ReferencedDataBench()
    bench.values.add(bench.own, {8: Value(bench.array, F3, 12, "f", copied=True)})
    bench.values.add(bench.own, {9: Value(bench.array + 1, F3, 12, "f")})
    leaves: Any = [None] * 3
    layout = Layout((F3,) * 3, tuple)
    filled = bench.referenced_data.fill([DataLocation(0, VALUE, 7, 2)], layout, leaves, {1, 2})
    assert [leaf.tolist() for leaf in leaves] == [[10, 11, 12], [10, 11, 12], [11, 12, 13]]
    assert leaves[0] is bench.array
    assert leaves[1] is not bench.array
    assert filled[1] == [Given(range(2, 3), range(9, 10))]
    with pytest.raises(ValueDeleted):
        bench.referenced_data.fill([DataLocation(0, VALUE, 8, 2)], layout, leaves, ())
    bench = ReferencedDataBench()
    for number in (8, 9, 10):
        bench.values.add(bench.own, {number: Value(bench.array + number, F3, 12, "f")})
    layout = Layout((F3,) * 4, tuple)
    for rows in (
        [DataLocation(0, VALUE, 7, 2), DataLocation(3, VALUE, 8)],
        [DataLocation(0, VALUE, 9, 1), DataLocation(2, VALUE, 8, 1)],
    ):
        with pytest.raises(ArgumentError, match="given to a call twice"):
            bench.referenced_data.fill(rows, layout, [None] * 4, {0, 1, 2, 3})
    apart = [DataLocation(0, VALUE, 9, 1), DataLocation(2, VALUE, 7, 1)]
    given = bench.referenced_data.fill(apart, layout, [None] * 4, {0, 3})[1]
    assert given == [Given(range(1), range(9, 10)), Given(range(3, 4), range(8, 9))]


# donation -------------------------------------------------------------------------------------


def test_what_others_have_is_copied_before_it_is_given_up() -> None:
    """What the client has itself, what has a name, and what another number stands for."""
    bench = ReferencedDataBench()
    assert bench.fill(DataLocation(0, VALUE, 7), donated={0})[0] is bench.array
    bench = ReferencedDataBench()
    bench.fill(DataLocation(0, CACHED_AS_VALUE, 9), leaves=(DATA, None))
    bench.values.name("uid:1", "n", b"", [bench.own.get(7)], None)
    for number in (7, 9):
        (lent, _) = bench.fill(DataLocation(0, VALUE, number), donated={0})
        kept = bench.own.get(number).array
        assert lent is not kept
        assert lent.unsafe_buffer_pointer() != kept.unsafe_buffer_pointer()
        assert lent.tolist() == kept.tolist()
    bench.values.unname("uid:1", "n")
    assert bench.fill(DataLocation(0, VALUE, 7), donated={0})[0] is bench.array
    bench.values.add(bench.own, {8: bench.own.get(7)})
    assert bench.fill(DataLocation(0, VALUE, 7), donated={0})[0] is not bench.array


def test_nothing_is_given_up_that_the_same_call_needs() -> None:
    """The error says so before anything happens; twice without giving it up is fine."""
    bench = ReferencedDataBench()
    for donated in ({0}, {1}, {0, 1}):
        with pytest.raises(ArgumentError, match="given to a call twice"):
            bench.fill(DataLocation(0, VALUE, 7), DataLocation(1, VALUE, 7), donated=donated)
    assert bench.own.get(7).array.tolist() == [10, 11, 12]
    assert all(
        one is bench.array
        for one in bench.fill(DataLocation(0, VALUE, 7), DataLocation(1, VALUE, 7))
    )
    bench.own.get(7).copied = True  # then it is not the value that is given up
    first, second = bench.fill(DataLocation(0, VALUE, 7), DataLocation(1, VALUE, 7), donated={0})
    assert first is not bench.array
    assert second is bench.array
    bench.own.get(7).copied = False
    found = bench.fill(
        DataLocation(0, VALUE, 7),
        DataLocation(1, VALUE, 7),
        leaves=(None, None, DATA),
        donated={2},
        looks=(F3,) * 3,
    )
    assert found[0] is found[1] is bench.array


# copies ---------------------------------------------------------------------------------------


def aligned(nbytes: int) -> Any:
    """Memory that jax would use as it is."""
    memory = np.zeros(nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + nbytes]


@pytest.mark.parametrize("wrap", [lambda data: data, jax.device_put])
def test_a_copy_has_memory_of_its_own(wrap: Any) -> None:
    """Also where jax says that it copies and does not."""
    data = aligned(4096).view(np.float32)
    copied = copy_of(wrap(data))
    copied.block_until_ready()
    data[:] = 7.0
    assert not np.asarray(copied).any()


def test_a_copy_is_what_it_was_made_of() -> None:
    """Keys, weak types, and 64 bits."""
    keys = jax.random.split(jax.random.key(1), 3)
    assert key_data(copy_of(keys)).tolist() == key_data(keys).tolist()
    assert spec_of(copy_of(jnp.asarray(1.0))) == Leaf("A", "float32", (), weak=True)
    with jax.enable_x64(True):
        wide = jnp.arange(3)
    assert copy_of(wide).dtype == np.int64


# writing --------------------------------------------------------------------------------------


def test_data_is_written_where_the_client_wants_it() -> None:
    """Each part in its place."""
    bench = ReferencedDataBench()
    bench.referenced_data.write([5, 0, 5, 40], [memoryview(b"abcd"), memoryview(b"efgh")])
    assert bytes(bench.memory[:4] + bench.memory[40:44]) == b"abcdefgh"
    with pytest.raises(ProtocolError, match="readably"):
        bench.referenced_data.write([5, 0, 5], [memoryview(b"abcd")])
    with pytest.raises(ProtocolError):
        bench.referenced_data.write([5, 47], [memoryview(b"abcd")])
