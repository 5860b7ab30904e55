from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from jaxd_server.outbox import Outbox
from tests.server.staging import PATIENCE_S, join, start, until

if TYPE_CHECKING:
    import pytest


def test_what_is_put_is_sent_in_order_and_nobody_waits() -> None:
    """Also behind one that takes for ever."""
    outbox, release, sent = Outbox(), threading.Event(), list[int]()
    outbox.put(partial(join, [start(release.wait, PATIENCE_S)]))
    for index in range(5):
        outbox.put(lambda index=index: sent.append(index))  # type: ignore[misc]
    until(lambda: len(outbox) == 5)
    assert sent == []
    release.set()
    until(lambda: len(sent) == 5)
    assert sent == [0, 1, 2, 3, 4]


def test_its_thread_ends_when_all_is_sent() -> None:
    """And the next message starts another."""
    outbox, threads = Outbox(), list[threading.Thread]()
    for count in (1, 2):
        outbox.put(lambda: threads.append(threading.current_thread()))
        until(lambda count=count: len(threads) == count)  # type: ignore[misc]
        threads[-1].join(PATIENCE_S)
        assert not threads[-1].is_alive()


def test_without_threads_the_caller_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Better late than never."""

    def fail(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    outbox, sent = Outbox(), list[int]()
    for index in range(2):
        outbox.put(lambda index=index: sent.append(index))  # type: ignore[misc]
    assert sent == [0, 1]
