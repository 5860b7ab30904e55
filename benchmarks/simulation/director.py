"""What the director of a pool hears and says, counted in the product's own messages."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

from benchmarks.simulation.pool import Member
from jaxd_protocol.messages.pool_view import (
    LOAD_SETTLES_S,
    PoolMember,
    PoolView,
    is_load_news,
    packed,
)
from jaxd_protocol.messages.server_view import changed
from jaxd_protocol.network.pool_routing import (
    SPREAD_EVERY_S,
    Busy,
    FunctionLoads,
    Spreads,
    added_up,
)


class Director:
    """Has a view of the members, and tells it to all clients.

    Attributes:
        reports: that members have sent.
        whole: bytes of the whole view, which each client gets when it connects.
        told: for each time it told news their bytes, for one client.
        spreads: over how many members functions are spread.
    """

    def __init__(self, members: Mapping[str, Member], spread: float) -> None:
        self._members = members
        self._addresses = {name: _address(name) for name in members}
        self._before: dict[str, Any] = {}
        self._reported = dict.fromkeys(members, (0, 0.0))
        self._shown = dict.fromkeys(members, (0, 0.0))
        self._loads = {name: FunctionLoads() for name in members}
        self._busy: dict[str, Mapping[str, Busy]] = {}
        self._looked_at = dict.fromkeys(members, 0.0)
        self._spreads = Spreads(spread)
        self._spread_at = 0.0
        self.spreads: Mapping[str, int] = {}
        self.reports = 0
        self.whole = 0
        self.told: list[int] = []

    def settle(self, busy: Mapping[str, Busy]) -> None:
        """It knows how many calls of each function are open as after long work."""
        self.spreads = dict(self._spreads.update(busy))

    def hear(self, name: str, now: float) -> None:
        """A member looks at its load, and reports what has changed by enough, or after long."""
        member = self._members[name]
        load, (before, at) = len(member.calls), self._reported[name]
        if is_load_news(before, load) or now - at >= REPORT_S:
            self.reports += 1
            self._reported[name] = load, now
            if now - self._looked_at[name] >= SPREAD_EVERY_S:
                self._looked_at[name] = now
                totals = {key.hex(): each for key, each in member.answered.items()}
                self._busy[name] = self._loads[name].update(now, totals)

    def news(self, now: float) -> dict[str, int]:
        """The loads that it tells now, and the spreads."""
        if now - self._spread_at >= SPREAD_EVERY_S:
            self._spread_at = now
            self.spreads = dict(self._spreads.update(added_up(self._of_living())))
        for name, (load, _) in self._reported.items():
            before, at = self._shown[name]
            if is_load_news(before, load) or (load != before and now - at >= LOAD_SETTLES_S):
                self._shown[name] = load, now
        return {name: load for name, (load, _) in self._shown.items()}

    def _of_living(self) -> list[Mapping[str, Busy]]:
        return [busy for name, busy in self._busy.items() if self._members[name].is_alive]

    def count(self) -> int:
        """Counts the bytes of what it tells now, to one client."""
        members = {name: self._row(member) for name, member in self._members.items()}
        now = PoolView("pool", len(self.told), members, self.spreads).to_dict()
        if self._before:
            self.told.append(_bytes({"change": changed(self._before, now), "more": False}))
        else:
            self.whole = _bytes({"view": now, "more": False})
        self._before = now
        return self.told[-1] if self.told else 0

    def _row(self, member: Member) -> PoolMember:
        return PoolMember(
            name=member.name,
            addresses=(self._addresses[member.name],),
            machine="1f0c6f0e-6c0b-4b3e-9d60-2f1f4c9a7d11",
            node=f"node-of-{member.name}",
            devices=1,
            version="0.9.0",
            epoch=1 + member.epoch,
            state="ready" if member.is_alive else "lost",
            load=self._shown[member.name][0],
        )


REPORT_S: Final = 0.5
"""After so long a member reports a load that has not changed by enough."""


def _address(name: str) -> str:
    return (
        f"tls://{name}.pool.svc:18861#sha256={blake2b(name.encode(), digest_size=32).hexdigest()}"
    )


def _bytes(message: Mapping[str, Any]) -> int:
    return len(packed(message))
