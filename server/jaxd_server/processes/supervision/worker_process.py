"""A worker as its host sees it: the process, its host channel, its output and its last status."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Literal

from jaxd_server.auth.listeners import Listener
from jaxd_server.config.options import ServerOptions
from jaxd_server.processes.supervision.launch import NO_HISTORY, History, launch
from jaxd_server.processes.supervision.tenant_settings import Tenant
from jaxd_server.processes.supervision.untrusted_report import is_number, printable, sanitize_report
from jaxd_server.runtime.child_startup import end_session
from jaxd_server.runtime.json_lines import (
    MAX_LINE_BYTES,
    MAX_TENANT_LINE_BYTES,
    encode_line,
    messages,
)
from jaxd_server.runtime.limits import RateLimiter
from jaxd_server.runtime.logs import log_event
from jaxd_server.runtime.system_memory import MemoryLoss, OomWatch

_READY: Final = {"worker": "worker_ready", "door": "door_ready"}
_FLAGGED: Final = {
    "standing_by": "worker_standing_by",
    "prepared": "worker_prepared",
    "stale": "worker_stale",
    "outdated": "worker_outdated",
    "resting": "worker_resting",
    "gave_way": "worker_gave_way",
}
"""The event of each flag that a worker sets."""


class WorkerFlags:
    """Flags that are each set once. Belongs to the thread of the event loop.

    Attributes:
        standing_by: it has imported what a worker needs.
        prepared: it is complete, and waits to accept clients.
        stale: it ends because packages that it imported while standing by have changed on disk.
        outdated: it drains because packages have changed on disk.
        resting: it drains because it was idle for long.
        gave_way: it drains in favour of the next one.
    """

    def __init__(self) -> None:
        self.standing_by = asyncio.Event()
        self.prepared = asyncio.Event()
        self.stale = asyncio.Event()
        self.outdated = asyncio.Event()
        self.resting = asyncio.Event()
        self.gave_way = asyncio.Event()

    @property
    def draining(self) -> tuple[asyncio.Event, ...]:
        """The flags of a worker that drains by itself, on purpose."""
        return self.outdated, self.resting, self.gave_way


_ANSWER_TIMEOUT_S = 5.0

_MESSAGE_BURST: Final = 200
_MESSAGES_PER_S: Final = 20.0
"""A correct worker sends some ten unsolicited messages in its lifetime."""

OnMessage = Callable[["WorkerProcess", Mapping[str, Any]], None]


def ignore_message(worker: WorkerProcess, message: Mapping[str, Any]) -> None:
    """Ignores a message of a worker."""


State = Literal["standing by", "starting", "ready", "draining", "resting", "dead"]
"""What a worker is doing.

