"""Ids of values and numbers of leaves on the wire, one by one."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from jaxd_protocol.messages.data_locations import (
    pack_leaf_spans,
    pack_spans,
    spans_of,
    unpack_leaf_spans,
    unpack_spans,
)


def ids_in(data: bytes) -> tuple[int, ...]:
    """All ids in what `pack_spans` wrote."""
    return tuple(chain.from_iterable(unpack_spans(data)))


def packed_ids(ids: Iterable[int]) -> bytes:
    """Ids for `unpack_spans`."""
    return pack_spans(spans_of(ids))


def leaves_in(data: bytes) -> tuple[int, ...]:
    """All numbers in what `pack_leaf_spans` wrote."""
    return tuple(chain.from_iterable(unpack_leaf_spans(data)))


def packed_leaves(numbers: Iterable[int]) -> bytes:
    """Numbers for `unpack_leaf_spans`."""
    return pack_leaf_spans(spans_of(numbers))


def each(*ids: int) -> list[range]:
    """Each by itself."""
    return [range(id_, id_ + 1) for id_ in ids]
