"""Wires all components of a worker: the only file that knows every class. Imports jax."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

from jaxd_protocol.errors import Cancelled, DeadlineExceeded
from jaxd_protocol.network.addresses import Address
from jaxd_server.auth.acceptor import Authenticates
from jaxd_server.auth.accounts import Accounts
from jaxd_server.auth.authenticator import AuthenticatorFactory
from jaxd_server.auth.connected_accounts import ConnectedAccounts
from jaxd_server.auth.handover import HandoverReceiver
from jaxd_server.cache.usage import DiskUsage
from jaxd_server.compilation.builder import BuildQuota, ExecutableBuilder
from jaxd_server.compilation.compiling.builds import Builds
from jaxd_server.compilation.compiling.compiler import Compiler
from jaxd_server.compilation.compiling.executable import Executable
from jaxd_server.compilation.executables import Executables
from jaxd_server.compilation.functions.table import Functions
from jaxd_server.compilation.history.build_history import KnownFunctions, belongs_to
from jaxd_server.compilation.remote_trace.policy import TracePolicy
from jaxd_server.compilation.remote_trace.process import TracerProcess
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
from jaxd_server.processes.worker.abandoned_work import AbandonedWork
from jaxd_server.processes.worker.gc_scheduler import GcScheduler
from jaxd_server.processes.worker.retirement import IdleShutdown, PackageMonitor
from jaxd_server.processes.worker.status import WorkerStatus, memory_in_use
from jaxd_server.rpc.context import StallWatchdog, WorkerContext
from jaxd_server.rpc.endpoint import Endpoint
from jaxd_server.rpc.flow_control import Backlog, CallBudget
from jaxd_server.rpc.inflight_calls import CallPolicy
from jaxd_server.rpc.services.admin import AdminService
from jaxd_server.rpc.services.stages import Stages
from jaxd_server.rpc.sessions import Sessions
from jaxd_server.runtime.counters import Counters, Counts, Traffic
from jaxd_server.runtime.flight_recorder import FlightRecorder
from jaxd_server.runtime.imported_packages import ImportedPackages
from jaxd_server.runtime.memory import machine_bytes
from jaxd_server.runtime.reclaimer import MemoryPressure, Reclaimer, host_spare
from jaxd_server.runtime.threads.executors import FairThreadPool, ThreadPerTask
from jaxd_server.values.store import ContentStore, ValueStore

_BUILDER_THREADS = 1024
"""Calls that may wait for a build, or for a client to say what its function is, at once.

