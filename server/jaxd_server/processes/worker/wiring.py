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
from jaxd_server.auth.acceptor import Admits
from jaxd_server.auth.accounts import Accounts
from jaxd_server.auth.authenticator import Doormen
from jaxd_server.auth.connected_accounts import Visitors
from jaxd_server.auth.handover import Usher
from jaxd_server.cache.usage import DiskUsage
from jaxd_server.compilation.build_quota import BuildQuota
from jaxd_server.compilation.builder import Maker
from jaxd_server.compilation.compiling.builds import Builds
from jaxd_server.compilation.compiling.compiler import Compiler
from jaxd_server.compilation.compiling.executable import Executable
from jaxd_server.compilation.executables import Executables
from jaxd_server.compilation.functions.table import Functions
from jaxd_server.compilation.history.visibility import Acquaintances, belongs_to
from jaxd_server.compilation.remote_trace.policy import Tracing
from jaxd_server.compilation.remote_trace.process import TracerProcess
from jaxd_server.config.options import ServerOptions
from jaxd_server.execution.admission import Admission
from jaxd_server.execution.call import Call
from jaxd_server.execution.crash_guard import Precautions, Suspects
from jaxd_server.execution.memory_room import Shortage
from jaxd_server.execution.pipeline import Pipeline
from jaxd_server.jax_compat import programs
from jaxd_server.jax_compat.config import begin_with_defaults
from jaxd_server.jax_compat.device_memory import device_bytes_limit, device_use
from jaxd_server.jax_compat.devices import Devices
from jaxd_server.jax_compat.lowered_transfer import understands
from jaxd_server.processes.worker import sizing
from jaxd_server.processes.worker.abandoned_work import Leftovers
from jaxd_server.processes.worker.gc_scheduler import Housekeeper
from jaxd_server.processes.worker.retirement import Renewal, Rest
from jaxd_server.processes.worker.status import WorkerStatus, memory_in_use
from jaxd_server.rpc.context import Workshop
from jaxd_server.rpc.endpoint import Endpoint
from jaxd_server.rpc.flow_control import Backlog, Budget
from jaxd_server.rpc.inflight_calls import Terms
from jaxd_server.rpc.reader_handoff import Sentry
from jaxd_server.rpc.services.admin import Operations
from jaxd_server.rpc.services.stages import Stages
from jaxd_server.rpc.sessions import Sessions
from jaxd_server.runtime.counters import Counters, Counts, Traffic
from jaxd_server.runtime.flight_recorder import BlackBox
from jaxd_server.runtime.imported_packages import ImportedPackages
from jaxd_server.runtime.memory import machine_bytes
from jaxd_server.runtime.reclaimer import Pressure, Reclaimer, host_spare
from jaxd_server.runtime.threads.executors import FairThreads, FreshThreads
from jaxd_server.values.content_store import Contents
from jaxd_server.values.store import Values

_BUILDER_THREADS = 1024
"""Calls that may wait for a build, or for a client to say what its function is, at once.

Many, so that some clients that do not answer do not keep the others waiting; how many build is
limited by `--builds`.
"""


