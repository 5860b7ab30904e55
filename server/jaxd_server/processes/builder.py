"""The builder process: traces, lowers, compiles and serialises for a worker, one build at a time.

So the worker's warm calls are not delayed, and it can be ended where nobody waits for what it does.
Started by the worker or its fork server with one JSON argument: the number of a connected socket,
the format of log lines, the process id of the parent, and the priority at which this one works.
The messages: `compilation.remote_build.messages`.
"""

from __future__ import annotations

import gc
import itertools
import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, TypeVar

from jaxd_protocol.errors import JaxdError
from jaxd_protocol.jax_objects.lowered_bytes import NotTransferable, pack_lowered
from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.static_args import dynamic
from jaxd_protocol.messages.failures import Failure, decode_failure, encode_failure
from jaxd_protocol.messages.recorded_reads import ProcessRead
from jaxd_protocol.packages.distributions import Package
from jaxd_server.codec.arguments import Arguments, build_arguments, parse_arguments, structure_of
from jaxd_server.compilation.compiling.compiler import (
    Compiled,
    Compiler,
    LoweredFunction,
    explained,
    received,
)
from jaxd_server.compilation.disk_cache.compile_target import target
from jaxd_server.compilation.disk_cache.records import call_name
from jaxd_server.compilation.functions.function import Described, Function
from jaxd_server.compilation.functions.table import Clientless, Functions
from jaxd_server.compilation.remote_build.messages import (
    Answered,
    BuildOrder,
    Built,
    CancelBuild,
    CompileLowered,
    CompileOrder,
    Event,
    Failed,
    HandOver,
    Lowered,
    Outdated,
    Packed,
    ReadReply,
    ReadRequest,
    Ready,
    Refused,
    Reply,
    Request,
    ShowOrder,
    SideEffects,
    leaves_of_request,
)
from jaxd_server.jax_compat import lowered_transfer, programs
from jaxd_server.jax_compat.config import set_default_settings
from jaxd_server.jax_compat.programs import NotSerializable, serialized
from jaxd_server.runtime import logs
from jaxd_server.runtime.child_startup import die_with_the_parent, exit_process, read_argument
from jaxd_server.runtime.counters import Counters, Counts
from jaxd_server.runtime.imported_packages import ImportedPackages
from jaxd_server.runtime.threads.executors import ThreadPerTask, process_timers
from jaxd_server.user_code.interrupt import Interrupted, Interruptible, may_interrupt
from jaxd_server.user_code.output import capture_user_output
from jaxd_server.user_code.sandbox import prepare_for_user_code

R = TypeVar("R")

_INTERRUPT_RETRY_S = 0.05
"""A function that caught the exception is interrupted again after so long."""


def main(argument: dict[str, Any]) -> None:
    """Builds until the worker ends."""
    logs.configure(argument["log_format"], "builder")
    die_with_the_parent()
    os.setpriority(os.PRIO_PROCESS, 0, argument["nice"])  # before there are other threads
    if os.getppid() != argument["parent"]:
        os._exit(1)  # it ended before this process could notice
    Builder(Connection(argument["fd"])).serve()
    exit_process()  # the result of a build that still runs is not needed


