"""Programs for a process that has no server: from a store, and what is not in it from a builder.

Keys, targets, records, signatures and leases are those of servers, which may share the store. The
process itself only looks programs up. It does not trace for others: it may have changed what no key
counts, such as an installed package. A builder does, which starts as one of a worker does, and
which ends with this process.

Imports jax. A client process finds `open_programs` by its name: see `jaxd.tracing.from_store`.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, NoReturn

import jax

from jaxd_protocol.errors import ConfigurationError, JaxdError
from jaxd_protocol.jax_objects.program_bytes import Serialized
from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.settings import when_run
from jaxd_protocol.jit.static_args import StaticArgs
from jaxd_protocol.messages.function_manifest import FunctionManifest
from jaxd_protocol.messages.recipes import NotOffered, Offered, Recipe
from jaxd_protocol.network.tokens import without_password
from jaxd_server.cache.shared_store import open_shared_store
from jaxd_server.cache.store import open_store
from jaxd_server.codec.arguments import empty_arguments
from jaxd_server.codec.results import ResultLayout
from jaxd_server.compilation.compiling.build_request import BuildRequest
from jaxd_server.compilation.compiling.compiler import Compiler
from jaxd_server.compilation.compiling.executable import obstacle_elsewhere
from jaxd_server.compilation.disk_cache.compile_target import target
from jaxd_server.compilation.disk_cache.programs import NotStored, ProgramCache
from jaxd_server.compilation.disk_cache.records import call_name
from jaxd_server.compilation.executable_source import ExecutableSource
from jaxd_server.compilation.functions.function import Described, Function
from jaxd_server.compilation.functions.table import Functions, FunctionSource
from jaxd_server.compilation.remote_build.builder_process import BuilderProcess
from jaxd_server.compilation.remote_build.builder_start import BUILDER_COMMAND, new_interpreter
from jaxd_server.compilation.remote_build.policy import BuildPolicy, Clients
from jaxd_server.jax_compat.lowered_transfer import can_unpack
from jaxd_server.runtime.counters import Counters
from jaxd_server.runtime.events import Emit, repeat_output
from jaxd_server.runtime.imported_packages import ImportedPackages
from jaxd_server.runtime.log_events import EVENTS
from jaxd_server.runtime.threads.executors import SingleFlight

_COMMAND: Final = (
    *("/usr/bin/env", "-u", "JAXD", "-u", "JAXD_TRACE", "JAX_PLATFORMS=cpu"),
    *BUILDER_COMMAND,
)
"""Starts a builder, whose `jax.jit` is jax's own, and which takes no GPU from this process."""

_MOST_TROUBLES: Final = 100
_NOT_ADDED: Final = "the store does not have it, and this process adds nothing to it"


class _NotBuiltHere(JaxdError):
    """A builder does not build it, and this process must not."""


