"""A member of a pool: a whole jaxd server as a child of this process, and what can be seen of it.

`python -m jaxd_server.pool.member_server PID …` is that child: `jaxd serve` with these arguments,
which ends when the process of that number does. Imports no jax.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from jaxd_protocol.base.process import machine_id
from jaxd_protocol.errors import ConfigurationError, JaxdError, ProtocolError
from jaxd_protocol.messages.pool_view import (
    LOAD_EVERY_S,
    SPREAD_DIGITS,
    is_load_news,
    may_be_told,
)
from jaxd_protocol.messages.server_view import ServerView
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.certificates import certificate_of, fingerprint_of
from jaxd_protocol.network.local_server import (
    PoolFiles,
    control_path,
    make_private_directory,
)
from jaxd_protocol.network.pool_routing import SPREAD_EVERY_S, FunctionLoads
from jaxd_server.auth.tls_setup import prepare_own_certificate
from jaxd_server.cache.peers import Members, dial
from jaxd_server.cache.record_file import write_file
from jaxd_server.pool.members import MemberReport, MemberTable, busy_rows
from jaxd_server.pool.settings import MemberSettings, PoolSettings
from jaxd_server.runtime.child_startup import die_with_the_parent
from jaxd_server.runtime.json_lines import MAX_LINE_BYTES

_LOOK_S: Final = 0.1
_MOST_WARM: Final = 64
"""Of so many functions the keys are reported, those used last."""

REPORT_S: Final = 0.5
"""After so long a member reports, also where nothing has changed."""

_GRACE_S: Final = 20.0
_CONTROL_S: Final = 10.0
"""For so long the host of a server may take to answer: it asks its worker, which may be busy."""

_NOT_NOW: Final[Mapping[str, Any]] = {"refused": "its host does not answer"}
_PROBE_S: Final = 1.0
_LOG: Final = "server.log"
_TAIL_BYTES: Final = 2000
_PEERS: Final = "members.json"

_SERVES: Final = frozenset({"ready", "busy", "resting"})
"""The states of a worker in which calls can be made."""

_PLATFORMS: Final = {"cpu": "cpu", "gpu": "cuda,cpu", "tpu": "tpu,cpu"}


class ServerWatch:
    """What the host of a server on this machine shows of it, as it changes. Thread-safe.

    Args:
        control: the control socket of the host.
    """

    def __init__(self, control: str) -> None:
        self._control = control
        self._view: ServerView | None = None
        self._last = ServerView()
        self._is_closed = False
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="jaxd-watch", daemon=True).start()

    @property
    def view(self) -> ServerView | None:
        """The server as it was seen last; None while nothing answers."""
        return self._view

    @property
    def last_view(self) -> ServerView:
        """As it was seen last, also while nothing answers: clients may have all of that still."""
        return self._last

    def wait_for_load(self, known: int, most_s: float) -> None:
        """Returns when the load is other than one by enough, or after so long.

        Args:
            known: that one; below zero: nothing is waited for.
            most_s: seconds.
        """
        if known >= 0 and most_s > 0.0:
            with self._changed:
                self._changed.wait_for(lambda: is_load_news(known, load_of(self._view)), most_s)

    def close(self) -> None:
        """Watches no longer."""
        self._is_closed = True

    def _run(self) -> None:
        while not self._is_closed:
            with suppress(OSError, ValueError, ProtocolError):
                self._follow()
            self._view = None
            time.sleep(_LOOK_S)

    def _follow(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.connect(self._control)
            sock.sendall(json.dumps({"ask": "watch", "every_s": LOAD_EVERY_S}).encode() + b"\n")
            with sock.makefile("rb") as lines:
                while not self._is_closed and (line := lines.readline(MAX_LINE_BYTES)):
                    said = json.loads(line)
                    before = self._view or ServerView()
                    fresh = ServerView() if "view" in said else before
                    self._last = self._view = fresh.patched(
                        said.get("view") or said.get("change") or {}
                    )
                    with self._changed:
                        self._changed.notify_all()


def load_of(view: ServerView | None) -> int:
    """The calls that a server has open: those that run, and those that wait."""
    if view is None:
        return 0
    waiting = sum(row.length for name, row in view.queues.items() if name != "builds")
    calls = view.queues.get("calls")
    return waiting + (calls.running if calls else 0)


def _use_of(view: ServerView) -> dict[str, Any]:
    """What clients have and do on a server."""
    return {
        "load": load_of(view),
        "values": sum(row.count for row in view.values.values()),
        "value_bytes": sum(row.nbytes for row in view.values.values()),
        "named": sum(row.count for row in view.values.values() if row.kind == "name"),
        "sessions": len(view.sessions),
    }


class BusyFunctions:
    """Which functions of a server have its calls open. Thread-safe.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._loads = FunctionLoads()
        self._at = clock()
        self._found: Mapping[str, Any] = {}
        self._lock = threading.Lock()  # guards these three

    def of(self, view: ServerView) -> Mapping[str, Any]:
        """The fields of a report; as they were a second ago at most."""
        with self._lock:
            now = self._clock()
            if now - self._at >= SPREAD_EVERY_S:
                self._at = now
                totals = {key: (row.hits, row.run_s) for key, row in view.functions.items()}
                self._found = busy_rows(self._loads.update(now, totals))
            return self._found


