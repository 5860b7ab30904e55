from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.messages.data_locations import (
    BLOCK,
    CACHED_AS_VALUE,
    COMPRESSED,
    KEEP_ALL,
    KEEP_NONE,
    VALUE,
    DataLocation,
    ResultPolicy,
    call_number_of,
    content_id,
    decompressed_bytes,
    first_value_id,
    leaves_located_in,
    pack_ids,
    pack_leaf_spans,
    pack_locations,
    pack_spans,
    unpack_ids,
    unpack_leaf_spans,
    unpack_locations,
    unpack_spans,
)
from tests.spans import ids_in, leaves_in, packed_ids, packed_leaves

U64 = st.integers(0, (1 << 64) - 1)


@given(st.dictionaries(st.integers(0, 99), st.tuples(st.integers(VALUE, COMPRESSED), U64, U64)))
def test_rows_arrive_as_they_were(rows: dict[int, tuple[int, int, int]]) -> None:
    """In the order of their leaves."""
    given_rows = [
        DataLocation(leaf, kind, a, 0 if kind == VALUE else b)
        for leaf, (kind, a, b) in sorted(rows.items())
    ]
    assert unpack_locations(pack_locations(given_rows), 100) == given_rows


def test_a_row_may_speak_of_several_values() -> None:
    """Which follow one another, as the leaves do."""
    rows = [DataLocation(0, VALUE, 70, 2), DataLocation(3, BLOCK, 5, 12), DataLocation(4, VALUE, 9)]
    assert unpack_locations(pack_locations(rows), 5) == rows
    assert [list(row.leaves) for row in rows] == [[0, 1, 2], [3], [4]]
    assert leaves_located_in(rows, {VALUE}) == (range(3), range(4, 5))


def test_a_content_id_stands_for_data_and_what_it_is() -> None:
    """Both decide, and one cannot pass for a part of the other's."""
    data = memoryview(b"data")
    ids = {content_id(*one) for one in [(b"A", data), (b"Ad", data[1:]), (b"A", data[1:])]}
    assert len(ids) == 3
    assert content_id(b"A", data) == content_id(b"A", memoryview(bytearray(b"data")))


@pytest.mark.parametrize(
    "rows",
    [
        [DataLocation(3, VALUE, 1)],  # there are three
        [DataLocation(1, VALUE, 1), DataLocation(0, VALUE, 2)],
        [DataLocation(1, VALUE, 1), DataLocation(1, BLOCK, 2)],
        [DataLocation(1, VALUE, 1, 2)],
        [DataLocation(0, VALUE, 1, 1), DataLocation(1, VALUE, 7)],
        [DataLocation(0, VALUE, 1, (1 << 64) - 1)],
        [DataLocation(0, 0, 1)],
        [DataLocation(0, COMPRESSED + 1, 1)],
    ],
)
def test_rows_that_cannot_be_are_refused(rows: list[DataLocation]) -> None:
    """Leaves that are not there, out of order or named twice, and unknown kinds."""
    with pytest.raises(ProtocolError, match="impossible data location"):
        unpack_locations(pack_locations(rows), 3)


@pytest.mark.parametrize("cut", [1, 20])
def test_rows_that_are_cut_off_are_refused(cut: int) -> None:
    """Whatever is left of them."""
    with pytest.raises(ProtocolError, match="unreadable data locations"):
        unpack_locations(
            pack_locations(
                [DataLocation(0, CACHED_AS_VALUE, 7), DataLocation(1, CACHED_AS_VALUE, 8)]
            )[:-cut],
            3,
        )


def test_what_is_to_stay_arrives_as_it_was() -> None:
    """With bounds at both ends; nothing at all is said by no bytes."""
    for stay in (
        ResultPolicy(1, KEEP_ALL, -1),
        ResultPolicy((1 << 44) - 1, KEEP_NONE, KEEP_NONE, 1 << 63),
    ):
        assert ResultPolicy.from_bytes(stay.to_bytes()) == stay
    assert ResultPolicy.from_bytes(b"") is None
    with pytest.raises(ProtocolError, match="unreadable result policy"):
        ResultPolicy.from_bytes(ResultPolicy(1, 0, 0).to_bytes()[1:])


def test_an_id_says_which_call_has_made_it() -> None:
    """The ids of two calls are never the same."""
    assert first_value_id(7) + 3 != first_value_id(8) + 3
    assert {call_number_of(first_value_id(7) + leaf) for leaf in (0, 1, (1 << 20) - 1)} == {7}


@given(st.lists(U64), st.lists(st.integers(0, (1 << 32) - 1)))
def test_ids_and_numbers_arrive_as_they_were(ids: list[int], numbers: list[int]) -> None:
    """As many as there are, or none."""
    assert unpack_ids(pack_ids(ids)) == tuple(ids)
    assert leaves_in(packed_leaves(sorted(set(numbers)))) == tuple(sorted(set(numbers)))
    kept = sorted({id_ >> 1 for id_ in ids})  # the last id has no successor on the wire
    assert ids_in(packed_ids(kept)) == tuple(kept)


def test_ids_and_numbers_that_are_cut_off_are_refused() -> None:
    """A whole number of them, or nothing."""
    with pytest.raises(ProtocolError, match="ids"):
        unpack_ids(struct.pack("!Q", 7)[1:])
    with pytest.raises(ProtocolError, match="numbers"):
        unpack_leaf_spans(struct.pack("!II", 7, 1)[1:])
    with pytest.raises(ProtocolError, match="ids"):
        unpack_spans(struct.pack("!QI", 7, 1)[1:])


@pytest.mark.parametrize("spans", [[range(0)], [range(3), range(2, 4)], [range(5, 6), range(2)]])
def test_ranges_of_leaves_that_cannot_be_are_refused(spans: list[range]) -> None:
    """Empty ones, those that overlap, and those that are not in order."""
    with pytest.raises(ProtocolError, match="numbers"):
        unpack_leaf_spans(pack_leaf_spans(spans))


@pytest.mark.parametrize("ids", [range(0), range((1 << 20) - 1, (1 << 20) + 1)])
def test_a_range_of_ids_is_of_one_call(ids: range) -> None:
    """Else a few bytes would have the server look for more values than there can be."""
    with pytest.raises(ProtocolError, match="ids"):
        unpack_spans(pack_spans([ids]))


def test_what_compressed_data_becomes_is_known_without_its_call() -> None:
    """Of anything that is no rows it is nothing: those are refused later."""
    rows = [
        DataLocation(0, CACHED_AS_VALUE, 7),
        DataLocation(1, COMPRESSED, 100),
        DataLocation(2, VALUE, 9, 3),
        DataLocation(9, COMPRESSED, 20),
    ]
    assert decompressed_bytes(pack_locations(rows)) == 120
    assert decompressed_bytes(pack_locations(rows[:1])) == decompressed_bytes(b"") == 0
    assert (
        decompressed_bytes(pack_locations(rows)[:-1])
        == decompressed_bytes(bytes([COMPRESSED]) * 30)
        == 0
    )
