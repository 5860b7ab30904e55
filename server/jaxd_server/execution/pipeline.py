"""The way of one call through the server: admit, find the function, find the executable, run.

Read this first. Nothing here uses sockets.
"""

from __future__ import annotations

import json
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from jaxd_protocol.errors import Cancelled, LostUpdateError, PlaceRefused, ResultError
from jaxd_protocol.jit.static_args import dynamic
from jaxd_protocol.messages.calls import FAILED, OK
from jaxd_protocol.messages.data_locations import pack_leaf_spans
from jaxd_protocol.messages.failures import Failure, encode_failure
from jaxd_protocol.messages.recipes import RecordedCall
from jaxd_protocol.messages.report import Use
from jaxd_protocol.pytree import Layout
from jaxd_server.codec.arguments import Arguments, build_arguments, donated_leaves, leaves_of
from jaxd_server.compilation.compiling.build_request import BuildRequest
from jaxd_server.compilation.compiling.executable import Executable
from jaxd_server.compilation.compiling.program import identity_of
from jaxd_server.compilation.disk_cache.programs import ProgramCache
from jaxd_server.compilation.executable_source import BuildResult, ExecutableSource
from jaxd_server.compilation.executables import DeviceChoice, Executables, Plan, PlanMismatch
from jaxd_server.compilation.functions.function import Function
from jaxd_server.compilation.functions.package_skew import dependency_changes, refuse_or_warn
from jaxd_server.compilation.functions.table import FunctionReplaced, Functions
from jaxd_server.compilation.history.build_log import BuildLog, describe
from jaxd_server.execution.admission import Admission, Operation
from jaxd_server.execution.call import Call, Client, Finish, Reply
from jaxd_server.execution.callback_lock import CallbackLock
from jaxd_server.execution.crash_guard import CrashGuard, MustRunAlone
from jaxd_server.execution.memory_room import OutOfMemoryHandler
from jaxd_server.execution.run import BrokenProgram, Executor, Run
from jaxd_server.jax_compat.devices import Devices
from jaxd_server.jax_compat.placement import placed, places_of
from jaxd_server.runtime.counters import Counters, FunctionUse, UseTable
from jaxd_server.runtime.events import SILENT, Emit, OutputOnce, repeat_output
from jaxd_server.runtime.imported_packages import Change, Dependencies
from jaxd_server.runtime.limits import RateLimiter
from jaxd_server.runtime.logs import log_event
from jaxd_server.runtime.threads.cancellation import NEVER_CANCELLED

_LOG_BURST: Final = 100
"""So many failed calls of a principal are logged at once, and then one a second."""

_MAX_REPLACED: Final = 8
"""How often the function of one call may turn out to be another one: mostly, to read more."""

_STATE: Final = (
    "a function that the program calls on the server, as by pure_callback, reads {}. There that "
    "would stay as it is now, and jax.jit would see each change of it. Under `jaxd run` and "
    "`pytest --jaxd` such a function runs in your process; make it a persistent function, whose "
    "key has what it reads, or pass it as an argument."
)


Touched = tuple[weakref.ref[Executable], FunctionUse | None]

MAX_TOUCHED: Final = 20_000
"""With more, who reads `Pipeline.touched` has to look at all executables."""


class PackageWatch(Protocol):
    """Notices that packages have changed since they were imported."""

    def poll(self, emit: Emit) -> None:
        """Checks whether they are current; the call that finds a change gets a warning."""

    def record_imports(self) -> None:
        """Records what a call has imported."""

    def changes_of(self, dependencies: Dependencies) -> list[Change]:
        """What has become of some packages, as far as was noticed."""