class Parts:
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
        suspects: Suspects | None = None,
        box: BlackBox | None = None,
        replace: Callable[[list[str]], None] | None = None,
    ) -> None:
        begin_with_defaults()
        self.versions = {name: metadata.version(name) for name in ("jax", "jaxlib", "numpy")}
        self._principal: str | None = None
        accounts = Accounts(options)
        self._visitors = Visitors(accounts, self._forget, share=True)
        self._doormen = Doormen(options, accounts)
        self._counters = counters
        contents = Contents(sizing.content_bytes(options))
        self.values = Values(
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
        self._shelf = sizing.shelf(options, packages)
        admission = Admission()
        has_values = self.values.are_missed
        self._leftovers = Leftovers(admission, options.stop_grace_s, has_values, replace)
        reclaimer = Reclaimer(options.map_share)
        reclaimer.register(contents)
        self._pressure = Pressure(reclaimer, options.memory_share, device=device_use)
        self._executables = Executables(
            reclaimer,
            options.max_executables,
            sizing.limits(options),
            self._is_kept,
            builds=Builds(options.max_build_s, self._leftovers.add),
        )
        functions = Functions(
            shelf=self._shelf,
            receiving=sizing.receiving(options),
            permitting=sizing.permitting(options),
        )
        compiler = Compiler(counters, options.builds)
        quota = BuildQuota(options.principal_build_s)
        self._tracing = Tracing(
            sizing.trace_in(options),
            lambda: self._sessions.connections > 1,
            counters,
            packages,
            self._shelf,
            lambda: TracerProcess(options.log_format, understands),
        )
        self.pipeline = Pipeline(
            functions,
            self._executables,
            Maker(functions, compiler, counters, self._shelf, self._tracing, quota),
            admission,
            counters,
            Shortage(
                reclaimer,
                lambda: memory_in_use(self._executables.all(), self.values),
                device_bytes_limit,
                host_spare,
            ),
            self._shelf,
            None if renew is None else Renewal(packages, admission, renew, has_values),
        )
        self.pipeline.decisions.acquaintances = Acquaintances(belongs_to(os.getuid()))
        self.pipeline.precautions = Precautions(admission, suspects, box)
        after_s = sizing.rest_after_s(options)
        self._rest = Rest(after_s, admission, lambda: counters.idle_s, has_values, rest)
        self._housekeeper = Housekeeper(admission, self._mark_used, self._glance)
        self._marked_at = time.monotonic()
        self._budget = Budget(options.budget_bytes, options.call_share)
        self._workshop = Workshop(
            pipeline=self.pipeline,
            operations=Operations(self.pipeline),
            stages=Stages(functions, compiler, admission, counters),
            runners=FairThreads(options.threads, "jaxd-run"),
            builders=FreshThreads(_BUILDER_THREADS, "jaxd-build"),
            sentry=Sentry(),
            budget=self._budget,
            traffic=self._traffic,
            values=self.values,
            slots=options.slots,
            max_frame_bytes=options.max_frame_bytes,
            max_result_bytes=options.max_result_bytes,
            max_shared_bytes=machine_bytes() // 2,
            report=report,
            devices=lambda own: {"devices": self.devices.report(self._sessions.all(), own)},
            terms=Terms(self.pipeline.gave_up, options.max_call_s, self._count_ended),
            backlog=Backlog(options.max_calls, options.call_share),
            max_connections=options.max_connections,
        )
        self.status = WorkerStatus(
            self._workshop,
            self._executables,
            self._sessions,
            counters,
            compiler,
            self._leftovers,
            DiskUsage(self._shelf.store.folder if self._shelf else None),
            self._counts_of,
        )

    def reserve(self, principal: str) -> None:
        """Has everything belong to one principal, whom a door lets in; before the first client."""
        self._principal = principal
        self.pipeline.decisions.acquaintances.is_owner = lambda one: one == principal

    def settle(self) -> None:
        """Makes the process one that serves: to be called once, when all of it is there."""
        self._housekeeper.start()
        self._tracing.settle()

    def endpoint(
        self, sock: socket.socket, address: Address, welcome: Callable[[], dict[str, Any]]
    ) -> Endpoint:
        """The server for one inherited listener."""
        admits: Admits = self._doormen.at(address)
        if self._principal is not None:  # a door lets clients in, and they are led to us
            admits = Usher(self._principal)
        return Endpoint(
            *(sock, address, admits, self._sessions, self._workshop, welcome), self._visitors
        )

    def drain(self) -> None:
        """Refuses new calls, finishes the running ones, and waits until their replies are sent."""
        self.pipeline.admission.drain()
        self._budget.idle.wait()
        self._tracing.close()
        if self._shelf is not None:
            self._mark_used()
            self._shelf.close()

    def flush(self) -> None:
        """Has everything written that is to be kept on disk."""
        if self._shelf is not None:
            self._shelf.flush()

    def _mark_used(self) -> None:
        """Tells the disk what is in use, about once a minute."""
        since, self._marked_at = self._marked_at, time.monotonic()
        if self._shelf is not None:
            self._shelf.mark_used(self._executables.all(), since)

    def _counts_of(self, principal: str) -> Counts | None:
        """Where is counted what is shown to a principal; None: it is shown what all did."""
        is_owner = self.pipeline.decisions.acquaintances.is_owner(principal)
        return None if is_owner else self._counters.of(principal)

    def _count_ended(self, call: Call) -> None:
        """A call was answered that could be given up."""
        spent, error = call.interest.spent(), call.interest.error
        self._counters.add(
            call.session.counts,
            waited_s=spent["waiting"],
            run_s=spent["running"],
            cancelled_calls=isinstance(error, Cancelled),
            late_calls=isinstance(error, DeadlineExceeded),
        )

    def _glance(self) -> None:
        """What is looked at several times a second."""
        self._sessions.look()
        self._pressure.look()
        self._leftovers.look()
        self._rest.look()
        self._visitors.look()

    def _forget(self, principal: str) -> None:
        """Lets go of all that somebody had here who is not to come back."""
        self._sessions.end_all_of(principal)
        self.values.forget(principal)
        self.pipeline.decisions.acquaintances.forget(principal)
        self._counters.forget(principal)
        self._traffic.forget(principal)

    def _is_kept(self, executable: Executable) -> bool:
        """Whether its program is on disk."""
        shelf = self._shelf
        return shelf is not None and shelf.store.has("programs", executable.program.id)
