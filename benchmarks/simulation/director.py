"""What the director of a pool hears and says, counted in the product's own messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

from benchmarks.simulation.pool import Member
from jaxd_protocol.messages.pool_view import (
    LOAD_SETTLES_S,
    PoolMember,
    PoolView,
    is_load_news,
)
from jaxd_protocol.messages.server_view import changed


class Director:
    """Has a view of the members, and tells it to all clients.

    Attributes:
        reports: that members have sent.
        whole: bytes of the whole view, which each client gets when it connects.
        told: for each time it told news their bytes, for one client.
    """

    def __init__(self, members: Mapping[str, Member]) -> None:
        self._members = members
        self._addresses = {name: _address(name) for name in members}
        self._before: dict[str, Any] = {}
        self._reported = dict.fromkeys(members, (0, 0.0))
        self._shown = dict.fromkeys(members, (0, 0.0))
        self.reports = 0
        self.whole = 0
        self.told: list[int] = []

    def hear(self, name: str, now: float) -> None:
        """A member looks at its load, and reports what has changed by enough, or after long."""
        load, (before, at) = len(self._members[name].calls), self._reported[name]
        if is_load_news(before, load) or now - at >= REPORT_S:
            self.reports += 1
            self._reported[name] = load, now

    def news(self, now: float) -> dict[str, int]:
        """The loads that it tells now."""
        for name, (load, _) in self._reported.items():
            before, at = self._shown[name]
            if is_load_news(before, load) or (load != before and now - at >= LOAD_SETTLES_S):
                self._shown[name] = load, now
        return {name: load for name, (load, _) in self._shown.items()}

    def count(self) -> int:
        """Counts the bytes of what it tells now, to one client."""
        members = {name: self._row(member) for name, member in self._members.items()}
        now = PoolView("pool", len(self.told), members).to_dict()
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
    return len(json.dumps(message, separators=(",", ":")))