class Pipeline:
    """Answers calls; safe from any thread, as many at once as there are threads.

    Attributes:
        build_log: what was built, and why.
        program_cache: what is kept on disk; None where nothing is.
        source: makes executables and programs.
        uses: what was saved for whom, and spent.
        oom_handler: what is done when the device has no room.
        crash_guard: which calls are run alone, or not at all.
        has_device: whether calls run here; else they are only warmed.
        touched: the executables of which something was counted, and what is counted of their
            functions. Who takes one out sets `is_touched` to False, and then reads.
    """

    def __init__(
        self,
        functions: Functions,
        executables: Executables,
        source: ExecutableSource,
        admission: Admission,
        counters: Counters,
        oom_handler: OutOfMemoryHandler,
        program_cache: ProgramCache | None = None,
        packages: PackageWatch | None = None,
    ) -> None:
        self.has_device = True
        self.functions = functions
        self.executables = executables
        self.admission = admission
        self.counters = counters
        self.program_cache = program_cache
        self.build_log = BuildLog(program_cache)
        self.uses = UseTable(None if program_cache is None else f"{program_cache.store.root}/use")
        self.source = source
        self.oom_handler = oom_handler
        self._packages = packages
        self.crash_guard = CrashGuard(admission)
        self.touched: deque[Touched] = deque(maxlen=MAX_TOUCHED)
        self._executor = Executor(functions, executables, oom_handler, source.programs)
        self._callback_lock = CallbackLock()
        self._devices = Devices()
        self._are_several = len(self._devices) > 1
        self._log_limiter = RateLimiter(_LOG_BURST, 1.0)

    def answer(self, call: Call, plan: Plan | None = None) -> Reply:
        """Runs a call to its end; never raises.

        Args:
            call: the request.
            plan: see `start`.
        """
        return self.start(call, plan)()

    def require_device(self) -> None:
        """Returns where calls run here.

        Raises:
            PlaceRefused: where the server has no device.
        """
        if not self.has_device:
            raise PlaceRefused(
                "this server has no device (--no-device): it compiles and keeps programs for "
                "processes that run them. Use place='here' in a process that has jax, or a server "
                "with a device: jaxd start. docs/place.md says which calls place='here' leaves to "
                "a server."
            )

    def start(self, call: Call, plan: Plan | None = None) -> Finish:
        """Starts a call; the device may still be at work when this returns. Never raises.

        Args:
            call: the request.
            plan: of calls that need a result only; None: of one that is strict, or only warms up.

        Returns:
            What waits for the end; to be called once.
        """
        try:
            try:
                if not (self.has_device or call.warm_only):
                    self.require_device()
                executable = None if plan is None else plan.executable
                if plan and executable and self._is_current(call, executable):
                    return self._warm(call, plan, executable)
                return self._cold(call)
            except (PlanMismatch, BrokenProgram):
                return self._cold(call)  # which makes it anew, whatever lies on disk
        except BaseException as error:  # noqa: BLE001  all of it is the caller's to know
            reply = self._failed(call, error)
            return lambda: reply

    @contextmanager
    def operation(self, name: str) -> Iterator[None]:
        """Within it, a request is admitted as a call is, and the server is not idle.

        Args:
            name: for the status page.

        Raises:
            JaxdError: as `Admission.acquire`.
        """
        operation = Operation(name=name)
        if self._packages is not None:
            self._packages.poll(SILENT)
        self.admission.acquire(operation)
        try:
            yield
        finally:
            self.admission.release(operation)
            self.counters.add()

    def _failed(self, call: Call, error: BaseException) -> Reply:
        self.counters.add(call.session.counts, calls=1, failed_calls=1)
        return self._error_reply(call, error, call.given_up)

    def cancelled_reply(self, call: Call) -> Reply:
        """The reply to a cancelled call."""
        self.admission.poll()
        error = call.cancel_token.error or Cancelled("nobody waits for the call.")
        given = call.given if call.cancel_token.phase == "running" else ()
        return self._error_reply(call, error, tuple([each.leaves for each in given]))

    def _error_reply(self, call: Call, error: BaseException, given_up: tuple[range, ...]) -> Reply:
        """The reply to a call that failed; later calls that take its values fail as it did.

        Args:
            call: the request.
            error: what was raised.
            given_up: numbers of the leaves whose values the call has taken all the same.
        """
        failure = encode_failure(error, phase=call.phase, call=call.identify())
        self._log_failure(call, failure, getattr(error, "blame", "function"))
        if call.stay is None:
            return (FAILED, failure), ()
        if call.referenced_data is not None:
            call.referenced_data.own.failures[call.stay.number] = failure
        return (FAILED, failure, pack_leaf_spans(given_up)), ()

    def _log_failure(self, call: Call, failure: Failure, blame: str) -> None:
        """Logs that a call failed, at a limited rate, and no value: only the type of the error."""
        principal = call.session.principal
        skipped = self._log_limiter.acquire(principal)
        if skipped is not None:
            log_event(
                "call_failed",
                call=call.id,
                function=call.name,
                principal=principal or None,
                error=f"{failure[0]}.{failure[1]}".removeprefix("builtins."),
                blame=blame,
                phase=call.phase or None,
                seconds=round(time.monotonic() - call.started, 3) if call.started else None,
                not_logged=skipped or None,
            )

    def _too_late(self, run: Run) -> Reply:
        """The reply to a call whose client was notified of its cancellation before it was over."""
        run.undo()
        return self.cancelled_reply(run.call)

    def _warm(self, call: Call, plan: Plan, executable: Executable) -> Finish:
        trace = call.trace
        call.name = executable.name
        self.admission.acquire(call)
        try:
            if trace is not None:
                trace.stage("arguments")
            if self._are_several:
                leaves = _placed_leaves(call, plan, executable)
            else:
                leaves = plan.arrange(call.leaves(plan.layout, plan.donated))
            if trace is not None:
                trace.stage("run")
            finish = self._started(Run(call, executable, leaves), self._count_hit)
            executable.record_start_time(time.monotonic() - call.started)
            return finish
        except BaseException:
            self.admission.release(call)
            raise

    def _count_hit(self, run: Run, seconds: float) -> None:
        if run.executable.serial not in run.call.session.used_executables:
            self._count_first_use(run.call.session, run.executable)
        is_counted_elsewhere = run.call.cancel_token is not NEVER_CANCELLED
        session, executable = run.call.session, run.executable
        run_s = 0.0 if is_counted_elsewhere else seconds
        self.counters.hit(run_s, session.counts, session.use, executable.use, seconds)
        if not executable.is_touched:
            self._touch(executable)

    def _touch(self, executable: Executable) -> None:
        """Something was counted of it, before: who reads `touched` sees that."""
        executable.is_touched = True
        self.touched.append((weakref.ref(executable), executable.use))

    def _is_current(self, call: Call, executable: Executable) -> bool:
        """Whether the packages of a warm executable have not changed.

        They are looked at now for a client process that has not used it yet, which may well come
        just after an installation; for all others this happens beside the calls.
        """
        is_known = executable.serial in call.session.used_executables
        if not is_known and self._packages is not None:
            self._packages.poll(call.emit)
        return not executable.outdated

    def examine(self, executable: Executable) -> Executable:
        """One that was just made, which may have been made of packages that changed before."""
        if self._packages is not None:
            executable.outdated = tuple(self._packages.changes_of(executable.dependencies))
        return executable

    def _cold(self, call: Call) -> Finish:
        if self._packages is not None:
            self._packages.poll(call.emit)
        try:
            try:
                self.crash_guard.admit(call)
                return self._admitted(call)
            except MustRunAlone:
                self.crash_guard.admit_alone(call)
                return self._admitted(call)
        finally:
            if self._packages is not None:
                self._packages.record_imports()

    def _admitted(self, call: Call) -> Finish:
        try:
            made: list[BuildResult] = []
            for _ in range(_MAX_REPLACED):
                with suppress(FunctionReplaced):
                    return self._found(call, made)
            return self._found(call, made)
        except BaseException:
            self.admission.release(call)
            raise

    def _found(self, call: Call, before: list[BuildResult]) -> Finish:
        """Finds or makes the executable, and runs it.

        Args:
            call: the request.
            before: takes what this call has made, when its function turns out to be another one.
        """
        call.phase = "building"
        call.stage("function")
        function = self._function(call)
        call.stage("arguments")
        call.device = self._devices.of(function.options.device, call.session.device)
        layout = self.executables.layout(call.key, call.skeleton, call.session.device)
        donated = donated_leaves(layout, function.options, function.parameters)
        with placed(call.device):
            leaves = call.leaves(layout, donated)
        arguments = build_arguments(layout, leaves, function.statics)
        job = _BuildJob(self, function, call, arguments, layout)
        make = job.make  # as long as this is held, what it makes is not dropped
        try:
            executable = self.executables.obtain(
                function,
                call.skeleton,
                layout,
                arguments,
                make,
                job.waiting,
                job.move,
                DeviceChoice(call.device, call.session.device, call.cancel_token, call.session.id),
            )
        except FunctionReplaced:
            before += filter(None, [job.made])
            raise
        _check_devices(call, executable)
        if executable.outdated:
            changes = dependency_changes(function.name, executable.outdated)
            refuse_or_warn(changes, call.emit, strict=call.strict)
        made = job.made
        for earlier in before:
            made = earlier if made is None and earlier.executable is executable else made
        if executable.use is None:
            where, parameters = describe(function).where, function.parameters
            executable.use = self.counters.function(
                executable.key, executable.name, where, parameters
            )
        self._count_first_use(call.session, executable, made)
        if call.is_first:
            _begin_first(call, executable, made)
        if call.warm_only:
            self.admission.release(call)
            report = self._report(executable, made)
            return lambda: report
        # In this order: either the canceller sees that it runs, or the check sees the cancellation.
        call.phase = "running"
        call.cancel_token.set_phase("running")
        call.cancel_token.check()
        run = Run(call, executable, leaves_of(dynamic(arguments, function.statics)))
        call.stage("run")
        return self._started(run, partial(self._count_cold, hits=0 if made else 1))

    def _count_cold(self, run: Run, seconds: float, hits: int) -> None:
        session = run.call.session
        if hits:
            self.counters.hit(0.0, session.counts, session.use, run.executable.use, seconds)
        else:
            session.use.calls += 1
            self.counters.add(session.counts, calls=1)
        self._touch(run.executable)

    def _started(self, run: Run, count: Callable[[Run, float], None]) -> Finish:
        run.executable.hold()
        if run.call.timed_from >= 0.0:
            run.call.timed_from = time.monotonic()
        try:
            if run.executable.calls_python:
                self.crash_guard.record(run.call)
                self._callback_lock.start(run, self._executor.dispatch)
            else:
                self._executor.dispatch(run)
        except BaseException:
            run.executable.release()
            raise
        return partial(self._finished, run, count)

    def _finished(self, run: Run, count: Callable[[Run, float], None]) -> Reply:
        try:
            try:
                reply = self._executor.deliver(run)
            finally:
                run.executable.release()
                self.admission.release(run.call)
                if run.executable.calls_python:
                    self._callback_lock.end(run)
            seconds = time.monotonic() - run.call.started
            run.executable.record_run_time(seconds)
            count(run, seconds)
            if run.call.timed_from >= 0.0:
                reply = run.timed(reply)
            return self._too_late(run) if run.call.cancel_token.is_client_notified else reply
        except BrokenProgram:
            return self.start(run.call)()  # which makes it anew, whatever lies on disk
        except BaseException as error:  # noqa: BLE001  all of it is the caller's to know
            reply = self._failed(run.call, error)  # first: calls that use its values learn why
            run.undo()
            return reply

    def _function(self, call: Call) -> Function:
        function = self.functions.obtain(call.key, call.source)
        self.crash_guard.examine(call, function)
        refuse_or_warn(function.differences, call.emit, strict=call.strict)
        if function.doubt is not None:
            call.emit("warning", {"function": function.name, "text": function.doubt})
        return function

    def _count_first_use(
        self, session: Client, executable: Executable, made: BuildResult | None = None
    ) -> None:
        """Counts what a client process is spared, the first time that it uses an executable."""
        if executable.serial in session.used_executables:
            return
        session.used_executables.add(executable.serial)
        self.build_log.known_functions.record(session.principal, executable.key)
        self._count_use(session, executable, made)
        self._touch(executable)

    def _count_use(self, session: Client, executable: Executable, made: BuildResult | None) -> None:
        function = executable.use or FunctionUse()
        file = function.where.rpartition(":")[0]
        if made is None:
            saved = executable.costs.build_s
            session.use.found += 1
        elif made.verdict == "load":
            saved = max(0.0, executable.costs.build_s - executable.costs.paid_s)
            session.use.loaded += 1
            function.loaded += 1
        else:
            session.use.compiled += 1
            function.compiled += 1
            function.built_s += executable.costs.paid_s
            use = Use(compiled=1, built_s=executable.costs.paid_s)
            self.uses.add(session.principal, executable.name, use, file)
            return
        session.use.saved_s += saved
        executable.saved_s += saved
        function.saved_s += saved
        use = Use(found=made is None, loaded=made is not None, saved_s=saved)
        self.uses.add(session.principal, executable.name, use, file)
        self.counters.add(session.counts, saved_s=saved)

    def _report(self, executable: Executable, made: BuildResult | None) -> Reply:
        """What became of a call to warm up, once the program is on disk."""
        if self.program_cache is not None:
            self.program_cache.flush()
        verdict = made.verdict if made else "hit"
        seconds = executable.costs.paid_s if made else 0.0
        name = executable.kept_as
        kept = self.program_cache is not None and bool(name) and self.program_cache.has(name)
        report = {
            "verdict": verdict,
            "seconds": round(seconds, 6),
            "kept": kept,
            "program": identity_of(executable.program),
            "inputs": executable.form.inputs,
        }
        return (OK, json.dumps(report), executable.form.skeleton), ()


