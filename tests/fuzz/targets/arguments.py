"""What is passed and returned: trees, and where the data of their leaves lies."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from jaxd.results.reader import ResultReader
from jaxd_protocol.errors import JaxdError
from jaxd_protocol.explain.argument_shapes import argument_shapes
from jaxd_protocol.messages.data_locations import (
    COMPRESSED,
    VALUE,
    DataLocation,
    ResultPolicy,
    pack_ids,
    pack_locations,
    unpack_ids,
    unpack_leaf_spans,
    unpack_locations,
    unpack_spans,
)
from jaxd_protocol.pytree import parse_skeleton
from tests.fuzz.examples import RESULT
from tests.fuzz.target import Target
from tests.shared.pytree import samples


def _skeleton(data: bytes) -> None:
    """As a server reads it, but for what it unpickles, which is code by design."""
    layout = parse_skeleton(
        data,
        lambda *_: samples.Point,
        bytes,
        open_template=lambda _: tuple,
        close=lambda *_: None,
    )
    layout.build([0] * len(layout.leaves))


def _result(data: bytes) -> None:
    """As a client reads it, with the data that it says it has."""
    reader = ResultReader({})
    layout = reader.layout(data)
    if layout.whole.blob_bytes > 1 << 16 or layout.whole.buffers > 64:
        return
    sizes = [leaf.nbytes for leaf in layout.leaves if leaf.tag in "AK"]
    if sum(sizes) < 1 << 16:
        spare = [memoryview(bytearray(size)) for size in sizes]
        reader.read(data, bytes(layout.whole.blob_bytes), spare[: layout.whole.buffers], "numpy")


def _skeletons() -> list[bytes]:
    arrays = np.arange(6, dtype=np.float32).reshape(2, 3)
    trees: list[Any] = [
        ((1.0, True, None, 3j), {"a": [1, (2, {"b": "text"})]}),
        ((arrays, samples.Point(arrays, [np.zeros(5000)])), {}),
        ((samples.Weak(arrays), samples.Keys("fry", np.zeros((2, 2), np.uint32))), {"k": b"x"}),
    ]
    return [samples.encode(tree).skeleton for tree in trees]


def _rows(data: bytes) -> None:
    head, rest = data[:1], data[1:]
    for parse in (
        lambda: unpack_locations(rest, head[0] if head else 0),
        lambda: unpack_ids(rest),
        lambda: unpack_leaf_spans(rest),
        lambda: unpack_spans(rest),
    ):
        with suppress(JaxdError):
            parse()
    ResultPolicy.from_bytes(rest)


ARGUMENTS: dict[str, Target] = {
    "skeleton of arguments": Target(_skeleton, _skeletons()),
    "skeleton of a result": Target(_result, [RESULT, *_skeletons()]),
    "forms of arguments": Target(lambda data: argument_shapes(data, ("a", "b")), _skeletons()),
    "rows": Target(
        _rows,
        [
            b"\0" + ResultPolicy(1, 2, 3).to_bytes(),
            b"\4"
            + pack_locations([DataLocation(0, VALUE, 7, 0), DataLocation(2, COMPRESSED, 1, 2)]),
            b"\0" + pack_ids([1, 2]),
        ],
    ),
}
