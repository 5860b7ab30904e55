"""The members of a pool as its director knows them, and the sealed messages between the two.

Messages go through Ray, or wherever else members run, so each is sealed with the key of the pool.
What a member reports covers a random number that the director has just sent: no earlier report can
stand for it. What a director orders names the member's process and counts up: none works twice.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, Final, Literal

from jaxd_protocol.errors import AuthenticationFailed, ConfigurationError, ProtocolError
from jaxd_protocol.messages.pool_view import (
    LOAD_SETTLES_S,
    SPREAD_DIGITS,
    PoolMember,
    is_load_news,
)
from jaxd_protocol.messages.server_view import read_row, row_dict
from jaxd_protocol.network.pool_routing import SPREAD_EVERY_S, Busy, Spreads, added_up
from jaxd_protocol.network.tokens import Seal
from jaxd_server.pool.settings import MemberSettings, ScalingSettings
from jaxd_server.runtime.logs import log_event
from jaxd_server.runtime.view_journal import Journal, News

SILENT_S: Final = 2.0
"""A member that has not reported for so long is lost. It is asked four times as often."""

_MOST_WAIT_S: Final = 1.0

Order = Literal["report", "stop"]


@dataclass(frozen=True, slots=True)
class MemberReport:
    """What a member says of itself.

    Attributes:
        instance: a random name of its process; another one has lost the values of this one.
        state: ``starting``, ``ready`` or ``lost``.
        why: why it is not ready.
        addresses: as of `PoolMember`.
        machine: as of `PoolMember`.
        node: as of `PoolMember`.
        devices: as of `PoolMember`.
        version: of jaxd.
        load: as of `PoolMember`.
        warm: the first hex digits of keys of functions that it has programs of, those used last
            first; for `jaxd pool status`.
        busy: those of functions that have calls open there.
        busy_calls: how many each of these has open on average, in hundredths.
        busy_us: how long a call of each takes, in microseconds.
        values: arrays of clients that it has.
        value_bytes: bytes of these.
        named: how many of them are under names, which no client moves.
        sessions: clients that it has.
        knows: `peers_digest` of the members that it knows.
        goes_on: whether it was told to stop and does not, as clients have arrays there.
    """

    instance: str = ""
    state: str = "starting"
    why: str = ""
    addresses: tuple[str, ...] = ()
    machine: str = ""
    node: str = ""
    devices: int = 0
    version: str = ""
    load: int = 0
    warm: tuple[str, ...] = ()
    busy: tuple[str, ...] = ()
    busy_calls: tuple[int, ...] = ()
    busy_us: tuple[int, ...] = ()
    values: int = 0
    value_bytes: int = 0
    named: int = 0
    sessions: int = 0
    knows: str = ""
    goes_on: bool = False


def busy_rows(busy: Mapping[str, Busy]) -> dict[str, Any]:
    """The fields of a report that tell which functions have calls open."""
    return {
        "busy": tuple(key[:SPREAD_DIGITS] for key in busy),
        "busy_calls": tuple(round(100 * each.calls) for each in busy.values()),
        "busy_us": tuple(max(1, round(1e6 * each.seconds)) for each in busy.values()),
    }


def _busy_in(report: MemberReport) -> dict[str, Busy]:
    """What `busy_rows` was made of."""
    rows = zip(report.busy, report.busy_calls, report.busy_us, strict=False)
    return {key: Busy(calls / 100, max(1, us) / 1e6) for key, calls, us in rows}


Peers = Mapping[str, Sequence[str]]
"""The addresses of the members of a pool, by name, at which they ask each other."""


def peers_digest(peers: Peers) -> str:
    """Some hex digits, equal exactly when the members and their addresses are."""
    text = json.dumps({name: list(each) for name, each in sorted(peers.items())})
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class MemberEnd:
    """The member's end of the sealed messages.

    Args:
        name: of the member.
        seal: with the pool's key.
        report: what it says of itself.
        obey: does what is ordered, also where clients lose arrays by it or not; whether it has.
        know: told who is in the pool, where that has changed; whether it is known from then on.
        wait: returns when the load is other than one by enough, or after some seconds.
    """

    def __init__(
        self,
        name: str,
        seal: Seal,
        report: Callable[[], MemberReport],
        obey: Callable[[Order, bool], bool],
        know: Callable[[Peers], bool] = lambda _: True,
        wait: Callable[[int, float], object] = lambda load, most_s: None,
    ) -> None:
        self.instance = secrets.token_hex(8)
        self._name = name
        self._seal = seal
        self._report = report
        self._obey = obey
        self._know = know
        self._wait = wait
        self._knows = ""
        self._last = 0
        self._lock = threading.Lock()  # guards _last

    def answer(self, message: bytes) -> bytes:
        """Does what a message orders; the sealed report.

        Raises:
            AuthenticationFailed: when it is not the director's, was obeyed before, or is for an
                earlier process.
        """
        asked = self._seal.open(f"to {self._name}", message)
        goes_on = False
        if asked["order"] != "report":
            self._check_fresh(asked)
            goes_on = not self._obey(asked["order"], asked.get("loses_values") is not False)
        elif asked.get("peers") is not None and self._is_fresh(asked):
            is_known = self._know(asked["peers"])  # else it is told again
            self._knows = peers_digest(asked["peers"]) if is_known else self._knows
        if asked["order"] == "report":
            self._wait(int(asked.get("load", -1)), min(_MOST_WAIT_S, asked.get("wait_s", 0.0)))
        said = replace(self._report(), instance=self.instance, knows=self._knows, goes_on=goes_on)
        return self._seal.seal(f"from {self._name} {asked['nonce']}", row_dict(said))

    def _check_fresh(self, asked: Mapping[str, Any]) -> None:
        if not self._is_fresh(asked):
            raise AuthenticationFailed(
                "an order was sent again, or is for an earlier process of this member. Nothing "
                "was done; order it again with `jaxd pool`."
            )

    def _is_fresh(self, asked: Mapping[str, Any]) -> bool:
        """Whether a message is for this process, and none that came before."""
        with self._lock:
            is_fresh = asked["instance"] == self.instance and asked["number"] > self._last
            self._last = max(self._last, asked["number"]) if is_fresh else self._last
            return bool(is_fresh)


class DirectorEnd:
    """The director's end of the sealed messages, for all members. Thread-safe.

    Args:
        seal: with the pool's key.
    """

    def __init__(self, seal: Seal) -> None:
        self._seal = seal

    def ask(
        self,
        name: str,
        order: Order = "report",
        instance: str = "",
        peers: Peers | None = None,
        **news: float,
    ) -> tuple[bytes, str]:
        """A message to a member, and the number that its report has to cover.

        Args:
            name: of the member.
            order: what it is to do.
            instance: of the process that is to do it.
            peers: who is in the pool, where it is to know that.
            news: `load`, which is known, and `wait_s`, for how long the member may wait until its
                own is other than that by enough; of a stop `loses_values`: with False, a member
                on which clients have arrays goes on.
        """
        nonce = secrets.token_hex(16)
        # directors follow one another: the clock counts up for all of them
        asked: dict[str, Any] = {
            "order": order,
            "nonce": nonce,
            "instance": instance,
            "number": time.time_ns(),
        }
        asked |= news
        if peers is not None:
            asked["peers"] = {each: list(addresses) for each, addresses in peers.items()}
        return self._seal.seal(f"to {name}", asked), nonce

    def read(self, name: str, nonce: str, message: bytes) -> MemberReport:
        """The report of a member.

        Raises:
            AuthenticationFailed: when it is not that member's, or answers another message.
            ProtocolError: when it is no report.
        """
        content = self._seal.open(f"from {name} {nonce}", message)
        try:
            report: MemberReport = read_row(MemberReport(), content)
        except (AttributeError, TypeError, ValueError) as error:
            raise ProtocolError(f"{name} reports something that is no report: {error}.") from error
        return report


@dataclass(slots=True, eq=False)
class MemberEntry:
    """What the director knows of a member beside what clients see.

    Attributes:
        member: what clients are to see.
        label: the version that it was started as.
        report: what it has said last.
        why: why it is not ready.
        is_draining: whether it is to be left.
        heard_at: when it has reported last; 0: never.
        is_known: whether `report` is its own of now: a director that follows another one has heard
            nothing from it at first.
        shown: what clients see.
        shown_at: when its load was shown.
    """

    member: PoolMember
    label: str = ""
    report: MemberReport = field(default_factory=MemberReport)
    why: str = ""
    is_draining: bool = False
    heard_at: float = 0.0
    is_known: bool = False
    shown: PoolMember | None = None
    shown_at: float = 0.0

    @property
    def may_hold_values(self) -> bool:
        """Whether clients may have arrays there; one that is lost may come back with them."""
        return bool(self.heard_at) and (not self.is_known or self.report.values > 0)

    @property
    def held(self) -> str:
        """Its name and what clients have there, for people."""
        said = self.report
        many = f"{said.values} of {said.sessions} clients, {said.value_bytes / 1e6:.1f} MB"
        known = many if self.is_known else "not heard from yet"
        return f"{self.member.name} ({known}{', lost' * (self.member.state == 'lost')})"

    def to_status(self) -> dict[str, Any]:
        """For `jaxd pool status`."""
        said = self.report
        counts: dict[str, Any] = {name: getattr(said, name) for name in _SHOWN}
        return {**self.member.to_dict(), "label": self.label, "why": self.why, **counts}

    def to_kept(self) -> dict[str, Any]:
        """What the next director has to know."""
        member = replace(self.member, load=0).to_dict()
        instance = self.report.instance
        return {
            "member": member,
            "label": self.label,
            "instance": instance,
            "is_draining": self.is_draining,
        }


class MemberTable:
    """The members of a pool. Thread-safe.

    Args:
        pool: its name.
        clock: seconds that only grow.

    Attributes:
        on_news: called when clients are to see something new, in any thread; must be quick.
    """

    def __init__(self, pool: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.pool = pool
        self.on_news: Callable[[], None] = lambda: None
        self._clock = clock
        self._journal = Journal()
        self._journal.put("pool", "", pool)
        self._entries: dict[str, MemberEntry] = {}
        self._epochs: dict[str, int] = {}  # the last one of each name
        # the last change of each that was not of its load alone
        self._whole_at: dict[str, int] = {}
        self._spreads = Spreads()
        self._spread_at = clock()
        self._lock = threading.RLock()  # guards all of these; no I/O under it but the log

    # what clients see ---------------------------------------------------------------------------

    def news(self, known: int, source: str) -> News:
        """What has changed since; see `Journal.news`. Of a member with another load, only that."""
        with self._lock:  # a row and the number of its last whole change belong together
            news = self._journal.news(known, source, _ROWS_AT_ONCE)
            rows: dict[str, Any] = {} if news.is_whole else news.change.get("members", {})
            for name, row in rows.items():
                if row is not None and self._whole_at.get(name, 0) <= known:
                    rows[name] = {"load": row["load"]}
            return news

    @property
    def sequence(self) -> int:
        """The number of the last change."""
        return self._journal.sequence

    @property
    def source(self) -> str:
        """What it counts the changes of."""
        return self._journal.source

    def show(self, member: PoolMember) -> None:
        """Sets a member of a static pool."""
        with self._lock:
            entry = self._entries.setdefault(member.name, MemberEntry(member))
            self._show(entry, member)

    def _show(self, entry: MemberEntry, member: PoolMember) -> None:
        """Sets what clients see of it; of its load alone not every change. The lock is held."""
        before, now = entry.shown, self._clock()
        entry.member = member
        if before is not None and before != member:
            is_load = replace(before, load=member.load) == member
            is_small = not is_load_news(before.load, member.load)
            if is_load and is_small and now - entry.shown_at < LOAD_SETTLES_S:
                return
        is_whole = before is None or replace(before, load=member.load) != member
        entry.shown, entry.shown_at = member, now
        if self._journal.put("members", member.name, member.to_dict()):
            if is_whole:
                self._whole_at[member.name] = self._journal.sequence
            self.on_news()

    def remove(self, name: str) -> None:
        """It is no member any more."""
        with self._lock:
            if self._entries.pop(name, None) is not None:
                log_event("pool_member_removed", member=name)
            self._whole_at.pop(name, None)
            self._journal.put("members", name, None)
        self.on_news()

    # what members say ---------------------------------------------------------------------------

    def expect(self, name: str, label: str) -> None:
        """A member is being started."""
        with self._lock:
            entry = MemberEntry(PoolMember(name, epoch=self._epochs.get(name, 0)), label)
            self._entries[name] = entry
            self._show(entry, entry.member)

    def hear(self, name: str, report: MemberReport) -> None:
        """A member has reported."""
        with self._lock:
            entry = self._entries.get(name)
            if entry is None:
                return
            is_new = report.instance != entry.report.instance
            epoch = self._epochs.get(name, 0) + is_new
            self._epochs[name] = epoch
            entry.report, entry.heard_at, entry.why = report, self._clock(), report.why
            entry.is_known = True
            is_left = entry.is_draining and report.state == "ready"
            state = "draining" if is_left else report.state
            self._log_change(entry, state, report.why)
            seen = {each: getattr(report, each) for each in _REPORTED}
            self._show(entry, PoolMember(name, epoch=epoch, state=state, **seen))
            self._spread()

    def _spread(self) -> None:
        """Adds up, now and then, how many calls each function has open. The lock is held."""
        if self._clock() - self._spread_at < SPREAD_EVERY_S:
            return
        self._spread_at = self._clock()
        entries = self._entries.values()
        known = [e.report for e in entries if e.is_known and e.member.state != "lost"]
        found = self._spreads.update(added_up(map(_busy_in, known)))
        before = self._journal.sequence
        self._journal.replace("spreads", found)
        if self._journal.sequence != before:
            self.on_news()

    def miss(self, name: str, why: str) -> None:
        """A member does not answer."""
        with self._lock:
            entry = self._entries.get(name)
            if entry is None:
                return
            entry.why = why
            if entry.heard_at and entry.member.state != "lost":  # else it is still starting
                self._log_change(entry, "lost", why)
                self._show(entry, replace(entry.member, state="lost", load=0))

    def check_silence(self, ending: Container[str] = ()) -> None:
        """Loses the members that have not reported for too long; to be called often.

        Args:
            ending: those that are not asked any more.
        """
        with self._lock:
            limit = self._clock() - SILENT_S
            silent = [n for n, each in self._entries.items() if 0.0 < each.heard_at < limit]
            for name in silent:
                if name in ending:
                    continue
                self.miss(name, f"it has not reported for {SILENT_S:g} s")

    def drain(self, name: str) -> None:
        """It is to be left by its clients.

        Raises:
            ConfigurationError: when there is no such member.
        """
        with self._lock:
            entry = self.entry(name)
            entry.is_draining = True
            if entry.member.state == "ready":
                self._log_change(entry, "draining", "")
                self._show(entry, replace(entry.member, state="draining"))

    def _log_change(self, entry: MemberEntry, state: str, why: str) -> None:
        before = entry.member
        if state != before.state:
            log_event(
                "pool_member_lost" if state == "lost" else "pool_member_state",
                member=before.name,
                epoch=before.epoch,
                state=state,
                reason=why or None,
            )

    def entry(self, name: str) -> MemberEntry:
        """What is known of a member.

        Raises:
            ConfigurationError: when there is no such member.
        """
        found = self._entries.get(name)
        if found is None:
            known = ", ".join(sorted(self._entries)) or "none"
            raise ConfigurationError(f"the pool has no member {name!r} (there are: {known}).")
        return found

    def entries(self) -> list[MemberEntry]:
        """All members, the oldest first."""
        with self._lock:
            return list(self._entries.values())

    def peers(self) -> dict[str, tuple[str, ...]]:
        """Where members ask each other: those that have reported, also while they are lost."""
        return {
            each.member.name: found
            for each in self.entries()
            if (found := tuple(a for a in each.member.addresses if a.startswith("tls://")))
        }

    # from one director to the next --------------------------------------------------------------

    def to_kept(self) -> dict[str, Any]:
        """What the next director has to know, for JSON."""
        with self._lock:
            members = {name: each.to_kept() for name, each in self._entries.items()}
            return {"members": members, "epochs": dict(self._epochs)}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Takes over what the last director knew; who they are the members say themselves."""
        with self._lock:
            self._epochs.update(kept["epochs"])
            for name, each in kept["members"].items():
                member = read_row(PoolMember(name), each["member"])
                report = MemberReport(instance=each["instance"])
                heard_at = self._clock() if report.instance else 0.0
                entry = MemberEntry(member, each["label"], report, heard_at=heard_at)
                entry.is_draining = each["is_draining"]
                self._entries[name] = entry
                self._show(entry, member)


