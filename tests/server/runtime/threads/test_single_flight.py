from __future__ import annotations

import threading
from typing import Any

import pytest

from jaxd_protocol.errors import ConnectionLost, JaxdError, ProtocolError
from jaxd_server.runtime.threads.executors import SingleFlight
from tests.server.staging import PATIENCE_S, at_once, join, start, until, waiting


class ConcurrentBuild:
    """One result that several threads wait for."""

    def __init__(self) -> None:
        self.flight: SingleFlight[str, str] = SingleFlight()
        self.table: dict[str, str] = {}
        self.made = 0
        self.failures: list[BaseException] = []

    def wait_for_others(self, key: str, count: int) -> None:
        """Returns when `count` callers wait for what is being made."""
        until(lambda: waiting(self.flight._flights[key]._condition) == count)

    def ask(self, key: str, others: int = 0) -> str:
        """Asks for it; whoever makes it first lets `others` join."""
        return self.flight.run(key, lambda: self.table.get(key), lambda: self.make(key, others))

    def make(self, key: str, others: int) -> str:
        """Fails as often as there are failures."""
        self.made += 1
        self.wait_for_others(key, others)
        if self.failures:
            raise self.failures.pop()
        self.table[key] = f"{key} {self.made}"
        return self.table[key]


def test_many_who_ask_at_once_get_what_one_of_them_made() -> None:
    """It is made once, and they wait."""
    concurrent_build = ConcurrentBuild()
    assert at_once(8, lambda _: concurrent_build.ask("bread", others=7)) == ["bread 1"] * 8
    assert concurrent_build.made == 1


def test_what_is_in_the_table_is_not_made_again() -> None:
    """Nor does anybody wait for it."""
    concurrent_build = ConcurrentBuild()
    assert [concurrent_build.ask("bread") for _ in range(3)] == ["bread 1"] * 3
    assert concurrent_build.made == 1


def test_a_failure_reaches_all_who_waited_and_is_not_remembered() -> None:
    """The next one who asks makes it anew."""
    concurrent_build = ConcurrentBuild()
    concurrent_build.failures = [ValueError("burnt")]
    outcomes: list[Any] = at_once(4, lambda _: concurrent_build.ask("bread", others=3))
    assert [(type(error), str(error)) for error in outcomes] == [(ValueError, "burnt")] * 4
    assert concurrent_build.ask("bread") == "bread 2"


def test_even_the_end_of_a_thread_reaches_those_who_wait() -> None:
    """A function that calls `sys.exit` must not leave others waiting for ever."""
    concurrent_build = ConcurrentBuild()
    concurrent_build.failures = [SystemExit(3)]
    with pytest.raises(SystemExit):
        concurrent_build.ask("bread")
    assert concurrent_build.ask("bread") == "bread 2"


@pytest.mark.parametrize("error", [ConnectionLost("gone"), ProtocolError("confused")])
def test_one_client_that_fails_does_not_fail_the_others(error: JaxdError) -> None:
    """Whoever waited for its answer asks a client of its own, and one is enough for all."""
    concurrent_build = ConcurrentBuild()
    concurrent_build.failures = [error]

    def ask(index: int) -> str:
        return concurrent_build.ask("bread", others=3 if not concurrent_build.made else 0)

    outcomes = at_once(4, ask)
    assert sum(outcome is error for outcome in outcomes) == 1
    assert outcomes.count("bread 2") == 3


def test_a_client_that_fails_alone_is_told() -> None:
    """It made the thing itself, so nobody else can help it."""
    concurrent_build = ConcurrentBuild()
    concurrent_build.failures = [ConnectionLost("gone")]
    with pytest.raises(ConnectionLost):
        concurrent_build.ask("bread")
    assert concurrent_build.made == 1


def test_different_things_are_made_side_by_side() -> None:
    """A slow one holds up nobody who asks for another."""
    flight: SingleFlight[str, str] = SingleFlight()
    entered, release = threading.Event(), threading.Event()

    def slowly() -> str:
        entered.set()
        assert release.wait(PATIENCE_S)
        return "slow"

    slow = start(lambda: flight.run("slow", lambda: None, slowly))
    assert entered.wait(PATIENCE_S)
    assert flight.run("fast", lambda: None, lambda: "fast") == "fast"
    release.set()
    join([slow])
