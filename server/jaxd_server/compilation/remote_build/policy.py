"""Decides which builds go to a builder.

Tracing holds the interpreter, so that other clients of the worker would wait meanwhile, and what
crashes while it is traced or compiled would take their values along. So a builder does it, see
`processes.builder`. A single client would delay only itself: its functions are traced here, and
only programs that take long to compile are compiled there, so that this can be stopped. A builder
is ready all the same once that client has worked for a while: the next one does not wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, Literal, NamedTuple

from jaxd_server.compilation.compiling.build_request import BuildRequest
from jaxd_server.compilation.compiling.compiler import LoweredFunction
from jaxd_server.compilation.disk_cache.programs import ProgramCache
from jaxd_server.compilation.disk_cache.records import call_name
from jaxd_server.compilation.functions.function import Function
from jaxd_server.compilation.functions.table import DeadlyFunctions
from jaxd_server.compilation.remote_build.build_job import (
    RemoteBuild,
    RemoteCompile,
    build_order_of,
)
from jaxd_server.compilation.remote_build.builder_pool import BuilderPool
from jaxd_server.compilation.remote_build.builder_process import BuilderProcess
from jaxd_server.jax_compat.lowered import operations
from jaxd_server.runtime.counters import Counters
from jaxd_server.runtime.imported_packages import ImportedPackages

BuildIn = Literal["auto", "worker", "builder"]
"""Where functions are built: `auto` as there are clients, always here, or always there."""

_MANY: Final = 100
"""Operations of a program that a single client has compiled by a builder, if one is ready, until
experience says better. Loading a smaller one costs more than compiling it here delays."""

_FEWEST: Final = 25

_VERY_MANY: Final = 1000
"""Operations of a program for which that client waits until a builder has started."""

_TOO_MUCH: Final = 0.25
"""Of the time of compiling, what may come on top by having it done elsewhere."""


_SETTLED_S: Final = 10.0
"""Seconds after the first result that was built for a single client until a builder is started: not
beside what that client waits for, for one that is gone by then, or for one that needs nothing."""


class Clients(NamedTuple):
    """What is known of those for whom is built.

    Attributes:
        are_several: whether more than one is there.
        are_served: whether one is there, and calls are being answered.
    """

    are_several: Callable[[], bool]
    are_served: Callable[[], bool]


class LearnedSize:
    """From how many operations on a program is worth being compiled elsewhere, as seen so far.

    Attributes:
        least: so many.
    """

    def __init__(self) -> None:
        self.least = _MANY

    def learn(self, count: int, compile_s: float, more_s: float) -> None:
        """Takes note of one that was.

        Args:
            count: of its operations.
            compile_s: seconds that it was compiled.
            more_s: seconds that it took longer than in this process.
        """
        if more_s > _TOO_MUCH * compile_s:
            self.least = min(_VERY_MANY, max(self.least, count + 1))
        elif count < 2 * self.least:  # a much larger one says nothing of these
            self.least = max(_FEWEST, self.least * 9 // 10)


class BuildPolicy:
    """Chooses which builds go to a builder. Thread-safe.

    Args:
        build_in: where functions are built.
        clients: who is there.
        counters: to which the counts of builders are added.
        packages: to which the imports of builders are added. Where they have changed, a builder is
            the process that has the new ones.
        program_cache: where packed functions are found; None where nothing is kept.
        deadly: functions that crash the process that builds them: to be recorded there.
        start: starts a builder.
        clock: seconds that only grow.

    Attributes:
        builders: those that there are, and what they cannot build.
    """

    def __init__(
        self,
        build_in: BuildIn,
        clients: Clients,
        counters: Counters,
        packages: ImportedPackages,
        program_cache: ProgramCache | None,
        deadly: DeadlyFunctions,
        start: Callable[[], BuilderProcess],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._build_in = build_in
        self._clients = clients
        self._size = LearnedSize()
        self._clock = clock
        self._has_built = False  # since nobody was served
        self._settles_since: float | None = None  # None: nobody is served, or nothing was built
        self._packages = packages
        self._program_cache = program_cache
        self.builders = BuilderPool(counters, packages, deadly, start, clock=clock)

    def start(self) -> None:
        """Starts a builder now if every build goes there."""
        if self._build_in == "builder":
            self.builders.start_spare()

    def poll(self) -> None:
        """Has a spare ready while clients are there; ends those that nobody needs.

        To be called several times a second.
        """
        are_several = self._clients.are_several()
        is_wanted = self._build_in == "auto" and (are_several or self._is_settled())
        if is_wanted:  # a single client waits for what its builder makes: it needs no second one
            self.builders.start_spare(beside_others=are_several)
        self.builders.end_idle(keep=int(is_wanted))

    def _is_settled(self) -> bool:
        """Whether the only client has had something built a while ago, and still works."""
        since = self._settles_since
        if not self._clients.are_served():
            self._has_built = self._has_built and since is None  # what is built is yet to be served
            self._settles_since = None
            return False
        if since is None and self._has_built:
            self._settles_since = self._clock()
        return since is not None and self._clock() - since >= _SETTLED_S

    def remote_build(self, request: BuildRequest, *, asks_early: bool = True) -> RemoteBuild | None:
        """The build of a function in a builder; None: it is traced here.

        The client is asked for the code when that is needed.

        Args:
            request: what is to be built, or shown; its function need not be unpacked.
            asks_early: whether the client is asked before it is known which builder it will be.

        Raises:
            Exception: what asking the client raises.
        """
        builders, function = self.builders, request.function
        if not self._traces_there(function) or function.key in builders.refused:
            return None
        name = call_name(function, request.arguments)
        # a call without a name may differ in another process
        order = None if name is None else build_order_of(request, name)
        if order is None:
            return None
        remote_build = RemoteBuild(
            builders, function, order, request.source, self._program_cache, request.emit
        )
        if asks_early and not builders.all_know(order.described.fingerprint):
            remote_build.add_code()  # before it has its turn: the client may take a while
        return remote_build

    def compiled_there(self, request: BuildRequest, lowered: LoweredFunction) -> LoweredFunction:
        """A function that was lowered here, with the builder that compiles it, if one does.

        Args:
            request: what is built.
            lowered: what this process has made of it.
        """
        self._has_built = True
        if lowered.obstacle is not None or not self._compiles_there(lowered):
            return lowered
        learn = partial(self._size.learn, operations(lowered.lowered, _VERY_MANY))
        elsewhere = RemoteCompile(self.builders, request, lowered, learn)
        return replace(lowered, elsewhere=elsewhere)

    def _traces_there(self, function: Function) -> bool:
        is_deadly = function.described in self.builders.deadly
        gains = self._packages.have_changed or self._clients.are_several() or is_deadly
        wanted = self._build_in == "builder" or (self._build_in == "auto" and gains)
        return wanted and self.builders.can_lend()

    def _compiles_there(self, lowered: LoweredFunction) -> bool:
        if self._build_in == "worker":
            return False
        if self._build_in == "builder" or self._clients.are_several():
            return self.builders.can_lend()
        count = operations(lowered.lowered, _VERY_MANY)
        if count < self._size.least or not self.builders.can_lend():
            return False
        if self.builders.is_ready or count == _VERY_MANY:
            return True
        self.builders.start_spare(beside_others=False)  # for the next one
        return False
