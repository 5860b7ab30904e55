"""Wires all components of a worker: the only file that imports every class. Imports jax."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from functools import partial
from importlib import metadata
from typing import Any, Final, NamedTuple

from jaxd_protocol.errors import Cancelled, DeadlineExceeded
from jaxd_protocol.network.addresses import Address
from jaxd_server.auth.acceptor import Authenticates
from jaxd_server.auth.accounts import Accounts, ConnectedAccounts
from jaxd_server.auth.authenticator import authenticator_factory
from jaxd_server.auth.connection_handover import HandoverReceiver
from jaxd_server.cache.disk_usage import DiskUsage
from jaxd_server.cache.peers import open_peers
from jaxd_server.compilation.compiling.builds import Build, Builds
from jaxd_server.compilation.compiling.compiler import Compiler
from jaxd_server.compilation.executable_source import BuildQuota, ExecutableSource
from jaxd_server.compilation.executables import Executables
from jaxd_server.compilation.functions.table import Functions
from jaxd_server.compilation.history.build_history import KnownFunctions, belongs_to
from jaxd_server.compilation.program_source import Preloader
from jaxd_server.compilation.remote_build.builder_process import BuilderProcess
from jaxd_server.compilation.remote_build.builder_start import NEW_INTERPRETER, ForkServer
from jaxd_server.compilation.remote_build.policy import BuildPolicy, Clients
from jaxd_server.config.options import ServerOptions
from jaxd_server.execution.admission import Admission
from jaxd_server.execution.call import Call
from jaxd_server.execution.crash_guard import CrashGuard, CrashSuspects
from jaxd_server.execution.memory_room import OutOfMemoryHandler
from jaxd_server.execution.pipeline import Pipeline
from jaxd_server.jax_compat import programs
from jaxd_server.jax_compat.config import set_default_settings
from jaxd_server.jax_compat.devices import Devices, device_bytes_limit, device_use
from jaxd_server.jax_compat.lowered_transfer import can_unpack
from jaxd_server.processes.worker import sizing
from jaxd_server.processes.worker.gc_scheduler import GcScheduler
from jaxd_server.processes.worker.retirement import (
    AbandonedWork,
    IdleShutdown,
    PackageMonitor,
    Renewal,
)
from jaxd_server.processes.worker.status import WorkerStatus, memory_in_use
from jaxd_server.processes.worker.view import Seen, WorkerView
from jaxd_server.rpc.endpoint import ClientExits, Endpoint
from jaxd_server.rpc.flow_control import Backlog, CallBudget
from jaxd_server.rpc.inflight_calls import CallPolicy
from jaxd_server.rpc.services.admin import AdminService
from jaxd_server.rpc.services.peers import PeerService
from jaxd_server.rpc.services.stages import Stages
from jaxd_server.rpc.sessions import Sessions
from jaxd_server.rpc.worker_context import IdleConnections, StallWatchdog, WorkerContext
from jaxd_server.runtime.counters import Counters, Counts, Traffic
from jaxd_server.runtime.flight_recorder import FlightRecorder
from jaxd_server.runtime.imported_packages import ImportedPackages
from jaxd_server.runtime.memory_reclaimer import MemoryPressure, Reclaimer
from jaxd_server.runtime.system_memory import MemoryLoss, host_spare, machine_bytes
from jaxd_server.runtime.threads.executors import FairThreadPool, ThreadPerTask
from jaxd_server.values.held_snapshots import HeldSnapshots
from jaxd_server.values.store import ContentStore, ValueStore

_BUILDER_THREADS = 1024
"""Calls that may wait at a time for a build, or for a client's description of its function.

