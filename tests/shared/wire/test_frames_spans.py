from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jaxd_protocol.wire.frames import ByteTransfer

sizes = st.lists(st.integers(0, 20), max_size=12)
steps = st.lists(st.integers(1, 30), min_size=1, max_size=40)


@given(sizes, steps)
def test_the_rest_is_what_was_not_moved(sizes: list[int], steps: list[int]) -> None:
    """However many bytes each system call takes."""
    data = bytes(range(256))[: sum(sizes)]
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    views = [memoryview(data)[end - size : end] for size, end in zip(sizes, ends, strict=True)]
    transfer = ByteTransfer(views)
    for step in steps:
        assert b"".join(transfer.rest()) == data[transfer.moved :]
        transfer.counts.append(min(step, transfer.total - transfer.moved))
    assert (transfer.moved == transfer.total) == (transfer.rest() == [])


@given(sizes, st.binary(max_size=100))
def test_what_was_read_ahead_fills_the_beginning(sizes: list[int], ahead: bytes) -> None:
    """As much of it as there is room for."""
    pieces = [bytearray(size) for size in sizes]
    transfer = ByteTransfer([memoryview(piece) for piece in pieces])
    taken = transfer.fill(memoryview(ahead))
    assert taken == transfer.moved == min(sum(sizes), len(ahead))
    assert b"".join(pieces)[:taken] == ahead[:taken]


def test_no_more_pieces_than_a_system_call_takes() -> None:
    """The kernel takes 1,024."""
    transfer = ByteTransfer([memoryview(b"x")] * 2000)
    assert len(transfer.rest()) < 1024


@given(sizes, steps, st.integers(1, 30))
def test_a_step_is_the_beginning_of_the_rest(sizes: list[int], steps: list[int], most: int) -> None:
    """As much of it as was asked for."""
    transfer = ByteTransfer([memoryview(bytes(range(size))) for size in sizes])
    for step in steps:
        assert b"".join(transfer.next(most)) == b"".join(transfer.rest())[:most]
        transfer.counts.append(min(step, transfer.total - transfer.moved))
