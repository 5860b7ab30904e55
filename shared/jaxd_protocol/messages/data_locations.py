"""Data locations of a call's leaves whose data is not in the message, and result policies.

The skeleton does not contain them: a leaf has the same bytes there wherever its data is.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Container, Iterable, Sequence
from itertools import chain, pairwise
from typing import Final, NamedTuple

from jaxd_protocol.errors import ProtocolError

VALUE: Final = 1
"""The data is value `a` of the session; the next `b` leaves are the values that follow it."""

BLOCK: Final = 2
"""The data is in block `a` of the connection, from byte `b` on."""

CACHED_AS_VALUE: Final = 3
"""The data is in the message, and becomes value `a` of the session as well."""

CACHED_BY_CONTENT: Final = 4
"""The data is in the message, and is cached under its content id (`a`, `b`) as well."""

COMPRESSED: Final = 5
"""The data is in the message, compressed; it has `a` bytes once decompressed."""

NOT_IN_MESSAGE: Final = frozenset({VALUE, BLOCK})
"""The data of leaves of these kinds is not in the message."""

INLINE_RESULT_BYTES: Final = 1 << 16
"""Results up to this size are sent back with the reply."""

KEEP_ALL: Final = -1
KEEP_NONE: Final = (1 << 63) - 1
"""Bounds for `ResultPolicy.above`: each leaf is above the first, and none is above the second."""

BLOCK_PROBE_BYTES: Final = 16
"""The bytes at the beginning of a block that prove that the server maps the client's memory."""

INDEXED_SKELETON: Final = b"\0"
DEFINING_SKELETON: Final = b"\1"
"""First bytes of the message for a skeleton that has a number in its session."""

MIN_INDEXED_BYTES: Final = 512
"""Bytes of a skeleton; shorter ones are always sent whole."""

MAX_INDEXED_BYTES: Final = 1 << 18
"""Longer skeletons get no number: a session keeps up to 256 of them."""

_HASH_BYTES: Final = 8
_ID_BITS: Final = 20

new_call_number: Final = itertools.count(1).__next__
"""A number for a call, unique in this process; the ids of its results are derived from it."""

_LOCATION: Final = struct.Struct("!IBQQ")
_KIND_OFFSET: Final = 4
_CONTENT: Final = struct.Struct("!QQ")
_POLICY: Final = struct.Struct("!QqqQ")
_SPAN: Final = struct.Struct("!QI")
_LEAF_SPAN: Final = struct.Struct("!II")


class DataLocation(NamedTuple):
    """The location of the data of one leaf, or of several consecutive ones.

    Attributes:
        leaf: its number among the leaves of the call.
        kind: one of the constants above.
        a, b: as the constants describe them.
    """

    leaf: int
    kind: int
    a: int
    b: int = 0

    @property
    def leaves(self) -> range:
        """The numbers of all leaves that it locates."""
        return range(self.leaf, self.leaf + 1 + (self.b if self.kind == VALUE else 0))


def leaves_located_in(rows: Iterable[DataLocation], kinds: Container[int]) -> tuple[range, ...]:
    """The numbers of the leaves whose locations are of these kinds."""
    return tuple([row.leaves for row in rows if row.kind in kinds])


class ResultPolicy(NamedTuple):
    """Which leaves of a result stay on the server.

    Attributes:
        number: of the call, within its session; never used twice.
        above: leaves of more bytes than this become values.
        home: leaves of up to this many bytes are in the reply; -1: none is.
        acked: the replies of all calls with a smaller number have arrived.
        knows: hash of the expected skeleton of the result; see `shape_hash`.
    """

    number: int
    above: int
    home: int
    acked: int = 0
    knows: bytes = b""

    def to_bytes(self, acked: int = 0, knows: bytes = b"") -> bytes:
        """For the wire; `acked` and `knows` replace those of this one."""
        fixed = _POLICY.pack(self.number, self.above, self.home, acked or self.acked)
        return fixed + (knows or self.knows)

    @classmethod
    def from_bytes(cls, data: bytes) -> ResultPolicy | None:
        """Reads what `to_bytes` wrote; None when the whole result is in the reply.

        Raises:
            ProtocolError: when it is anything else.
        """
        if not data:
            return None
        if len(data) not in (_POLICY.size, _POLICY.size + _HASH_BYTES):
            raise ProtocolError("a call has an unreadable result policy.")
        number, above, home, acked = _POLICY.unpack_from(data)
        return cls(number, above, home, acked, data[_POLICY.size :])


def shape_hash(skeleton: bytes) -> bytes:
    """A short hash of the skeleton of a result: 8 bytes of BLAKE2b."""
    return hashlib.blake2b(skeleton, digest_size=_HASH_BYTES).digest()


def first_value_id(number: int) -> int:
    """The id of the first result of a call, the others follow."""
    return number << _ID_BITS


