from __future__ import annotations

import threading
from functools import partial
from typing import Final

import pytest

from jaxd_server.compilation.compiling.builds import (
    Build,
    BuildRoom,
    as_current_build,
    check_not_abandoned,
    current_build,
)
from jaxd_server.user_code.interrupt import Interrupted
from tests.server.staging import PATIENCE_S, join, start, until

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
    """It gives its turn back."""
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
