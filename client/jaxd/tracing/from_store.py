"""Calls of a process that has no server: their programs come from a store.

With `JAXD_SERVER=none` and `JAXD_STORE`. Key, guards and signature are those of any call, and so is
what becomes of a program here: see `jaxd.tracing.here`. What the store does not have is built
beside this process, once for all that share the store. What cannot be kept in one runs under
`jax.jit`, as with `JAXD_INLINE=1`: no call fails because of the store.

The programs are found by the server's package, by its name: the client imports nothing of it. A
program is code that runs, and one is taken only with a signature of this user's key. See
docs/store.md.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import pkgutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, Protocol

from jaxd.events.output import OUTPUT_EVENTS, OutputPrinter
from jaxd.events.progress import Progress
from jaxd.events.warnings import WarningQueue
from jaxd.interop.jax_runtime import import_jax, runs_here
from jaxd.interop.local_programs import LoadedPrograms, LocalProgram, Taken, calls_here
from jaxd.request.array_specs import describe_call
from jaxd.request.function_snapshot import ELSEWHERE, FunctionRefusal, Refused, is_admitted
from jaxd.request.process_answers import confirmed
from jaxd.results.exceptions import line_of
from jaxd.tracing.here import LocalCalls, structure_of_result
from jaxd_protocol.base.process import PerProcess, reset_after_fork
from jaxd_protocol.errors import NoServer, StoreWarning
from jaxd_protocol.jit.options import Options
from jaxd_protocol.messages.function_manifest import parameter_names
from jaxd_protocol.messages.recipes import NotOffered, Offered, Recipe, RecordedCall
from jaxd_protocol.packages.installed import warn_user

if TYPE_CHECKING:
    from jaxd.dispatch.warm import Warmed
    from jaxd.request.function_snapshot import FunctionSnapshot, FunctionSpec, SnapshotCache
    from jaxd_protocol.jit.options import Config
    from jaxd_protocol.jit.static_args import StaticArgs
    from jaxd_protocol.messages.recorded_reads import ProcessRead, RecordedRead

_OPEN: Final = "jaxd_server.processes.without_server:open_programs"
_MOST_ROUNDS: Final = 3
"""So often is a function found to read more of its process, one thing because of another."""

Emit = Callable[[str, dict[str, Any]], None]


class Programs(Protocol):
    """The programs of a store; `jaxd_server.processes.without_server.StorePrograms`.

    Attributes:
        troubles: what there is to warn of; whoever does takes it out.
    """

    troubles: deque[str]

    def find(
        self, recipe: Recipe, statics: StaticArgs, source: OwnProcess, emit: Emit
    ) -> Offered | NotOffered:
        """What answers calls of one kind, or why nothing does."""

    def reject(self, name: bytes, reason: str) -> None:
        """A program that was offered does not load: the next one that is built replaces it."""

    def close(self) -> None:
        """Writes what waits to be written."""


class OwnProcess:
    """This process, as it is asked about a function of its own.

    Args:
        snapshot: of the function.
    """

    owner = b""

    def __init__(self, snapshot: FunctionSnapshot) -> None:
        self._snapshot = snapshot

    def code(self, fingerprint: bytes) -> bytes:
        """The packed function."""
        return self._snapshot.code

    def read(self, fingerprint: bytes, read: ProcessRead) -> Any:
        """What this process has: a literal.

        Raises:
            PackingError: when the function does not name it.
        """
        return self._snapshot.named_texts.answer(read)

    def confirm(
        self, fingerprint: bytes, reads: tuple[ProcessRead, ...]
    ) -> tuple[RecordedRead, ...]:
        """What this process has, as it is in a key.

        Raises:
            PackingError: when the function does not name one of them.
        """
        return confirmed(self._snapshot, reads)

    def waiting(self) -> AbstractContextManager[None]:
        """Nobody else is waited for."""
        return nullcontext()


class StoreCalls:
    """Runs calls in this process with the programs of a store. Thread-safe.

    Args:
        store: its folder or URL.

    Attributes:
        loaded: how many programs came from the store, or from what was kept of it.
        built: how many were built for this process and the store.
    """

    def __init__(self, store: str) -> None:
        self.loaded = self.built = 0  # for people: counted without a lock
        self._store = store
        self._programs: Programs | None = None
        self._known = LoadedPrograms()
        self._rejected: set[bytes] = set()  # each step on it is atomic
        self._events = _BuildEvents()
        self._is_off = False
        self._lock = PerProcess(threading.Lock)  # guards _programs
        reset_after_fork(self)
        import_jax(NoServer, _NO_JAX)

    def after_fork(self) -> None:
        """In the child of a fork: the threads of XLA, and those that write, are not in it."""
        self._is_off = True

    def run(
        self,
        snapshots: SnapshotCache,
        config: Config,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """The result of a call whose program can be had, else `ELSEWHERE`.

        Raises:
            Exception: what jax raises when it runs the program.
            StoreWarning: where the user's filters turn it into an error.
        """
        spec = self._spec(snapshots, config)
        if spec is None:
            return ELSEWHERE
        local: LocalCalls | None = spec.local
        result = ELSEWHERE
        if local is not None:
            result = local.run_known(snapshots, spec, config, args, kwargs)
        if result is ELSEWHERE:
            local, found = self._taken(snapshots, spec, config, args, kwargs)
            if local is not None and isinstance(found, Taken):
                result = local.run_taken(found, args, kwargs, snapshots.jit_calls)
        calls_here.count += result is not ELSEWHERE
        return result

    def warm(
        self,
        snapshots: SnapshotCache,
        config: Config,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Warmed | None:
        """Has the program of such calls here; None where there is none to be had.

        Raises:
            StoreWarning: as `run`.
        """
        from jaxd.dispatch.warm import Warmed

        started, before = time.perf_counter(), (self.loaded, self.built)
        spec = self._spec(snapshots, config)
        if spec is None:
            return None
        _, found = self._taken(snapshots, spec, config, args, kwargs)
        if not isinstance(found, Taken):
            return None
        seconds = time.perf_counter() - started
        loaded, built = self.loaded - before[0], self.built - before[1]
        return Warmed("compile" if built else "load" if loaded else "hit", seconds, True)

    def _spec(self, snapshots: SnapshotCache, config: Config) -> FunctionSpec | None:
        """The function as it is now; None where its calls have no program of a store."""
        if self._is_off or runs_here():
            return None
        try:
            if snapshots.refusal is not None:
                snapshots.refusal.check()
                snapshots.refusal = None
            return snapshots.spec(config)
        except Refused:
            return None
        except Exception as error:  # noqa: BLE001  what has no key runs as any function of jax
            snapshots.refusal = FunctionRefusal(str(error), snapshots.walk_s)  # not at each call
            return None

    def _taken(
        self,
        snapshots: SnapshotCache,
        spec: FunctionSpec,
        config: Config,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[LocalCalls | None, Taken | str]:
        """What answers a call, or why nothing does; and what runs the calls of its function."""
        try:
            skeleton, pickles = describe_call(spec.snapshot, args, kwargs, spec.statics)
        except Exception:  # noqa: BLE001  a tracer, or what cannot be described
            return None, "its arguments cannot be described without their data"
        if pickles:
            return None, "an argument travels as a pickle"
        for _ in range(_MOST_ROUNDS):
            spec = snapshots.pinned_spec(spec, skeleton, config)
            local: LocalCalls = spec.local or LocalCalls(spec)
            spec.local = local
            known = local.found.get(skeleton)
            found = known if isinstance(known, Taken | str) else None
            if found is None and not is_admitted(spec.snapshot, skeleton):
                return None, "code of the user's stands in jax itself"
            found = found or self._found(snapshots, spec, skeleton)
            if found is not None:
                local.found[skeleton] = found
                return local, found
            spec = snapshots.spec(config)
        return None, "what it reads of this process is another thing each time"

    def _found(
        self, snapshots: SnapshotCache, spec: FunctionSpec, skeleton: bytes
    ) -> Taken | str | None:
        """What answers such calls, or why nothing does; None where the function is another now."""
        if Options.from_bytes(spec.options).device is not None:
            return "it names a device"
        kind = spec.options + skeleton
        try:
            programs = self._opened()
            found = self._loaded(programs, spec, skeleton, is_first=snapshots.is_first(kind))
            if isinstance(found, NotOffered):
                snapshots.forget(kind)
                for each in (spec.snapshot, snapshots.latest()) if found.reads else ():
                    each.learn(found.reads)
                return None if found.reads else found.reason
            offered, program = found
            structure = structure_of_result(spec, offered.form, list(offered.order))
            if structure is None:
                return "its result is no tree of arrays to jax"
        except StoreWarning:
            raise  # the user wants it to
        except Exception as error:  # noqa: BLE001  it runs as any function of jax, which may raise
            snapshots.forget(kind)
            return f"there is no program for it ({line_of(error)})"
        self.built += offered.is_built
        self.loaded += not offered.is_built
        return Taken(program, structure)

    def _loaded(
        self, programs: Programs, spec: FunctionSpec, skeleton: bytes, *, is_first: bool
    ) -> tuple[Offered, LocalProgram] | NotOffered:
        """What answers such calls, loaded; one of the store that does not load is built anew.

        Args:
            programs: where it is looked for.
            spec: the function.
            skeleton: of the calls.
            is_first: whether what its trace has put out is shown, as `jax.jit` would trace it here.

        Raises:
            Exception: why a new one does not load, or cannot be had.
        """
        while True:
            found, build = self._asked(programs, spec, skeleton)
            if isinstance(found, NotOffered):
                return found
            try:
                program = self._known.program(found.id, *found.program)
            except Exception as error:
                if found.is_built or found.id in self._rejected:
                    raise
                self._rejected.add(found.id)
                programs.reject(found.id, line_of(error))
                continue
            self._events.show(build, is_first=is_first)
            return found, program

    def _asked(
        self, programs: Programs, spec: FunctionSpec, skeleton: bytes
    ) -> tuple[Offered | NotOffered, _Build]:
        snapshot = spec.snapshot
        recipe = Recipe(
            snapshot.name,
            spec.key,
            spec.options,
            snapshot.manifest.to_message(),
            b"",
            (RecordedCall(skeleton),),
            parameter_names(snapshot.function),
        )
        try:
            with self._events.of_build() as build:
                found = programs.find(recipe, spec.statics, OwnProcess(snapshot), build.emit)
            return found, build
        finally:
            _warn_of(programs)

    def _opened(self) -> Programs:
        """The store; where it cannot be opened there is none from then on.

        Raises:
            Exception: why it cannot.
        """
        with self._lock():
            if self._programs is None:
                try:
                    found: Programs = pkgutil.resolve_name(_OPEN)(self._store)
                except Exception as error:
                    self._is_off = True
                    warn_user(f"functions run under plain jax.jit: {error} {_SEE}", StoreWarning)
                    raise
                self._programs = found
                atexit.register(_close_in, os.getpid(), found)
            return self._programs


def _warn_of(programs: Programs) -> None:
    while programs.troubles:
        warn_user(f"{programs.troubles.popleft()} {_SEE}", StoreWarning)


def _close_in(process: int, programs: Programs) -> None:
    """The child of a fork leaves the builder of its parent alone."""
    if os.getpid() == process:
        programs.close()
        _warn_of(programs)  # of what was written since the last new call


_NO_JAX: Final = (
    "JAXD_SERVER=none runs functions in this process, which has no jax. "
    "Run: pip install 'jaxd[server]', or leave JAXD_SERVER out to have a server."
)
_SEE: Final = "See docs/store.md (without a server)."


@functools.cache
def store_calls(store: str) -> StoreCalls:
    """What runs calls with the programs of a store; one for all functions of this process.

    Raises:
        NoServer: when this process has no jax.
    """
    return StoreCalls(store)


class _BuildEvents:
    """Shows what builds emit: their progress at once, their output when they have succeeded.

    What a builder cannot build, this process traces itself, and says it then.
    """

    def __init__(self) -> None:
        self._warnings = WarningQueue()
        self.progress = Progress()
        self._printer = OutputPrinter(self._warnings, self.progress)
        self._numbers = itertools.count()

    @contextmanager
    def of_build(self) -> Iterator[_Build]:
        """The events of one build, which ends with the block."""
        build = _Build(self, next(self._numbers))
        try:
            yield build
        finally:
            self.progress.finish(self, build.number)

    def show(self, build: _Build, *, is_first: bool) -> None:
        """Prints, warns and logs what a function has in its trace.

        Args:
            build: that of the function.
            is_first: whether that of a trace before is shown as well.

        Raises:
            Warning: where the user's filters turn one into an error.
        """
        for kind, content in build.output:
            if is_first or not content.get("repeated"):
                self._printer.event(self, build.number, kind, content)
        self._warnings.issue(self, build.number)


class _Build:
    """The events of one build.

    Attributes:
        number: its own.
        output: what its function has printed, warned of and logged.
    """

    def __init__(self, events: _BuildEvents, number: int) -> None:
        self.number = number
        self.output: list[tuple[str, dict[str, Any]]] = []
        self._events = events

    def emit(self, kind: str, content: dict[str, Any]) -> None:
        """Takes one event."""
        if kind in OUTPUT_EVENTS:
            self.output.append((kind, content))
        else:
            self._events.progress.event(self._events, self.number, kind, content)