@dataclass(slots=True, eq=False)
class _BuildJob:
    """The build callbacks of one call for `Executables.obtain`; to be used once.

    Attributes:
        made: what this call has made; None when it was there, or another call has made it.
    """

    pipeline: Pipeline
    function: Function
    call: Call
    arguments: Arguments
    layout: Layout
    made: BuildResult | None = None

    def waiting(self) -> None:
        """The executable is about to be made, here or by another call."""
        self.call.emit("stage", {"stage": "queued", "function": self.function.name})

    def make(self) -> Executable:
        """The executable, from disk or by tracing.

        Raises:
            FunctionReplaced: when it reads more of its client's process than was known.
            Exception: as `ExecutableSource.make`.
        """
        pipeline, function, call = self.pipeline, self.function, self.call
        request = self._request()
        made = self._recorded(lambda: pipeline.source.make(request))
        log_event(
            "built",
            call=call.identify(),
            function=function.name,
            principal=call.session.principal or None,
            verdict=made.verdict,
            seconds=round(made.executable.costs.paid_s, 3),
        )
        executable = pipeline.examine(made.executable)
        if made.function is not None:
            pipeline.executables.adopt(made.function, self.arguments, executable, self.make)
            raise FunctionReplaced(function.name)
        return executable

    def _recorded(self, make: Callable[[], BuildResult]) -> BuildResult:
        """Makes it, and records that."""
        build_log, call = self.pipeline.build_log, self.call
        record = build_log.begin(self.function, call.skeleton, call.session.principal)
        try:
            made = self.made = self.pipeline.oom_handler.retried_on_oom(make)
            function = made.function or self.function
            reason = build_log.made(function, call.skeleton, made, call.emit)
        except BaseException as error:
            record.end("failed", type(error).__name__)
            raise
        record.end(made.verdict, reason)
        return made

    def move(self, one: Executable) -> Executable | None:
        """The executable, of one for another device; None when it has to be made."""
        call, source = self.call, self.pipeline.source
        self.made = source.moved(one, self.function, call.device, call.session.counts)
        return None if self.made is None else self.pipeline.examine(self.made.executable)

    def _request(self) -> BuildRequest:
        call, placement = self.call, self.call.placement(self.layout)
        recorded = (
            RecordedCall.of_specification(call.skeleton, self.layout.leaves, call.buffers)
            if call.warm_only
            else RecordedCall.of(call.skeleton, placement, call.buffers)
        )
        return BuildRequest(
            self.function,
            self.arguments,
            recorded,
            call.skeleton,
            placement,
            call.blob,
            call.buffers,
            call.source,
            OutputOnce(call.emit),
            call.device,
            call.warm_only,
            call.session.principal,
            call.session.counts,
        )


