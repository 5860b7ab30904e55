"""One function that is traced in the tracer process: what is sent there, and what comes back."""

from __future__ import annotations

from typing import Final, NamedTuple

from jaxd_protocol.errors import InternalError
from jaxd_protocol.messages.failures import ForwardedFailure
from jaxd_server.codec.arguments import structure_of
from jaxd_server.codec.results import ResultLayout, rebind_form
from jaxd_server.compilation.compiling.build_request import BuildRequest
from jaxd_server.compilation.compiling.builds import check_not_abandoned, current_build
from jaxd_server.compilation.compiling.compiler import LoweredFunction
from jaxd_server.compilation.disk_cache.programs import ProgramCache
from jaxd_server.compilation.functions.table import FunctionSource
from jaxd_server.compilation.remote_trace.messages import (
    Ended,
    Failed,
    Lowered,
    Outdated,
    Refused,
    Reply,
    TraceRequest,
    sent_data,
)
from jaxd_server.compilation.remote_trace.tracer_process import (
    TracerPool,
    TracerProcess,
    trace_with,
)
from jaxd_server.runtime.events import OutputOnce
from jaxd_server.runtime.logs import log_event

_MAX_PICKLED_BYTES: Final = 64 << 20


class RemoteTrace(NamedTuple):
    """One function to be traced and lowered elsewhere.

    Attributes:
        tracers: records what became of it.
        tracer: where it is done.
        order: the request.
        source: whom to ask for the code.
        program_cache: where it may lie; None where nothing is kept.
        emit: takes the events of the trace.
    """

    tracers: TracerPool
    tracer: TracerProcess
    order: TraceRequest
    source: FunctionSource
    program_cache: ProgramCache | None
    emit: OutputOnce

    def lower(self) -> LoweredFunction | None:
        """The lowered function; None when this process has to trace it after all.

        Raises:
            Interrupted: when no call waits for it any longer.
            ForwardedFailure: with what the function, or jax, raised.
            InternalError: when the function ended the process that traced it.
        """
        self.emit.begin_trace()
        read = self.source.read
        reply = trace_with(self.tracer, self.order, self.emit, read)
        build = current_build()
        is_abandoned = build is not None and build.is_abandoned
        if is_abandoned and isinstance(reply, Lowered | Failed | Refused):
            self.tracers.apply_side_effects(reply.side)
        check_not_abandoned()
        if isinstance(reply, Ended) and reply.orders:  # another one may be the cause
            self.emit.begin_trace()
            again = self.tracers.alone(self.with_code().order, self.emit, read)
            check_not_abandoned()
            if not isinstance(again, Ended) or again.orders:  # else it is as suspect as before
                reply = again
        if isinstance(reply, Ended) and reply.orders:
            self.tracers.mark_deadly(self.order.key)
            raise InternalError(
                f"{self.order.described.name} ended the process that traced it ({reply.how}). The "
                "server and all that it has ready live on. Does the function, or a library of its, "
                "call os._exit() or crash while traced?"
            )
        return self._parse_reply(reply)

    def with_code(self) -> RemoteTrace:
        """The same with the code; the client is asked for it when it is not on disk."""
        return self._replace(order=self.order._replace(code=self._code()))

    def _code(self) -> bytes:
        fingerprint = self.order.described.code_fingerprint
        kept = self.program_cache.code(fingerprint) if self.program_cache else None
        if kept is not None:
            return kept
        with self.source.waiting():
            return bytes(self.source.code(fingerprint))

    def _parse_reply(self, reply: Reply) -> LoweredFunction | None:
        if isinstance(reply, Ended):
            return None  # before it had begun
        if isinstance(reply, Outdated):
            log_event("tracer_outdated", changes=reply.changes)
            self.tracers.drop(self.tracer)
            return None
        if isinstance(reply, Refused):
            self.tracers.apply_side_effects(reply.side)  # a useless trace counts as well
            log_event("tracer_refused", function=self.order.described.name, reason=reply.reason)
            self.tracer.known.discard(self.order.described.fingerprint)
            if reply.always:
                self.tracers.refused[self.order.key] = None
            return None
        self.tracers.apply_side_effects(reply.side)
        self.tracer.known.add(self.order.described.fingerprint)
        if isinstance(reply, Failed):
            raise ForwardedFailure(reply.failure)
        form = rebind_form(ResultLayout.of(reply.skeleton, reply.order))
        structure = structure_of(((0,) * len(reply.order), {}))  # its own has no meaning here
        if reply.reads:  # the tracer has it under that name now
            self.tracer.known.add(self.order.described.with_reads(reply.reads).fingerprint)
        return LoweredFunction(
            reply.program,
            None,
            form,
            structure,
            reply.trace_s,
            reply.data,
            reply.reads,
            reply.dependencies,
        )


def trace_request_of(request: BuildRequest, name: bytes) -> TraceRequest | None:
    """The request for a call, without the code; None when it would be too large.

    Args:
        request: what is to be built.
        name: the lasting name of function and signature.
    """
    scalars, buffers = sent_data(
        request.placement, request.blob, request.buffers, warm_only=request.warm_only
    )
    described = request.function.described
    if described.manifest is None or sum(map(len, buffers)) > _MAX_PICKLED_BYTES:
        return None
    return TraceRequest(
        0,
        request.function.key,
        described,
        None,
        request.skeleton,
        scalars,
        tuple(map(bytes, buffers)),
        name,
    )
