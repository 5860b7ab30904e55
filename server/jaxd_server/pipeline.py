"""The way of one call through the server: admit, find the function, find the executable, run.

Read this first. Nothing here knows of sockets.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from jaxd_protocol.calls import FAILED, OK
from jaxd_protocol.failures import describe_failure
from jaxd_protocol.recipes import RecordedCall
from jaxd_protocol.trees import Layout
from jaxd_server.admission import Admission, Running
from jaxd_server.decisions import Decisions
from jaxd_server.executable import Executable
from jaxd_server.executables import Executables, Plan
from jaxd_server.functions import Function, FunctionReplaced, Functions, FunctionSource
from jaxd_server.jax_config import configured
from jaxd_server.jax_programs import is_nan_error, is_out_of_memory, is_runtime_error
from jaxd_server.logs import log_event
from jaxd_server.making import Made, Maker
from jaxd_server.marshal import dynamic, empty_leaves, jax_arrays, leaves_of, read_leaves
from jaxd_server.progress import SILENT, Emit
from jaxd_server.renewal import Renewal
from jaxd_server.result_forms import pack_result
from jaxd_server.sessions import Session
from jaxd_server.shelf import Shelf
from jaxd_server.shortage import Shortage
from jaxd_server.skew import refuse_or_warn
from jaxd_server.statistics import Counters

__all__ = ["Call", "Deliver", "Pipeline", "Reply", "deliver_home"]

Reply = tuple[tuple[Any, ...], Sequence[memoryview]]
"""What goes back: the outcome as plain values, and the buffers beside it."""


Deliver = Callable[[Sequence[Any], Executable], Reply]
"""Waits for the arrays that an executable returned and makes the reply that carries them."""


def deliver_home(leaves: Sequence[Any], executable: Executable) -> Reply:
    """The whole result goes back with the reply."""
    blob, buffers = pack_result(leaves, executable.form)
    return (OK, executable.form.skeleton, blob), buffers


_NOBODY: Final = Session("", "")


@dataclass(slots=True)
class Call:
    """One request.

    Attributes:
        key: names function, options and configuration.
        skeleton, blob, buffers: the arguments; of a call to warm up, no data of arrays.
        source: whom to ask what the key stands for.
        deadline: `time.monotonic()` after which nobody waits, or None.
        may_repeat: whether running it twice is the same as running it once.
        number: the client's number for it, which events carry.
        emit: its event stream.
        deliver: what becomes of its result; by default it goes home whole.
        strict: whether packages that differ from the client's are an error.
        warm_only: whether the executable is wanted, and no result.
        session: whose call it is.
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
    warm_only: bool = False
    session: Session = _NOBODY


class _BrokenProgram(Exception):
    """A program that was read from disk does not run."""