standing by: it has imported what it needs, or is about to, and has no device.
starting: it is the worker of an epoch, and makes itself ready.
ready: it serves clients.
draining: it finishes its calls, and ends.
resting: it has ended because it was idle; the next connection starts another one.
dead: it has ended for any other reason.
"""

Event = Literal["begin", "ready", "drain", "exit", "rest"]
"""What happens to a worker; rest: it has said that it is idle, and has ended."""

_NEXT: Final[Mapping[tuple[State, Event], State]] = {
    ("standing by", "begin"): "starting",
    ("standing by", "drain"): "draining",
    ("standing by", "exit"): "dead",
    ("starting", "ready"): "ready",
    ("starting", "drain"): "draining",
    ("starting", "exit"): "dead",
    ("ready", "drain"): "draining",
    ("ready", "exit"): "dead",
    ("draining", "exit"): "dead",
    ("dead", "rest"): "resting",
}
"""What follows; anything else changes nothing."""


class WorkerProcess:
    """A worker, which is started at once. Belongs to the thread of the event loop.

    Args:
        command: the program and its first arguments.
        options: of the server.
        listeners: which it inherits.
        epoch: its generation; 0: it stands by, without a device, until `begin`.
        history: of earlier workers.
        tenant: whose worker it is, where not all clients share it.
        on_message: called with messages that are not handled here.
        what: its name in the log.

    Raises:
        OSError: when no process can be made.

    Attributes:
        epoch: the worker's generation, 1 for the first one of a host.
        pid: its process id.
        exited: set once the process has ended and was collected.
        state: its last known state.
        flags: the permanent states that it has reported.
        wants_renewal: set while it waits for another one to import packages that have changed.
        snapshot: the last status that it sent; empty before the first.
        recorder: its flight recorder, readable also when it hangs or has ended.
        principal: whose worker it is, where not all clients share it.
        on_message: called with messages that are not handled here.
        what: its name in the log.
    """

    def __init__(
        self,
        command: Sequence[str],
        options: ServerOptions,
        listeners: Sequence[Listener],
        epoch: int = 0,
        history: History = NO_HISTORY,
        tenant: Tenant | None = None,
        on_message: OnMessage = ignore_message,
        what: str = "worker",
    ) -> None:
        process, host_channel, relay, self.recorder = launch(
            command, options, listeners, epoch, history, tenant
        )
        self.epoch = epoch
        principal = self.principal = None if tenant is None else tenant.principal
        self.what = what
        self.on_message = on_message
        self.pid = process.pid
        self.exited = asyncio.Event()
        self.flags = WorkerFlags()
        self.wants_renewal = asyncio.Event()
        self.snapshot: Mapping[str, Any] = {}
        self._process = process
        self._relay = relay
        self._verdict: str | None = None
        self._is_to_blame = True
        self._oom_watch = OomWatch(process.pid)
        self._was_out_of_memory: bool | None = None
        self._started_at = self._last_message_at = time.monotonic()
        self._ready_after_s: float | None = None
        self.state: State = "starting" if epoch else "standing by"
        self._status = PendingAnswer()
        self._refusal = PendingAnswer()
        self._view = PendingAnswer()
        self._message_limiter = (
            None if principal is None else RateLimiter(_MESSAGE_BURST, _MESSAGES_PER_S)
        )
        limit = MAX_LINE_BYTES if principal is None else MAX_TENANT_LINE_BYTES
        self._channel = WorkerChannel(host_channel, limit, self._on_message, self._on_closed)

    def begin(self, epoch: int, history: History, *, holds: bool) -> None:
        """Makes a standby the worker of an epoch.

        Args:
            epoch: its generation.
            history: of earlier workers.
            holds: whether it waits for `open` before it accepts clients.
        """
        self.epoch = epoch
        self._started_at = time.monotonic()
        self._advance("begin")
        order = {"ask": "begin", "epoch": epoch, **history.to_message(), "holds": holds}
        self._channel.send(order)

    def open(self) -> None:
        """Lets a prepared worker accept clients."""
        self._channel.send({"ask": "open"})

    async def yield_to_successor(
        self, *, force: bool, is_followed: bool, is_last: bool = False
    ) -> str:
        """Asks it to drain in favour of the next one; the reason if it refuses, else empty.

        Args:
            force: also when arrays of clients are lost.
            is_followed: whether the next one is prepared.
            is_last: whether there is to be no next one: clients are told that the server stops.
        """
        order = {"ask": "give_way", "force": force, "is_followed": is_followed, "is_last": is_last}
        refusal = await self._refusal.ask(lambda: self._channel.send(order), _ANSWER_TIMEOUT_S)
        if not refusal.done():
            return "the worker does not answer"
        return "" if refusal.cancelled() else str(refusal.result())

    def _advance(self, event: Event) -> None:
        self.state = _NEXT.get((self.state, event), self.state)

    def _rest(self) -> None:
        """Both are known in either order: its last message may be read after its end."""
        if self.exited.is_set() and self.flags.resting.is_set():
            self._advance("rest")

    @property
    def was_ready(self) -> bool:
        """Whether it has reported that it is ready."""
        return self._ready_after_s is not None

    @property
    def lived_s(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self._started_at

    @property
    def ready_s(self) -> float:
        """Seconds since it reported that it is ready."""
        return 0.0 if self._ready_after_s is None else self.lived_s - self._ready_after_s

    @property
    def silent_s(self) -> float:
        """Seconds since its last message, or since its start."""
        return time.monotonic() - self._last_message_at

    @property
    def ending(self) -> dict[str, Any]:
        """How it ended, as fields of a log line: its exit code, or the name of the signal."""
        code = self._process.returncode
        if code is None or code >= 0:
            return {"exit_code": code}
        with suppress(ValueError):  # not every number has a name
            return {"signal": signal.Signals(-code).name}
        return {"signal": -code}

    @property
    def how(self) -> str:
        """How it ended, in words."""
        if self._verdict is not None:
            return self._verdict
        if self.was_out_of_memory:
            return "SIGKILL: the system had no memory left"
        ending = self.ending
        return str(ending.get("signal") or f"exit code {ending.get('exit_code')}")

    @property
    def was_out_of_memory(self) -> bool:
        """Whether the system ended it for want of memory, as far as it says."""
        is_killed = self._verdict is None and self.ending.get("signal") == "SIGKILL"
        return is_killed and self._was_out_of_memory is True

    def memory_loss(self, earlier: MemoryLoss | None) -> MemoryLoss | None:
        """What its values took at its last report; None when that is not known.

        Arrays on an accelerator are in no memory that the system lacks.

        Args:
            earlier: that of the workers before it.
        """
        seen = self.snapshot
        held = seen.get("value_bytes")
        if seen.get("platform") != "cpu" or not is_number(held):
            return earlier
        least = int(held) if earlier is None else min(int(held), earlier.held)
        match seen.get("heaviest"):
            case {"session": str(session), "principal": str(who), "nbytes": int(nbytes)} if (
                is_number(nbytes)
            ):
                return MemoryLoss(least, printable(session), printable(who), nbytes)
        return MemoryLoss(least)

    @property
    def was_killed_from_outside(self) -> bool:
        """Whether something else than its own code, the host or a lack of memory ended it."""
        if self._verdict is not None and not self._is_to_blame:
            return True
        is_killed = self._verdict is None and self.ending.get("signal") == "SIGKILL"
        return is_killed and self._was_out_of_memory is False

    def collect(self) -> None:
        """Collects the process if it has ended; to be called on every SIGCHLD."""
        if not self.exited.is_set() and self._process.poll() is not None:
            self._was_out_of_memory = self._oom_watch.has_counted()
            self.exited.set()
            self._advance("exit")
            self._rest()
            end_session(self.pid)  # its builders have process groups of their own
            if self.principal is not None:  # others may share the output of what they have started
                self._relay.end()

    def last_lines(self) -> list[str]:
        """The last lines of its output, once it has exited; waits up to a second for the copy."""
        return self._relay.last_lines()

    async def refresh(self, patience_s: float) -> bool:
        """Requests a new `snapshot`; False when there is none after `patience_s` seconds."""
        if self._channel.is_open:  # what the system says of one that has ended is not about it
            self._oom_watch.look()
        return await self._asked(self._status, {"ask": "status"}, patience_s) is not None

    async def _asked(
        self, pending: PendingAnswer, order: Mapping[str, Any], patience_s: float
    ) -> Any:
        """The answer to an order; None when there is none in time."""
        if not self._channel.is_open:
            return None
        answer = await pending.ask(lambda: self._channel.send(order), patience_s)
        return answer.result() if answer.done() and not answer.cancelled() else None

    async def see(self, sequence: int, source: str, patience_s: float) -> Mapping[str, Any] | None:
        """What it shows that is new, as it says; None when there is no answer in time.

        Args:
            sequence: of what was seen last.
            source: what that counts the changes of.
            patience_s: seconds to wait.
        """
        order = {"ask": "view", "since": sequence, "source": source}
        seen: Mapping[str, Any] | None = await self._asked(self._view, order, patience_s)
        return seen

    def drain(self) -> None:
        """Asks it to finish its running calls, to refuse new ones, and to exit."""
        self._advance("drain")
        self._channel.send({"ask": "drain"})

    def release(self, fingerprint: str) -> None:
        """Releases a function from its quarantine."""
        self._channel.send({"ask": "release", "fingerprint": fingerprint})

    def notify(self, order: Mapping[str, Any]) -> None:
        """Sends a message, such as the answer to one that `on_message` received."""
        self._channel.send(order)

    async def read_remaining(self) -> None:
        """Reads the messages that it sent before it ended; waits a second at most."""
        await self._channel.read_remaining()

    def kill(self, verdict: str | None = None, *, is_to_blame: bool = True) -> None:
        """Ends it at once, with all processes that it has started.

        Args:
            verdict: the reason, reported as the way it ended.
            is_to_blame: whether one of its calls may be the cause.
        """
        self._is_to_blame = is_to_blame
        self._verdict = self._verdict or verdict
        if not self.exited.is_set():
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Closes the channel; a worker that still runs exits then."""
        self._channel.close()

    def _on_message(self, message: Mapping[str, Any]) -> bool:
        """Handles a message; False: there are too many."""
        if self._kill_if_flooding(message):
            return False
        self._last_message_at = time.monotonic()
        self._handle(message)
        return True

    def _on_closed(self, why: ValueError | None) -> None:
        if why is not None:
            log_event("tether_unreadable", epoch=self.epoch, error=str(why))
        self._status.drop()
        self._refusal.drop()
        self._view.drop()

    def _kill_if_flooding(self, message: Mapping[str, Any]) -> bool:
        """Kills the worker of a principal when it sends too many unsolicited messages."""
        match message:
            case {"status": dict()} if self._status.is_open:
                return False
            case {"seen": dict()} if self._view.is_open:
                return False
        if self._message_limiter is None or self._message_limiter.acquire("") is not None:
            return False
        log_event("worker_says_too_much", pid=self.pid, principal=self.principal)
        self.kill("it never stopped talking to its host")
        return True

    def _set_flag(self, name: str, changes: Any) -> None:
        """Sets a flag that the worker has reported."""
        flag: asyncio.Event = vars(self.flags)[name]
        if flag.is_set():
            return
        flag.set()
        if flag in self.flags.draining:
            self._advance("drain")
        self._rest()
        log_event(_FLAGGED[name], pid=self.pid, epoch=self.epoch, changes=changes)
        if name == "gave_way":
            self._refusal.answered()

    def _handle(self, message: Mapping[str, Any]) -> None:
        match message:
            case {"event": "ready"} if not self.was_ready:
                self._ready_after_s = self.lived_s
                self._advance("ready")
                after_s = round(self.lived_s, 3)
                log_event(
                    _READY[self.what],
                    epoch=self.epoch,
                    after_s=after_s,
                    principal=self.principal,
                )
            case {"event": "draining"}:
                self._advance("drain")
            case {"event": "wants_renewal"}:
                self.wants_renewal.set()
            case {"event": str(name)} if name in vars(self.flags):
                self._set_flag(name, message.get("changes"))
            case {"event": "needed", "why": str(why)}:
                self._refusal.answered(why)
            case {"status": dict(status)}:
                self.snapshot = status if self.principal is None else _sanitized(status)
                self._status.answered()
            case {"seen": dict(seen)}:
                self._view.answered(seen)
            case _:
                self._pass_on(message)

    def _pass_on(self, message: Mapping[str, Any]) -> None:
        try:
            self.on_message(self, message)
        except Exception:  # noqa: BLE001  the next message is handled as well
            log_event("not_done", pid=self.pid)


