"""The process that never imports jax: it opens the doors and keeps a worker behind them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from jaxd_protocol import __version__
from jaxd_protocol.addresses import Address
from jaxd_protocol.control import control_path
from jaxd_server.control import answering
from jaxd_server.heartbeat import Heartbeat, calls_of, process_state
from jaxd_server.invitation import invitations
from jaxd_server.listeners import Listener, listening_on
from jaxd_server.logs import log_event
from jaxd_server.options import ServerOptions
from jaxd_server.reaper import reap_orphans
from jaxd_server.supervisor import PATIENCE_S, Supervisor
from jaxd_server.trust import check_trust

__all__ = ["WORKER_COMMAND", "Host"]

WORKER_COMMAND = (sys.executable, "-P", "-m", "jaxd_server.worker")
"""`-P`: a `random.py` in the directory where somebody typed `jaxd` is not the library's."""

_SHORTEST_NAP_S = 0.05


class Host:
    """Opens the listeners and the control socket, and has a worker kept behind them.

    The listeners stay open from one worker to the next: callers in between wait, and are not
    refused. Everything here runs on one event loop in the main thread.

    Args:
        options: how to listen and when to stop.
        worker_command: what is started as worker; it gets one JSON argument.
    """

    def __init__(
        self, options: ServerOptions, worker_command: Sequence[str] = WORKER_COMMAND
    ) -> None:
        self._options = options
        self._supervisor = Supervisor(options, worker_command)
        self._heartbeat = Heartbeat(self._supervisor, options)
        self._started_at = time.monotonic()
        self._listeners: list[Listener] = []
        self._control = ""

    def run(self) -> int:
        """Serves until it is told to stop, or was idle for long enough; returns the exit code.

        Call it from the main thread: it handles SIGTERM, SIGINT and SIGCHLD.

        Returns:
            0 after running calls were finished; 1 when the worker had to be killed.

        Raises:
            CannotListen: when an address or the control socket cannot be opened.
            ConfigurationError: when the token file is not usable.
            ServerStartFailed: when worker after worker ended before it was ready.
        """
        return asyncio.run(self._run())

    def stop(self, *, now: bool = False) -> None:
        """Begins to stop: finishes running calls first, or kills the worker `now`."""
        self._supervisor.stop(now=now)

    async def restart(self, *, force: bool = False) -> dict[str, Any]:
        """Replaces the worker; see `Supervisor.restart`."""
        return await self._supervisor.restart(force=force)

    def quarantined(self) -> list[dict[str, Any]]:
        """The functions that are called no more, because they have ended workers."""
        return self._supervisor.quarantine.rows()

    def release(self, what: str) -> list[dict[str, Any]]:
        """Has some of them called again, by name or fingerprint; their rows."""
        return self._supervisor.release(what)

    async def status(self) -> dict[str, Any]:
        """The reply of the control socket; waits half a second for the worker, and no longer."""
        worker = self._supervisor.worker
        if worker is None:
            return {"host": self._describe(), "worker": {}, "worker_state": "starting"}
        # A worker that is still starting has nothing to say, and who waits for it asks often.
        may_answer = worker.was_ready and worker.state != "resting"
        fresh = may_answer and await worker.refresh(PATIENCE_S)
        is_busy = worker.state == "ready" and not fresh
        stuck = is_busy and self._heartbeat.is_stuck(worker)
        seen = {**worker.snapshot, "running": calls_of(worker)} if is_busy else worker.snapshot
        return {
            "host": self._describe(),
            "worker": seen,
            "worker_state": ("stuck" if stuck else "busy") if is_busy else worker.state,
            "worker_silent_s": round(worker.silent_s, 3),
            "worker_process": process_state(worker.pid) if is_busy else None,
        }

    def _describe(self) -> dict[str, Any]:
        worker = self._supervisor.worker
        return {
            "pid": os.getpid(),
            "version": __version__,
            "uptime_s": round(time.monotonic() - self._started_at, 3),
            "listen": [str(one.address) for one in self._listeners],
            "epoch": worker.epoch if worker else 0,
            "worker_pid": worker.pid if worker and not worker.exited.is_set() else None,
            "restarts": worker.epoch - 1 if worker else 0,
            "quarantined": len(self.quarantined()),
            "log": self._log_file(),
        }

    def _log_file(self) -> str | None:
        """The log beside the control socket, when that is where our stderr goes."""
        path = os.path.join(os.path.dirname(self._control), "server.log")
        try:
            return path if os.path.samestat(os.fstat(2), os.stat(path)) else None
        except OSError:
            return None

    async def _run(self) -> int:
        self._handle_signals()
        check_trust(self._options)
        is_shared = bool(self._options.allow_uids)
        with listening_on(self._options.listen, for_others=is_shared) as listeners:
            self._listeners = listeners
            self._control = self._options.control or control_path(listeners[0].address)
            control = [Address.unix(self._control)]
            with listening_on(control, beside_others=is_shared) as (door,):
                for one in listeners:
                    log_event("listening", address=str(one.address), control=self._control)
                for line in invitations(self._options, listeners):
                    print(line, flush=True)  # noqa: T201  to be typed elsewhere, so not in the log
                async with answering(door.socket, self):
                    code = await self._serve(listeners)
        log_event("stopped", exit_code=code)
        return code

    async def _serve(self, listeners: Sequence[Listener]) -> int:
        watches = [asyncio.create_task(self._watch_idleness())]
        watches.append(asyncio.create_task(self._heartbeat.watch()))
        try:
            return await self._supervisor.run(listeners)
        finally:
            for watch in watches:
                watch.cancel()

    def _handle_signals(self) -> None:
        """Always installed: the first process of a container has no default handlers."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._on_child)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop_signal, number)

    def _on_stop_signal(self, number: signal.Signals) -> None:
        is_second = self._supervisor.stopping.is_set()
        log_event("signal", name=number.name, second=is_second or None)
        self.stop(now=is_second)

    def _on_child(self) -> None:
        workers = self._supervisor.processes()
        for worker in workers:
            worker.collect()
        if os.getpid() == 1:
            reap_orphans({worker.pid for worker in workers})

    async def _watch_idleness(self) -> None:
        limit_s = self._options.idle_timeout_s
        while limit_s > 0:
            idle_s = await self._idle_s()
            if idle_s >= limit_s:
                log_event("idle", idle_s=idle_s)
                self.stop()
                return
            await asyncio.sleep(max(limit_s - idle_s, _SHORTEST_NAP_S))

    async def _idle_s(self) -> float:
        """Seconds without connection and call; 0 when the worker does not say so now."""
        worker = self._supervisor.worker
        if worker is not None and worker.state == "resting":
            return float(worker.snapshot.get("idle_s", 0.0)) + worker.silent_s
        if worker is None or not worker.was_ready or not await worker.refresh(PATIENCE_S):
            return 0.0
        seen = worker.snapshot
        if seen.get("connections") or seen.get("running_calls"):
            return 0.0
        return float(seen.get("idle_s", 0.0))