class Pipeline:
    """Answers calls; safe from any thread, as many at once as there are threads.

    Attributes:
        decisions: what was built, and why.
        shelf: what is kept on disk; None where nothing is.
    """

    def __init__(
        self,
        functions: Functions,
        executables: Executables,
        maker: Maker,
        admission: Admission,
        counters: Counters,
        shortage: Shortage,
        shelf: Shelf | None = None,
        renewal: Renewal | None = None,
    ) -> None:
        self.functions = functions
        self.executables = executables
        self.admission = admission
        self.counters = counters
        self.shelf = shelf
        self.decisions = Decisions(shelf)
        self._maker = maker
        self._shortage = shortage
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
            try:
                if plan is not None and plan.executable is not None and _is_plain(call):
                    return self._warm(call, plan, plan.executable)
                return self._cold(call)
            except _BrokenProgram:
                return self._cold(call)  # which makes it anew, whatever lies on disk
        except BaseException as error:  # noqa: BLE001  all of it is the caller's to know
            self.counters.add(calls=1, failed_calls=1)
            return (FAILED, describe_failure(error)), ()

    def _warm(self, call: Call, plan: Plan, executable: Executable) -> Reply:
        started = time.monotonic()
        running = self.admission.enter(executable.name, call.deadline)
        try:
            leaves = plan.arrange(read_leaves(plan.layout, call.blob, call.buffers))
            reply = self._run(call, executable, leaves)
        finally:
            self.admission.leave(running)
        executable.took(time.monotonic() - started)
        if executable.serial not in call.session.met:
            self._meet(call.session, executable)
        self.counters.hit()
        return reply

    def _cold(self, call: Call) -> Reply:
        if self._renewal is not None:
            self._renewal.look(call.emit)
        running = self.admission.enter("(unknown function)", call.deadline)
        try:
            try:
                return self._found(call, running)
            except FunctionReplaced:
                return self._found(call, running)
        finally:
            self.admission.leave(running)
            if self._renewal is not None:
                self._renewal.note()

    def _found(self, call: Call, running: Running) -> Reply:
        """Finds or makes the executable, and runs it."""
        function = self._function(call, running)
        layout = self.executables.layout(call.key, call.skeleton)
        arguments = layout.build(_leaves(call, layout))
        made: list[Made] = []

        def make() -> Executable:
            recorded = _recorded(call, layout)
            made.append(
                self._shortage.relieved(
                    lambda: self._maker.make(function, call, arguments, recorded)
                )
            )
            self.decisions.made(function, call.skeleton, made[0], call.emit)
            return made[0].executable

        def waiting() -> None:
            call.emit("stage", {"stage": "queued", "function": function.name})

        executable = self.executables.obtain(
            function, call.skeleton, layout, arguments, make, waiting
        )
        self._meet(call.session, executable, made[0] if made else None)
        if call.warm_only:
            return self._report(executable, made)
        reply = self._run(call, executable, leaves_of(dynamic(arguments, function.statics)))
        executable.took(time.monotonic() - running.started)
        self.counters.add(calls=1, executable_hits=0 if made else 1)
        return reply

    def _function(self, call: Call, running: Running) -> Function:
        function = self.functions.obtain(call.key, call.source)
        running.function = function.name
        refuse_or_warn(function.differences, call.emit, strict=call.strict)
        if function.doubt is not None:
            call.emit("warning", {"function": function.name, "text": function.doubt})
        return function

    def _run(self, call: Call, executable: Executable, leaves: Sequence[Any]) -> Reply:
        executable.hold()
        try:
            try:
                return call.deliver(executable(leaves), executable)
            except Exception as error:
                if is_nan_error(error):
                    raise self._find_nan(call) from error
                if self._shortage.are_gone(leaves):
                    raise
                if not is_out_of_memory(error):
                    self._discard_if_broken(executable, error)
                    raise
                failure = str(error)  # and not the error, whose frames hold arrays
            return self._shortage.again(
                lambda: call.deliver(executable(leaves), executable), failure
            )
        finally:
            executable.release()

    def _discard_if_broken(self, executable: Executable, error: Exception) -> None:
        """Drops a program that was read from disk and does not run; nothing in one is the user's.

        Raises:
            _BrokenProgram: when it was one.
        """
        if executable.program.is_original or not is_runtime_error(error):
            return
        log_event("program_broken", level=logging.WARNING, name=executable.name, reason=str(error))
        self.executables.discard(executable)
        self._maker.discard(executable)
        raise _BrokenProgram from error

    def _find_nan(self, call: Call) -> FloatingPointError:
        """Runs the function step by step, so that the line is seen that makes the first NaN.

        Returns:
            What there is to say when there is none that way.

        Raises:
            FloatingPointError: at that line.
        """
        function = self.functions.obtain(call.key, call.source)
        try:
            self.functions.unpack(function, call.source)
        except FunctionReplaced:
            function = self.functions.obtain(call.key, call.source)
        layout = self.executables.layout(call.key, call.skeleton)
        arguments = layout.build(read_leaves(layout, call.blob, call.buffers))
        with configured(function.options.config):
            args, kwargs = jax_arrays(arguments, function.statics)
            function.function(*args, **kwargs)
        return FloatingPointError(
            f"invalid value (nan or inf) in the result of {function.name}, but not when it is run "
            "step by step: the compiler has put steps together. Look at values that are nearly "
            "too large."
        )

    def _meet(self, session: Session, executable: Executable, made: Made | None = None) -> None:
        """Counts what a client process is spared, the first time that it uses an executable."""
        if executable.serial in session.met:
            return
        session.met.add(executable.serial)
        if made is None:
            saved = executable.costs.build_s
        elif made.verdict == "load":
            saved = max(0.0, executable.costs.build_s - executable.costs.paid_s)
        else:
            return
        executable.saved_s += saved
        self.counters.add(saved_s=saved)

    def _report(self, executable: Executable, made: list[Made]) -> Reply:
        """What became of a call to warm up, once the program is on disk."""
        if self.shelf is not None:
            self.shelf.flush()
        verdict = made[0].verdict if made else "hit"
        seconds = executable.costs.paid_s if made else 0.0
        name = executable.kept_as
        kept = self.shelf is not None and bool(name) and self.shelf.has(name)
        report = {"verdict": verdict, "seconds": round(seconds, 6), "kept": kept}
        return (OK, json.dumps(report)), ()


def _leaves(call: Call, layout: Layout) -> list[Any]:
    if call.warm_only:
        return empty_leaves(layout, call.buffers)
    return read_leaves(layout, call.blob, call.buffers)


def _recorded(call: Call, layout: Layout) -> RecordedCall:
    """What of a call decides about its executable."""
    if call.warm_only:
        return RecordedCall.of_specification(call.skeleton, layout, call.buffers)
    return RecordedCall.of(call.skeleton, layout, call.buffers)


def _is_plain(call: Call) -> bool:
    """Whether all it wants is a result: what was warm before may not do for one that is strict."""
    return not (call.strict or call.warm_only)