def report_of(view: ServerView | None, last: ServerView, **known: Any) -> MemberReport:
    """What a server reports, from what is seen of it.

    Args:
        view: of its host; None: it does not answer.
        last: the last one that there was.
        known: the other fields of the report.
    """
    if view is None:
        return MemberReport(**known, **_use_of(last))
    states = {each.state: each.why for each in view.workers.values()}
    broken = states.get("broken", "")
    state = "ready" if _SERVES & states.keys() else "lost" if "broken" in states else "starting"
    used = sorted(view.functions.items(), key=lambda item: -item[1].last_use)
    warm = [key[:SPREAD_DIGITS] for key, row in used if row.programs][:_MOST_WARM]
    found: dict[str, Any] = {
        "state": state,
        "why": broken or ("the worker does not answer" if "stuck" in states else ""),
        "devices": len(view.devices) or known.get("devices", 0),
        "warm": tuple(warm),
        **_use_of(view),
    }
    return MemberReport(**{**known, **found})


class MemberServer:
    """The server of a member, started at once as a child of this process.

    Args:
        pool: the name of the pool.
        name: of the member.
        settings: how it is started.
        node: the address of this machine for others.
        key: the secret of the pool.
    """

    def __init__(self, pool: str, name: str, settings: MemberSettings, node: str, key: str) -> None:
        directory = make_private_directory(PoolFiles.of(pool).directory)
        self.folder = make_private_directory(os.path.join(directory, name))
        self._name = name
        self._peers_file = os.path.join(self.folder, _PEERS)
        self._settings = settings
        self._node = node
        self._key = key
        self._unix = Address.unix(os.path.join(self.folder, "server.sock"))
        self._process: subprocess.Popen[bytes] | None = None
        self._started = threading.Event()
        self.ended = threading.Event()
        # the thread that starts a process counts as its parent: this one waits for its end
        threading.Thread(target=self._run, name="jaxd-member", daemon=True).start()
        self._watch = ServerWatch(control_path(self._unix))
        self._busy = BusyFunctions()

    def report(self) -> MemberReport:
        """What it is now."""
        view = self._watch.view
        known: dict[str, Any] = {
            "machine": machine_id() or "",
            "node": platform.node(),
            "devices": self._settings.devices,
            "version": self._settings.version,
        }
        if self.ended.is_set():
            return MemberReport(state="lost", why=f"its server has ended: {self._last_words()}")
        listen = () if view is None else view.server.listen
        known |= {} if view is None else self._busy.of(view)
        addresses = tuple(map(self._for_clients, filter(may_be_told, listen)))
        return report_of(view, self._watch.last_view, addresses=addresses, **known)

    def wait_for_load(self, known: int, most_s: float) -> None:
        """As of its `ServerWatch`."""
        self._watch.wait_for_load(known, most_s)

    def stop(self, *, loses_values: bool = True) -> bool:
        """Ends the server, its calls are finished first, for a while; whether it has ended.

        Args:
            loses_values: also where clients have arrays there. Else the server looks when it takes
                no more of them, and goes on if there are any.
        """
        self._started.wait()
        process = self._process
        if process is not None and process.poll() is None:
            said = {} if loses_values else self._asked_to_stop()
            if "refused" in said:
                return False
            if "stopping" not in said:  # also where no host answers: it has no clients
                process.send_signal(signal.SIGTERM)
            if not self.ended.wait(_GRACE_S):
                process.kill()
        self.ended.wait()
        self._watch.close()
        return True

    def _asked_to_stop(self) -> Mapping[str, Any]:
        """What the server's host answers that is to stop if clients have no arrays there."""
        with suppress(OSError, ValueError), socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(_CONTROL_S)
            sock.connect(control_path(self._unix))
            sock.sendall(json.dumps({"ask": "stop", "loses_values": False}).encode() + b"\n")
            try:
                said: Mapping[str, Any] = json.loads(sock.makefile("rb").readline(MAX_LINE_BYTES))
            except TimeoutError:
                return _NOT_NOW
            return said
        return _NOT_NOW if self.report().values else {}

    def _run(self) -> None:
        try:
            log = os.open(
                os.path.join(self.folder, _LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
            )
            try:
                self._process = subprocess.Popen(  # noqa: S603  our own server, without a shell
                    self._command(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._environment(),
                    start_new_session=True,
                )
            finally:
                os.close(log)
                self._started.set()
            self._process.wait()
        finally:
            self.ended.set()

    def _command(self) -> list[str]:
        settings = self._settings
        start = [settings.python or sys.executable, "-P", "-m", __name__, str(os.getpid())]
        port = _free_port(self._node, settings)
        listen = [str(self._unix), str(Address.tls(self._node, port))]
        addresses = [word for each in listen for word in ("--listen", each)]
        store = ["--store", settings.store or "none"]
        peers = [] if _SEPARATE in settings.arguments else ["--peers", self._peers_file]
        return [*start, *addresses, *store, *peers, *settings.arguments]

    def know(self, addresses: Mapping[str, Sequence[str]]) -> bool:
        """Has the server know the members of the pool, by name with their addresses.

        Returns:
            whether that could be written; if not, it goes on with those that it knows.
        """
        text = Members(self._name, {k: tuple(v) for k, v in addresses.items()}).to_text()
        with suppress(OSError):
            write_file(self._peers_file, (text.encode(),))
            return True
        return False

    def _environment(self) -> dict[str, str]:
        settings = self._settings
        inherited = {n: v for n, v in os.environ.items() if n not in _NOT_INHERITED}
        own = {"JAX_PLATFORMS": _PLATFORMS[settings.platform]}
        if settings.platform == "cpu" and settings.devices > 1:
            count = f"--xla_force_host_platform_device_count={settings.devices}"
            own["XLA_FLAGS"] = f"{inherited.get('XLA_FLAGS', '')} {count}".strip()
        if not inherited.keys() & {"JAXD_STORE_KEY", "JAXD_STORE_KEY_FILE"}:
            own["JAXD_STORE_KEY"] = store_key(self._key)
        return inherited | own | dict(settings.environment)

    def _for_clients(self, listening: str) -> str:
        address = Address.parse(listening)
        is_pinned = address.kind == "tls" and "--tls-cert" not in self._settings.arguments
        if is_pinned:
            pin = fingerprint_of(certificate_of(prepare_own_certificate()))
            address = address._replace(pin=pin)
        return str(address)

    def _last_words(self) -> str:
        with suppress(OSError), open(os.path.join(self.folder, _LOG), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()
            return lines[-1] if lines else "it has said nothing"
        return "its log cannot be read"


_SEPARATE: Final = "--worker-per-principal"
"""Workers of several principals share nothing, also not with those of another member."""

_NOT_INHERITED: Final = frozenset(
    {"JAXD_SERVER", "JAXD_STORE", "JAXD_STORE_READ_ONLY"}
    | {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}  # code of clients runs there
)


def store_key(key: str) -> str:
    """The key that the members of a pool sign programs with in their store."""
    return hashlib.blake2b(key.encode(), digest_size=32, person=b"jaxd pool store").hexdigest()


def _free_port(host: str, settings: MemberSettings) -> int:
    """One of the ports that the member may have; 0: any.

    Raises:
        ProtocolError: when none is free.
    """
    first, last = settings.ports
    for port in range(first, last + 1) if first else ():
        with suppress(OSError), socket.create_server((host, port)):
            return port
    if first:
        raise ProtocolError(
            f"the ports {first} to {last} are taken. Give more of them in pool.toml."
        )
    return 0


class StaticServer:
    """A server that somebody else has started, as a member of a pool without Ray.

    Args:
        addresses: of it.
        token: with which others than its own user connect.
    """

    def __init__(self, addresses: Sequence[str], token: str | None) -> None:
        self._addresses = tuple(addresses)
        self._token = token
        unix = [each for each in map(Address.parse, addresses) if each.kind == "unix"]
        here = unix and os.path.exists(unix[0].path)
        self._watch = ServerWatch(control_path(unix[0])) if here else None
        self._busy = BusyFunctions()

    def wait_for_load(self, known: int, most_s: float) -> None:
        """Returns when its load is other than one by enough, or after so long."""
        time.sleep(LOAD_EVERY_S)
        if self._watch is None:
            time.sleep(max(0.0, most_s - LOAD_EVERY_S))
        else:
            self._watch.wait_for_load(known, most_s - LOAD_EVERY_S)

    def report(self) -> MemberReport:
        """What it is now.

        Raises:
            JaxdError, OSError: when it does not answer.
        """
        known: dict[str, Any] = {"addresses": self._addresses}
        if self._watch is None:
            line, welcome = dial(self._tls(), self._token, _PROBE_S)
            line.close()
            instance = f"{welcome.get('epoch')}/{welcome.get('pid')}"
            host = self._tls().host
            return MemberReport(instance=instance, state="ready", node=host, **known)
        view = self._watch.view
        if view is None:
            raise ProtocolError("its host does not answer. Start the server, or look at its log.")
        return report_of(
            view,
            view,
            instance=f"{view.server.pid}/{view.server.since}",
            machine=machine_id() or "",
            node=platform.node(),
            version=view.server.version,
            **self._busy.of(view),
            **known,
        )

    def _tls(self) -> Address:
        found = [each for each in map(Address.parse, self._addresses) if each.kind == "tls"]
        if not found:
            raise ProtocolError(
                "it has no tls:// address, and its socket is not here. Add one in pool.toml."
            )
        return found[0]


class StaticPool:
    """Watches servers that somebody else has started, as members.

    Args:
        settings: of the pool, with its members.
        table: what clients see of them.
        token: with which servers on other machines are asked.
    """

    def __init__(self, settings: PoolSettings, table: MemberTable, token: str | None) -> None:
        self._settings = settings
        self._table = table
        self._lock = threading.Lock()  # guards what is kept
        self._kept_in = os.path.join(settings.files.directory, _STATIC_STATE)
        self._kept: Mapping[str, Any] = {}
        with suppress(OSError, ValueError, KeyError, TypeError), open(self._kept_in) as file:
            table.restore(json.load(file))
        for name in [each.member.name for each in table.entries()]:
            if name not in settings.static:
                table.remove(name)
        known = {each.member.name for each in table.entries()}
        for name, addresses in settings.static.items():
            if name not in known:
                table.expect(name, "")
            server = StaticServer(addresses, token)
            threading.Thread(
                target=self._watch, args=(name, server), name="jaxd-member", daemon=True
            ).start()

    def _watch(self, name: str, server: StaticServer) -> None:
        while True:
            server.wait_for_load(self._table.entry(name).report.load, REPORT_S)
            try:
                self._table.hear(name, server.report())
            except (JaxdError, OSError) as error:
                self._table.miss(name, str(error))
            self._keep()

    def _keep(self) -> None:
        """Writes what the next director has to know: epochs, and whose they are."""
        with self._lock, suppress(OSError):
            now = self._table.to_kept()
            if now != self._kept:
                write_file(self._kept_in, (json.dumps(now).encode(),))
                self._kept = now

    def obey(self, order: str, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Only the status can be asked for.

        Raises:
            ConfigurationError: for any other order.
        """
        if order != "status":
            raise ConfigurationError(
                "the members of this pool are servers that somebody else has started: change "
                "pool.toml and run `jaxd pool up` again, and stop servers where they run."
            )
        members = [each.to_status() for each in self._table.entries()]
        head = {"pool": self._settings.name, "epoch": 1, "pid": os.getpid()}
        return {**head, "wanted": len(members), "version": "", "members": members}


_STATIC_STATE: Final = "static.json"
"""What the director of a pool without Ray leaves for the next one."""


def main(words: Sequence[str]) -> int:
    """Serves until it is stopped, or the parent ends; the exit code."""
    die_with_the_parent()
    parent, *arguments = words
    if os.getppid() != int(parent):  # it has ended meanwhile
        return 1
    from jaxd_server.__main__ import main as serve

    return serve(arguments)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except JaxdError as error:
        sys.stderr.write(f"jaxd: {error}\n")
        sys.exit(1)
