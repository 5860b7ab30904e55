"""A director of a pool that the test plays: says what members there are."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jaxd_protocol.base.process import machine_id
from jaxd_protocol.messages.pool_view import POOL_UNREACHABLE, POOL_VIEW, PoolMember, PoolView
from tests.client.fake_server import FakeServer, Reply, Request


class FakeDirector(FakeServer):
    """Listens at once; `close` ends it.

    Attributes:
        pool: its address, for clients.
        seen: what it says of a member that cannot be reached; by default as the view has it.
    """

    welcome: Mapping[str, Any] = {"pool": "lab"}

    def __init__(self, path: str) -> None:
        self._changed = threading.Condition()  # guards the view
        self._view = PoolView("lab")
        self._source = os.urandom(8).hex()
        self.pool = f"pool+unix://{path}"
        self.seen: dict[str, Any] | None = None
        self._is_over = False
        super().__init__(
            path, **{POOL_VIEW: self._answer_view, POOL_UNREACHABLE: self._answer_unreachable}
        )

    def show(self, name: str, *addresses: str, **fields: Any) -> None:
        """Adds a member that is ready, on this machine; or changes fields of one."""
        with self._changed:
            new = PoolMember(name, addresses, machine_id() or "", epoch=1, state="ready")
            member = replace(self._view.members.get(name, new), **fields)
            self._set({**self._view.members, name: member})

    def close(self) -> None:
        """Ends it, once."""
        if not self._is_over:
            self._is_over = True
            super().close()

    def remove(self, name: str) -> None:
        """It is no member any more."""
        with self._changed:
            self._set({key: each for key, each in self._view.members.items() if key != name})

    def spread(self, **spreads: int) -> None:
        """Over how many members functions are spread, by the first digits of their keys."""
        with self._changed:
            self._set(self._view.members, spreads)

    def _set(
        self, members: Mapping[str, PoolMember], spreads: Mapping[str, int] | None = None
    ) -> None:
        spread = self._view.spreads if spreads is None else spreads
        self._view = PoolView("lab", self._view.sequence + 1, members, spread)
        self._changed.notify_all()

    def _answer_view(self, asked: Request) -> Reply:
        known, source, wait_s = asked.args
        with self._changed:
            if source == self._source:
                self._changed.wait_for(lambda: self._view.sequence != known, wait_s)
            answer: dict[str, Any] = {"source": self._source, "more": False}
            if (known, source) == (self._view.sequence, self._source):
                answer["change"] = {}
            else:
                answer["view"] = self._view.to_dict()
        return json.dumps(answer), ()

    def _answer_unreachable(self, asked: Request) -> Reply:
        member = self._view.members.get(asked.args[0])
        state = "lost" if member is None else member.state
        return json.dumps(self.seen or {"state": state, "address": ""}), ()