def call_number_of(id: int) -> int:  # noqa: A002
    """The number of the call that has made the value with that id."""
    return id >> _ID_BITS


def value_ids_of(number: int) -> range:
    """The ids that the results of a call may have."""
    return range(number << _ID_BITS, (number + 1) << _ID_BITS)


def content_id(spec: bytes, data: memoryview) -> tuple[int, int]:
    """The content id of an array: half of a SHA-256, which takes 0.5 ms for a megabyte.

    Args:
        spec: its bytes in a skeleton: dtype, shape and weak type.
        data: all of its bytes, in C order.
    """
    found = hashlib.sha256(struct.pack("!Q", len(spec)) + spec)
    found.update(data)
    a, b = _CONTENT.unpack_from(found.digest())
    return a, b


def indexed_skeleton(number: int) -> bytes:
    """The message for the skeleton with that number, 0 to 255."""
    return INDEXED_SKELETON + bytes((number,))


def defining_skeleton(number: int, skeleton: bytes) -> bytes:
    """The message for a skeleton that has that number from now on."""
    return DEFINING_SKELETON + bytes((number,)) + skeleton


def pack_locations(rows: Sequence[DataLocation]) -> bytes:
    """The bytes of data locations for the wire."""
    return struct.pack("!" + _LOCATION.format[1:] * len(rows), *chain.from_iterable(rows))


def unpack_locations(data: bytes, leaves: int) -> list[DataLocation]:
    """Reads what `pack_locations` wrote.

    Raises:
        ProtocolError: when it is anything else, or the leaves do not exist or are not in order.
    """
    if len(data) % _LOCATION.size:
        raise ProtocolError("a call has unreadable data locations.")
    rows = list(map(DataLocation._make, _LOCATION.iter_unpack(data)))
    last = -1
    for row in rows:
        first, last = last, row.leaf + (row.b if row.kind == VALUE else 0)
        if not first < row.leaf <= last < leaves or not VALUE <= row.kind <= COMPRESSED:
            raise ProtocolError("a call has an impossible data location.")
    return rows


def decompressed_bytes(data: bytes) -> int:
    """The declared size of a call's compressed data once decompressed, before more is read.

    Args:
        data: what `pack_locations` wrote, or anything else.
    """
    if COMPRESSED not in data[_KIND_OFFSET :: _LOCATION.size] or len(data) % _LOCATION.size:
        return 0
    return sum(a for _, kind, a, _ in _LOCATION.iter_unpack(data) if kind == COMPRESSED)


def pack_ids(ids: Iterable[int]) -> bytes:
    """Ids of values, for the wire."""
    found = list(ids)
    return struct.pack(f"!{len(found)}Q", *found)


def unpack_ids(data: bytes) -> tuple[int, ...]:
    """What `pack_ids` wrote; raises `ProtocolError` for anything else."""
    if len(data) % 8:
        raise ProtocolError("the ids of values cannot be read.")
    return struct.unpack(f"!{len(data) // 8}Q", data)


def pack_spans(spans: Iterable[range]) -> bytes:
    """Ranges of ids, for the wire."""
    found = [(ids.start, len(ids)) for ids in spans]
    return struct.pack("!" + "QI" * len(found), *chain.from_iterable(found))


def unpack_spans(data: bytes) -> list[range]:
    """Reads what `pack_spans` wrote.

    Raises:
        ProtocolError: when it is anything else, or a range is of more than one call.
    """
    if len(data) % _SPAN.size:
        raise ProtocolError("the ids of values cannot be read.")
    found = [range(first, first + count) for first, count in _SPAN.iter_unpack(data)]
    if not all(found) or any(
        call_number_of(ids.start) != call_number_of(ids.stop - 1) for ids in found
    ):
        raise ProtocolError("the ids of values cannot be read.")
    return found


def pack_leaf_spans(spans: Iterable[range]) -> bytes:
    """Ranges of leaf numbers, for the wire."""
    return b"".join([_LEAF_SPAN.pack(leaves.start, len(leaves)) for leaves in spans])


def unpack_leaf_spans(data: bytes) -> tuple[range, ...]:
    """Reads what `pack_leaf_spans` wrote: ranges that are not empty, in order, and apart.

    Raises:
        ProtocolError: when it is anything else.
    """
    if len(data) % _LEAF_SPAN.size:
        raise ProtocolError("the numbers of leaves cannot be read.")
    found = tuple([range(first, first + count) for first, count in _LEAF_SPAN.iter_unpack(data)])
    if not all(found) or any(one.stop > other.start for one, other in pairwise(found)):
        raise ProtocolError("the numbers of leaves cannot be read.")
    return found


def spans_of(numbers: Iterable[int]) -> tuple[range, ...]:
    """Numbers that grow, as ranges."""
    found: list[range] = []
    for number in numbers:
        if found and found[-1].stop == number:
            found[-1] = range(found[-1].start, number + 1)
        else:
            found.append(range(number, number + 1))
    return tuple(found)