class Builder:
    """Answers the requests of a worker.

    Args:
        connection: to the worker.
    """

    def __init__(self, connection: Connection) -> None:
        set_default_settings()
        lowered_transfer.disable_disk_cache()
        programs.prepare()
        self._sample = lowered_transfer.sample_program()
        self._target = target().digest
        self._connection = connection
        self._sending = threading.Lock()  # one message at a time
        self._functions = Functions(confirming=False)  # the worker has asked
        self._packages = ImportedPackages()
        self._packages.record()
        self._counters = _Drained()
        self._compiler = Compiler(self._counters, 1)
        self._tracing: dict[int, Interruptible] = {}  # by order; each access is atomic
        self._lowered: _LoweredOrder | None = None  # the last one
        self._questions: dict[int, queue.SimpleQueue[ReadReply]] = {}  # each access is atomic
        self._numbers = itertools.count()
        self._reported_packages: set[tuple[str, Package]] = set()
        prepare_for_user_code()
        capture_user_output()
        gc.collect()
        gc.freeze()  # imported modules stay

    def serve(self) -> None:
        """Works until the worker closes its end; on one order at a time, as the worker sends them.

        Each has a thread of its own, so that nothing is left of what a function sets in its thread.
        """
        self._send(Ready(*self._sample, self._target))
        threads = ThreadPerTask(1, "jaxd-build")
        with suppress(EOFError, OSError):
            while True:
                message = self._connection.recv()
                if isinstance(message, CancelBuild):
                    self._interrupt_again(message.number)
                elif isinstance(message, ReadReply):
                    self._questions[message.question].put(message)
                else:
                    if isinstance(message, BuildOrder | ShowOrder):  # before it can be interrupted
                        self._tracing[message.number] = Interruptible()
                    threads.submit(self._answer, message)

    def _send(self, message: Any) -> None:
        with self._sending:
            self._connection.send(message)

    def _answer(self, order: Request) -> None:
        """Always sends an answer: the worker waits for it without a limit."""
        try:
            self._send(self._answered(order))
        except BaseException as error:  # noqa: BLE001  the worker does it itself
            try:
                side = SideEffects(self._counters.drain(), [])
                text = f"{type(error).__name__}: {error}"
                self._send(Refused(order.number, text, always=False, side=side))
            except BaseException:  # noqa: BLE001  the closed connection is the answer
                os._exit(1)

    def _answered(self, order: Request) -> Reply:
        if isinstance(order, BuildOrder | ShowOrder):
            self._lowered = None
            try:
                return self._trace(order) if isinstance(order, BuildOrder) else self._show(order)
            finally:
                del self._tracing[order.number]
        if isinstance(order, CompileOrder):
            self._lowered = None
            lowered = received(order.program, order.lowered)
            given = _LoweredOrder(order.name, order.options, lowered)
            return self._compile(order.number, given, order.device)
        assert self._lowered is not None
        if isinstance(order, CompileLowered):
            return self._compile(order.number, self._lowered, order.device)
        return self._pack(order, self._lowered.lowered)

    def _compile(self, number: int, order: _LoweredOrder, device: int) -> Built | Failed | Refused:
        try:
            program = self._compiler.compile(
                order.lowered,
                order.name,
                order.options,
                lambda kind, content: self._send(Event(number, kind, content)),
                device,
            )
        except NotTransferable as error:
            return self._refused(number, str(error))
        except BaseException as error:  # noqa: BLE001  every exception is reported to the client
            return self._failed(number, error)
        try:
            written = serialized(program.compiled, program.devices)
        except NotSerializable as error:
            return self._refused(number, str(error))
        compiled = Compiled(written, program.compile_s, program.is_bound)
        return Built(number, compiled, self._take_side_effects())

    def _pack(self, order: HandOver, lowered: LoweredFunction) -> Packed | Refused:
        try:
            return Packed(order.number, pack_lowered(lowered.lowered, lowered.obstacle))
        except NotTransferable as error:
            return self._refused(order.number, str(error))

    def _trace(self, order: BuildOrder) -> Lowered | Failed | Refused | Outdated:
        def lower(function: Function, arguments: Arguments) -> _Traced:
            with may_interrupt(self._tracing[order.number]):
                return _Traced(function, self._lower(order, function, arguments))

        found = self._with_function(order, lower)
        return self._described(order, *found) if isinstance(found, _Traced) else found

    def _show(self, order: ShowOrder) -> Answered | Failed | Refused | Outdated:
        build = order.build._replace(number=order.number)

        def show(function: Function, arguments: Arguments) -> dict[str, Any]:
            assert function.unpacked is not None
            source = _RequestedFunction(build, self._read)
            with (
                may_interrupt(self._tracing[order.number]),
                function.unpacked.traced_for(source.read),
            ):
                return self._compiler.show(
                    function.traceable, function.options, arguments, order.shown, function.captured
                )

        found = self._with_function(build, show)
        if not isinstance(found, dict):
            return found
        return Answered(order.number, found, self._take_side_effects())

    def _with_function(
        self, order: BuildOrder, act: Callable[[Function, Arguments], R]
    ) -> R | Failed | Refused | Outdated:
        """What is made of the function of an order; or why nothing is."""
        changes = self._packages.changes()
        if changes:
            return Outdated(order.number, [change.text for change in changes])
        try:
            function, arguments = self._prepared(order)
        except BaseException as error:  # noqa: BLE001  the worker traces it itself
            return self._refused(order.number, f"{type(error).__name__}: {error}")
        try:
            return act(function, arguments)
        except Interrupted:
            return self._refused(order.number, "it was cancelled")
        except BaseException as error:  # noqa: BLE001  every exception is reported to the client
            return self._failed(order.number, error)

    def _refused(self, number: int, why: str, *, always: bool = False) -> Refused:
        return Refused(number, why, always=always, side=self._take_side_effects())

    def _interrupt_again(self, number: int) -> None:
        """Interrupts an order repeatedly, until it ends; it may not have begun to trace."""
        one = self._tracing.get(number)
        if one is not None:
            one.interrupt()
            process_timers.after(_INTERRUPT_RETRY_S, lambda: self._interrupt_again(number))

    def _prepared(self, order: BuildOrder) -> tuple[Function, Arguments]:
        """The function and its arguments.

        Raises:
            Exception: when they differ from those of the worker.
        """
        source = _RequestedFunction(order, self._read)
        function = self._functions.obtain(order.key, source)
        self._functions.unpack(function, source)  # again, where a trace has spoiled it
        layout = parse_arguments(order.skeleton)
        arguments = build_arguments(
            layout, leaves_of_request(layout, order.scalars, order.buffers), function.statics
        )
        if call_name(function, arguments) != order.call:
            raise LookupError(function.doubt or "the call is a different one in this process")
        return function, arguments

    def _lower(
        self, order: BuildOrder, function: Function, arguments: Arguments
    ) -> LoweredFunction:
        assert function.unpacked is not None
        source = _RequestedFunction(order, self._read)
        with function.unpacked.traced_for(source.read):
            lowered = self._compiler.lower(
                function.traceable,
                function.name,
                function.options,
                arguments,
                structure_of(dynamic(arguments, function.statics)),
                lambda kind, content: self._send(Event(order.number, kind, content)),
                function.captured,
            )
        reads = function.unpacked.reads.recorded
        self._functions.record(function, reads, source)
        return replace(lowered, reads=reads)

    def _read(self, order: BuildOrder, fingerprint: bytes, read: ProcessRead) -> Any:
        """Has the worker ask the client whose function is traced.

        Raises:
            Exception: as the client's answer says.
        """
        number = next(self._numbers)
        inbox = self._questions[number] = queue.SimpleQueue()
        try:
            self._send(ReadRequest(order.number, number, fingerprint, read))
            reply = inbox.get()
        finally:
            del self._questions[number]
        if reply.refusal is not None:
            raise decode_failure(reply.refusal)
        return reply.value

    def _failed(self, number: int, error: BaseException) -> Failed:
        """The failure of a function: final, even if its side effects cannot be collected."""
        failure = _failure(error)
        try:
            side = self._take_side_effects()
        except Exception:  # noqa: BLE001  a failure depends on no packages
            side = SideEffects(self._counters.drain(), [])
        return Failed(number, failure, side)

    def _described(
        self, order: BuildOrder, function: Function, lowered: LoweredFunction
    ) -> Lowered | Refused:
        form = lowered.form
        if not form.is_lasting:
            why = "its result holds objects that stay where it was traced"
            return self._refused(order.number, why, always=True)
        if lowered.obstacle is not None:  # what it needs is only in the process that traces it
            return self._refused(order.number, lowered.obstacle, always=True)
        self._lowered = _LoweredOrder(function.name, function.options, lowered)
        return Lowered(
            order.number,
            lowered.program,
            form.skeleton,
            form.order,
            form.inputs,
            lowered.trace_s,
            lowered.reads,
            self._packages.dependencies(function.modules, (order.skeleton, *order.buffers)),
            self._take_side_effects(),
        )

    def _take_side_effects(self) -> SideEffects:
        """What was counted and imported since the last call."""
        self._packages.record()
        imported = [row for row in self._packages.imported() if row not in self._reported_packages]
        self._reported_packages.update(imported)
        return SideEffects(self._counters.drain(), imported)


