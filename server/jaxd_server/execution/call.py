"""One call on its way through the server, and its reply."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from jaxd_protocol.base.buffers import inflate
from jaxd_protocol.errors import JaxdError, ProtocolError
from jaxd_protocol.messages.calls import OK
from jaxd_protocol.messages.data_locations import (
    COMPRESSED,
    NOT_IN_MESSAGE,
    DataLocation,
    ResultPolicy,
    leaves_located_in,
    unpack_locations,
)
from jaxd_protocol.pytree import BlobLayout, Layout
from jaxd_server.codec.arguments import empty_leaves, read_leaves
from jaxd_server.codec.results import pack_result
from jaxd_server.compilation.compiling.executable import Executable
from jaxd_server.compilation.functions.table import FunctionSource
from jaxd_server.execution.admission import Operation
from jaxd_server.runtime.call_trace import CallTrace
from jaxd_server.runtime.counters import Counts, SessionUse
from jaxd_server.runtime.events import SILENT, Emit
from jaxd_server.values.references import Given, ReferencedData

Reply = tuple[Any, Sequence[memoryview]]
"""The outcome as plain values, and the buffers beside it."""

Finish = Callable[[], Reply]
"""Waits until a call that was started is done, and never raises; to be called once."""


Deliver = Callable[[Sequence[Any], Executable], Reply]
"""Waits for the arrays that an executable returned and makes the reply that carries them."""


def deliver_inline(leaves: Sequence[Any], executable: Executable) -> Reply:
    """The reply with the whole result."""
    blob, buffers, _ = pack_result(leaves, executable.form)
    return (OK, executable.form.skeleton, blob), buffers


@dataclass(slots=True, eq=False)
class Client:
    """The client process that makes a call; see `Session`.

    Attributes:
        id: of its session; hard to guess, as it allows to resume that.
        principal: such as `uid:1000`.
        device: the index of the one that its calls run on, unless their function names another.
        used_executables: serial numbers of the executables that its calls have used.
        counts: those of its principal; None: only those of everybody.
        use: what it has had of the server.
        ran_until: `time.monotonic()` when the last of its calls was over that is timed.
        has_called: whether it has called a function, or had a program compiled; others only look.
    """

    id: str
    principal: str
    device: int = 0
    used_executables: set[int] = field(default_factory=set)
    counts: Counts | None = None
    use: SessionUse = field(default_factory=SessionUse)
    ran_until: float = 0.0
    has_called: bool = False


_NO_SESSION: Final = Client("", "")


@dataclass(slots=True, eq=False)
class Call(Operation):
    """One request.

    Attributes:
        key: names function, options and configuration.
        skeleton, blob, buffers: the arguments; of a call to warm up, no data of arrays.
        source: describes the function of the key, and has its code.
        number: the client's number for it, which events carry.
        emit: its event stream.
        deliver: makes the reply of its results; by default all of them are sent.
        strict: whether packages that differ from the client's are an error.
        warm_only: whether the executable is wanted, and no result.
        is_first: whether it shows what was put out while the executable was traced, see `FIRST`.
        on_one_device: whether it is refused where the program computes on several devices.
        lost: how many workers have died during it; 2: or more.
        call_back: calls a function in the process of its client, see `ClientProxy.call_back`.
        session: whose call it is.
        elsewhere: where the data of its arguments lies that is not in the message, as rows.
        stay: which results are to stay; None: none.
        referenced_data: what it may refer to; None: nothing.
        layout: of its arguments, once they were read.
        given: the values that it takes for good once it is dispatched.
        given_up: numbers of the leaves whose values on the server it has taken for good.
        not_kept: ids of what it brought to be kept, and there was no room for.
        device: the index of the one that it runs on, once its function is known.
        inflated: bytes that are reserved for its compressed data once that is decompressed; or the
            error why none are.
        place: its slot in the flight recorder; -1: none.
        nbytes: bytes of the call budget that its message holds.
        phase: how far it has come, as its failure says; see `FailureOrigin`.
        id: its name in the log and in the error of its client; see `identify`.
        trace: records its stages; None: nobody looks.
        timed_from: `time.monotonic()` when it was dispatched, of one whose reply is to say how long
            it ran; negative: of others.
    """

    key: bytes
    skeleton: bytes
    blob: bytes
    buffers: Sequence[memoryview]
    source: FunctionSource
    number: int = 0
    emit: Emit = SILENT
    deliver: Deliver = deliver_inline
    strict: bool = False
    warm_only: bool = False
    is_first: bool = False
    on_one_device: bool = False
    lost: int = 0
    call_back: Callable[..., Any] | None = None
    session: Client = _NO_SESSION
    elsewhere: bytes = b""
    stay: ResultPolicy | None = None
    referenced_data: ReferencedData | None = None
    layout: Layout | None = None
    given: Sequence[Given] = ()
    given_up: tuple[range, ...] = ()
    not_kept: tuple[int, ...] = ()
    device: int = 0
    inflated: int | JaxdError = 0
    place: int = -1
    nbytes: int = 0
    phase: str = ""
    id: str = ""
    trace: CallTrace | None = None
    timed_from: float = -1.0
    _rows: list[DataLocation] | None = field(default=None, repr=False)

    def stop_waiting(self, before: float = math.inf) -> None:
        """Its program waits no longer for a client that was lost before then; see `InflightCall`.

        No other call waits for one.
        """

    def identify(self) -> str:
        """Its id, made when it is needed first: no warm call that succeeds needs one."""
        self.id = self.id or f"c{os.urandom(4).hex()}"
        return self.id

    def stage(self, name: str) -> None:
        """It is busy with this now, if somebody looks; for calls that are not warm."""
        if self.trace is not None:
            self.trace.stage(name)

    def end_trace(self) -> None:
        """Its reply is made; of a call that is traced."""
        if self.trace is not None:
            error = self.cancel_token.error
            cancelled = type(error).__name__ if error else ""
            self.trace.end(function=self.name, id=self.id, phase=self.phase, cancelled=cancelled)

    def rows(self, layout: Layout) -> list[DataLocation]:
        """Where the data lies that is not in the message.

        Raises:
            ProtocolError: when that cannot be.
            Busy, LimitExceeded: when there is no room for what compressed data becomes.
        """
        if self._rows is None:
            rows = unpack_locations(self.elsewhere, len(layout.leaves))
            packed = [row for row in rows if row.kind == COMPRESSED]
            if packed:
                self._check_inflated(packed, layout)
            self._rows = rows
            if packed:
                self.buffers = self._inflated(packed, layout)
        return self._rows

    def _check_inflated(self, packed: Sequence[DataLocation], layout: Layout) -> None:
        """Returns when there is room, and the data is as long as it was announced."""
        if isinstance(self.inflated, JaxdError):
            raise self.inflated
        is_right = all(row.a == layout.leaves[row.leaf].nbytes for row in packed)
        if not is_right or sum(row.a for row in packed) > self.inflated:
            raise ProtocolError("a compressed array has another size than was announced.")

    def _inflated(self, packed: Sequence[DataLocation], layout: Layout) -> Sequence[memoryview]:
        """The buffers of the message, none of them compressed."""
        found, places = list(self.buffers), self.placement(layout).places
        for row in packed:
            index = places[row.leaf].buffer
            if 0 <= index < len(found):
                found[index] = inflate(found[index], layout.leaves[row.leaf].nbytes)
        return found

    def placement(self, layout: Layout) -> BlobLayout:
        """Where the data lies that is in the message."""
        if not self.elsewhere:
            return layout.whole
        return layout.without(leaves_located_in(self.rows(layout), NOT_IN_MESSAGE))

    def leaves(self, layout: Layout, donated: Collection[int] = ()) -> list[Any]:
        """The leaves of its arguments.

        Args:
            layout: of its skeleton.
            donated: numbers of the leaves that it gives up.

        Raises:
            ProtocolError: when the data does not fit.
            JaxdError: when it refers to what is not there; see `ReferencedData.fill`.
        """
        self.layout = layout
        if self.warm_only:
            return empty_leaves(layout, self.buffers)
        leaves = read_leaves(self.placement(layout), self.blob, self.buffers)
        if self.elsewhere:
            if self.referenced_data is None:
                raise ProtocolError("the call refers to values, and there can be none.")
            rows = self.rows(layout)
            self.not_kept, self.given = self.referenced_data.fill(rows, layout, leaves, donated)
        return leaves