class StorePrograms:
    """The programs of a store for this process. Thread-safe.

    Args:
        cache: what is kept.
        packages: what this process has imported.
        target: that of this process, which a builder has to have as well.

    Attributes:
        troubles: what there is to warn of; whoever does takes it out.
    """

    def __init__(self, cache: ProgramCache, packages: ImportedPackages, target: str) -> None:
        self.troubles: deque[str] = deque(maxlen=_MOST_TROUBLES)
        counters = Counters()
        self._cache = cache
        self._packages = packages
        self._functions = Functions(program_cache=cache, receiving=_refuse)
        self._building: BuildPolicy | None = None
        if jax.default_backend() == "cpu":
            self._building = BuildPolicy(
                "builder",
                Clients(lambda: True, lambda: False),
                counters,
                packages,
                cache,
                self._functions.deadly,
                partial(_builder, target),
            )
        self._source = ExecutableSource(
            self._functions,
            Compiler(counters, 1),
            counters,
            cache,
            self._building,
            packages=packages,
        )
        self._flights: SingleFlight[bytes, Offered | NotOffered] = SingleFlight()
        self._built: set[bytes] = set()  # and not offered yet; each step on it is atomic

    def find(
        self, recipe: Recipe, statics: StaticArgs, source: FunctionSource, emit: Emit
    ) -> Offered | NotOffered:
        """What answers calls of one kind: from the store, where another process may be building it.

        Args:
            recipe: the function, without its code, and one call of it.
            statics: which of its arguments are static.
            source: whom to ask for the code, and for what it reads: this process.
            emit: takes the events of a build, and the output of one that is kept.

        Raises:
            Exception: what the function raises while it is traced, and jax's own errors.
        """
        function = self._functions.adopt(_function_of(recipe, statics), source)
        if function.key != recipe.key:
            return _reading_more(function)
        (call,) = recipe.calls
        arguments = empty_arguments(call.skeleton, statics)
        name = call_name(function, arguments)
        if name is None:
            return NotOffered("what it means differs from process to process")
        request = BuildRequest.without_data(
            *(function, arguments, call, source, emit), principal=f"uid:{os.getuid()}"
        )
        return self._flights.run(name, lambda: None, lambda: self._found(request, name))

    def _found(self, request: BuildRequest, name: bytes) -> Offered | NotOffered:
        obstacle = self._cache.obstacle(name)
        if obstacle is not None:
            return NotOffered(f"its program cannot be kept ({obstacle})")
        found = self._kept(request, name)
        if found is not None:
            return found
        if self._building is None or not self._cache.is_shared:
            return NotOffered(_NOT_ADDED)
        try:
            made = self._source.make(request)
        except _NotBuiltHere as error:
            if request.function.key in self._building.builders.refused:
                recorded, modules = request.recorded, request.function.modules
                packages = self._packages.dependencies(
                    modules, (request.skeleton, *recorded.pickles)
                )
                self._cache.keep_obstacle(request.function, name, recorded, packages)
            return NotOffered(str(error))
        executable = made.executable
        if made.was_compiled:
            self._built.add(executable.program.id)
        if made.function is not None:
            return _reading_more(made.function)
        program = self._source.programs.bytes_of(executable.program)
        return self._offered(request.function, executable.program.id, program, executable.form)

    def _kept(self, request: BuildRequest, name: bytes) -> Offered | NotOffered | None:
        """What is in the store, or was kept of it; None where there is nothing."""
        record = self._cache.find(request.function, name)
        if record is None:
            return None
        try:
            program = self._cache.stored_bytes(record.program)
        except NotStored:
            return None
        repeat_output(record.output, request.emit)
        return self._offered(request.function, record.program, program, record.form)

    def _offered(
        self, function: Function, name: bytes, program: Serialized, form: ResultLayout
    ) -> Offered | NotOffered:
        """A program as it may run in this process; or why it may not."""
        obstacle = obstacle_elsewhere(when_run(function.options.config), program.devices, form)
        if obstacle:
            return NotOffered(obstacle)
        is_built = name in self._built
        self._built.discard(name)
        return Offered(name, program, form.skeleton, form.order, is_built)

    def reject(self, name: bytes, reason: str) -> None:
        """A program that was offered does not load: the next one that is built replaces it."""
        self._cache.reject_program(name, reason)

    def close(self) -> None:
        """Writes what waits to be written, and ends the builder."""
        if self._building is not None:
            self._building.builders.close()
        self._cache.close()


def open_programs(store: str) -> StorePrograms:
    """The programs of a store for this process.

    Args:
        store: its folder, or a URL of fsspec.

    Raises:
        ConfigurationError: when it cannot be used; says why.
    """
    if jax.process_count() > 1:
        raise ConfigurationError(
            "this process is one of several that compute together (jax.distributed), whose "
            "programs are not shared without a server. Leave JAXD_SERVER=none out."
        )
    facts, packages = target(is_of_client=True), ImportedPackages()
    warnings = _Warnings()
    kept = open_store(*facts, shared=partial(open_shared_store, store), is_brief=True)
    if kept is None or kept.shared is None:
        why = "; ".join(warnings.texts) or "there is no cache folder (JAXD_CACHE_DIR=none)"
        raise ConfigurationError(f"the store {without_password(store)} is not used: {why}")
    found = StorePrograms(ProgramCache(kept, packages), packages, facts.digest)
    warnings.texts = found.troubles
    return found


class _Warnings(logging.Handler):
    """Takes what a server would log as a warning: here nobody reads a log.

    Attributes:
        texts: where it is put.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: deque[str] = deque(maxlen=_MOST_TROUBLES)
        logger = logging.getLogger("jaxd")
        logger.addHandler(self)
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        """Takes one."""
        event = EVENTS.get(record.getMessage())
        fields: Mapping[str, Any] = getattr(record, "fields", {})
        told = ", ".join(f"{name} {value}" for name, value in fields.items())
        self.texts.append(f"{event.when if event else record.getMessage()} ({told})")


def _builder(target: str) -> BuilderProcess:
    return BuilderProcess("text", can_unpack, new_interpreter(_COMMAND), target=target)


def _refuse(*_: Any) -> NoReturn:
    """In place of unpacking a function, to trace it in this process."""
    raise _NotBuiltHere("it cannot be built in another process than the one that calls it")


def _function_of(recipe: Recipe, statics: StaticArgs) -> Function:
    manifest = FunctionManifest.from_message(recipe.manifest)
    options = Options.from_bytes(recipe.options)
    described = Described(manifest.recorded_fingerprint, recipe.name, options, manifest)
    return Function(recipe.key, described, statics, recipe.parameters)


def _reading_more(function: Function) -> NotOffered:
    manifest = function.described.manifest
    reads = () if manifest is None else tuple(each.read for each in manifest.reads)
    return NotOffered("it reads more of its process than its key counts", reads)
