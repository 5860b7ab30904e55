"""What the director of a pool hears and says, counted in the product's own messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from itertools import islice
from typing import Any

from benchmarks.simulation.pool import Member
from jaxd_protocol.messages.pool_view import MOST_WARM, WARM_DIGITS, PoolMember, PoolView
from jaxd_protocol.messages.server_view import changed


class Director:
    """Has a view of the members, and tells it to all clients.

    Attributes:
        heartbeats: that members have sent.
        whole: bytes of the whole view, which each client gets when it connects.
        told: for each time it told news their bytes, for one client.
        told_loads: the same without which functions are warm.
    """

    def __init__(self, members: Mapping[str, Member]) -> None:
        self._members = members
        self._addresses = {name: _address(name) for name in members}
        self._before: dict[str, Any] = {}
        self._loads = dict.fromkeys(members, 0)
        self.heartbeats = 0
        self.whole = 0
        self.told: list[int] = []
        self.told_loads: list[int] = []

    def hear(self, name: str) -> None:
        """A member's heartbeat, with its load."""
        self.heartbeats += 1
        self._loads[name] = len(self._members[name].calls)

    def news(self) -> dict[str, int]:
        """The loads that it tells now."""
        return dict(self._loads)

    def count(self) -> None:
        """Counts the bytes of what it tells now."""
        members = {name: self._row(member) for name, member in self._members.items()}
        now = PoolView("pool", len(self.told), members).to_dict()
        if self._before:
            self.told.append(_bytes({"change": changed(self._before, now), "more": False}))
            quiet = changed(_without_warm(self._before), _without_warm(now))
            self.told_loads.append(_bytes({"change": quiet, "more": False}))
        self._before = now
        self.whole = _bytes({"view": now, "more": False})

    def _row(self, member: Member) -> PoolMember:
        warm = islice(reversed(member.programs), MOST_WARM)
        return PoolMember(
            name=member.name,
            addresses=(self._addresses[member.name],),
            machine="1f0c6f0e-6c0b-4b3e-9d60-2f1f4c9a7d11",
            node=f"node-of-{member.name}",
            devices=1,
            version="0.9.0",
            epoch=1 + member.epoch,
            state="ready" if member.is_alive else "lost",
            load=self._loads[member.name],
            warm=tuple(key.hex()[:WARM_DIGITS] for key in warm),
        )


def _address(name: str) -> str:
    return (
        f"tls://{name}.pool.svc:18861#sha256={blake2b(name.encode(), digest_size=32).hexdigest()}"
    )


def _without_warm(view: Mapping[str, Any]) -> dict[str, Any]:
    members = {
        name: {field: value for field, value in row.items() if field != "warm"}
        for name, row in view["members"].items()
    }
    return {**view, "members": members}


def _bytes(message: Mapping[str, Any]) -> int:
    return len(json.dumps(message, separators=(",", ":")))
