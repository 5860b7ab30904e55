"""The host process, which never imports jax: opens the listeners and supervises the workers."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from socket import socket
from typing import Any

from jaxd_protocol import __version__
from jaxd_protocol.base.process import OwnFolder
from jaxd_protocol.base.terminal import printable
from jaxd_protocol.messages.server_view import ServerRow
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import cache_root, control_path
from jaxd_server.auth.listen_policy import check_trust
from jaxd_server.auth.listeners import Listener, open_listeners
from jaxd_server.auth.tls_setup import connection_hints
from jaxd_server.config.options import ServerOptions
from jaxd_server.processes.supervision.metrics import serving_metrics
from jaxd_server.processes.supervision.quarantine import Quarantine, QuarantineFile
from jaxd_server.processes.supervision.server_view import ServerViews, period_of
from jaxd_server.processes.supervision.supervisor import Supervisor
from jaxd_server.processes.tenants.directory import tenants_root
from jaxd_server.processes.tenants.manager import TenantManager
from jaxd_server.runtime.json_lines import encode_line, messages
from jaxd_server.runtime.logs import log_event, shorten_log


def reap_orphans(own: Collection[int]) -> list[int]:
    """Collects every child that has ended, except the `own` ones; returns the process ids.

    It first peeks (`WNOWAIT`), because the exit code of an own child belongs to its `Popen`. When
    it finds such a child, it leaves the rest to the next call, after that child was collected.
    Does nothing where the system cannot peek: a process there has no children but its own.
    """
    if not hasattr(os, "waitid"):
        return []
    reaped: list[int] = []
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    with suppress(ChildProcessError):  # there is no child left
        while (ended := os.waitid(os.P_ALL, 0, flags)) and ended.si_pid not in own:
            os.waitpid(ended.si_pid, os.WNOHANG)
            reaped.append(ended.si_pid)
    return reaped


WORKER_COMMAND = (sys.executable, "-P", "-m", "jaxd_server.processes.worker.worker")
"""`-P`: a `random.py` in the current directory does not shadow the one of Python."""


def _with_snapshot_folder(options: ServerOptions) -> ServerOptions:
    """The options with a folder in memory for snapshots, which outlive workers.

    Not where each principal has a worker of its own: they may be of other users.
    """
    if options.worker_per_principal or options.no_device or not options.snapshot_bytes:
        return options
    memory = _MEMORY if os.access(_MEMORY, os.W_OK | os.X_OK) else None
    with suppress(OSError):  # then clients keep them themselves
        return replace(options, snapshot_dir=OwnFolder("jaxd-held", memory).path)
    return options


_MEMORY = "/dev/shm"  # noqa: S108  the folder in it is made with a name that nobody knows
"""Files in it are in memory."""

_MIN_SLEEP_S = 0.05
_SOCKET_LOOK_S = 1.0
_LOG_LOOK_S = 2.0
_MAX_LOG_BYTES = 8 << 20


class Host:
    """Opens the listeners and the control socket, and keeps workers running behind them.

    The listeners stay open from one worker to the next: clients that connect in between wait, and
    are not refused. Everything here runs on one event loop in the main thread.

    Args:
        options: of the server.
        worker_command: the command of a worker, which gets one JSON argument.
    """

    def __init__(
        self, options: ServerOptions, worker_command: Sequence[str] = WORKER_COMMAND
    ) -> None:
        options = self._options = _with_snapshot_folder(options)
        apart = options.worker_per_principal
        root = tenants_root(options) if apart else cache_root(options.cache_dir)
        file = self._quarantine_file = QuarantineFile(root, str(options.listen[0]))
        self._workers: Supervisor | TenantManager
        if apart:
            self._workers = TenantManager(options, worker_command, kept=file)
        else:
            self._workers = Supervisor(options, worker_command, quarantine=Quarantine(file))
        self._started_at = time.monotonic()
        self._since = round(time.time(), 3)
        self._views = ServerViews(
            self._workers.supervised, self._describe_host, self._workers.failed
        )
        self._listeners: list[Listener] = []
        self._losses: list[str] = []
        self._control = ""

    def run(self) -> int:
        """Serves until it is stopped, or was idle for long enough; returns the exit code.

        For the main thread: it handles SIGTERM, SIGINT and SIGCHLD.

        Returns:
            0 after running calls were finished; 1 when the worker had to be killed.

        Raises:
            CannotListen: when an address or the control socket cannot be opened.
            ConfigurationError: when the token file is not usable.
        """
        return asyncio.run(self._run())

    async def reply(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The reply to a request on the control socket; see `serving_control_socket`."""
        match request:
            case {"ask": "status"}:  # waits half a second for a worker, and no longer
                shown = {"view": await self._views.whole()} if request.get("view") is True else {}
                return {"host": self._describe(), **await self._workers.status(), **shown}
            case {"ask": "stop", "loses_values": False}:
                refusal = await self._workers.stop_if_unneeded()
                return {"refused": refusal} if refusal else {"stopping": True}
            case {"ask": "stop"}:
                self._workers.stop(now=request.get("now") is True)
                return {"stopping": True}
            case {"ask": "restart"}:
                return await self._workers.restart(force=request.get("force") is True)
            case {"ask": "quarantined"}:
                return {"quarantined": self._workers.quarantined()}
            case {"ask": "release", "what": str(what)}:
                return {"released": self._workers.release(what)}
        return {"error": f"{request.get('ask')!r} is not known; ask for status or stop"}

    def _describe_host(self) -> ServerRow:
        """The row of a view about the host itself."""
        listen = tuple(str(one.address) for one in self._listeners)
        platforms = (
            one.worker.snapshot.get("platform")
            for _, one in self._workers.supervised()
            if one.worker is not None
        )
        return ServerRow(
            listen[0] if listen else "",
            __version__,
            os.getpid(),
            self._since,
            listen,
            _stderr_file() or "",
            len(self._workers.quarantined()),
            next((printable(one, 20) for one in platforms if isinstance(one, str)), ""),
        )

    def _describe(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "version": __version__,
            "uptime_s": round(time.monotonic() - self._started_at, 3),
            "listen": [str(one.address) for one in self._listeners],
            "lost": self._losses,
            **self._workers.describe(),
            "log": _stderr_file(),
        }

    def _log_file(self) -> str | None:
        """The log beside the control socket, if stderr goes there."""
        path = os.path.join(os.path.dirname(self._control), "server.log")
        try:
            return path if os.path.samestat(os.fstat(2), os.stat(path)) else None
        except OSError:
            return None

    async def _run(self) -> int:
        self._handle_signals()
        check_trust(self._options)
        is_shared = bool(self._options.allow_uids)
        with open_listeners(self._options.listen, for_others=is_shared) as listeners:
            self._listeners = listeners
            self._control = self._options.control or control_path(listeners[0].address)
            control = [Address.unix(self._control)]
            with open_listeners(control, beside_others=is_shared) as (control_listener,):
                for one in listeners:
                    log_event("listening", address=str(one.address), control=self._control)
                for line in connection_hints(self._options, listeners):
                    print(line, flush=True)  # noqa: T201  to be copied to clients, so not in the log
                async with (
                    serving_control_socket(control_listener.socket, self.reply, self._views),
                    serving_metrics(self._options, self._views),
                ):
                    code = await self._serve(listeners)
        self._quarantine_file.close()
        log_event("stopped", exit_code=code)
        return code

    async def _serve(self, listeners: Sequence[Listener]) -> int:
        duties = (self._watch_idleness, self._watch_log, self._watch_sockets)
        watches = [asyncio.create_task(watch()) for watch in duties]
        try:
            return await self._workers.run(listeners, self._control)
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
        is_second = self._workers.is_stopping
        log_event("signal", name=number.name, second=is_second or None)
        self._workers.stop(now=is_second)

    def _on_child(self) -> None:
        workers = self._workers.processes()
        for worker in workers:
            worker.collect()
        if os.getpid() == 1:
            reap_orphans({worker.pid for worker in workers})

    async def _watch_log(self) -> None:
        """Keeps the log of a server that runs for months from filling the disk."""
        while True:
            path = self._log_file()
            with suppress(OSError):
                if path is not None and shorten_log(path, _MAX_LOG_BYTES):
                    log_event("log_shortened", earlier=f"{path}.1")
            await asyncio.sleep(_LOG_LOOK_S)

    async def _watch_sockets(self) -> None:
        """Ends a server that no client can find any more, once nobody is connected.

        It would hold the device, and its control socket the place of the next one.
        """
        before: list[str] = []
        while True:
            await asyncio.sleep(_SOCKET_LOOK_S)
            seen = [loss for one in self._listeners if (loss := one.loss())]
            lasting, before = [loss for loss in seen if loss in before], seen
            for loss in lasting:
                if loss not in self._losses:
                    log_event("socket_lost", reason=loss)
            self._losses = lasting
            is_lost = len(lasting) == len(self._listeners)
            if is_lost and not self._workers.is_stopping and await self._workers.idle_s() > 0:
                log_event("unreachable", reason="; ".join(lasting))
                self._workers.stop()

    async def _watch_idleness(self) -> None:
        limit_s = self._options.idle_timeout_s
        while limit_s > 0:
            idle_s = await self._workers.idle_s()
            if idle_s >= limit_s:
                log_event("idle", idle_s=idle_s)
                self._workers.stop()
                return
            await asyncio.sleep(max(limit_s - idle_s, _MIN_SLEEP_S))


