"""The members of a pool as its director knows them, and the sealed messages between the two.

Messages go through Ray, or wherever else members run, so each is sealed with the key of the pool.
What a member reports covers a random number that the director has just sent: no earlier report can
stand for it. What a director orders names the member's process and counts up: none works twice.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from jaxd_protocol.errors import AuthenticationFailed, ConfigurationError, ProtocolError
from jaxd_protocol.messages.pool_view import LOAD_EVERY_S, PoolMember
from jaxd_protocol.messages.server_view import read_row, row_dict
from jaxd_server.runtime.logs import log_event
from jaxd_server.runtime.view_journal import Journal, News

SILENT_S: Final = 2.0
"""A member that has not reported for so long is lost. It is asked four times as often."""

_MAC_BYTES: Final = 32

Order = Literal["report", "drain", "stop"]


class Seal:
    """Seals messages with the key of a pool, and opens those that were.

    Args:
        key: the secret that all parts of a pool have.
    """

    def __init__(self, key: str) -> None:
        data = key.encode()
        self._key = hashlib.blake2b(data, digest_size=_MAC_BYTES, person=b"jaxd pool").digest()

    def seal(self, purpose: str, content: Mapping[str, Any]) -> bytes:
        """A message that opens only for that purpose."""
        body = json.dumps(content).encode()
        return self._mac(purpose, body) + body

    def open(self, purpose: str, message: bytes) -> dict[str, Any]:
        """What was sealed for that purpose.

        Raises:
            AuthenticationFailed: when it was not, or with another key.
        """
        mac, body = message[:_MAC_BYTES], message[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(purpose, body)):
            raise AuthenticationFailed(
                "a message within the pool is not sealed with the pool's key. Give every node the "
                "same key (JAXD_POOL_KEY, or the file that JAXD_POOL_KEY_FILE names)."
            )
        content = json.loads(body)
        if not isinstance(content, dict):
            raise ProtocolError(
                "a message within the pool is no object. Install the same jaxd everywhere."
            )
        return content

    def _mac(self, purpose: str, body: bytes) -> bytes:
        data = b"%d:" % len(purpose.encode()) + purpose.encode() + body
        return hashlib.blake2b(data, digest_size=_MAC_BYTES, key=self._key).digest()


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
        warm: as of `PoolMember`.
        values: arrays of clients that it has.
        value_bytes: bytes of these.
        sessions: clients that it has.
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
    values: int = 0
    value_bytes: int = 0
    sessions: int = 0


class MemberEnd:
    """The member's end of the sealed messages.

    Args:
        name: of the member.
        seal: with the pool's key.
        report: what it says of itself.
        obey: does what is ordered.
    """

    def __init__(
        self,
        name: str,
        seal: Seal,
        report: Callable[[], MemberReport],
        obey: Callable[[Order], None],
    ) -> None:
        self.instance = secrets.token_hex(8)
        self._name = name
        self._seal = seal
        self._report = report
        self._obey = obey
        self._last = 0
        self._lock = threading.Lock()  # guards _last

    def answer(self, message: bytes) -> bytes:
        """Does what a message orders; the sealed report.

        Raises:
            AuthenticationFailed: when it is not the director's, was obeyed before, or is for an
                earlier process.
        """
        asked = self._seal.open(f"to {self._name}", message)
        if asked["order"] != "report":
            self._check_fresh(asked)
            self._obey(asked["order"])
        said = replace(self._report(), instance=self.instance)
        return self._seal.seal(f"from {self._name} {asked['nonce']}", row_dict(said))

    def _check_fresh(self, asked: Mapping[str, Any]) -> None:
        with self._lock:
            if asked["instance"] != self.instance or asked["number"] <= self._last:
                raise AuthenticationFailed(
                    "an order was sent again, or is for an earlier process of this member. Nothing "
                    "was done; order it again with `jaxd pool`."
                )
            self._last = asked["number"]


class DirectorEnd:
    """The director's end of the sealed messages, for all members. Thread-safe.

    Args:
        seal: with the pool's key.
    """

    def __init__(self, seal: Seal) -> None:
        self._seal = seal

    def ask(self, name: str, order: Order = "report", instance: str = "") -> tuple[bytes, str]:
        """A message to a member, and the number that its report has to cover."""
        nonce = secrets.token_hex(16)
        # directors follow one another: the clock counts up for all of them
        asked = {"order": order, "nonce": nonce, "instance": instance, "number": time.time_ns()}
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
        shown: what clients see.
        shown_at: when its load was shown.
    """

    member: PoolMember
    label: str = ""
    report: MemberReport = field(default_factory=MemberReport)
    why: str = ""
    is_draining: bool = False
    heard_at: float = 0.0
    shown: PoolMember | None = None
    shown_at: float = 0.0

    def to_status(self) -> dict[str, Any]:
        """For `jaxd pool status`."""
        said = self.report
        counts = {"values": said.values, "value_bytes": said.value_bytes, "sessions": said.sessions}
        return {**self.member.to_dict(), "label": self.label, "why": self.why, **counts}

    def to_kept(self) -> dict[str, Any]:
        """What the next director has to know."""
        member = replace(self.member, load=0, warm=()).to_dict()
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
        self._lock = threading.RLock()  # guards both; no I/O under it but the log

    # what clients see ---------------------------------------------------------------------------

    def news(self, known: int, source: str) -> News:
        """What has changed since; see `Journal.news`."""
        return self._journal.news(known, source, _ROWS_AT_ONCE)

    def has_news(self, known: int, source: str) -> bool:
        """Whether there is anything."""
        return known != self._journal.sequence or source != self._journal.source

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
            is_load = replace(before, load=member.load, warm=member.warm) == member
            if is_load and now - entry.shown_at < LOAD_EVERY_S:
                return
        entry.shown, entry.shown_at = member, now
        # clients choose without `warm`, and it would be nearly all that they are sent
        if self._journal.put("members", member.name, replace(member, warm=()).to_dict()):
            self.on_news()

    def remove(self, name: str) -> None:
        """It is no member any more."""
        with self._lock:
            if self._entries.pop(name, None) is not None:
                log_event("pool_member_removed", member=name)
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
            is_left = entry.is_draining and report.state == "ready"
            state = "draining" if is_left else report.state
            self._log_change(entry, state, report.why)
            seen = {each: getattr(report, each) for each in _REPORTED}
            self._show(entry, PoolMember(name, epoch=epoch, state=state, **seen))

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


_ROWS_AT_ONCE: Final = 400
_REPORTED: Final = ("addresses", "machine", "node", "devices", "version", "load", "warm")
