"""All that is broken during the soak, one thing after the other."""

from __future__ import annotations

import os
import random
import select
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from jaxd.connection.control_client import send_request
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import control_path
from jaxd_server.runtime.child_startup import request_stack_dump
from tests.end_to_end.counting import records
from tests.end_to_end.damage import DAMAGE
from tests.faults.proxy import Proxy
from tests.live_server import LiveServer
from tests.soak.crew import ENDS, SoakClient
from tests.soak.judging import Faults

_STACKS_S: Final = 2.0
"""In which a worker has written them."""


class FaultInjector:
    """Breaks one thing after the other, until it is stopped.

    Args:
        start: starts the server, at the same place each time.
        faults: is told what is going on.
        chance: decides.

    Attributes:
        server: the present one.
        proxies: by which some clients reach it, with the scheme that each is for.
        members: the clients.
        count: how often each kind of fault has happened.
        complaints: what did not go as it should have.
        asked_to_end: workers, by process.
        released: functions that were in quarantine: workers were killed while they ran alone.
    """

    def __init__(
        self,
        start: Callable[[], LiveServer],
        faults: Faults,
        chance: random.Random,
    ) -> None:
        self._start, self._faults, self._chance = start, faults, chance
        self.server = start()
        self.proxies = {
            "tcp": Proxy(_port(self.server.tcp)),
            "tls": Proxy(_port(self.server.tls.partition("#")[0])),
        }
        self.members: list[SoakClient] = []
        self.count: Counter[str] = Counter()
        self.complaints: list[str] = []
        self.released = 0
        self.asked_to_end: set[int] = set()
        self._stop = threading.Event()

    def address(self, scheme: str) -> str:
        """Of the server, for a client that goes that way."""
        if scheme == "unix":
            return self.server.unix
        fingerprint = self.server.tls.partition("#")[2]
        port = self.proxies[scheme].port
        return (
            f"tcp://127.0.0.1:{port}"
            if scheme == "tcp"
            else f"tls://127.0.0.1:{port}#{fingerprint}"
        )

    # one fault each --------------------------------------------------------------------------

    def worker_killed(self) -> None:
        """By one of the signals of which processes die."""
        number = self._chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSEGV])
        with self._going_on("worker killed"):
            self._end_worker(number)

    def worker_killed_again(self) -> None:
        """As soon as the next one is there."""
        with self._going_on("worker killed"):
            self._end_worker(signal.SIGKILL)
        with self._going_on("worker killed"):
            self._end_worker(signal.SIGKILL)

    def _end_worker(self, number: signal.Signals) -> None:
        pid, ready = self.server.worker_pid(), self._events("worker_ready")
        self.asked_to_end.add(pid)
        os.kill(pid, number)
        self.server.wait_for("worker_ready", ready + 1)

    def worker_stopped(self) -> None:
        """For a while; then it goes on."""
        pid = self.server.worker_pid()
        with self._going_on("worker stopped"), suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            self._stop.wait(self._chance.uniform(0.2, 4.0))
            os.kill(pid, signal.SIGCONT)

    def worker_replaced(self) -> None:
        """`jaxd restart`, which gives way to arrays and to long calls."""
        with self._going_on("restart"):
            said = self._control("restart")
        if "refused" in said:
            self.count["restart refused"] += 1

    def worker_replaced_by_force(self) -> None:
        """`jaxd restart --force`: arrays die, also what the old worker takes until it ends."""
        with self._going_on("restart forced"):
            pid = self.server.worker_pid()
            self.asked_to_end.add(pid)
            with _outlived(pid):
                said = self._control("restart", force=True)
        if "epoch" not in said:
            self.complaints.append(f"restart --force: {said}")

    def server_killed(self) -> None:
        """Host and worker; somebody starts it again."""
        with self._going_on("server killed"):
            self.server.process.kill()
            self.server.close()
            self.server = self._start()
            self.proxies["tcp"].upstream = _port(self.server.tcp)
            self.proxies["tls"].upstream = _port(self.server.tls.partition("#")[0])

    def builder_killed(self) -> None:
        """The process in which functions are traced, where there is one."""
        self._kill_child("builder killed", "builder_ready", self.server.worker_pid())

    def standby_killed(self) -> None:
        """The process that waits to be the next worker."""
        self._kill_child("standby killed", "worker_standing_by", self.server.process.pid)

    def _kill_child(self, what: str, event: str, parent: int) -> None:
        pid = next((one["pid"] for one in reversed(self.server.lines) if one["event"] == event), 0)
        if pid == self.server.worker_pid():
            return
        with suppress(OSError, IndexError):
            if int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) == parent:
                with self._going_on(what):
                    os.kill(pid, signal.SIGKILL)

    def connection_cut(self) -> None:
        """In the middle of what is sent."""
        proxy = self._chance.choice(list(self.proxies.values()))
        fault, way = self._chance.choice(["cut", "reset"]), self._chance.choice(["up", "down"])
        with self._going_on("connection cut"):
            proxy.strike(fault, way, self._chance.choice([0, 3, 40, 5_000, 200_000]))  # type: ignore[arg-type]
            proxy.struck.wait(5)
            proxy.heal()

    def connections_cut(self) -> None:
        """All that go through one of the proxies."""
        with self._going_on("connections cut"):
            self._chance.choice(list(self.proxies.values())).cut()

    def client_ended(self) -> None:
        """In one of the ways in which processes end; the next one takes its place."""
        member, how = self._chance.choice(self.members), self._chance.choice(list(ENDS))
        with self._going_on(f"client {how}"):
            member.end(how)
            member.start()

    def client_stopped(self) -> None:
        """For a while; then it goes on."""
        process = self._chance.choice(self.members).process
        with self._going_on("client stopped"):
            process.send_signal(signal.SIGSTOP)
            self._stop.wait(self._chance.uniform(0.2, 3.0))
            process.send_signal(signal.SIGCONT)

    def file_damaged(self) -> None:
        """One of what is kept on disk; the next worker will look."""
        files = records(self.server.directory)
        if files:
            with self._going_on("file damaged"), suppress(OSError, StopIteration, IndexError):
                self._chance.choice(DAMAGE)(self._chance.choice(files))

    # -----------------------------------------------------------------------------------------

    def go_on(self, seconds: float, kinds: dict[Callable[[], None], int], every_s: float) -> None:
        """Breaks these things for so long, with a pause of that length between two of them."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._stop.wait(min(self._chance.expovariate(1 / every_s), end - time.monotonic()))
            (kind,) = self._chance.choices(list(kinds), list(kinds.values()))
            kind()
            self._look()

    def _look(self) -> None:
        for member in self.members:
            member.poll()
        self.released += len(self._control("release", what="all")["released"])

    def everything(self) -> dict[Callable[[], None], int]:
        """What can be broken, and how often, compared with others."""
        return self.of_clients() | {
            self.worker_killed: 8,
            self.worker_killed_again: 1,
            self.worker_stopped: 4,
            self.worker_replaced: 4,
            self.worker_replaced_by_force: 2,
            self.server_killed: 1,
            self.builder_killed: 2,
            self.standby_killed: 2,
            self.file_damaged: 6,
        }

    def of_clients(self) -> dict[Callable[[], None], int]:
        """What harms clients and connections only: the worker goes on."""
        return {
            self.connection_cut: 6,
            self.connections_cut: 3,
            self.client_ended: 5,
            self.client_stopped: 2,
        }

    def _going_on(self, what: str) -> Any:
        self.count[what] += 1
        return self._faults.going_on(what, time.monotonic)

    def _events(self, event: str) -> int:
        return sum(line["event"] == event for line in list(self.server.lines))

    def _control(self, request: str, /, **more: Any) -> dict[str, Any]:
        path = control_path(Address.parse(self.server.unix))
        return send_request(path, {"ask": request, **more}, is_slow=True) or {}

    def doing(self) -> tuple[str, str]:
        """What the server does, and the stacks of its worker, for who looks why a client hangs."""
        server = self.server
        status, stacks = self._control("status"), len(server.raw)
        request_stack_dump(server.worker_pid())
        time.sleep(_STACKS_S)
        names = ("phase", "connections", "running_calls", "held_calls", "queued_calls")
        now = {name: status.get("worker", {}).get(name) for name in (*names, "queued_builds")}
        return (
            f"{status.get('worker_state')} {now}",
            f"{status}\n{''.join(server.raw[max(0, stacks - 30) :])}",
        )

    def close(self) -> None:
        """Ends the server and the proxies."""
        for proxy in self.proxies.values():
            proxy.close()
        code = self.server.close()
        if code:
            self.complaints.append(
                f"the server ended with {code}:\n{''.join(self.server.raw[-50:])}"
            )


@contextmanager
def _outlived(pid: int) -> Iterator[None]:
    """Leaves the block when a process has ended, or after a minute."""
    watched = os.pidfd_open(pid)
    try:
        yield
        select.select([watched], [], [], 60)
    finally:
        os.close(watched)


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
