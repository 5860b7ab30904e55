"""One client's flood beside another's single calls, by numbers."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import pytest

from jaxd import Client, connect
from tests.live_server import LiveServer

pytestmark = [pytest.mark.soak, pytest.mark.timeout(180)]

FLOOD = 1000
"""Calls in flight, of one client process."""

CALLS = 60


def work(x: Any) -> Any:
    """Some 3 ms of one core: too long to be run by the thread that reads."""
    import jax

    return jax.lax.fori_loop(0, 60_000, lambda i, y: y * 0.999 + i, x)


def times(call: Callable[[], Any], count: int = CALLS) -> list[float]:
    """Seconds of each call."""
    found = []
    for _ in range(count):
        begun = time.perf_counter()
        call()
        found.append(time.perf_counter() - begun)
    return sorted(found)


class Flood:
    """A client that has `FLOOD` calls in flight for as long as the block runs."""

    def __init__(self, client: Client) -> None:
        self._function = client.persistent_call(work)
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._call) for _ in range(FLOOD)]
        self.answered = 0

    def _call(self) -> None:
        while not self._over.is_set():
            self._function(np.float32(1))
            self.answered += 1

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


def test_a_flood_does_not_starve_a_lone_call(
    start_live: Callable[..., LiveServer], capsys: pytest.CaptureFixture[str]
) -> None:
    """Small and long calls of another client, while one has a thousand long ones in flight."""
    server = start_live("--slots", str(FLOOD))
    with connect(server.unix) as flooding, connect(server.unix) as lone:
        long = lone.persistent_call(work)
        small = lone.persistent_call(lambda x: x + 1)
        calls = {
            "long": lambda: long(np.float32(1)),
            "small": lambda: small(np.float32(1)),
        }
        for call in calls.values():
            times(call, 5)
        alone = {name: times(call) for name, call in calls.items()}
        with Flood(flooding) as flood:
            # Where the device is quicker than the client's thousand threads, they never get there.
            patience = time.monotonic() + 15
            while time.monotonic() < patience:
                if lone.caller.session.ask("statistics")["queued_calls"] >= FLOOD // 2:
                    break
            before, begun = flood.answered, time.perf_counter()
            beside = {name: times(call) for name, call in calls.items()}
            rate = (flood.answered - before) / (time.perf_counter() - begun)
    with capsys.disabled():
        print(f"\nbeside {FLOOD} calls in flight of another client, which has {rate:.0f} a second:")
        for name in calls:
            was, now = statistics.median(alone[name]), statistics.median(beside[name])
            print(
                f"  {name} call: {1e3 * now:.1f} ms, p95 {1e3 * beside[name][-3]:.1f} ms; alone "
                f"{1e3 * was:.1f} ms; ratio {now / was:.1f}; in order of arrival it would be "
                f"{1e3 * FLOOD / rate:.0f} ms"
            )
    # Not against the time alone: that depends on what else the machine does.
    assert statistics.median(beside["long"]) < FLOOD / rate / 10