class LoadScaling:
    """How many members the load asks for, once it has done so for a while.

    Args:
        settings: of it.
        members: between how many.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        settings: ScalingSettings,
        members: MemberSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._least, self._most = max(1, members.least), members.most
        self._clock = clock
        self._since = {"up": clock(), "down": clock()}
        self._kept = ""

    def wanted(self, count: int, load: int, devices: float, *, is_starting: bool = False) -> int:
        """How many members there are to be; with none there is no load, so the last one stays.

        Args:
            count: how many are wanted now.
            load: calls that those have open which are ready.
            devices: of so many, as those have them which are ready.
            is_starting: whether one of them is not here yet: there are to be no more until it is.
        """
        settings, now = self._settings, self._clock()
        if not (settings.busy and devices and count):
            return count
        share = settings.busy * devices / count
        more, fewer = ceil(load / share), ceil(2 * load / share)
        self._since["up"] = self._since["up"] if more > count and not is_starting else now
        self._since["down"] = self._since["down"] if fewer < count else now
        if now - self._since["up"] >= settings.up_s and count < self._most:
            self._since["up"] = now
            return min(more, 2 * count, self._most)
        if now - self._since["down"] >= settings.down_s and count > self._least:
            self._since["down"] = now
            return count - 1
        return count

    def restart(self) -> None:
        """Nothing is known of the load: what it was before counts no longer."""
        self._since = dict.fromkeys(self._since, self._clock())

    def keep(self, held: str) -> None:
        """Logs that no member can go, as clients have arrays on each; once for the same."""
        if held != self._kept:
            self._kept = held
            log_event("pool_scaling_waits", held=held)


_ROWS_AT_ONCE: Final = 400
_REPORTED: Final = ("addresses", "machine", "node", "devices", "version", "load")
_SHOWN: Final = ("values", "value_bytes", "named", "sessions", "warm")
