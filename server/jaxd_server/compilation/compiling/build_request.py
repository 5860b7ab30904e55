"""What a build needs of the call that it is made for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from jaxd_protocol.messages.recipes import RecordedCall
from jaxd_protocol.pytree import BlobLayout
from jaxd_server.codec.arguments import Arguments
from jaxd_server.compilation.functions.function import Function
from jaxd_server.compilation.functions.table import FunctionSource
from jaxd_server.runtime.counters import Counts
from jaxd_server.runtime.events import SILENT, Emit, OutputOnce

_NO_PLACE: Final = BlobLayout((), (), 0, 0, (), ())


class BuildRequest(NamedTuple):
    """What is to be built, for whom, and for which arguments.

    Attributes:
        function: what is called.
        arguments: with what.
        recorded: the same as it is kept.
        skeleton, placement, blob, buffers: the same as in the message.
        source: whom to ask for the code.
        emit: takes the events of the build.
        device: the index of the one that it is built for.
        warm_only: whether the arguments have no data.
        principal: for whom it is built.
        counts: what is counted for the principal; None: only for all.
        name: what it is kept by on disk; None when it is not to be.
    """

    function: Function
    arguments: Arguments
    recorded: RecordedCall
    skeleton: bytes
    placement: BlobLayout
    blob: bytes
    buffers: Sequence[memoryview]
    source: FunctionSource
    emit: OutputOnce
    device: int = 0
    warm_only: bool = False
    principal: str = ""
    counts: Counts | None = None
    name: bytes | None = None

    @classmethod
    def without_data(
        cls,
        function: Function,
        arguments: Arguments,
        call: RecordedCall,
        source: FunctionSource,
        emit: Emit = SILENT,
        buffers: Sequence[memoryview] = (),
        principal: str = "",
        counts: Counts | None = None,
    ) -> BuildRequest:
        """The same where there is no call, and of its arguments no data.

        Args:
            function: see `BuildRequest`, as the others.
            arguments: of what shapes.
            call: one with such arguments.
            source: whom to ask for the code.
            emit: takes the events of the build.
            buffers: those of pickled leaves.
            principal: for whom it is built.
            counts: what is counted for the principal.
        """
        return cls(
            *(function, arguments, call, call.skeleton, _NO_PLACE, b"", buffers, source),
            OutputOnce(emit),
            warm_only=True,
            principal=principal,
            counts=counts,
        )