Many, so that some clients that do not answer do not keep the others waiting; how many build is
limited by `--builds`.
"""


class WorkerComponents:
    """The components of one worker.

    Args:
        options: what the server was told at its start.
        counters: where everything is counted.
        report: answers `statistics` and `info` for clients.
        renew: begins to replace this worker, told what changed on disk; None where nobody can.
        rest: begins to end this worker until it is needed again.
        suspects: which functions have ended earlier workers.
        box: where the host reads what runs.
        replace: begins to replace this worker although something in it does not end.

    Attributes:
        versions: of the packages that clients are told.
        pipeline: answers calls.
        status: says what is being done.
        values: arrays that stay here.
        devices: on what is computed.
    """

    def __init__(
        self,
        options: ServerOptions,
        counters: Counters,
        report: Callable[[str, str], dict[str, Any]],
        renew: Callable[[list[str]], None] | None = None,
        rest: Callable[[], None] = lambda: None,
        suspects: CrashSuspects | None = None,
        box: FlightRecorder | None = None,
        replace: Callable[[list[str]], None] | None = None,
    ) -> None:
        set_default_settings()
        self.versions = {name: metadata.version(name) for name in ("jax", "jaxlib", "numpy")}
        self._principal: str | None = None
        accounts = Accounts(options)
        self._connected_accounts = ConnectedAccounts(accounts, self._forget, share=True)
        self._authenticator_factory = AuthenticatorFactory(options, accounts)
        self._counters = counters
        contents = ContentStore(sizing.content_bytes(options))
        self.values = ValueStore(
            sizing.value_bytes(options),
            options.value_share,
            contents=contents,
            on_owners=(lambda _: None) if box is None else box.own,
        )
        self.devices = Devices(options.devices_per_session)
        self._sessions = Sessions(
            options.session_grace_s, self.values, devices=self.devices, counts=self._counts_of
        )
        self._traffic = Traffic()
        programs.prepare()
        packages = ImportedPackages()
        self._program_cache = sizing.program_cache(options, packages)
        admission = Admission()
        has_values = self.values.has_only_copies
        self._abandoned_work = AbandonedWork(admission, options.stop_grace_s, has_values, replace)
        reclaimer = Reclaimer(options.map_share)
        reclaimer.register(contents)
        self._pressure = MemoryPressure(reclaimer, options.memory_share, device=device_use)
        self._executables = Executables(
            reclaimer,
            options.max_executables,
            sizing.limits(options),
            self._is_kept,
            builds=Builds(options.max_build_s, self._abandoned_work.add),
        )
        functions = Functions(
            program_cache=self._program_cache,
            receiving=sizing.receiving(options),
            permitting=sizing.permitting(options),
        )
        compiler = Compiler(counters, options.builds)
        quota = BuildQuota(options.principal_build_s)
        self._tracing = TracePolicy(
            sizing.trace_in(options),
            lambda: self._sessions.connections > 1,
            counters,
            packages,
            self._program_cache,
            lambda: TracerProcess(options.log_format, can_unpack),
        )
        self.pipeline = Pipeline(
            functions,
            self._executables,
            ExecutableBuilder(
                functions, compiler, counters, self._program_cache, self._tracing, quota
            ),
            admission,
            counters,
            OutOfMemoryHandler(
                reclaimer,
                lambda: memory_in_use(self._executables.all(), self.values),
                device_bytes_limit,
                host_spare,
            ),
            self._program_cache,
            None if renew is None else PackageMonitor(packages, admission, renew, has_values),
        )
        self.pipeline.build_log.known_functions = KnownFunctions(belongs_to(os.getuid()))
        self.pipeline.crash_guard = CrashGuard(admission, suspects, box)
        after_s = sizing.rest_after_s(options)
        self._idle_shutdown = IdleShutdown(
            after_s, admission, lambda: counters.idle_s, has_values, rest
        )
        self._gc_scheduler = GcScheduler(admission, self._mark_used, self._poll)
        self._marked_at = time.monotonic()
        self._budget = CallBudget(options.budget_bytes, options.call_share)
        self._worker_context = WorkerContext(
            pipeline=self.pipeline,
            operations=AdminService(self.pipeline),
            stages=Stages(functions, compiler, admission, counters),
            runners=FairThreadPool(options.threads, "jaxd-run"),
            builders=ThreadPerTask(_BUILDER_THREADS, "jaxd-build"),
            watchdog=StallWatchdog(),
            budget=self._budget,
            traffic=self._traffic,
            values=self.values,
            slots=options.slots,
            max_frame_bytes=options.max_frame_bytes,
            max_result_bytes=options.max_result_bytes,
            max_shared_bytes=machine_bytes() // 2,
            report=report,
            devices=lambda own: {"devices": self.devices.report(self._sessions.all(), own)},
            policy=CallPolicy(self.pipeline.cancelled_reply, options.max_call_s, self._count_ended),
            backlog=Backlog(options.max_calls, options.call_share),
            max_connections=options.max_connections,
        )
        self.status = WorkerStatus(
            self._worker_context,
            self._executables,
            self._sessions,
            counters,
            compiler,
            self._abandoned_work,
            DiskUsage(self._program_cache.store.folder if self._program_cache else None),
            self._counts_of,
        )

    def reserve(self, principal: str) -> None:
        """Has everything belong to one principal, whom a gateway lets in; before the first client."""
        self._principal = principal
        self.pipeline.build_log.known_functions.is_owner = lambda one: one == principal

    def prepare_process(self) -> None:
        """Makes the process one that serves: to be called once, when all of it is there."""
        self._gc_scheduler.start()
        self._tracing.start()

    def endpoint(
        self, sock: socket.socket, address: Address, welcome: Callable[[], dict[str, Any]]
    ) -> Endpoint:
        """The server for one inherited listener."""
        admits: Authenticates = self._authenticator_factory.at(address)
        if self._principal is not None:  # a gateway lets clients in, and they are led to us
            admits = HandoverReceiver(self._principal)
        return Endpoint(
            *(sock, address, admits, self._sessions, self._worker_context, welcome),
            self._connected_accounts,
        )

    def drain(self) -> None:
        """Refuses new calls, finishes the running ones, and waits until their replies are sent."""
        self.pipeline.admission.drain()
        self._budget.idle.wait()
        self._tracing.close()
        if self._program_cache is not None:
            self._mark_used()
            self._program_cache.close()

    def flush(self) -> None:
        """Has everything written that is to be kept on disk."""
        if self._program_cache is not None:
            self._program_cache.flush()

    def _mark_used(self) -> None:
        """Tells the disk what is in use, about once a minute."""
        since, self._marked_at = self._marked_at, time.monotonic()
        if self._program_cache is not None:
            self._program_cache.mark_used(self._executables.all(), since)

    def _counts_of(self, principal: str) -> Counts | None:
        """Where is counted what is shown to a principal; None: it is shown what all did."""
        is_owner = self.pipeline.build_log.known_functions.is_owner(principal)
        return None if is_owner else self._counters.of(principal)

    def _count_ended(self, call: Call) -> None:
        """A call was answered that could be given up."""
        spent, error = call.cancel_token.spent(), call.cancel_token.error
        self._counters.add(
            call.session.counts,
            waited_s=spent["waiting"],
            run_s=spent["running"],
            cancelled_calls=isinstance(error, Cancelled),
            late_calls=isinstance(error, DeadlineExceeded),
        )

    def _poll(self) -> None:
        """What is looked at several times a second."""
        self._sessions.poll()
        self._pressure.poll()
        self._abandoned_work.poll()
        self._idle_shutdown.poll()
        self._connected_accounts.poll()

    def _forget(self, principal: str) -> None:
        """Lets go of all that somebody had here who is not to come back."""
        self._sessions.end_all_of(principal)
        self.values.forget(principal)
        self.pipeline.build_log.known_functions.forget(principal)
        self._counters.forget(principal)
        self._traffic.forget(principal)

    def _is_kept(self, executable: Executable) -> bool:
        """Whether its program is on disk."""
        program_cache = self._program_cache
        return program_cache is not None and program_cache.store.has(
            "programs", executable.program.id
        )
