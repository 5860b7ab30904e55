"""Builds the executable that a call needs: loads it from disk, or traces and compiles.

What comes out of tracing is compiled only when no other function has the same program.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from jaxd_protocol.errors import JaxdError, LimitExceeded
from jaxd_protocol.jax_objects.lowered_bytes import NotTransferable
from jaxd_protocol.jax_objects.program_bytes import Serialized
from jaxd_protocol.jit.settings import when_run
from jaxd_protocol.jit.static_args import dynamic
from jaxd_server.cache.shared_store import Waiting
from jaxd_server.codec.arguments import structure_of
from jaxd_server.codec.results import ResultLayout, rebind_form
from jaxd_server.compilation.compiling.build_request import BuildRequest
from jaxd_server.compilation.compiling.builds import check_not_abandoned, current_build
from jaxd_server.compilation.compiling.compiler import Compiler, LoweredFunction, explained
from jaxd_server.compilation.compiling.executable import Costs, Executable
from jaxd_server.compilation.compiling.program import Program
from jaxd_server.compilation.disk_cache.programs import NotStored, ProgramCache
from jaxd_server.compilation.disk_cache.records import call_name
from jaxd_server.compilation.functions.function import Function
from jaxd_server.compilation.functions.table import Functions
from jaxd_server.compilation.program_source import ProgramSource
from jaxd_server.runtime.counters import Counters, Counts
from jaxd_server.runtime.imported_packages import Change, Dependencies, ImportedPackages
from jaxd_server.runtime.limits import RateLimiter
from jaxd_server.runtime.logs import log_event
from jaxd_server.user_code.callback_targets import CallbackTargets
from jaxd_server.user_code.jax_callbacks import redirecting_callbacks

if TYPE_CHECKING:
    from jaxd_server.compilation.remote_build.policy import BuildPolicy

_HOUR_S: Final = 3600.0


class BuildQuota:
    """Limits the build seconds of each principal. Thread-safe.

    A build is not interrupted: the last one may be over the limit, and the wait is longer then.
    One that fails or is given up counts as well, for as long as it went on.

    Args:
        seconds: in an hour, and at most at once; 0: no limit.
        clock: seconds that only grow.
    """

    def __init__(self, seconds: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._limiter = RateLimiter(seconds, seconds / _HOUR_S, clock)

    def require(self, principal: str) -> None:
        """Checks that something may be built for a principal.

        Raises:
            LimitExceeded: when it may not; the message has the time to wait.
        """
        wait_s = self._limiter.wait_s(principal, 0.0) if self._seconds else 0.0
        if wait_s:
            raise LimitExceeded(
                f"the server has traced and compiled {self._seconds:,.0f} s for you in the last "
                "hour or so, and gives each user no more. Programs that are ready go on answering; "
                f"new ones can be made again in {max(1.0, wait_s):,.0f} s, or with a larger "
                "--principal-build-s."
            )

    def spend(self, principal: str, seconds: float) -> None:
        """Counts seconds that were spent for a principal."""
        self._limiter.record(principal, seconds)

    @contextmanager
    def charging(self, principal: str) -> Iterator[None]:
        """Counts what is built within it, also where that is given up, or fails."""
        started = self._clock()
        try:
            yield
        finally:
            self.spend(principal, self._clock() - started)


class BuildResult(NamedTuple):
    """A new executable, and how it was obtained.

    Attributes:
        executable: what answers such calls from now on.
        verdict: whether it was loaded from disk, or traced and compiled.
        was_compiled: whether XLA had to work for it.
        name: what it, or the note of its obstacle, is kept by on disk; empty when neither is.
        obstacle: why it cannot be kept there.
        function: that with whose key it was made, where that is another one than was asked for:
            it reads more of its client's process than was known.
        changed: what has become of the packages of the program that it replaces on disk.
    """

    executable: Executable
    verdict: Literal["load", "compile"]
    was_compiled: bool = False
    name: bytes = b""
    obstacle: str | None = None
    function: Function | None = None
    changed: tuple[Change, ...] = ()


class ExecutableSource:
    """Builds executables. Safe from any thread; its caller sees to it that each is built once.

    Args:
        functions: where the code comes from when it is needed.
        compiler: traces and compiles.
        counters: where loads are counted.
        program_cache: what is on disk; None where nothing is kept.
        building: chooses what a builder builds; None: all is built in this process.
        quota: how much may be built for whom; by default there is no limit.
        packages: what this process has imported.

    Attributes:
        programs: where their programs come from.
    """

    def __init__(
        self,
        functions: Functions,
        compiler: Compiler,
        counters: Counters,
        program_cache: ProgramCache | None = None,
        building: BuildPolicy | None = None,
        quota: BuildQuota | None = None,
        packages: ImportedPackages | None = None,
    ) -> None:
        self.programs = ProgramSource(compiler, counters, program_cache)
        self._functions = functions
        self._compiler = compiler
        self._counters = counters
        self._program_cache = program_cache
        self._building = building
        self._quota = quota or BuildQuota()
        self._packages = packages or ImportedPackages()

    def make(self, request: BuildRequest) -> BuildResult:
        """The executable for a call.

        Raises:
            Interrupted: when no call waits for it any longer.
            FunctionReplaced: when the content of the function is not what its record says.
            LimitExceeded: when nothing more is built for the caller now.
            ArgumentError, ResultError: when jax cannot take what is passed or returned.
            Exception: whatever the function raises while it is traced, and jax's own errors.
        """
        with self._counters.on_behalf_of(request.counts):
            if self._program_cache is not None:
                name = call_name(request.function, request.arguments)
                request = request._replace(name=name)
            return self._made(request)

    def _made(self, request: BuildRequest) -> BuildResult:
        made = self._loaded(request)
        if made is not None:
            return made
        cache = self._program_cache
        if cache is None or request.name is None or not cache.is_shared:
            return self._made_anew(request)
        told_s = -1

        def on_wait(waiting: Waiting) -> None:
            nonlocal told_s
            check_not_abandoned()
            if int(waiting.seconds) > told_s:
                told_s = int(waiting.seconds)
                request.emit("stage", _built_by_another(request, waiting))

        with cache.lease(request.name, on_wait):  # another one may have built it, and found reads
            return self._loaded_meanwhile(request) or self._made_anew(request)

    def _loaded_meanwhile(self, request: BuildRequest) -> BuildResult | None:
        """The executable that another machine has built, perhaps for a function that reads more."""
        function = self._functions.reconsidered(request.function, request.source)
        if function is request.function:
            return self._loaded(request)
        name = call_name(function, request.arguments)
        made = self._loaded(request._replace(function=function, name=name))
        return None if made is None else made._replace(function=function)

    def _made_anew(self, request: BuildRequest) -> BuildResult:
        function = request.function
        self._quota.require(request.principal)
        made = self._built_elsewhere(request)
        if made is None and self._packages.have_changed:
            made = self._built_elsewhere(request)  # by a builder that is not out of date
        if made is not None:
            return made
        self._functions.unpack(function, request.source)
        try:
            with self._turn(request):
                return self._built(request)
        except JaxdError:
            raise
        except TypeError as error:
            better = explained(error)
            if better is error:
                raise
            raise better from error

    @contextmanager
    def _turn(self, request: BuildRequest, *, is_elsewhere: bool = False) -> Iterator[None]:
        """Within it, the build has its turn; while it waits, its client hears what for."""
        name = request.function.name
        with (
            self._compiler.room.turn(
                name, lambda: request.emit("stage", _queued(name)), is_elsewhere=is_elsewhere
            ),
            self._quota.charging(request.principal),
        ):
            yield

    def moved(
        self, executable: Executable, function: Function, device: int, own: Counts | None = None
    ) -> BuildResult | None:
        """The executable for another device; None when it has to be made for that."""
        started = time.monotonic()
        program = self.programs.moved(executable.program, device)
        if program is None:
            return None
        costs = replace(executable.costs, paid_s=time.monotonic() - started)
        self._counters.add(own, executable_loads=1, load_s=costs.paid_s)
        result = replace(executable, key=function.key, device=device, program=program, costs=costs)
        return BuildResult(result, "load", name=executable.kept_as)

    def compiled(self, request: BuildRequest, lowered: LoweredFunction) -> Serialized:
        """The bytes of a program that a client has lowered, compiled once for all who ask.

        It is kept by what it is, and no key leads to it: only a trace of this server's own may say
        what a key stands for.

        Args:
            request: for whom, and how; of its function the name and the options count.
            lowered: the program.

        Raises:
            LimitExceeded: when nothing more is built for the caller now.
            NotSerializable: when the program cannot be written.
            Exception: jax's own errors.
        """
        cache, programs = self._program_cache, self.programs
        if cache is not None and cache.has_program(lowered.program):
            with suppress(NotStored):
                return cache.bytes_of(lowered.program)
        self._quota.require(request.principal)
        if self._building is not None:
            lowered = self._building.compiled_there(request, lowered)
        with (
            self._counters.on_behalf_of(request.counts),
            self._turn(request, is_elsewhere=lowered.elsewhere is not None),
        ):
            program, _ = programs.of(request, lowered, is_kept=True)
        written = programs.bytes_of(program)
        programs.ahead[program.id] = program  # the trace that may follow finds it
        if cache is not None and not cache.has_program(program.id):
            program.written = written
            cache.keep_program(program)
        return written

    def _loaded(self, request: BuildRequest) -> BuildResult | None:
        """The executable from disk, if it is there and sound."""
        function, name = request.function, request.name
        if self._program_cache is None or name is None:
            return None
        started = time.monotonic()
        kept = self._program_cache.find(function, name)
        if kept is None:
            return None
        request.emit("stage", {"stage": "load", "function": function.name})
        program = self.programs.stored(kept.program, request.device)
        if program is None:
            return None
        costs = Costs(kept.trace_s, program.compile_s, time.monotonic() - started)
        self._counters.add(executable_loads=1, load_s=costs.paid_s)
        if function.unpacked is not None:  # its client has sent it, so its record was missing
            self._program_cache.keep_function(function)
        loaded = _executable(request, program, rebind_form(kept.form), costs, kept_as=name)
        loaded.dependencies = self._program_cache.dependencies(kept)
        loaded.output = kept.output
        return BuildResult(loaded, "load", name=name)

    def _built(self, request: BuildRequest) -> BuildResult:
        function, arguments = request.function, request.arguments
        started = time.monotonic()
        structure = structure_of(dynamic(arguments, function.statics))
        assert function.unpacked is not None
        unpacked, captured = function.unpacked, function.captured
        callback_targets = CallbackTargets(function.name, unpacked.targets, unpacked.listed)
        request.emit.begin_trace()
        with redirecting_callbacks(callback_targets), unpacked.traced_for(request.source.read):
            lowered = self._compiler.lower(
                function.traceable,
                function.name,
                function.options,
                arguments,
                structure,
                request.emit,
                captured,
            )
        lowered = replace(lowered, reads=unpacked.reads.recorded)
        if self._building is not None:
            lowered = self._building.compiled_there(request, lowered)
        return self._finish(request, lowered, started)

    def _built_elsewhere(self, request: BuildRequest) -> BuildResult | None:
        """Builds it in a builder; None when that is not wanted, or not possible."""
        remote_build = self._building.remote_build(request) if self._building else None
        if remote_build is None:
            return None
        with self._turn(request, is_elsewhere=True), closing(remote_build):
            started = time.monotonic()
            lowered = remote_build.lower()
            if lowered is None:
                return None
            try:
                return self._finish(request, lowered, started)
            except NotTransferable as error:  # the program cannot be had from there
                log_event("builder_refused", function=request.function.name, reason=str(error))
                return None

    def _finish(
        self, request: BuildRequest, lowered: LoweredFunction, started: float
    ) -> BuildResult:
        """Compiles the program unless it is there already, and makes the executable."""
        check_not_abandoned()
        asked, request = request, self._recorded(request, lowered)
        function, name = request.function, request.name
        obstacle = lowered.obstacle or (None if lowered.form.is_lasting else "tokens")
        kept_as = (name or b"") if obstacle is None else b""
        program, was_compiled = self.programs.of(request, lowered, is_kept=bool(kept_as))
        costs = Costs(lowered.trace_s, program.compile_s, time.monotonic() - started)
        executable = _executable(
            request, program, lowered.form, costs, lowered.structure, kept_as=kept_as
        )
        executable.dependencies = self._dependencies(request, lowered)
        executable.output = request.emit.output
        changed: tuple[Change, ...] = ()
        if self._program_cache is not None and name is not None:
            changed = self._program_cache.changes_since(name)
            self._program_cache.keep(function, name, executable, obstacle)
        request.emit("stage", {"stage": "run", "function": function.name})
        found = None if function is asked.function else function
        return BuildResult(
            executable, "compile", was_compiled, name or b"", obstacle, found, changed
        )

    def _recorded(self, request: BuildRequest, lowered: LoweredFunction) -> BuildRequest:
        """The request with the function as it is with all that it was found to read."""
        function = self._functions.record(request.function, lowered.reads, request.source)
        if function is request.function:
            return request
        name = request.name and call_name(function, request.arguments)
        return request._replace(function=function, name=name)

    def _dependencies(self, request: BuildRequest, lowered: LoweredFunction) -> Dependencies:
        """The packages that the function may have run where it was traced."""
        if lowered.dependencies is not None:
            return lowered.dependencies
        packed = (request.skeleton, *request.recorded.pickles)
        return self._packages.dependencies(request.function.modules, packed)


def _queued(name: str) -> dict[str, Any]:
    """The event of a build that waits for its turn, behind another one."""
    event = {"stage": "queued", "function": name}
    build = current_build()
    first = None if build is None else build.waits_behind()
    if build is None or first is None:
        return event
    other, owner, seconds = first
    behind = other if owner == build.owner else ""  # names are not for other clients
    return {**event, "behind": behind, "behind_s": round(seconds, 1)}


def _built_by_another(request: BuildRequest, waiting: Waiting) -> dict[str, Any]:
    """The event of a build that another machine has begun, which shares the store."""
    name = request.function.name
    behind = f"{name} on {waiting.host or 'another machine'}"
    return {"stage": "queued", "function": name, "behind": behind, "behind_s": waiting.seconds}


def _executable(
    request: BuildRequest,
    program: Program,
    form: ResultLayout,
    costs: Costs,
    structure: Any = None,
    *,
    kept_as: bytes,
) -> Executable:
    return Executable(
        request.function.name,
        request.function.key,
        program,
        form,
        when_run(request.function.options.config),
        costs,
        request.recorded,
        structure,
        request.device,
        request.principal,
        kept_as,
    )
