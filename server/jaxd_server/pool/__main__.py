"""`python -m jaxd_server.pool`: the director of a pool, which keeps as many members as are wanted.

What `jaxd pool up` becomes. Members go on when it ends; the next one takes them over.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from jaxd_protocol.base.terminal import Parser
from jaxd_protocol.errors import (
    AuthenticationFailed,
    ConfigurationError,
    JaxdError,
    ProtocolError,
    ServerDraining,
)
from jaxd_protocol.messages.pool_view import LOAD_EVERY_S
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import make_private_directory
from jaxd_protocol.network.tokens import Seal
from jaxd_server.auth.listen_policy import check_trust
from jaxd_server.auth.listeners import Listener, open_listeners
from jaxd_server.auth.tls_setup import connection_hints, ready_for_tls
from jaxd_server.config.options import ServerOptions, parse_arguments
from jaxd_server.pool import ray_cluster
from jaxd_server.pool.director import Director
from jaxd_server.pool.member_server import StaticPool
from jaxd_server.pool.members import (
    DirectorEnd,
    LoadScaling,
    MemberEntry,
    MemberTable,
    Order,
    peers_digest,
)
from jaxd_server.pool.settings import PoolSettings, read_pool_key, read_settings
from jaxd_server.runtime import logs
from jaxd_server.runtime.logs import log_event

TICK_S: Final = 0.5
"""Between two questions to a member."""

_MOST_ASKED: Final = 200
"""So many members are asked at a time, those that were silent for longest first, ten times a
second: with more, each is asked less often."""

_STUCK_S: Final = 6.0
"""A question without an answer for so long is asked anew."""

_EMPTY_S: Final = 2.0
"""A member that is drained ends once it has been empty for so long."""

_GONE_S: Final = 10.0
"""A member that is drained and lost is given up then; one that cannot start is started again."""

_LOOK_S: Final = 0.1
_HAND_OVER_S: Final = 20.0
"""For so long a director waits for the end of the one before it."""

_KEEP_S: Final = 5.0
"""The state is kept again after so long: what keeps it may have been started again."""

_TOLD_S: Final = 5.0
"""For so long a director whose pool has ended stays, so that somebody may ask for that."""

_STOP_S: Final = 40.0
"""A server that has not ended so long after it was told to is killed."""


@dataclass(slots=True, eq=False)
class _Sent:
    """A message to a member.

    Attributes:
        ref: of the answer.
        nonce: what the report has to cover.
        at: when it was sent.
    """

    ref: Any
    nonce: str
    at: float


class Pool:
    """Keeps as many members as are wanted, and knows how they are. `step` belongs to one thread.

    Args:
        settings: of the pool.
        members: the members in the cluster.
        table: what clients see of them.
        seal: with the pool's key.
    """

    def __init__(
        self,
        settings: PoolSettings,
        members: ray_cluster.RayMembers,
        table: MemberTable,
        seal: Seal,
    ) -> None:
        self._settings = settings
        self._members = members
        self._table = table
        self._seal = seal
        self._end = DirectorEnd(seal)
        self._sent: dict[str, _Sent] = {}
        self._stopping: set[str] = set()
        self._not_ended: set[str] = set()  # of these, those whose actors Ray has not ended
        self._empty_since: dict[str, float] = {}
        self._failing_since: dict[str, float] = {}  # of those that have never reported
        self._lock = threading.RLock()  # guards what follows, which orders change
        self._count = settings.members.count
        self._scaling = LoadScaling(settings.scaling, settings.members)
        self._next = 1
        self._forced: set[str] = set()  # those that are not waited for
        self._may_lose: set[str] = set()  # and those whose arrays are given up
        self._kept: Mapping[str, Any] = {}
        self._kept_at = 0.0
        self._peers: Mapping[str, Sequence[str]] = {}  # as they were when members were asked last
        self._peers_digest = ""
        self.is_ending = False
        self.epoch, sealed = members.take_over()
        if sealed:
            self._restore(seal.open(f"state of {settings.name}", sealed))

    @property
    def is_over(self) -> bool:
        """Whether it was to end, and no member is left."""
        return self.is_ending and not self._table.entries()

    # one director after the other ----------------------------------------------------------------

    def _restore(self, kept: Mapping[str, Any]) -> None:
        self._next = kept["next"]
        if kept["count_in_file"] == self._settings.members.count:
            self._count = kept["count"]  # as it was scaled since
        self._table.restore(kept["table"])
        log_event("pool_taken_over", epoch=self.epoch, members=len(self._table.entries()))

    def _keep(self) -> None:
        """Has what has changed kept.

        Raises:
            ServerDraining: when another director has taken over.
        """
        with self._lock:
            now = {
                "table": self._table.to_kept(),
                "count": self._count,
                "count_in_file": self._settings.members.count,
                "next": self._next,
            }
        is_due = time.monotonic() - self._kept_at > _KEEP_S
        if now != self._kept or is_due:
            sealed = self._seal.seal(f"state of {self._settings.name}", now)
            self._members.keep(self.epoch, sealed)
            self._kept, self._kept_at = now, time.monotonic()
        if self._members.is_replaced():
            raise ServerDraining(
                "another director has taken this pool over. See `jaxd pool status`."
            )

    # keeping members -----------------------------------------------------------------------------

    def step(self) -> None:
        """Starts, asks and ends members; takes half a second.

        Raises:
            ServerDraining: when another director has taken over.
        """
        with self._lock:
            self._scale_by_load()
            self._start_missing()
            self._drain_old_versions()
            ending = [each.member.name for each in self._table.entries() if self._is_done(each)]
        for name in ending:
            self._stop(name)
        for name in self._not_ended.copy():
            self._end_actor(name)
        self._keep()
        self._peers = self._table.peers()
        self._peers_digest = peers_digest(self._peers)
        until = time.monotonic() + TICK_S
        while time.monotonic() < until:
            self._ask_all()
            self._collect(min(LOAD_EVERY_S, TICK_S))
        self._table.check_silence(self._stopping)

    def _current(self) -> list[MemberEntry]:
        """The members that are not to be left, of the present version."""
        label = self._settings.members.version
        return [e for e in self._table.entries() if e.label == label and not e.is_draining]

    def _scale_by_load(self) -> None:
        """Wants more members, or fewer, as the load asks for; one with arrays does not go."""
        current = self._current()
        ready = [each for each in current if each.member.state == "ready"]
        if self.is_ending or not ready:
            self._scaling.restart()
            return
        load = sum(each.report.load for each in ready)
        devices = sum(max(1, each.member.devices) for each in ready) * self._count / len(ready)
        is_starting = any(each.member.state == "starting" for each in current)
        wanted = self._scaling.wanted(self._count, load, devices, is_starting=is_starting)
        if wanted < self._count:
            free = [each for each in current if not each.may_hold_values]
            if not free:
                self._scaling.keep(", ".join(each.held for each in current))
                return
            self._table.drain(min(free, key=_by_use).member.name)
        if wanted != self._count:
            log_event("pool_scaled", members=self._count, wanted=wanted, load=load)
            self._count = wanted

    def _start_missing(self) -> None:
        if self.is_ending:
            return
        for _ in range(self._count - len(self._current())):
            name = f"m{self._next}"
            self._next += 1
            self._table.expect(name, self._settings.members.version)
            self._members.start(name, self._settings.members)
            log_event("pool_member_started", member=name)

    def _drain_old_versions(self) -> None:
        """Leaves as many members of another version as there are ready ones in their place."""
        current = self._current()
        names = {each.member.name for each in current}
        entries = self._table.entries()
        old = [e for e in entries if e.member.name not in names and not e.is_draining]
        ready = sum(each.member.state == "ready" for each in current)
        for each in old[: max(0, ready + len(old) - self._count)]:
            self._table.drain(each.member.name)

    def _is_done(self, entry: MemberEntry) -> bool:
        """Whether a member that is drained can end."""
        name, now = entry.member.name, time.monotonic()
        if not entry.is_draining or name in self._stopping:
            return False
        state = entry.member.state
        is_busy = state != "lost" and entry.report.load > 0
        is_empty = not (entry.may_hold_values or is_busy)
        since = self._empty_since.setdefault(name, now) if is_empty else now
        if not is_empty:
            self._empty_since.pop(name, None)
        patience = _GONE_S if state == "lost" else _EMPTY_S
        return name in self._forced or not entry.heard_at or now - since > patience

    def _stop(self, name: str) -> None:
        """Ends a member's server; its actor follows when that is done."""
        self._stopping.add(name)
        self._sent.pop(name, None)
        entry = self._table.entry(name)
        if entry.heard_at and entry.member.state != "lost":
            self._send(name, "stop")
        else:
            self._end_actor(name)

    def _end_actor(self, name: str) -> None:
        """Ends it for good; where Ray does not, it stays in the table, and it is tried again."""
        self._sent.pop(name, None)
        refusal = self._members.kill(name)
        if refusal:
            if name not in self._not_ended:
                log_event("pool_member_not_ended", member=name, reason=refusal)
            self._not_ended.add(name)
            self._table.miss(name, f"Ray does not end it: {refusal}")
            return
        self._not_ended.discard(name)
        self._stopping.discard(name)
        self._empty_since.pop(name, None)
        self._table.remove(name)

    # asking members ------------------------------------------------------------------------------

    def _ask_all(self) -> None:
        now, room = time.monotonic(), _MOST_ASKED
        for entry in sorted(self._table.entries(), key=lambda each: each.heard_at):
            name = entry.member.name
            sent = self._sent.get(name)
            waits_s = 0.0 if sent is None else now - sent.at
            if name in self._stopping:
                if waits_s > _STOP_S:
                    self._end_actor(name)
            elif room and (sent is None or (entry.heard_at and waits_s > _STUCK_S)):
                room -= 1
                self._send(name, "report")

    def _send(self, name: str, order: Order) -> None:
        said = self._table.entry(name).report
        is_old = order == "report" and bool(said.instance) and said.knows != self._peers_digest
        peers = self._peers if is_old else None
        news = {"load": said.load, "wait_s": TICK_S} if said.state == "ready" else {}
        if order == "stop":
            news = {"loses_values": name in self._may_lose}
        message, nonce = self._end.ask(name, order, said.instance, peers, **news)
        try:
            ref = self._members.send(name, message)
        except LookupError:
            self._table.miss(name, "Ray knows no such actor")
            self._end_actor(name)
            return
        self._sent[name] = _Sent(ref, nonce, time.monotonic())

    def _collect(self, timeout_s: float) -> None:
        """Reads the answers that come within the time, all of which it takes."""
        until = time.monotonic() + timeout_s
        while (left_s := until - time.monotonic()) > 0:
            refs = {name: each.ref for name, each in self._sent.items()}
            for name, answer in self._members.collect(refs, left_s).items():
                self._on_answer(name, self._sent.pop(name), answer)

    def _on_answer(self, name: str, sent: _Sent, answer: bytes | str) -> None:
        if name in self._stopping and not self._has_gone_on(name, sent, answer):
            self._end_actor(name)
            return
        if isinstance(answer, str):
            self._on_failure(name, answer)
            return
        self._failing_since.pop(name, None)
        try:
            self._table.hear(name, self._end.read(name, sent.nonce, answer))
        except (AuthenticationFailed, ProtocolError) as error:
            log_event("pool_message_refused", member=name, reason=str(error))
            self._table.miss(name, str(error))

    def _has_gone_on(self, name: str, sent: _Sent, answer: bytes | str) -> bool:
        """Whether a member has not stopped, as a client got arrays there just before."""
        with suppress(AuthenticationFailed, ProtocolError):
            if isinstance(answer, bytes) and self._end.read(name, sent.nonce, answer).goes_on:
                self._stopping.discard(name)
                self._empty_since.pop(name, None)
                return True
        return False

    def _on_failure(self, name: str, why: str) -> None:
        """A member did not answer; one that cannot even start, Ray does not start again."""
        self._table.miss(name, why)
        entry, now = self._table.entry(name), time.monotonic()
        if entry.heard_at or entry.label != self._settings.members.version:
            return
        if now - self._failing_since.setdefault(name, now) > _GONE_S:
            del self._failing_since[name]
            self._members.kill(name)
            self._members.start(name, self._settings.members)

    # orders --------------------------------------------------------------------------------------

    def obey(self, order: str, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Does what `jaxd pool` orders; the answer.

        Raises:
            ConfigurationError: when it cannot be done, or values would be lost.
        """
        orders: dict[str, Callable[[Mapping[str, Any]], None]] = {
            "status": lambda _: None,
            "scale": self._scale,
            "drain": self._drain,
            "down": self._down,
        }
        if order not in orders:
            raise ConfigurationError(f"a pool does not know the order {order!r}. See jaxd pool -h.")
        with self._lock:
            orders[order](content)
            return self.status()

    def status(self) -> dict[str, Any]:
        """For `jaxd pool status`."""
        members = [each.to_status() for each in self._table.entries()]
        settings = self._settings.members
        return {
            "pool": self._settings.name,
            "epoch": self.epoch,
            "pid": os.getpid(),
            "wanted": 0 if self.is_ending else self._count,
            "version": settings.version,
            "members": members,
        }

    def _scale(self, content: Mapping[str, Any]) -> None:
        count, settings = content["count"], self._settings.members
        if type(count) is not int or not settings.least <= count <= settings.most:
            raise ConfigurationError(
                f"this pool may have {settings.least} to {settings.most} members, and not {count}. "
                "Change min or max in its pool.toml, and run `jaxd pool up` again."
            )
        surplus = len(self._current()) - count
        leaving = sorted(self._current(), key=_by_loss)[: max(0, surplus)]
        self._leave(leaving, force=content.get("force") is True)
        self._count = count

    def _drain(self, content: Mapping[str, Any]) -> None:
        entry = self._table.entry(str(content["name"]))
        self._table.drain(entry.member.name)
        if content.get("force") is True:
            self._give_up(entry)

    def _down(self, content: Mapping[str, Any]) -> None:
        self._leave(self._table.entries(), force=content.get("force") is True)
        self.is_ending = True
        self._forced |= {each.member.name for each in self._table.entries()}

    def _leave(self, leaving: Sequence[MemberEntry], *, force: bool) -> None:
        """Drains members that are to end for good, unless values would be lost with them.

        Raises:
            ConfigurationError: when they would, and that is not accepted.
        """
        holding = [each for each in leaving if each.may_hold_values]
        if holding and not force:
            held = ", ".join(each.held for each in holding)
            raise ConfigurationError(
                f"arrays of clients would be lost with {held}. Drain these first (jaxd pool drain "
                "NAME), so that clients move them, or accept the loss with --force."
            )
        for each in leaving:
            self._table.drain(each.member.name)
            if force:
                self._give_up(each)

    def _give_up(self, entry: MemberEntry) -> None:
        """A member ends with whatever clients have there."""
        self._forced.add(entry.member.name)
        self._may_lose.add(entry.member.name)


def _by_use(entry: MemberEntry) -> tuple[bool, int]:
    """Sorts members by how much they do; first those that do not serve yet, or no more."""
    return entry.member.state == "ready", entry.report.load


def _by_loss(entry: MemberEntry) -> tuple[Any, ...]:
    """Sorts members by what would be lost with them, the least first: arrays, then programs."""
    said = entry.report
    return entry.may_hold_values, said.value_bytes, *_by_use(entry), len(said.warm)


# the process --------------------------------------------------------------------------------------


@contextmanager
def _only_director(settings: PoolSettings) -> Iterator[None]:
    """Within it, this is the only director of the pool here; one that ends is waited for.

    Raises:
        ConfigurationError: when there is another one, and it does not end.
    """
    folder = make_private_directory(settings.files.directory)
    descriptor = os.open(os.path.join(folder, "lock"), os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        until = time.monotonic() + _HAND_OVER_S
        while not _is_locked(descriptor):
            if time.monotonic() > until:
                raise ConfigurationError(
                    f"the director of the pool {settings.name} runs already on this machine. See "
                    f"`jaxd pool status --pool {settings.name}`."
                )
            time.sleep(_LOOK_S)
        yield
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    """Whether this process has the lock now."""
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _options(settings: PoolSettings) -> ServerOptions:
    unix = Address.unix(settings.files.socket)
    words = ["--listen", str(unix), "--listen", str(settings.listen)]
    words += ["--advertise", settings.advertise] if settings.advertise else []
    options = ready_for_tls(parse_arguments(words))
    check_trust(options)
    return options


def client_hints(options: ServerOptions, listeners: Sequence[Listener]) -> list[str]:
    """The commands that configure clients of a pool."""
    lines = connection_hints(options, listeners)
    return [line.replace("tls://", "pool://", 1) for line in lines if "tls://" in line]


def _serve(settings: PoolSettings, stopped: threading.Event) -> None:
    """Serves until it is stopped, or the pool has ended."""
    options = _options(settings)
    table = MemberTable(settings.name)
    with ExitStack() as stack:
        pool: Pool | StaticPool
        if settings.static:
            pool, epoch = StaticPool(settings, table, options.read_token()), 1
        else:
            members = ray_cluster.RayMembers(settings, _cluster_address(settings))
            stack.callback(members.close)
            _stop_on_signals(stopped)  # Ray has handlers of its own
            pool = Pool(settings, members, table, Seal(read_pool_key()))
            epoch = pool.epoch
        listeners = stack.enter_context(open_listeners(options.listen))
        hints = client_hints(options, listeners)

        is_told = threading.Event()  # that it has no members any more

        def obey(order: str, content: Mapping[str, Any]) -> Mapping[str, Any]:
            if order == "hand_over":  # to a director with other settings
                stopped.set()
            found = pool.obey("status" if order == "hand_over" else order, content)
            if not (found["members"] or found["wanted"]):
                is_told.set()
            return {**found, "clients": hints}

        director = Director(table, options, listeners, obey, epoch)
        stack.callback(director.close)
        for one in listeners:
            log_event("listening", address=str(one.address))
        for line in hints:
            print(line, flush=True)  # noqa: T201  to be copied to clients, so not in the log
        _run(pool, stopped)
        if isinstance(pool, Pool) and pool.is_over:
            members.forget_state()
            if not settings.ray.address:  # it is this pool's own
                ray_cluster.stop_local_cluster(settings.files.directory)
            is_told.wait(_TOLD_S)  # whoever has ended the pool knows that all of it has


def _run(pool: Pool | StaticPool, stopped: threading.Event) -> None:
    while not stopped.is_set():
        if isinstance(pool, StaticPool):
            stopped.wait(TICK_S)
            continue
        pool.step()
        if pool.is_over:
            return


def _cluster_address(settings: PoolSettings) -> str:
    if settings.ray.address:
        ray_cluster.require_ray()
        return settings.ray.address
    return ray_cluster.start_local_cluster(settings.ray, settings.files.directory).address


def _stop_on_signals(stopped: threading.Event) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())


def main(argv: Sequence[str] | None = None) -> int:
    """Directs a pool until it is stopped; returns the exit code.

    Returns:
        0 when it was stopped, the pool has ended, or the file can be used; 1 when it could not be
        started, or another director has taken over.
    """
    parser = Parser(prog="jaxd pool up", description="Direct a pool.", allow_abbrev=False)
    parser.add_argument("settings", metavar="pool.toml", help="the file with the pool's settings")
    parser.add_argument(
        "--check", action="store_true", help="only check the file, and print the name of its pool"
    )
    arguments = parser.parse_args(argv)
    stopped = threading.Event()
    _stop_on_signals(stopped)
    logs.configure("text", "director")
    try:
        settings = read_settings(arguments.settings)
        if arguments.check:
            if not settings.static:
                ray_cluster.require_ray()
            print(settings.name)  # noqa: T201  for `jaxd pool up`
            return 0
        with _only_director(settings), suppress(KeyboardInterrupt):
            _serve(settings, stopped)
    except JaxdError as error:
        sys.stderr.write(f"jaxd: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
