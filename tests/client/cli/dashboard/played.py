"""A dashboard in a process of its own, of a server that the test plays.

It prints its link. Each line of its stdin is a JSON object: `patch`, a merge patch of the view;
`problem`, why the server is away, empty when it is back; `burst`, so many changes one after
another, a thousand a second. Each action is printed as a JSON object.
"""

from __future__ import annotations

import json
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from jaxd.api.watcher import FunctionDetail, ProgramDetail
from jaxd.cli.dashboard.access import Access
from jaxd.cli.dashboard.app import serve
from jaxd_protocol.errors import NotPermitted
from jaxd_protocol.messages.server_view import ServerView
from tests.client.cli.dashboard import views

_TEXT = "\n".join(
    f"    {letter}:f32[32,512] = add x {number}" for number in range(400) for letter in "ab"
)


class PlayedServer:
    """Does what stdin says."""

    def __init__(self, view: ServerView) -> None:
        self.view = view
        self.problem = ""
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            order = json.loads(line)
            for number in range(order.pop("burst", 0)):
                self._lines.put({"patch": _change(number)})
                time.sleep(0.001)
            self._lines.put(order)

    def next(self, timeout_s: float | None = None, /) -> ServerView | None:
        order = self._lines.get()
        if order is None:
            return None
        self.problem = order.get("problem", self.problem)
        patch = order.get("patch")
        if patch:
            head = {"sequence": self.view.sequence + 1, "at": time.time()}
            self.view = self.view.patched({**patch, **head})
        return self.view

    def close(self) -> None:
        self._lines.put(None)

    def detail(self, function: str) -> FunctionDetail:
        program = ProgramDetail("aa01", "x: float32[32,512]", {"temp": 1e6}, {"flops": 2e9})
        history = (
            {"time": 0, "verdict": "compile", "seconds": 8.5, "reason": "new", "differences": []},
        )
        return FunctionDetail(
            function, "train_step", "train.py:12", history, ("pad x",), (program,)
        )

    def text(self, function: str, program: str, stage: str) -> str:
        if program != "aa01":
            raise NotPermitted("there is no such program. Call the function first.")
        return f"{stage} of {program}\n{_TEXT}"

    def cancel(self, call: str) -> bool:
        _say(cancel=call)
        return True

    def clear(self, function: str) -> int:
        _say(clear=function)
        return 2

    def forget(self, name: str) -> bool:
        _say(forget=name)
        return True

    def release(self, what: str) -> int:
        _say(release=what)
        return 1


def _say(**action: str) -> None:
    print(json.dumps(action), flush=True)


def _change(number: int) -> dict[str, Any]:
    """As a busy server has them: a counter, a function, an event."""
    return {
        "counters": {"calls": 2000 + number},
        "functions": {f"{number % 10_000:032x}": {"hits": 1_000_000 + number}},
        "events": {str(1000 + number): {"at": time.time(), "name": "built", "level": "info"}},
    }


def main(view: str) -> None:
    """Serves until it is ended."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        access = Access(listener.getsockname()[1])
        print(access.link, flush=True)
        server = PlayedServer(_VIEWS[view]())
        serve(server, listener, access)


_VIEWS: Mapping[str, Callable[[], ServerView]] = {
    "example": views.example_view,
    "hostile": views.hostile_view,
    "tenants": views.tenants_view,
    "large": lambda: views.large_view(10_000),
    "empty": ServerView,
}

if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except KeyboardInterrupt:
        sys.exit(130)
