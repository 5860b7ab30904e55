"""Which builds are traced beside the worker, and what comes back from there.

Tracing holds the interpreter, and a worker that answers others meanwhile makes them wait. So a
sibling process does it: see `tracer`. A client that is alone would only wait for itself.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from jaxd_protocol.errors import InternalError
from jaxd_protocol.failures import ForwardedFailure
from jaxd_server.adopted_results import adopted
from jaxd_server.build import present_build
from jaxd_server.compiler import LoweredFunction
from jaxd_server.functions import Function, FunctionSource
from jaxd_server.imported_packages import ImportedPackages
from jaxd_server.jax_handover import understands
from jaxd_server.kept_calls import call_name
from jaxd_server.logs import log_event
from jaxd_server.marshal import Arguments, parse_arguments, structure_of
from jaxd_server.progress import Emit
from jaxd_server.result_forms import ResultForm
from jaxd_server.shelf import Shelf
from jaxd_server.statistics import Counters
from jaxd_server.tracer_messages import (
    Ended,
    Failed,
    Lowered,
    Order,
    Outdated,
    Refused,
    Reply,
    Side,
    sent_data,
)
from jaxd_server.tracer_process import TracerProcess

if TYPE_CHECKING:
    from jaxd_server.call import Call

__all__ = ["Errand", "TraceIn", "Tracing", "order_of"]

TraceIn = Literal["auto", "worker", "tracer"]
"""Where functions are traced: `auto` as there are clients, always here, or always there."""

_MAX_PICKLED_BYTES: Final = 64 << 20
_MAX_NOTED: Final = 10_000
_MAX_FALSE_STARTS: Final = 3


class Tracing:
    """Starts a tracer when it is worth it, and replaces one that has ended. Thread-safe.

    Args:
        trace_in: where functions are traced.
        is_shared: whether more than one client is there.
        counters: where what the tracer counts is added.
        packages: where it is noted what the tracer imports.
        shelf: where packed functions are found; None where nothing is kept.
        start: starts a tracer.
    """

    def __init__(
        self,
        trace_in: TraceIn,
        is_shared: Callable[[], bool],
        counters: Counters,
        packages: ImportedPackages,
        shelf: Shelf | None = None,
        start: Callable[[], TracerProcess] = lambda: TracerProcess("text", understands),
    ) -> None:
        self._trace_in = trace_in
        self._is_shared = is_shared
        self._counters = counters
        self._packages = packages
        self._shelf = shelf
        self._start = start
        self._tracer: TracerProcess | None = None
        self._is_off = False
        self._false_starts = 0
        self._refused = _Keys()
        self._deadly = _Keys()
        self._lock = threading.Lock()  # guards all of these

    def settle(self) -> None:
        """Starts the tracer now if it is wanted whoever comes."""
        if self._trace_in == "tracer":
            self._started()

    def errand(self, function: Function, call: Call, arguments: Arguments) -> Errand | None:
        """What has to be done to have a function traced elsewhere; None: it is traced here.

        The client is asked for the code when that is needed.

        Args:
            function: what is called; need not be unpacked.
            call: who calls it.
            arguments: with what.

        Raises:
            Exception: what asking the client raises.
        """
        if not self._is_wanted() or function.key in self._refused:
            return None
        name = call_name(function, arguments)
        if name is None:
            return None  # another process may not mean the same by it
        order = order_of(function, call, name)
        if order is None:
            return None
        tracer = self._ready(patiently=function.key in self._deadly)
        if tracer is None:
            return None
        errand = Errand(self, tracer, order, call.source, call.emit)
        return errand if order.fingerprint in tracer.known else errand.with_code()

    def close(self) -> None:
        """Ends the tracer."""
        with self._lock:
            self._is_off = True
            tracer, self._tracer = self._tracer, None
        if tracer is not None:
            tracer.close()

    def _is_wanted(self) -> bool:
        wanted = self._trace_in == "tracer" or (self._trace_in == "auto" and self._is_shared())
        return wanted and not self._is_off

    def _ready(self, *, patiently: bool) -> TracerProcess | None:
        """The tracer; one that has only just been started is for the next build."""
        tracer = self._started()
        if tracer is not None and self._trace_in == "auto" and not patiently:
            return tracer if tracer.state == "ready" else None
        return tracer if tracer is not None and tracer.wait() else None

    def _started(self) -> TracerProcess | None:
        with self._lock:
            tracer = self._tracer
            if tracer is not None and tracer.state == "ended":
                self._false_starts = 0 if tracer.was_ready else self._false_starts + 1
                if self._false_starts >= _MAX_FALSE_STARTS:
                    log_event("tracer_given_up", level=logging.WARNING)
                    self._is_off = True
                tracer = None
            if self._is_off:
                return None
            self._tracer = tracer or self._start()
            return self._tracer

    def code(self, fingerprint: bytes, source: FunctionSource) -> bytes:
        """The packed function."""
        kept = self._shelf.code(fingerprint) if self._shelf else None
        if kept is not None:
            return kept
        with source.waiting():
            return bytes(source.code(fingerprint))

    def heed(self, side: Side) -> None:
        """Takes over what happened in the tracer beside its work."""
        self._counters.add(**side.counts)
        self._packages.adopt(side.packages)

    def refuse(self, key: bytes) -> None:
        """Notes that a function is never traced elsewhere."""
        self._refused.add(key)

    def beware(self, key: bytes) -> None:
        """Notes that a function ends the process that traces it, so that it never is this one."""
        self._deadly.add(key)
        self._started()  # for others, who need not wait for it then

    def drop(self, tracer: TracerProcess) -> None:
        """Lets go of a tracer that is out of date, but for what it traces, and starts the next."""
        with self._lock:
            if self._tracer is tracer and not self._is_off:
                self._tracer = self._start()
        tracer.retire()

    def alone(self, order: Order, emit: Emit) -> Reply:
        """Has an order worked out in a process that does nothing else."""
        with closing(self._start()) as tracer:
            tracer.wait()
            return _asked(tracer, order, emit)


def _asked(tracer: TracerProcess, order: Order, emit: Emit) -> Reply:
    """What a tracer makes of an order; whoever gives up the build that this thread does ends it."""
    build = present_build()
    if build is None:
        return tracer.ask(order, emit)
    build.end_by_force = tracer.kill
    try:
        return tracer.ask(order, emit, build.telling)
    finally:
        build.end_by_force = None


class Errand(NamedTuple):
    """One function to be traced and lowered elsewhere.

    Attributes:
        tracing: whose it is.
        tracer: where it is done.
        order: what is done.
        source: whom to ask for the code.
        emit: told what happens meanwhile.
    """

    tracing: Tracing
    tracer: TracerProcess
    order: Order
    source: FunctionSource
    emit: Emit

    def lower(self) -> LoweredFunction | None:
        """The lowered function; None when this process has to trace it after all.

        Raises:
            Interrupted: when nobody waits for it any more.
            ForwardedFailure: with what the function, or jax, raised.
            InternalError: when the function ended the process that traced it.
        """
        reply = _asked(self.tracer, self.order, self.emit)
        build = present_build()
        if build is not None:
            if build.is_left and isinstance(reply, Lowered | Failed | Refused):
                self.tracing.heed(reply.side)
            build.check()
        if isinstance(reply, Ended) and reply.orders:  # another one, or somebody, may have ended it
            again = self.tracing.alone(self.with_code().order, self.emit)
            if build is not None:
                build.check()
            if not isinstance(again, Ended) or again.orders:  # else it is cleared of nothing
                reply = again
        if isinstance(reply, Ended) and reply.orders:
            self.tracing.beware(self.order.key)
            raise _ended(self.order.name, reply.how)
        return self._understood(reply)

    def with_code(self) -> Errand:
        """The same with the code; the client is asked for it when it is not on disk."""
        code = self.tracing.code(self.order.fingerprint, self.source)
        return self._replace(order=self.order._replace(code=code))

    def _understood(self, reply: Reply) -> LoweredFunction | None:
        if isinstance(reply, Ended):
            return None  # before it had begun
        if isinstance(reply, Outdated):
            log_event("tracer_outdated", changes=reply.changes)
            self.tracing.drop(self.tracer)
            return None
        if isinstance(reply, Refused):
            self.tracing.heed(reply.side)  # a trace that was in vain is one as well
            log_event("tracer_refused", function=self.order.name, reason=reply.reason)
            self.tracer.known.discard(self.order.fingerprint)
            if reply.always:
                self.tracing.refuse(self.order.key)
            return None
        self.tracing.heed(reply.side)
        self.tracer.known.add(self.order.fingerprint)
        if isinstance(reply, Failed):
            raise ForwardedFailure(reply.failure)
        return _lowered(reply)


class _Keys:
    """The keys of functions that were noted last."""

    def __init__(self) -> None:
        self._keys: OrderedDict[bytes, None] = OrderedDict()
        self._lock = threading.Lock()

    def __contains__(self, key: bytes) -> bool:
        return key in self._keys

    def add(self, key: bytes) -> None:
        with self._lock:
            self._keys[key] = None
            if len(self._keys) > _MAX_NOTED:
                self._keys.popitem(last=False)


def _ended(name: str, how: str) -> InternalError:
    return InternalError(
        f"{name} ended the process that traced it ({how}). The server and all that it has ready "
        "live on. Does the function, or a library of its, call os._exit() or crash while traced?"
    )


def order_of(function: Function, call: Call, name: bytes) -> Order | None:
    """What the tracer has to know of a call, but for the code; None when that is too much."""
    layout = parse_arguments(call.skeleton)
    placement = call.placement(layout)
    scalars, buffers = sent_data(placement, call.blob, call.buffers, warm_only=call.warm_only)
    described = function.described
    if described.meaning is None or sum(map(len, buffers)) > _MAX_PICKLED_BYTES:
        return None
    return Order(
        0,
        function.key,
        described.fingerprint,
        described.name,
        described.options.to_bytes(),
        described.meaning.to_message(),
        None,
        call.skeleton,
        scalars,
        tuple(map(bytes, buffers)),
        name,
    )


def _lowered(reply: Lowered) -> LoweredFunction:
    form = adopted(ResultForm.of(reply.skeleton, reply.order))
    structure = structure_of(((0,) * len(reply.order), {}))  # its own is of no use here
    return LoweredFunction(reply.program, None, form, structure, reply.trace_s, reply.data)
