"""What a build needs of the call that it is made for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jaxd_protocol.messages.recipes import RecordedCall
from jaxd_protocol.pytree import BlobLayout
from jaxd_server.codec.arguments import Arguments
from jaxd_server.compilation.functions.function import Function
from jaxd_server.compilation.functions.table import FunctionSource
from jaxd_server.runtime.counters import Counts
from jaxd_server.runtime.events import OutputOnce


class Question(NamedTuple):
    """What is to be shown: of which function, and for which arguments.

    Attributes:
        function: which.
        arguments: of what shapes.
        skeleton, buffers: the same as in the message.
        source: whom to ask for the code.
    """

    function: Function
    arguments: Arguments
    skeleton: bytes
    buffers: Sequence[memoryview]
    source: FunctionSource


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
