"""How one call obtains its executable when there is none yet: from disk, or by a build."""

from __future__ import annotations

from jaxd_protocol.messages.recipes import RecordedCall
from jaxd_protocol.pytree import Layout
from jaxd_server.codec.arguments import Arguments
from jaxd_server.compilation.builder import BuildResult, ExecutableBuilder
from jaxd_server.compilation.compiling.build_request import BuildRequest
from jaxd_server.compilation.compiling.executable import Executable
from jaxd_server.compilation.functions.function import Function
from jaxd_server.compilation.history.build_log import BuildLog
from jaxd_server.execution.call import Call
from jaxd_server.execution.memory_room import OutOfMemoryHandler
from jaxd_server.runtime.events import OutputOnce


class BuildJob:
    """The build callbacks of one call for `Executables.obtain`; to be used once.

    Args:
        builder: makes executables.
        oom_handler: makes room on the device.
        build_log: records what was built, and why.
        function: what is called.
        call: who calls it.
        arguments: with what.
        layout: what the bytes of the call say.

    Attributes:
        made: what this call has made; None when it was there, or another one has made it.
    """

    def __init__(
        self,
        builder: ExecutableBuilder,
        oom_handler: OutOfMemoryHandler,
        build_log: BuildLog,
        function: Function,
        call: Call,
        arguments: Arguments,
        layout: Layout,
    ) -> None:
        self._builder = builder
        self._oom_handler = oom_handler
        self._build_log = build_log
        self._function = function
        self._call = call
        self._arguments = arguments
        self._layout = layout
        self.made: BuildResult | None = None

    def waiting(self) -> None:
        """It is about to be made, here or by another call."""
        self._call.emit("stage", {"stage": "queued", "function": self._function.name})

    def make(self) -> Executable:
        """The executable, from disk or by tracing.

        Raises:
            Exception: as `ExecutableBuilder.make`.
        """
        function, call = self._function, self._call
        request = self._request()
        self.made = self._oom_handler.retried_on_oom(lambda: self._builder.make(request))
        self._build_log.made(function, call.skeleton, self.made, call.emit)
        return self.made.executable

    def move(self, one: Executable) -> Executable | None:
        """The executable, of one for another device; None when it has to be made."""
        call = self._call
        self.made = self._builder.moved(one, self._function, call.device, call.session.counts)
        return None if self.made is None else self.made.executable

    def _request(self) -> BuildRequest:
        call = self._call
        return BuildRequest(
            self._function,
            self._arguments,
            _recorded(call, self._layout),
            call.skeleton,
            call.placement(self._layout),
            call.blob,
            call.buffers,
            call.source,
            OutputOnce(call.emit),
            call.device,
            call.warm_only,
            call.session.principal,
            call.session.counts,
        )


def _recorded(call: Call, layout: Layout) -> RecordedCall:
    """What of a call decides about its executable."""
    if call.warm_only:
        return RecordedCall.of_specification(call.skeleton, layout.leaves, call.buffers)
    return RecordedCall.of(call.skeleton, call.placement(layout), call.buffers)
