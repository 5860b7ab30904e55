"""The messages between a worker and its tracer: pickles, between processes of one server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxd_protocol.messages.failures import Failure
from jaxd_protocol.messages.recorded_reads import ProcessRead, RecordedRead
from jaxd_protocol.packages.distributions import Package
from jaxd_protocol.pytree import BlobLayout, Layout, read_scalar
from jaxd_server.codec.arguments import empty_leaves
from jaxd_server.compilation.functions.function import Described
from jaxd_server.runtime.imported_packages import Dependencies


class TraceRequest(NamedTuple):
    """A request to trace and lower one function.

    Attributes:
        number: the worker's own for it, which replies carry.
        key: names function, options and configuration.
        described: the client's description of it.
        code: the packed function; None when the tracer has it.
        skeleton: the structure of the arguments.
        scalars: the plain numbers in them, in order.
        buffers: those of the pickled leaves. Of arrays, shapes are enough.
        call: the lasting name of function and signature, which the tracer has to compute as well.
    """

    number: int
    key: bytes
    described: Described
    code: bytes | None
    skeleton: bytes
    scalars: tuple[Any, ...]
    buffers: tuple[bytes, ...]
    call: bytes


class CancelTrace(NamedTuple):
    """Cancels a request, which is answered all the same."""

    number: int


class ReadRequest(NamedTuple):
    """The function reads something of its client's process; the tracer waits for a `ReadReply`.

    Attributes:
        number: of the trace request.
        question: the tracer's own number for it.
        fingerprint: of the walk over the function.
        read: what is read.
    """

    number: int
    question: int
    fingerprint: bytes
    read: ProcessRead


class ReadReply(NamedTuple):
    """What the client has: a literal; or why it does not tell."""

    question: int
    value: Any
    refusal: Failure | None = None


class Ready(NamedTuple):
    """The tracer's first message: a program that the worker must understand, and its name."""

    program: bytes
    name: bytes


class Event(NamedTuple):
    """An event for the client while it waits."""

    number: int
    kind: str
    content: dict[str, Any]


class SideEffects(NamedTuple):
    """Counters and imports that a request has changed beside its result.

    Attributes:
        counts: what was counted for this request.
        packages: import name and package of what was imported since the last reply.
    """

    counts: dict[str, float]
    packages: list[tuple[str, Package]]


class Lowered(NamedTuple):
    """The lowered program, how its results travel, and the packages that it may have run."""

    number: int
    program: bytes
    data: bytes
    skeleton: bytes
    order: tuple[int, ...]
    trace_s: float
    reads: tuple[RecordedRead, ...]
    dependencies: Dependencies
    side: SideEffects


class Failed(NamedTuple):
    """The function raised an exception, or jax did, or its result cannot travel."""

    number: int
    failure: Failure
    side: SideEffects


class Refused(NamedTuple):
    """The worker has to trace it by itself; `always`: also when it is called with the same key."""

    number: int
    reason: str
    always: bool
    side: SideEffects


class Outdated(NamedTuple):
    """Packages have changed on disk since the tracer imported them: it has to be replaced."""

    number: int
    changes: list[str]


class Ended(NamedTuple):
    """The process is gone, and with it the request; made by the worker.

    Attributes:
        how: its exit code or signal, for people.
        orders: how many requests may be the cause: 0 when it had not taken this one, or when the
            worker has ended it.
    """

    how: str
    orders: int


Reply = Lowered | Failed | Refused | Outdated | Ended


def sent_data(
    placement: BlobLayout, blob: bytes, buffers: Sequence[memoryview], *, warm_only: bool = False
) -> tuple[tuple[Any, ...], tuple[memoryview, ...]]:
    """The plain numbers among the arguments of a call, and the buffers of its pickled leaves.

    Args:
        placement: where the data of a call lies.
        blob: its data.
        buffers: the rest of its data.
        warm_only: whether it is one to warm up: it has no numbers, and no buffers of arrays.
    """
    if warm_only:
        return (), tuple(buffers)
    pairs = list(zip(placement.leaves, placement.places, strict=True))
    scalars = [
        read_scalar(leaf.tag, blob, at.offset) for leaf, at in pairs if leaf.tag not in "AKP"
    ]
    ranges = [(at.buffer, at.buffer + 1 + leaf.buffers) for leaf, at in pairs if leaf.tag == "P"]
    return tuple(scalars), tuple(one for first, end in ranges for one in buffers[first:end])


def leaves_of_request(
    layout: Layout, scalars: Sequence[Any], buffers: Sequence[bytes]
) -> list[Any]:
    """The leaves of the arguments, with zeros for the data of arrays."""
    leaves = empty_leaves(layout, [memoryview(buffer) for buffer in buffers])
    numbered = (index for index, leaf in enumerate(layout.leaves) if leaf.tag not in "AKP")
    for index, value in zip(numbered, scalars, strict=False):  # none of a call to warm up
        leaves[index] = value
    return leaves