def _check_devices(call: Call, executable: Executable) -> None:
    """Returns when results may lie where the program of a call has them.

    Raises:
        ResultError: when these are several devices, and the call is to be on one.
    """
    count = len(executable.program.devices)
    if call.on_one_device and count > 1:
        raise ResultError(
            f"the program of {executable.name} computes on {count} devices of the server, on which "
            "its results lie, and arrays of a process can only lie on its own. Under `jaxd run` "
            "and `pytest --jaxd` such a function runs in your process."
        )


def _begin_first(call: Call, executable: Executable, made: BuildResult | None) -> None:
    """Before a call runs at which `jax.jit` would trace: shows what the trace has put out.

    Raises:
        LostUpdateError: when functions that the program calls would not see, as they do under
            `jax.jit`, what the client changes later.
    """
    if executable.program.host_state:
        raise LostUpdateError(_STATE.format(executable.program.host_state))
    if made is None or made.verdict == "load":
        call.is_first = False  # should it have to be made anew
        repeat_output(executable.output, call.emit)


def _placed_leaves(call: Call, plan: Plan, executable: Executable) -> list[Any]:
    """The leaves of a warm call as its executable takes them, where there are several devices.

    Raises:
        PlanMismatch: when some were put on other devices than those that it was made for.
    """
    with placed(executable.device):
        leaves = plan.arrange(call.leaves(plan.layout, plan.donated))
    if (plan.places or call.elsewhere) and places_of(leaves) != plan.places:
        raise PlanMismatch
    return leaves
