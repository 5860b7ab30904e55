"""One build in a builder: what is sent there, what comes back, and what is done when it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Final, TypeVar

from jaxd_protocol.errors import InternalError
from jaxd_protocol.jax_objects.lowered_bytes import NotTransferable, pack_lowered
from jaxd_protocol.messages.failures import ForwardedFailure
from jaxd_server.codec.arguments import structure_of
from jaxd_server.codec.results import ResultLayout, rebind_form
from jaxd_server.compilation.compiling.build_request import BuildRequest
from jaxd_server.compilation.compiling.builds import check_not_abandoned, current_build
from jaxd_server.compilation.compiling.compiler import Compiled, LoweredFunction, Shown
from jaxd_server.compilation.disk_cache.programs import ProgramCache
from jaxd_server.compilation.functions.function import Function
from jaxd_server.compilation.functions.table import WHAT_ENDS_PROCESSES, FunctionSource
from jaxd_server.compilation.remote_build.builder_pool import BuilderPool
from jaxd_server.compilation.remote_build.builder_process import BuilderProcess
from jaxd_server.compilation.remote_build.messages import (
    Answered,
    BuildOrder,
    Built,
    CompileLowered,
    CompileOrder,
    Ended,
    Failed,
    HandOver,
    Lowered,
    Outdated,
    Packed,
    Refused,
    Reply,
    Request,
    ShowOrder,
    sent_data,
)
from jaxd_server.runtime.events import Emit, OutputOnce
from jaxd_server.runtime.logs import log_event
from jaxd_server.user_code.client_process import Ask
from jaxd_server.user_code.interrupt import Interrupted

_MAX_PICKLED_BYTES: Final = 64 << 20

R = TypeVar("R", bound=Reply)


class _Away(Exception):
    """There is no builder any more, or it must not be asked."""


class BuilderLoan:
    """A builder for one build, and another one when it ends. For one thread.

    The first end may be the work of somebody else, such as a system that has no memory left: it is
    forgiven. The second one, in a builder that has built nothing else, is the function's.

    Args:
        builders: who lends them.
        function: what is built.

    Attributes:
        builder: the one that there is now; None before the first question.
    """

    def __init__(self, builders: BuilderPool, function: Function) -> None:
        self.builder: BuilderProcess | None = None
        self._builders = builders
        self._function = function
        # one that is known for it is not forgiven again
        self._deaths = int(function.described in builders.deadly)

    def close(self) -> None:
        """Gives it back."""
        builder, self.builder = self.builder, None
        if builder is not None:
            self._builders.give_back(builder)

    def end(self) -> None:
        """Ends the builder, which has something else ready than was asked for."""
        if self.builder is not None:
            self.builder.end()

    def borrow(self, fingerprint: bytes = b"") -> BuilderProcess:
        """The builder; borrows one where there is none.

        Raises:
            _Away: when there is none any more.
            Interrupted: when no call waits any longer for what this thread builds.
        """
        if self.builder is None:
            self.builder = self._builders.lend(fingerprint, unused=self._deaths > 0)
        if self.builder is None:
            raise _Away
        self.builder.function = self._function.name
        return self.builder

    def ask(self, request: Request, emit: Emit, read: Ask | None = None) -> Reply | None:
        """What the builder answers; None when it has ended, and all has to be asked once more.

        Raises:
            Interrupted: when no call waited for it any longer, so that it was ended.
            InternalError: when the function has ended two of them.
            _Away: when it is not wanted any more.
        """
        builder, build = self.borrow(), current_build()
        if build is not None:
            build.builder = builder.pid or 0
        hook = (lambda _: nullcontext()) if build is None else build.cancel_hook
        more = {} if read is None else {"read": read}
        reply = builder.ask(
            request,
            emit,
            cancel_hook=hook,
            grace_s=lambda: 0.0 if build is None else build.grace_s(),
            **more,
        )
        if not isinstance(reply, Ended):
            return reply
        self.close()
        if reply.why == "stopped":
            raise Interrupted
        if reply.why == "died":
            self._count_death(reply.how)
        return None

    def _count_death(self, how: str) -> None:
        self._deaths += 1
        check_not_abandoned()
        name = self._function.name
        log_event("builder_lost", function=name, how=how, deaths=self._deaths)
        if self._deaths < 2:
            return
        self._builders.deadly.add(self._function.described)
        raise InternalError(
            f"{name} ended the process that built it, and again when that was repeated in "
            f"another one ({how}). The server and its other programs are not affected. "
            f"{WHAT_ENDS_PROCESSES}"
        )


def _meaning(lowered: Lowered) -> tuple[object, ...]:
    """All by which what is built of a trace is found, checked and kept."""
    return (
        lowered.program,
        lowered.skeleton,
        lowered.order,
        lowered.reads,
        lowered.dependencies,
    )


class RemoteBuild:
    """One function to be traced, lowered and compiled by a builder. To be closed.

    Args:
        builders: records what became of it.
        function: what is built.
        order: the request, without the code.
        source: whom to ask for the code.
        program_cache: where it may lie; None where nothing is kept.
        emit: takes the events of the build.
    """

    def __init__(
        self,
        builders: BuilderPool,
        function: Function,
        order: BuildOrder,
        source: FunctionSource,
        program_cache: ProgramCache | None,
        emit: OutputOnce,
    ) -> None:
        self.order = order
        self._builders = builders
        self._function = function
        self._source = source
        self._program_cache = program_cache
        self._emit = emit
        self._loan = BuilderLoan(builders, function)
        self._first: Lowered | None = None

    def close(self) -> None:
        """Gives the builder back."""
        self._loan.close()

    def lower(self) -> LoweredFunction | None:
        """The lowered function; None when this process has to trace it after all.

        Raises:
            Interrupted: when no call waits for it any longer.
            ForwardedFailure: with what the function, or jax, raised.
            InternalError: when the function ended the processes that traced it.
        """
        try:
            reply = self._lowered()
        except _Away:
            return None
        check_not_abandoned()
        self._first = reply if isinstance(reply, Lowered) else None
        return self._parse_reply(reply)

    def _lowered(self) -> Reply:
        """What comes of tracing it, in as many builders as that takes."""
        return self._traced(lambda order: order)

    def _traced(self, request: Callable[[BuildOrder], Request]) -> Reply:
        """The reply to a request for which it is traced."""
        while True:
            builder = self._loan.borrow(self.order.described.fingerprint)
            if self.order.described.fingerprint in builder.known:
                order = self.order._replace(code=None)
            else:
                self.add_code()
                order = self.order
            self._emit.begin_trace()
            reply = self._loan.ask(request(order), self._emit, self._source.read)
            # a useless trace counts as well
            if isinstance(reply, Lowered | Answered | Failed | Refused):
                self._builders.apply_side_effects(reply.side)
            if reply is not None:
                return reply

    def show(self, shown: Shown) -> dict[str, Any] | None:
        """What becomes of the function; None when this process has to see to that.

        Raises:
            ForwardedFailure: with what the function, or jax, raised.
            InternalError: when the function ended the processes that traced it.
        """
        try:
            reply = self._traced(lambda order: ShowOrder(0, order, shown))
        except _Away:
            return None
        if isinstance(reply, Answered):
            self._loan.borrow().known.add(self.order.described.fingerprint)
            return reply.content
        self._parse_reply(reply)
        return None

    def compile(self, device: int) -> Compiled | None:
        """See `Elsewhere`.

        Raises:
            Interrupted: when no call waited for it any longer.
            InternalError: when the function ended the processes that built it.
            NotTransferable: when it is another program now: what it reads may have changed.
        """
        try:
            while True:
                reply = self._loan.ask(CompileLowered(0, device), self._emit)
                if reply is not None:
                    return _compiled(reply, self._builders, self.order.described.name)
                again = self._lowered()  # in another builder
                if not isinstance(again, Lowered):
                    return None
                self._check_same(again)
        except _Away:
            return None

    def _check_same(self, again: Lowered) -> None:
        """Compares a second trace with the first, under whose name its program would be kept.

        Raises:
            NotTransferable: when it differs.
        """
        first = self._first
        if first is None or _meaning(again) != _meaning(first):
            self._loan.end()
            raise NotTransferable("it was traced once more, and is another program now")

    def loaded(self, seconds: float) -> None:
        """See `Elsewhere`; nothing depends on it."""

    def hand_over(self) -> bytes:
        """See `Elsewhere`."""
        self._builders.deadly.check(self._function)
        try:
            reply = self._loan.ask(HandOver(0), self._emit)
        except _Away:
            reply = None
        if isinstance(reply, Packed):
            return reply.data
        raise NotTransferable(reply.reason if isinstance(reply, Refused) else "it has ended")

    def add_code(self) -> None:
        """Adds the code to the order; the client is asked for it when it is not on disk."""
        if self.order.code is not None:
            return
        fingerprint = self.order.described.code_fingerprint
        code = self._program_cache.code(fingerprint) if self._program_cache else None
        if code is None:
            with self._source.waiting():
                code = bytes(self._source.code(fingerprint))
        self.order = self.order._replace(code=code)

    def _parse_reply(self, reply: Reply) -> LoweredFunction | None:
        builder, described = self._loan.builder, self.order.described
        assert builder is not None
        if isinstance(reply, Outdated):
            log_event("builder_outdated", changes=reply.changes)
            builder.end()
            return None
        if isinstance(reply, Refused):
            log_event("builder_refused", function=described.name, reason=reply.reason)
            builder.known.discard(described.fingerprint)
            if reply.always:
                self._builders.refused[self.order.key] = None
            return None
        builder.known.add(described.fingerprint)
        if isinstance(reply, Failed):
            raise ForwardedFailure(reply.failure)
        assert isinstance(reply, Lowered)
        form = rebind_form(ResultLayout.of(reply.skeleton, reply.order, reply.inputs))
        structure = structure_of(((0,) * len(reply.order), {}))  # its own has no meaning here
        if reply.reads:  # the builder has it under that name now
            builder.known.add(described.with_reads(reply.reads).fingerprint)
        return LoweredFunction(
            reply.program,
            None,
            form,
            structure,
            reply.trace_s,
            None,
            reply.reads,
            reply.dependencies,
            self,
        )


class RemoteCompile:
    """A program that this process has lowered, to be compiled by a builder.

    Args:
        builders: who lends one.
        request: what is built.
        lowered: what this process has made of it.
        learn: called with the seconds that its compilation took, and with those that it took longer
            than here: to write it down, to send it both ways and to load it.
    """

    def __init__(
        self,
        builders: BuilderPool,
        request: BuildRequest,
        lowered: LoweredFunction,
        learn: Callable[[float, float], None],
    ) -> None:
        self._builders = builders
        self._request = request
        self._lowered = lowered
        self._learn = learn
        self._took: tuple[float, float] | None = None  # compiling, and what came on top

    def compile(self, device: int) -> Compiled | None:
        """See `Elsewhere`.

        Raises:
            Interrupted: when no call waited for it any longer.
            InternalError: when the program ended the processes that compiled it.
        """
        function, lowered = self._request.function, self._lowered
        loan = BuilderLoan(self._builders, function)
        try:
            loan.borrow()  # a start of one says nothing of the program
            started = time.monotonic()
            packed = pack_lowered(lowered.lowered, lowered.obstacle)
            order = CompileOrder(
                0, packed, lowered.program, function.name, function.options, device
            )
            while True:
                reply = loan.ask(order, self._request.emit)
                if reply is not None:
                    made = _compiled(reply, self._builders, function.name)
                    if made is not None:
                        more_s = time.monotonic() - started - made.compile_s
                        self._took = made.compile_s, more_s
                    return made
        except (_Away, NotTransferable):
            return None
        finally:
            loan.close()

    def loaded(self, seconds: float) -> None:
        """See `Elsewhere`."""
        if self._took is not None:
            compile_s, more_s = self._took
            self._learn(compile_s, more_s + seconds)

    def hand_over(self) -> Any:
        """See `Elsewhere`."""
        self._builders.deadly.check(self._request.function)
        return self._lowered.lowered


def _compiled(reply: Reply, builders: BuilderPool, name: str) -> Compiled | None:
    """What a builder has compiled; None when this process has to.

    Raises:
        ForwardedFailure: with what jax raised.
    """
    if isinstance(reply, Built | Failed | Refused):
        builders.apply_side_effects(reply.side)
    if isinstance(reply, Failed):
        raise ForwardedFailure(reply.failure)
    if isinstance(reply, Built):
        return reply.compiled
    log_event("builder_refused", function=name, reason=getattr(reply, "reason", "outdated"))
    return None


def build_order_of(request: BuildRequest, name: bytes) -> BuildOrder | None:
    """The request for a call, without the code; None when it would be too large.

    Args:
        request: what is to be built.
        name: the lasting name of function and signature.
    """
    scalars, buffers = sent_data(
        request.placement, request.blob, request.buffers, warm_only=request.warm_only
    )
    key, described = request.function.key, request.function.described
    if described.manifest is None or sum(map(len, buffers)) > _MAX_PICKLED_BYTES:
        return None
    sent = tuple(map(bytes, buffers))
    return BuildOrder(0, key, described, None, request.skeleton, scalars, sent, name)
