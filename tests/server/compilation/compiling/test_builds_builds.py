from __future__ import annotations

import itertools
import threading
from contextlib import ExitStack
from typing import Any

import pytest

from jaxd_protocol.errors import (
    Cancelled,
    ConnectionLost,
    DeadlineExceeded,
    JaxdError,
    ProtocolError,
)
from jaxd_server.compilation.compiling.builds import Build, BuildRoom, Builds, check_not_abandoned
from jaxd_server.runtime.threads.cancellation import CancelToken
from jaxd_server.user_code.interrupt import run_interruptibly
from tests.server.staging import PATIENCE_S, at_once, join, start, until


class ConcurrentBuild:
    """One build that several threads wait for."""

    def __init__(self, **options: Any) -> None:
        self.left: list[Build] = []
        self.builds: Builds[str, str] = Builds(on_abandoned=self.left.append, **options)
        self.table: dict[str, str] = {}
        self.made = 0
        self.failures: list[BaseException] = []

    def build(self, key: str = "bread") -> Build | None:
        """What is being made."""
        return self.builds._builds.get(key)

    def waiting(self, key: str = "bread") -> int:
        """How many wait for it."""
        build = self.build(key)
        return 0 if build is None else len(build.waiting)

    def ask(self, key: str, others: int = 0) -> str:
        """Asks for it; whoever makes it first lets `others` join."""
        return self.builds.run(key, lambda: self.table.get(key), lambda: self.make(key, others))

    def make(self, key: str, others: int) -> str:
        """Fails as often as there are failures; only the first one waits for others."""
        self.made += 1
        until(lambda: self.waiting(key) > others or self.made > 1)
        if self.failures:
            raise self.failures.pop()
        self.table[key] = f"{key} {self.made}"
        return self.table[key]

    def given_up(self, make: Any, key: str = "bread") -> tuple[CancelToken, list[Any]]:
        """Asks in a thread of its own, which the test can cancel."""
        cancel_token = CancelToken()
        outcomes: list[Any] = []

        def ask() -> None:
            try:
                outcomes.append(
                    self.builds.run(key, lambda: self.table.get(key), make, cancel_token)
                )
            except Exception as error:  # noqa: BLE001  the test looks at it
                outcomes.append(error)

        start(ask)
        return cancel_token, outcomes


def test_many_who_ask_at_once_get_what_one_of_them_made() -> None:
    """It is made once, and they wait."""
    concurrent_build = ConcurrentBuild()
    assert at_once(8, lambda _: concurrent_build.ask("bread", others=7)) == ["bread 1"] * 8
    assert (concurrent_build.made, concurrent_build.builds._builds) == (1, {})


def test_what_is_in_the_table_is_not_made_again() -> None:
    """Nor does anybody wait for it."""
    concurrent_build = ConcurrentBuild()
    assert [concurrent_build.ask("bread") for _ in range(3)] == ["bread 1"] * 3
    assert concurrent_build.made == 1


@pytest.mark.parametrize("error", [ValueError("burnt"), SystemExit(3)])
def test_a_failure_reaches_all_who_waited_and_is_not_remembered(error: BaseException) -> None:
    """The next one who asks makes it anew."""
    concurrent_build = ConcurrentBuild()
    concurrent_build.failures = [error]
    seen: list[BaseException] = []

    def ask(_: int) -> None:
        try:
            concurrent_build.ask("bread", others=3)
        except BaseException as raised:  # noqa: BLE001  the test looks at it
            seen.append(raised)

    at_once(4, ask)
    assert seen == [error] * 4
    assert concurrent_build.ask("bread") == "bread 2"


@pytest.mark.parametrize("error", [ConnectionLost("gone"), ProtocolError("confused")])
def test_one_client_that_fails_does_not_fail_the_others(error: JaxdError) -> None:
    """Whoever waited for its answer asks a client of its own, and one is enough for all."""
    concurrent_build = ConcurrentBuild()
    concurrent_build.failures = [error]

    def ask(index: int) -> str:
        return concurrent_build.ask("bread", others=3)

    outcomes = at_once(4, ask)
    assert sum(outcome is error for outcome in outcomes) == 1
    assert set(outcomes) - {error} <= {"bread 2", "bread 3", "bread 4"}


def test_a_trace_is_interrupted_when_nobody_waits() -> None:
    """Who waited is released at once, and the next who asks has it made anew."""
    concurrent_build, reached = ConcurrentBuild(), threading.Event()

    def make() -> str:
        def trace() -> None:
            reached.set()
            for _ in itertools.count():
                pass

        run_interruptibly(trace)
        return "never"

    cancel_token, outcomes = concurrent_build.given_up(make)
    assert reached.wait(PATIENCE_S)
    build = concurrent_build.build()
    assert build is not None
    cancel_token.cancel(Cancelled("not wanted."))
    until(lambda: outcomes and build.future.done())
    assert isinstance(outcomes[0], Cancelled)
    assert concurrent_build.left == [build]
    assert concurrent_build.ask("bread") == "bread 1"


