"""Builds that several calls wait for, and how many go on at a time."""

from __future__ import annotations

import itertools
import threading
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import pytest

from jaxd_protocol.errors import (
    Cancelled,
    ConnectionLost,
    DeadlineExceeded,
    JaxdError,
    ProtocolError,
)
from jaxd_server.compilation.compiling.builds import (
    Build,
    BuildRoom,
    Builds,
    as_current_build,
    check_not_abandoned,
    current_build,
)
from jaxd_server.runtime.threads.cancellation import CancelToken
from jaxd_server.user_code.interrupt import Interrupted, run_interruptibly
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
    assert concurrent_build.ask("bread") == "bread 1"  # it is in the table
    assert (concurrent_build.made, concurrent_build.builds._builds) == (1, {})


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


NEVER: Final = 1e6


class Bakery:
    """Builds that go on until they are told to end."""

    def __init__(self, room: BuildRoom) -> None:
        self.room = room
        self.inside: list[str] = []
        self.builds: dict[str, Build] = {}
        self.waited: list[str] = []
        self._ends: dict[str, threading.Event] = {}
        self._threads: list[threading.Thread] = []

    def begin(self, *names: str) -> None:
        """Asks for a turn of each, in that order."""
        for name in names:
            self.builds[name], self._ends[name] = Build(name), threading.Event()
            asked = len(self.inside) + len(self.room) + 1
            self._threads.append(start(self._bake, name))
            until(partial(self._have_asked, asked))

    def _have_asked(self, count: int) -> bool:
        return len(self.inside) + len(self.room) >= count

    def _bake(self, name: str) -> None:
        with (
            as_current_build(self.builds[name]),
            self.room.turn(name, lambda: self.waited.append(name)),
        ):
            self.inside.append(name)
            assert self._ends[name].wait(PATIENCE_S)
            self.inside.remove(name)

    def end(self, *names: str) -> None:
        """Lets builds end."""
        for name in names:
            self._ends[name].set()

    def give_up(self, name: str) -> None:
        """No call waits for it any longer."""
        self.builds[name].is_abandoned = True
        self.builds[name].notify()

    def close(self) -> None:
        """Ends all."""
        self.end(*self._ends)
        join(self._threads)


def test_only_so_many_are_built_at_a_time() -> None:
    """Who has to wait is told, and behind what."""
    bakery = Bakery(BuildRoom(1, NEVER))
    bakery.begin("bread", "cake")
    assert (bakery.inside, bakery.waited, len(bakery.room)) == (["bread"], ["cake"], 1)
    behind = bakery.builds["cake"].waits_behind()
    assert behind is not None
    assert behind[:2] == ("bread", "bread")
    assert behind[2] >= 0
    assert bakery.builds["bread"].waits_behind() is None
    bakery.end("bread")
    until(lambda: bakery.inside == ["cake"])
    assert bakery.builds["cake"].waits_behind() is None
    bakery.close()
    assert len(bakery.room) == 0


def test_what_is_given_up_lets_the_next_one_begin_beside_it() -> None:
    """At once; XLA cannot be interrupted."""
    bakery = Bakery(BuildRoom(1, NEVER))
    bakery.begin("bread", "cake", "pie")
    bakery.give_up("bread")
    until(lambda: sorted(bakery.inside) == ["bread", "cake"])
    bakery.end("bread")
    until(lambda: bakery.inside == ["cake"])
    assert len(bakery.room) == 1  # there is one place, as before
    bakery.close()


def test_a_long_one_lets_others_pass_but_not_any_number() -> None:
    """At most twice as many as the limit."""
    bakery = Bakery(BuildRoom(1, 0.01))
    bakery.begin("bread", "cake")
    until(lambda: sorted(bakery.inside) == ["bread", "cake"])
    bakery.begin("pie")
    assert len(bakery.room) == 1
    bakery.end("cake")
    until(lambda: sorted(bakery.inside) == ["bread", "pie"])
    bakery.begin("scone")
    bakery.end("bread")
    until(lambda: sorted(bakery.inside) == ["pie", "scone"])
    bakery.close()


def test_what_nobody_waits_for_is_not_begun() -> None:
    """It gives its turn back; what is no build cannot be given up."""
    assert current_build() is None
    check_not_abandoned()
    build, room = Build(), BuildRoom(1, NEVER)
    build.is_abandoned = True
    with as_current_build(build):
        assert current_build() is build
        with pytest.raises(Interrupted):
            check_not_abandoned()
        with pytest.raises(Interrupted), room.turn("bread"):
            pass
    assert (build.begun, current_build()) == (None, None)
    with room.turn("cake"):
        pass


def test_who_works_on_it_is_told_that_nobody_waits() -> None:
    """Once; at once when that is so already; and not any more when it is over."""
    build, told = Build(), []
    with build.cancel_hook(lambda: told.append("over")):
        pass
    with build.cancel_hook(lambda: told.append("early")):
        build.is_abandoned = True
        build.notify()
        build.notify()
    with build.cancel_hook(lambda: told.append("late")):
        pass
    assert told == ["early", "late"]