Many, so that clients that do not answer do not delay the others; `--builds` limits the builds.
"""


_IN_USE_S = 60.0
"""Seconds without a call after which a server counts as idle, and has no builder of its own."""


def _snapshots(options: ServerOptions) -> HeldSnapshots | None:
    """Those of clients on other machines, in the folder of the host, if it has made one."""
    limit, grace_s = options.snapshot_bytes, options.session_grace_s
    return HeldSnapshots(options.snapshot_dir, limit, grace_s) if options.snapshot_dir else None


def _values(
    options: ServerOptions,
    recorder: FlightRecorder | None,
    reclaimer: Reclaimer,
    loss: MemoryLoss | None,
) -> ValueStore:
    contents = ContentStore(sizing.content_bytes(options))
    reclaimer.register(contents)
    return ValueStore(
        sizing.value_bytes(options, loss),
        options.value_share,
        contents=contents,
        on_owners=(lambda _: None) if recorder is None else recorder.own,
        snapshots=_snapshots(options),
    )


class _Compilation:
    """The components that make executables, and keep them."""

    def __init__(
        self,
        options: ServerOptions,
        counters: Counters,
        reclaimer: Reclaimer,
        on_abandoned: Callable[[Build], None],
        clients: Clients,
        fork_server: ForkServer | None,
    ) -> None:
        programs.prepare()
        packages = self.packages = ImportedPackages()
        peers = open_peers(options.peers, options.read_token)
        cache = self.program_cache = sizing.program_cache(options, packages, peers)
        executables = self.executables = Executables(
            reclaimer,
            sizing.limits(options),
            lambda one: cache is not None and cache.store.has("programs", one.program.id),
            builds=Builds(options.max_build_s, on_abandoned),
        )
        functions = self.functions = Functions(
            program_cache=cache,
            receiving=sizing.receiving(options),
            permitting=sizing.permitting(options),
        )
        self.compiler = Compiler(counters, options.builds)
        build_in = sizing.build_in(options)
        if fork_server is not None and build_in == "worker":
            fork_server.close()
        start = NEW_INTERPRETER if fork_server is None else fork_server.start
        self.building = BuildPolicy(
            *(build_in, clients, counters, packages, cache, functions.deadly),
            lambda: BuilderProcess(options.log_format, can_unpack, start),
        )
        self.quota = BuildQuota(options.principal_build_s)
        self.source = ExecutableSource(
            *(functions, self.compiler, counters, cache, self.building, self.quota, packages)
        )
        self.preloader = Preloader(
            *(self.source.programs, cache, options.preload, sizing.limits(options)),
            lambda: (one.program for one in executables.all()),
            reclaimer.relieve,
        )
        reclaimer.register(self.preloader)
        self.peers = peers and PeerService(peers, cache)

    def package_monitor(
        self, admission: Admission, renewal: Renewal, has_values: Callable[[], bool]
    ) -> PackageMonitor:
        """What replaces the worker when a package has changed."""
        packages, executables = self.packages, self.executables
        outdate = partial(executables.drop_outdated, packages.changes_of)
        return PackageMonitor(packages, admission, renewal, has_values, outdate)

    def pipeline(
        self,
        reclaimer: Reclaimer,
        values: ValueStore,
        counters: Counters,
        admission: Admission,
        package_monitor: PackageMonitor | None,
    ) -> Pipeline:
        """What answers calls with them."""
        executables = self.executables
        oom_handler = OutOfMemoryHandler(
            reclaimer,
            lambda: memory_in_use(executables.all(), values),
            device_bytes_limit,
            host_spare,
        )
        return Pipeline(
            *(self.functions, executables, self.source, admission, counters, oom_handler),
            *(self.program_cache, package_monitor),
        )


class EarlierWorkers(NamedTuple):
    """What is known of the workers before this one.

    Attributes:
        suspects: the functions that ended them.
        memory_loss: where the system has ended one for want of memory.
    """

    suspects: CrashSuspects | None = None
    memory_loss: MemoryLoss | None = None


_NONE_BEFORE: Final = EarlierWorkers()


class Endings(NamedTuple):
    """How a worker begins to end by itself.

    Attributes:
        renewal: it is replaced, for changed packages; None: it cannot be.
        rest: it ends until the next client connects.
        replace: it is replaced although work in it does not end; None: it cannot be.
    """

    renewal: Renewal | None = None
    rest: Callable[[], None] = lambda: None
    replace: Callable[[list[str]], None] | None = None


_NEVER: Final = Endings()


class WorkerComponents:
    """The components of one worker.

    Args:
        options: those of the server.
        counters: of the worker.
        report: answers `statistics` and `info` for clients.
        endings: how it ends.
        earlier: what is known of the workers before it.
        recorder: records running calls for the host.
        fork_server: starts builders; None: each is a new interpreter.

    Attributes:
        versions: of the packages that clients compare with theirs.
        pipeline: answers calls.
        status: reports the state of all components.
        values: arrays of clients that stay on the server.
        devices: those that compute.
        view: what there is to see of all.
    """

    def __init__(
        self,
        options: ServerOptions,
        counters: Counters,
        report: Callable[[str, str], dict[str, Any]],
        endings: Endings = _NEVER,
        earlier: EarlierWorkers = _NONE_BEFORE,
        recorder: FlightRecorder | None = None,
        fork_server: ForkServer | None = None,
    ) -> None:
        set_default_settings()
        self.versions = {name: metadata.version(name) for name in ("jax", "jaxlib", "numpy")}
        self._principal: str | None = None
        accounts = Accounts(options)
        self._connected_accounts = ConnectedAccounts(accounts, self._forget, share=True)
        self._authenticator_at = authenticator_factory(options, accounts)
        self._counters = counters
        reclaimer = Reclaimer(options.map_share)
        self._memory_loss = earlier.memory_loss
        self.values = _values(options, recorder, reclaimer, earlier.memory_loss)
        self.devices = Devices(options.devices_per_session)
        self._pressure = MemoryPressure(reclaimer, options.memory_share, device=device_use)
        self._sessions = Sessions(
            options.session_grace_s, self.values, devices=self.devices, counts=self._counts_of
        )
        self._client_exits = ClientExits()
        admission, has_values = Admission(), self.values.has_only_copies
        renewal, rest, replace = endings
        self._abandoned_work = AbandonedWork(admission, options.stop_grace_s, has_values, replace)
        compilation = _Compilation(
            *(options, counters, reclaimer, self._abandoned_work.add),
            Clients(self._are_several, self._are_served),
            fork_server,
        )
        self._building, self._preloader = compilation.building, compilation.preloader
        self._program_cache, self._peers = compilation.program_cache, compilation.peers
        self._package_monitor: PackageMonitor | None = None
        if renewal is not None:
            self._package_monitor = compilation.package_monitor(admission, renewal, has_values)
        self.pipeline = compilation.pipeline(
            *(reclaimer, self.values, counters, admission, self._package_monitor)
        )
        self.pipeline.build_log.known_functions = KnownFunctions(belongs_to(os.getuid()))
        self.pipeline.crash_guard = CrashGuard(admission, earlier.suspects, recorder)
        self._idle_shutdown = IdleShutdown(
            sizing.rest_after_s(options), admission, lambda: counters.idle_s, has_values, rest
        )
        self._gc_scheduler = GcScheduler(admission, self._mark_used, self._poll)
        self._marked_at = time.monotonic()
        self._worker_context = self._rpc(options, compilation, report)
        self.status = WorkerStatus(
            self._worker_context,
            self._sessions,
            *(compilation.compiler, self._abandoned_work),
            DiskUsage(self._program_cache.store.folder if self._program_cache else None),
            lambda: sizing.store_report(options, self._program_cache),
            self._counts_of,
        )
        self.view = self._worker_context.operations.views = self._views(options, compilation)

    def _views(self, options: ServerOptions, compilation: _Compilation) -> WorkerView:
        context, counters = self._worker_context, self._counters
        seen = Seen(
            options,
            context,
            self._sessions,
            compilation.compiler,
            compilation.building,
            self.devices,
            lambda: {**counters.snapshot(), **self.status.now()},
            lambda principal: context.report("statistics", principal),
        )
        return WorkerView(seen)

    def _are_several(self) -> bool:
        """Whether several clients are connected that call functions, and do not only look."""
        return self._sessions.callers > 1

    def _are_served(self) -> bool:
        """Whether a client is connected, has had a result, and works."""
        counters = self._counters
        works = counters.has_answered and counters.idle_s < _IN_USE_S
        return works and self._sessions.connections > 0

    def _rpc(
        self,
        options: ServerOptions,
        compilation: _Compilation,
        report: Callable[[str, str], dict[str, Any]],
    ) -> WorkerContext:
        self.pipeline.has_device = not options.no_device
        stages = Stages(
            self.pipeline, compilation.compiler, compilation.quota, compilation.building
        )
        return WorkerContext(
            pipeline=self.pipeline,
            operations=AdminService(self.pipeline, stages),
            stages=stages,
            runners=FairThreadPool(options.threads, "jaxd-run"),
            builders=ThreadPerTask(_BUILDER_THREADS, "jaxd-build"),
            watchdog=StallWatchdog(),
            idle_connections=IdleConnections(),
            budget=CallBudget(options.budget_bytes, options.call_share),
            traffic=Traffic(),
            values=self.values,
            options=options,
            max_shared_bytes=machine_bytes() // 2,
            report=report,
            devices=lambda own: {"devices": self.devices.report(self._sessions.all(), own)},
            policy=CallPolicy(self.pipeline.cancelled_reply, options.max_call_s, self._count_ended),
            backlog=Backlog(options.max_calls, options.call_share),
            memory_loss=self._memory_loss,
            peers=self._peers,
        )

    def heaviest(self) -> dict[str, Any] | None:
        """The client whose values take most, for the host; None when there are none."""
        found = self._sessions.heaviest()
        if found is None:
            return None
        return {"session": found.id, "principal": found.principal, "nbytes": found.values.nbytes}

    def reserve(self, principal: str) -> None:
        """Reserves the worker for one principal; to be called before the first client connects."""
        self._principal = self.view.principal = principal
        self.pipeline.build_log.known_functions.is_owner = lambda one: one == principal

    def allow_renewal(self) -> None:
        """Another process has imported the packages that have changed."""
        if self._package_monitor is not None:
            self._package_monitor.allow()

    def prepare_process(self) -> None:
        """Starts the threads of the process; to be called once, when all modules are imported."""
        self._gc_scheduler.start()
        self._building.start()
        self._preloader.start()

    def endpoint(
        self, sock: socket.socket, address: Address, welcome: Callable[[], dict[str, Any]]
    ) -> Endpoint:
        """The server for one inherited listener."""
        admits: Authenticates = self._authenticator_at(address)
        if self._principal is not None:  # a gateway has authenticated the clients
            admits = HandoverReceiver(self._principal)
        return Endpoint(
            *(sock, address, admits, self._sessions, self._worker_context, welcome),
            *(self._client_exits, self._connected_accounts),
        )

    def drain(self) -> None:
        """Refuses new calls, finishes the running ones, and waits until their replies are sent."""
        self._sessions.drain()
        self.pipeline.admission.drain()
        self._worker_context.budget.idle.wait()
        self._worker_context.traffic.send_held()
        self._preloader.stop()
        self._building.builders.close()
        if self._program_cache is not None:
            self._mark_used()
            self._program_cache.close()
        if self._peers is not None:
            self._peers.peers.links.close()

    def flush(self) -> None:
        """Writes all pending records to disk."""
        self.pipeline.uses.flush()
        if self._program_cache is not None:
            self._program_cache.flush()

    def _mark_used(self) -> None:
        """Records on disk which programs are in use; about once a minute."""
        since, self._marked_at = self._marked_at, time.monotonic()
        self.pipeline.uses.flush()
        if self._program_cache is not None:
            self._program_cache.mark_used(self.pipeline.executables.all(), since)

    def _counts_of(self, principal: str) -> Counts | None:
        """The counts that a principal may see; None: those of all principals."""
        is_owner = self.pipeline.build_log.known_functions.is_owner(principal)
        return None if is_owner else self._counters.of(principal)

    def _count_ended(self, call: Call) -> None:
        """Counts a call that was answered and could have been cancelled."""
        spent, error = call.cancel_token.spent(), call.cancel_token.error
        self._counters.add(
            call.session.counts,
            waited_s=spent["waiting"],
            run_s=spent["running"],
            cancelled_calls=isinstance(error, Cancelled),
            late_calls=isinstance(error, DeadlineExceeded),
        )

    def _poll(self) -> None:
        """Checks that are due several times a second."""
        self._client_exits.poll()
        self._sessions.poll()
        self._building.poll()
        self._pressure.poll()
        self._abandoned_work.poll()
        self._idle_shutdown.poll()
        self._connected_accounts.poll()
        if self._package_monitor is not None:
            self._package_monitor.poll()

    def _forget(self, principal: str) -> None:
        """Releases everything that belongs to a principal whose account was revoked."""
        self._sessions.end_all_of(principal)
        self.values.forget(principal)
        self.pipeline.build_log.known_functions.forget(principal)
        self._counters.forget(principal)
        self.pipeline.uses.forget(principal)
        self._worker_context.traffic.forget(principal)
        self._worker_context.traces.forget(principal)
