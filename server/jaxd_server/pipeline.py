"""The way of one call through the server: admit, find the function, find the executable, run.

Read this first. Nothing here knows of sockets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxd_protocol.calls import FAILED, OK
from jaxd_protocol.errors import ArgumentError, JaxdError, ResultError
from jaxd_protocol.failures import describe_failure
from jaxd_server.admission import Admission
from jaxd_server.compiler import Compiler, Executable
from jaxd_server.decisions import Decisions
from jaxd_server.executables import Executables, Plan
from jaxd_server.functions import Function, Functions, FunctionSource
from jaxd_server.marshal import pack_result, read_arguments
from jaxd_server.progress import SILENT, Emit
from jaxd_server.renewal import Renewal
from jaxd_server.skew import refuse_or_warn
from jaxd_server.statistics import Counters

__all__ = ["Call", "Deliver", "Pipeline", "Reply", "deliver_home"]

Reply = tuple[tuple[Any, ...], Sequence[memoryview]]
"""What goes back: the outcome as plain values, and the buffers beside it."""


Deliver = Callable[[Any, Executable], Reply]
"""Waits for the result of an executable and makes the reply that carries it, or its handle."""


def deliver_home(result: Any, executable: Executable) -> Reply:
    """The whole result goes back with the reply."""
    form, blob, buffers = pack_result(result, executable.memo)
    executable.memo = form
    return (OK, form.skeleton, blob), buffers


@dataclass(slots=True)
class Call:
    """One request.

    Attributes:
        key: names function, options and configuration.
        skeleton, blob, buffers: the arguments.
        source: whom to ask what the key stands for.
        deadline: `time.monotonic()` after which nobody waits, or None.
        may_repeat: whether running it twice is the same as running it once.
        number: the client's number for it, which events carry.
        emit: its event stream.
        deliver: what becomes of its result; by default it goes home whole.
        strict: whether packages that differ from the client's are an error.
    """

    key: bytes
    skeleton: bytes
    blob: bytes
    buffers: Sequence[memoryview]
    source: FunctionSource
    deadline: float | None = None
    may_repeat: bool = True
    number: int = 0
    emit: Emit = SILENT
    deliver: Deliver = deliver_home
    strict: bool = False


class Pipeline:
    """Answers calls; safe from any thread, as many at once as there are threads.

    Attributes:
        decisions: what was built, and why.
    """

    def __init__(
        self,
        functions: Functions,
        executables: Executables,
        compiler: Compiler,
        admission: Admission,
        counters: Counters,
        renewal: Renewal | None = None,
    ) -> None:
        self.functions = functions
        self.executables = executables
        self.admission = admission
        self.counters = counters
        self.decisions = Decisions()
        self._compiler = compiler
        self._renewal = renewal

    def plan(self, key: bytes, skeleton: bytes) -> Plan | None:
        """What is known about such calls: with an executable, the call is warm."""
        return self.executables.plan(key, skeleton)

    def answer(self, call: Call, plan: Plan | None = None) -> Reply:
        """Runs a call to its end; never raises.

        Args:
            call: the request.
            plan: what `plan` returned for it, to spare a second look.
        """
        try:
            # What was warm before may have been built for a client that was not strict.
            if plan is not None and plan.executable is not None and not call.strict:
                return self._warm(call, plan, plan.executable)
            return self._cold(call)
        except BaseException as error:  # noqa: BLE001  all of it is the caller's to know
            self.counters.add(calls=1, failed_calls=1)
            return (FAILED, describe_failure(error)), ()

    def _warm(self, call: Call, plan: Plan, executable: Executable) -> Reply:
        started = time.monotonic()
        running = self.admission.enter(executable.name, call.deadline)
        try:
            args, kwargs = read_arguments(plan.layout, call.blob, call.buffers)
            reply = call.deliver(executable(args, kwargs), executable)
        finally:
            self.admission.leave(running)
        executable.took(time.monotonic() - started)
        self.counters.hit()
        return reply

    def _cold(self, call: Call) -> Reply:
        if self._renewal is not None:
            self._renewal.look(call.emit)
        running = self.admission.enter("(unknown function)", call.deadline)
        try:
            function = self.functions.obtain(call.key, call.source)
            running.function = function.name
            refuse_or_warn(function.differences, call.emit, strict=call.strict)
            if function.arrival.doubt is not None:
                doubt = {"function": function.name, "text": function.arrival.doubt}
                call.emit("warning", doubt)
            layout = self.executables.layout(call.key, call.skeleton)
            arguments = read_arguments(layout, call.blob, call.buffers)
            built: list[Executable] = []

            def build() -> Executable:
                built.append(self._compile(function, arguments, call.emit))
                self.decisions.built(function, call.skeleton, built[0], call.emit)
                return built[0]

            def waiting() -> None:
                call.emit("stage", {"stage": "queued", "function": function.name})

            executable = self.executables.obtain(
                function, call.skeleton, layout, arguments, build, waiting
            )
            reply = call.deliver(executable(*arguments), executable)
        finally:
            self.admission.leave(running)
            if self._renewal is not None:
                self._renewal.note()
        executable.took(time.monotonic() - running.started)
        self.counters.add(calls=1, executable_hits=0 if built else 1)
        return reply

    def _compile(
        self,
        function: Function,
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        emit: Emit,
    ) -> Executable:
        try:
            return self._compiler.build(function, *arguments, emit)
        except JaxdError:
            raise
        except TypeError as error:
            raise _explained(error) from error


def _explained(error: TypeError) -> TypeError:
    """jax's own complaint about arguments and results, with what to do about it."""
    text = str(error)
    if "not a valid JAX type" in text and "returned a value" in text:
        return ResultError(
            f"{text}\nReturn arrays and numbers (in dicts, lists, tuples) from the function, and "
            "make text and other objects from them after the call."
        )
    if "as an abstract array" in text or "not a valid JAX type" in text:
        return ArgumentError(
            f"{text}\nPass arrays and numbers, or declare the argument in static_argnames."
        )
    return error