def _sanitized(status: Mapping[str, Any]) -> dict[str, Any]:
    """A status that code of one principal may have written, with invalid values removed."""
    own = {name: status.get(name) for name in ("platform", "heaviest")}
    return {**sanitize_report(status), **own, "is_short": status.get("is_short") is True}


ANSWER_TIMEOUT_S: Final = 0.5
"""How long a worker may take to report its status before it counts as busy."""

_FINAL_READ_S: Final = 1.0


class WorkerChannel:
    """The host's end of the host channel of a worker. Belongs to the thread of the event loop.

    Args:
        host_channel: connected to the worker.
        limit: bytes of the longest line that is read.
        on_message: called with each message; reading ends when it returns False.
        on_closed: called once when reading ends, with the error if a line could not be parsed.
    """

    def __init__(
        self,
        host_channel: socket.socket,
        limit: int,
        on_message: Callable[[Mapping[str, Any]], bool],
        on_closed: Callable[[ValueError | None], None],
    ) -> None:
        self._on_message = on_message
        self._on_closed = on_closed
        self._unsent: list[bytes] = []
        self._writer: asyncio.StreamWriter | None = None
        self._listening = asyncio.create_task(self._listen(host_channel, limit))

    @property
    def is_open(self) -> bool:
        """Whether the worker can answer a message."""
        return self._writer is not None and not self._writer.is_closing()

    def send(self, order: Mapping[str, Any]) -> None:
        """Sends a message, as soon as the connection is open."""
        if self._writer is None:
            self._unsent.append(encode_line(order))
        else:
            self._writer.write(encode_line(order))

    async def read_remaining(self) -> None:
        """Reads the messages that the worker sent before it ended; waits a second at most."""
        await asyncio.wait([self._listening], timeout=_FINAL_READ_S)

    def close(self) -> None:
        """Closes the connection; a worker that still runs exits then."""
        self._listening.cancel()

    async def _listen(self, host_channel: socket.socket, limit: int) -> None:
        reader, writer = await asyncio.open_connection(sock=host_channel, limit=limit)
        self._writer = writer
        for line in self._unsent:  # sent before the connection was open
            writer.write(line)
        why = None
        try:
            async for message in messages(reader):
                if not self._on_message(message):
                    break  # a process that the worker has started may go on sending
        except ValueError as error:
            why = error
        finally:
            writer.close()
            self._on_closed(why)


class PendingAnswer:
    """A request that is sent once, however many callers wait for its answer.

    So a worker that hangs receives a single request when it continues.
    """

    def __init__(self) -> None:
        self._answer: asyncio.Future[Any] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the request has no answer yet."""
        return self._answer is not None

    async def ask(self, send: Callable[[], None], patience_s: float) -> asyncio.Future[Any]:
        """The answer, pending if it is not there after the timeout, cancelled if there is none.

        Args:
            send: sends the request, unless one is pending.
            patience_s: the timeout.
        """
        if self._answer is None:
            self._answer = asyncio.get_running_loop().create_future()
            send()
        answer = self._answer
        await asyncio.wait([answer], timeout=patience_s)
        return answer

    def answered(self, answer: Any = "") -> None:
        """Answers all callers; the next `ask` sends a new request."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)
        self._answer = None

    def drop(self) -> None:
        """Cancels the request of all callers, and later ones."""
        if self._answer is not None:
            self._answer.cancel()
