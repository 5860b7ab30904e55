"""The worker process, which owns the devices: builds the components, answers, and drains.

Started by the host with one JSON argument: options, inherited listeners, host channel and epoch.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from jaxd_protocol.base.process import start_daemon
from jaxd_protocol.errors import Busy
from jaxd_protocol.network.addresses import Address
from jaxd_server.auth.listeners import ListenerProbe
from jaxd_server.config.options import ServerOptions
from jaxd_server.execution.crash_guard import CrashSuspects
from jaxd_server.processes.worker.report import WorkerReport
from jaxd_server.processes.worker.retirement import Renewal, still_needed
from jaxd_server.runtime import logs
from jaxd_server.runtime.child_startup import (
    die_with_the_parent,
    dump_stacks_on_signal,
    exit_process,
    read_argument,
)
from jaxd_server.runtime.counters import Counters
from jaxd_server.runtime.flight_recorder import FlightRecorder
from jaxd_server.runtime.json_lines import HostChannel
from jaxd_server.runtime.logs import log_event
from jaxd_server.runtime.system_memory import MemoryLoss, allow_files
from jaxd_server.runtime.threads.executors import process_timers
from jaxd_server.user_code.output import capture_user_output
from jaxd_server.user_code.sandbox import prepare_for_user_code

if TYPE_CHECKING:
    from jaxd_server.processes.worker.wiring import WorkerComponents
    from jaxd_server.rpc.endpoint import Endpoint


_FIRST_CLIENT_S: Final = 30.0
"""A machine that is very busy may take a while to accept."""


def main() -> None:
    """Runs a worker until its host drains it or ends."""
    argument = read_argument()
    options = ServerOptions.from_json(argument["options"])
    principal = argument.get("principal")
    logs.configure(options.log_format, "worker", principal)
    die_with_the_parent()
    worker = Worker(options, argument.get("black_box_fd"), principal)
    host_channel = worker.host_channel = HostChannel(
        socket.socket(fileno=argument["tether_fd"]),
        worker.report.to_host,
        worker.stop.set,
        worker.handle_order,
    )
    allow_files(2 * options.max_connections)  # of a client its connection, and its process
    if argument.get("stands_by"):
        _stand_by(worker, host_channel)
    else:
        worker.begin(argument)
    worker.prepare(argument["listeners"])
    if worker.holds:
        host_channel.notify({"event": "prepared"})
        worker.may_open.wait()
    worker.open()
    host_channel.notify({"event": "ready"})
    worker.stop.wait()
    if worker.outdated:
        host_channel.notify({"event": "outdated", "changes": worker.outdated})
    if worker.is_resting:
        host_channel.notify({"event": "resting"})
    worker.drain()
    exit_process()


def _stand_by(worker: Worker, host_channel: HostChannel) -> None:
    """Imports the modules of a worker, and waits until the host assigns an epoch.

    It does not use the device, which another worker has. Ends the process if the imported packages
    have changed on disk in between.
    """
    import jaxd_server.processes.worker.wiring  # noqa: F401
    from jaxd_server.runtime.imported_packages import ImportedPackages

    packages = ImportedPackages()
    packages.record()
    host_channel.notify({"event": "standing_by"})
    worker.has_begun.wait()
    if packages.changes():
        host_channel.notify({"event": "stale"})
        os._exit(0)


class Worker:
    """The components of one worker, and its lifecycle.

    Args:
        options: of the server.
        recorder_fd: descriptor of the flight recorder; None: there is none.
        principal: the only one that it serves; None: all.

    Attributes:
        report: answers questions about it.
        host_channel: to the host.
        has_begun: set once the worker has an epoch.
        holds: whether it waits for `may_open` before it accepts clients.
        may_open: set when it may.
        stop: set when the worker has to drain, by its host or by itself.
        outdated: what has changed on disk, if it drains because of that.
        is_resting: whether it drains because it was idle for long.
    """

    def __init__(
        self, options: ServerOptions, recorder_fd: int | None = None, principal: str | None = None
    ) -> None:
        self.host_channel: HostChannel  # set by `main`
        self.has_begun = threading.Event()
        self.holds = False
        self.may_open = threading.Event()
        self.stop = threading.Event()
        self.outdated: list[str] = []
        self.is_resting = False
        self._must_be_replaced = False
        self._options = options
        self._principal = principal
        self._suspects = CrashSuspects()
        self._memory_loss: MemoryLoss | None = None
        self._recorder = None if recorder_fd is None else FlightRecorder(recorder_fd)
        self._counters = Counters()
        self.report = WorkerReport(options, self._counters)
        self._components: WorkerComponents  # set by `prepare`
        self._listeners: list[tuple[socket.socket, Address]] = []
        self._endpoints: list[Endpoint] = []

    def begin(self, order: Mapping[str, Any]) -> None:
        """Becomes the worker of the epoch in an order of the host."""
        epoch = self.report.epoch = order["epoch"]
        self._suspects = CrashSuspects(order.get("suspects", ()), epoch)
        self._memory_loss = MemoryLoss.from_message(order.get("memory_loss"))
        self.holds = order.get("holds") is True
        self.has_begun.set()

    def prepare(self, listeners: list[dict[str, Any]]) -> None:
        """Imports jax and builds the components; clients are accepted by `open`."""
        # imports jax, which takes seconds: the host channel is open before
        from jaxd_server.processes.worker import sizing
        from jaxd_server.processes.worker.wiring import EarlierWorkers, Endings, WorkerComponents
        from jaxd_server.user_code.jax_callbacks import install_callback_redirection

        self._components = self.report.components = WorkerComponents(
            self._options,
            self._counters,
            self.report.answer,
            Endings(
                Renewal(self.renew, lambda: self.host_channel.notify({"event": "wants_renewal"})),
                self.end_idle,
                self.replace,
            ),
            EarlierWorkers(self._suspects, self._memory_loss),
            self._recorder,
            sizing.fork_server(self._options),
        )
        self._components.view.epoch = self.report.epoch
        if self._principal is not None:
            self._components.reserve(self._principal)
        prepare_for_user_code()
        capture_user_output()
        install_callback_redirection()
        dump_stacks_on_signal()
        self._components.prepare_process()
        for listener in listeners:
            sock = socket.socket(fileno=listener["fd"])
            sock.setblocking(True)
            self._listeners.append((sock, Address.parse(listener["address"])))

    def open(self) -> None:
        """Accepts clients from now on."""
        for sock, address in self._listeners:
            endpoint = self._components.endpoint(sock, address, self.report.welcome)
            endpoint.start_in_thread()
            self._endpoints.append(endpoint)
            self.report.listening.append(str(address))
        self.report.is_short = lambda: any(one.is_short for one in self._endpoints)
        self._check_that_clients_are_accepted()
        log_event("accepting", epoch=self.report.epoch)

    def _check_that_clients_are_accepted(self) -> None:
        """Ends the process when they are not: ready is who has answered somebody."""
        for sock, address in self._listeners:
            if not ListenerProbe(sock).accepts(_FIRST_CLIENT_S):
                log_event("not_accepting", address=str(address))
                os._exit(1)

    def drain(self) -> None:
        """Finishes running calls and refuses new ones."""
        if self._must_be_replaced:  # calls that never end must not block the others
            process_timers.after(self._options.drain_timeout_s, self._end_at_once)
        self._close_endpoints()
        self._components.drain()
        log_event("drained", calls=self._counters.snapshot()["calls"])

    def _close_endpoints(self) -> None:
        for endpoint in self._endpoints:
            endpoint.close()

    def renew(self, changes: list[str]) -> None:
        """Ends this worker, so that the next one imports what has changed on disk.

        A call that is repeated after this returns reaches the next worker.
        """
        self._close_endpoints()
        self.outdated = changes
        self.stop.set()

    def replace(self, reasons: list[str]) -> None:
        """Ends this worker, because work in it cannot be ended otherwise."""
        self._must_be_replaced = True
        self.renew(reasons)

    def _end_at_once(self) -> None:
        log_event("drained_in_part", calls=self._counters.snapshot()["calls"])
        self._components.flush()
        os._exit(0)

    def end_idle(self) -> None:
        """Ends this worker; the host starts the next one when a client connects."""
        self._close_endpoints()
        self.is_resting = True
        self.stop.set()

    def handle_order(self, order: Mapping[str, Any]) -> None:
        """Handles an order of the host other than `status` and `drain`."""
        match order:
            case {"ask": "begin", "epoch": int()}:
                self.begin(order)
            case {"ask": "open"}:
                self.may_open.set()
            case {"ask": "give_way", "force": bool(force), "is_followed": bool(is_followed)}:
                is_last = order.get("is_last") is True
                how = force, is_followed, is_last
                try:
                    start_daemon("jaxd-give-way", self.yield_to_successor, *how)
                except Busy as error:
                    self.host_channel.notify({"event": "needed", "why": str(error)})
            case {"ask": "renew"}:
                self._components.allow_renewal()
            case {"ask": "view", "since": int(since), "source": str(source)}:
                self.host_channel.notify({"seen": self.report.view(since, source)})
            case {"ask": "release", "fingerprint": str(fingerprint)}:
                self._suspects.release(fingerprint)
            case _:
                pass  # a newer host may send others

    def yield_to_successor(self, force: bool, is_followed: bool, is_last: bool) -> None:
        """Ends this worker in favour of the next one, or refuses; notifies the host.

        Args:
            force: also when arrays of clients are lost.
            is_followed: whether the next one is prepared.
            is_last: whether there is none: what waits since it was asked is refused by `drain`.
        """
        admission = self._components.pipeline.admission
        obstacle = "" if force else still_needed(admission, self._components.values)
        if obstacle:
            self.host_channel.notify({"event": "needed", "why": obstacle})
            return
        self._close_endpoints()
        if not is_last:
            admission.replace(is_followed=is_followed)
        self.host_channel.notify({"event": "gave_way"})
        self.stop.set()


if __name__ == "__main__":
    main()