def _stderr_file() -> str | None:
    """The file that stderr goes to; None when it is none, such as a terminal or a pipe."""
    try:
        path = os.readlink("/proc/self/fd/2")
        is_file = stat.S_ISREG(os.fstat(2).st_mode)
        return path if is_file and os.path.samestat(os.fstat(2), os.stat(path)) else None
    except OSError:
        return None


_MAX_REQUEST_BYTES = 1 << 16

_Reply = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]


@asynccontextmanager
async def serving_control_socket(
    listening: socket, reply: _Reply, views: ServerViews | None = None
) -> AsyncIterator[None]:
    """Answers on the socket `listening` until the block ends.

    One JSON object a line each way: `{"ask": "status"}`, `{"ask": "stop"}`,
    `{"ask": "stop", "now": true}`, `{"ask": "stop", "loses_values": false}`, which is `refused`
    while calls run or clients have arrays, `{"ask": "restart"}`, `{"ask": "quarantined"}` and
    `{"ask": "release", "what": NAME}`. A connection stays open until its client closes it or the
    host ends, so that a client that requested a stop can wait for the end.

    `{"ask": "watch", "every_s": 0.5}` has another kind of answer: `{"view": …}`, and then a line
    `{"change": …}` whenever something has changed, until the client closes.
    """
    server = await asyncio.start_unix_server(
        partial(_answer_requests, reply, views), sock=listening, limit=_MAX_REQUEST_BYTES
    )
    try:
        yield
    finally:
        server.close()


async def _answer_requests(
    reply: _Reply,
    views: ServerViews | None,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    try:
        async for request in messages(reader):
            if request.get("ask") == "watch" and views is not None:
                await _show(views, period_of(request), reader, writer)
                return
            writer.write(encode_line(await reply(request)))
            await writer.drain()
    except ValueError as error:
        writer.write(encode_line({"error": f"the request is not a JSON line: {error}"}))
    except (ConnectionError, asyncio.CancelledError):
        pass  # the client has disconnected, or the host ends
    finally:
        writer.close()


async def _show(
    views: ServerViews, every_s: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Writes what changes until the client has closed; as much at a time as it reads."""
    end = asyncio.create_task(reader.read(1))
    try:
        async with aclosing(views.watch(every_s)) as changes:
            while not end.done():
                step = asyncio.ensure_future(anext(changes))
                await asyncio.wait([step, end], return_when=asyncio.FIRST_COMPLETED)
                if not step.done():
                    step.cancel()
                    await asyncio.wait([step])
                    return
                writer.write(encode_line(step.result().to_message()))
                await writer.drain()
    finally:
        end.cancel()
