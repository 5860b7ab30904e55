"""The messages between a worker and a builder: pickles, between processes of one server.

A builder works on one build at a time. The worker sends a `BuildOrder` and gets what came of
tracing it: `Lowered` where all is well. Unless the worker has that program already, it sends
`CompileLowered`, and gets `Built`. A `CompileOrder` is for what the worker has lowered itself. A
`ShowOrder` asks what becomes of a function, of which nothing is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from jaxd_protocol.messages.failures import Failure
from jaxd_protocol.messages.recorded_reads import ProcessRead, RecordedRead
from jaxd_protocol.packages.distributions import Package
from jaxd_protocol.pytree import BlobLayout, Layout, read_scalar
from jaxd_server.codec.arguments import empty_leaves
from jaxd_server.compilation.functions.function import Described
from jaxd_server.runtime.imported_packages import Dependencies

if TYPE_CHECKING:
    from jaxd_protocol.jit.options import Options
    from jaxd_server.compilation.compiling.compiler import Compiled, Shown


class BuildOrder(NamedTuple):
    """A request to trace and lower one function; its answer: `Lowered`.

    Attributes:
        number: the worker's own for it, which the answer carries.
        key: names function, options and configuration.
        described: the client's description of it.
        code: the packed function; None when the builder has it.
        skeleton: the structure of the arguments.
        scalars: the plain numbers in them, in order.
        buffers: those of the pickled leaves. Of arrays, shapes are enough.
        call: the lasting name of function and signature, which the builder has to compute as well.
    """

    number: int
    key: bytes
    described: Described
    code: bytes | None
    skeleton: bytes
    scalars: tuple[Any, ...]
    buffers: tuple[bytes, ...]
    call: bytes


class CompileOrder(NamedTuple):
    """A request to compile a program that the worker has lowered; its answer: `Built`.

    Attributes:
        number: as above.
        lowered: what `pack_lowered` has made of it.
        program: sixteen bytes that name it.
        name: the name of the function.
        options: how it is compiled.
        device: the index of the device that it is for.
    """

    number: int
    lowered: bytes
    program: bytes
    name: str
    options: Options
    device: int


class CompileLowered(NamedTuple):
    """A request to compile what was lowered last; its answer: `Built`."""

    number: int
    device: int


class HandOver(NamedTuple):
    """A request for what was lowered last, as it is compiled elsewhere; its answer: `Packed`."""

    number: int


class ShowOrder(NamedTuple):
    """A request to show what becomes of a function; its answer: `Answered`.

    Attributes:
        number: as above.
        build: what would be built.
        shown: what is wanted.
    """

    number: int
    build: BuildOrder
    shown: Shown


class CancelBuild(NamedTuple):
    """Interrupts a trace; its request is answered all the same."""

    number: int


Request = BuildOrder | CompileOrder | CompileLowered | HandOver | ShowOrder


class ReadRequest(NamedTuple):
    """The function reads something of its client's process; the builder waits for a `ReadReply`.

    Attributes:
        number: of the trace request.
        question: the builder's own number for it.
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
    """The builder's first message.

    Attributes:
        program: one that the worker must understand.
        name: its name.
        target: what the builder's programs are good for, as `Target.digest`.
    """

    program: bytes
    name: bytes
    target: str = ""


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
    """Which program it is, how its results travel, and the packages that it may have run."""

    number: int
    program: bytes
    skeleton: bytes
    order: tuple[int, ...]
    inputs: tuple[tuple[str, int], ...]
    trace_s: float
    reads: tuple[RecordedRead, ...]
    dependencies: Dependencies
    side: SideEffects


class Built(NamedTuple):
    """The compiled program."""

    number: int
    compiled: Compiled
    side: SideEffects


class Packed(NamedTuple):
    """A lowered program, for `unpack_lowered`."""

    number: int
    data: bytes


class Answered(NamedTuple):
    """What is shown, as JSON values."""

    number: int
    content: dict[str, Any]
    side: SideEffects


class Failed(NamedTuple):
    """The function raised an exception, or jax did, or its result cannot travel."""

    number: int
    failure: Failure
    side: SideEffects


class Refused(NamedTuple):
    """The worker has to do it by itself; `always`: also when it is called with the same key."""

    number: int
    reason: str
    always: bool
    side: SideEffects


class Outdated(NamedTuple):
    """Packages have changed on disk since the builder imported them: it has to be replaced."""

    number: int
    changes: list[str]


class Ended(NamedTuple):
    """The process is gone, and with it the request; made by the worker.

    Attributes:
        how: its exit code or signal, for people.
        why: `died`: the request may be the cause; `stopped`: the worker has ended it because no
            call waited for this request; `away`: it had not taken the request, or is not wanted.
    """

    how: str
    why: Literal["died", "stopped", "away"]


Reply = Lowered | Built | Packed | Answered | Failed | Refused | Outdated | Ended


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