def test_a_trace_goes_on_for_those_who_still_wait() -> None:
    """One who is given up leaves alone."""
    concurrent_build, go = ConcurrentBuild(), threading.Event()

    def make() -> str:
        run_interruptibly(lambda: go.wait(PATIENCE_S))
        return "bread"

    leaving, left = concurrent_build.given_up(make)
    until(lambda: concurrent_build.waiting() == 1)
    _, stayed = concurrent_build.given_up(make)
    until(lambda: concurrent_build.waiting() == 2)
    leaving.cancel(Cancelled("not wanted."))
    until(lambda: left)
    go.set()
    until(lambda: stayed)
    assert isinstance(left[0], Cancelled)
    assert stayed == ["bread"]


def test_what_cannot_be_interrupted_is_there_for_the_next() -> None:
    """A compilation goes on, and who asks meanwhile joins it."""
    concurrent_build, reached, go = ConcurrentBuild(), threading.Event(), threading.Event()

    def make() -> str:
        concurrent_build.made += 1
        reached.set()
        assert go.wait(PATIENCE_S)
        concurrent_build.table["bread"] = "bread"
        return "bread"

    cancel_token, outcomes = concurrent_build.given_up(make)
    assert reached.wait(PATIENCE_S)
    cancel_token.cancel(Cancelled("not wanted."))
    until(lambda: outcomes)
    _, later = concurrent_build.given_up(make)
    until(lambda: concurrent_build.waiting() == 1)
    go.set()
    until(lambda: later)
    assert (later, concurrent_build.made) == (["bread"], 1)


def test_what_waits_for_its_turn_is_dropped() -> None:
    """It takes no turn, and is not begun."""
    concurrent_build, room, taken = ConcurrentBuild(), BuildRoom(1), ExitStack()
    taken.enter_context(room.turn("butter"))

    def make() -> str:
        with room.turn("bread"):
            concurrent_build.made += 1
            return "bread"

    cancel_token, outcomes = concurrent_build.given_up(make)
    until(lambda: len(room) == 1)
    cancel_token.cancel(Cancelled("not wanted."))
    until(lambda: outcomes and not concurrent_build.builds._builds)
    assert (len(room), concurrent_build.made) == (0, 0)
    taken.close()
    assert concurrent_build.builds.run("bread", lambda: None, make) == "bread"


def test_what_is_traced_for_nobody_is_not_compiled() -> None:
    """When it could not be interrupted in time."""
    concurrent_build, reached, go = ConcurrentBuild(), threading.Event(), threading.Event()
    compiled: list[str] = []

    def make() -> str:
        reached.set()
        assert go.wait(PATIENCE_S)
        check_not_abandoned()
        compiled.append("it")
        return "bread"

    cancel_token, outcomes = concurrent_build.given_up(make)
    assert reached.wait(PATIENCE_S)
    cancel_token.cancel(Cancelled("not wanted."))
    until(lambda: outcomes)
    go.set()
    until(lambda: not concurrent_build.builds._builds)
    assert compiled == []


def test_a_build_that_takes_too_long_releases_those_who_wait() -> None:
    """Its time begins with its turn, and who asks while it goes on is told at once."""
    concurrent_build, room, go = ConcurrentBuild(max_s=0.05), BuildRoom(1), threading.Event()

    def make() -> str:
        with room.turn("bread"):
            assert go.wait(PATIENCE_S)
            return "bread"

    _, outcomes = concurrent_build.given_up(make)
    until(lambda: outcomes)
    assert isinstance(outcomes[0], DeadlineExceeded)
    assert "--max-build-s" in str(outcomes[0])
    with pytest.raises(DeadlineExceeded):
        concurrent_build.builds.run("bread", lambda: None, make)
    go.set()
    until(lambda: not concurrent_build.builds._builds)


def test_the_time_of_a_build_is_that_of_those_who_wait_for_it() -> None:
    """From its turn on, and for who joins it later."""
    concurrent_build, room, go = ConcurrentBuild(), BuildRoom(1), threading.Event()
    taken = ExitStack()
    taken.enter_context(room.turn("butter"))

    def make() -> str:
        with room.turn("bread"):
            assert go.wait(PATIENCE_S)
            return "bread"

    first, _ = concurrent_build.given_up(make)
    until(lambda: len(room) == 1)
    assert first.phase == "waiting"
    taken.close()
    until(lambda: first.phase == "building")
    second, outcomes = concurrent_build.given_up(make)
    until(lambda: second.phase == "building")
    go.set()
    until(lambda: outcomes)


def test_different_things_are_made_side_by_side() -> None:
    """A slow one holds up nobody who asks for another."""
    builds: Builds[str, str] = Builds()
    entered, release = threading.Event(), threading.Event()

    def slowly() -> str:
        entered.set()
        assert release.wait(PATIENCE_S)
        return "slow"

    slow = start(lambda: builds.run("slow", lambda: None, slowly))
    assert entered.wait(PATIENCE_S)
    assert builds.run("fast", lambda: None, lambda: "fast") == "fast"
    release.set()
    join([slow])
