"""Threads that meet where a test wants them to, without a sleep; what a module logs meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

PATIENCE_S = 30.0

Log = list[tuple[str, dict[str, Any]]]
"""Events, each with its fields."""


def until(condition: Callable[[], object]) -> None:
    """Returns when the condition holds; asks more and more rarely, as others use the processors."""
    deadline, pause_s = time.monotonic() + PATIENCE_S, 0.0002
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.005)


def is_running(pid: int) -> bool:
    """Whether there is such a process that has not ended."""
    with suppress(OSError), open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    return False


def waiting(condition: threading.Condition) -> int:
    """Number of threads that wait for the condition now."""
    return len(condition._waiters)  # type: ignore[attr-defined]


def start(target: Callable[..., Any], *args: Any) -> threading.Thread:
    """A thread that runs `target(*args)`."""
    thread = threading.Thread(target=target, args=args, daemon=True)
    thread.start()
    return thread


def join(threads: Iterable[threading.Thread]) -> None:
    """Returns when all of them are done."""
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def at_once(count: int, target: Callable[[int], Any]) -> list[Any]:
    """What `target(0)`, `target(1)`, … return or raise, all begun at the same moment."""
    barrier = threading.Barrier(count)
    outcomes: list[Any] = [None] * count

    def run(index: int) -> None:
        barrier.wait()
        try:
            outcomes[index] = target(index)
        except Exception as error:  # noqa: BLE001  the test looks at it
            outcomes[index] = error

    join([start(run, index) for index in range(count)])
    return outcomes


def logged_by(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Log:
    """What a module logs from now on."""
    lines: Log = []
    monkeypatch.setattr(module, "log_event", lambda event, **fields: lines.append((event, fields)))
    return lines