class _Traced(NamedTuple):
    """A function, and what it was lowered to."""

    function: Function
    lowered: LoweredFunction


class _LoweredOrder(NamedTuple):
    """What may be asked to be compiled next.

    Attributes:
        name: the name of the function.
        options: how it is compiled.
        lowered: what came of it.
    """

    name: str
    options: Options
    lowered: LoweredFunction


class _Drained(Counters):
    """Counts for the worker. For the thread of the order that is worked on."""

    def __init__(self) -> None:
        super().__init__()
        self._since: dict[str, float] = {}

    def add(self, own: Counts | None = None, /, **amounts: float) -> None:
        for name, amount in amounts.items():
            self._since[name] = self._since.get(name, 0) + amount

    def drain(self) -> dict[str, float]:
        """What was counted since the last call."""
        counts, self._since = self._since, {}
        return counts


class _RequestedFunction(Clientless):
    """The source of a function that a request contains."""

    def __init__(
        self, order: BuildOrder, read: Callable[[BuildOrder, bytes, ProcessRead], Any]
    ) -> None:
        super().__init__(LookupError("the worker has asked the client."))
        self._order = order
        self._read = read

    def describe(self, key: bytes) -> Described:
        return self._order.described

    def code(self, fingerprint: bytes) -> bytes:
        if self._order.code is None:
            raise LookupError("its code was not sent, and is no longer kept in this process")
        return bytes(self._order.code)

    def read(self, fingerprint: bytes, read: ProcessRead) -> Any:
        return self._read(self._order, fingerprint, read)


def _failure(error: BaseException) -> Failure:
    shown = error
    try:
        if isinstance(error, TypeError) and not isinstance(error, JaxdError):
            shown = explained(error)
            if shown is not error:
                shown.__cause__ = error
    except BaseException:  # noqa: BLE001  the methods of a user's exception may raise
        shown = error
    return encode_failure(shown)


if __name__ == "__main__":
    main(read_argument())
