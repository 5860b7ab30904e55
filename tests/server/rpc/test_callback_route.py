"""The way of a call's callbacks to its client, over one connection after another."""

from __future__ import annotations

import time
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from jaxd_protocol.errors import ConnectionLost
from jaxd_server.rpc.callback_route import CallbackRoute
from tests.end_to_end.gates import in_thread
from tests.server.staging import until


class Line:
    """A connection of a client, which answers once it is told to, or ends."""

    def __init__(self) -> None:
        self.questions = SimpleNamespace(is_closed=False)
        self.asked: list[Any] = []
        self._answer: Future[Any] = Future()

    def call_back(self, number: int, *args: Any, **more: Any) -> Any:
        """Waits."""
        self.asked.append((number, *args, more["place"], more["has_lost_connection"]))
        return self._answer.result(20)

    def answer(self, value: Any) -> None:
        """Of all questions."""
        self._answer.set_result(value)

    def end(self, *, is_lost: bool = True) -> None:
        """All questions fail."""
        self.questions.is_closed = is_lost
        self._answer.set_exception(ConnectionLost("gone"))


def route_over(line: Any, number: int = 1) -> CallbackRoute:
    """Of a call that was sent over it."""
    return CallbackRoute(line, number, set())


def asking(route: CallbackRoute, line: Line, count: int = 1) -> Future[Any]:
    """A callback under way."""
    found = in_thread(partial(route.call_back, "target", wants_result=True))
    until(lambda: len(line.asked) == count)
    return found


def test_a_callback_whose_connection_is_lost_is_asked_for_again_over_the_next() -> None:
    """With its place, which no other one has."""
    first, second = Line(), Line()
    route = route_over(first, 7)
    one = asking(route, first)
    other = asking(route, first, 2)
    first.end()
    assert not one.done()
    route.move_to(route_over(second, 8))
    second.answer("found")
    assert one.result(20) == other.result(20) == "found"
    assert first.asked == [(7, "target", 0, False), (7, "target", 1, False)]
    assert sorted(second.asked) == [(8, "target", 0, True), (8, "target", 1, True)]


@pytest.mark.parametrize("comes_first", [True, False])
def test_a_client_that_does_not_come_back_is_waited_for_no_longer(comes_first: bool) -> None:
    """Once nobody can, or whoever was lost before some time has not."""
    line = Line()
    route = route_over(line)
    if comes_first:
        route.give_up()
    one = asking(route, line)
    route.give_up(before=0.0)
    line.end()
    if not comes_first:
        assert not one.done()
    while not (comes_first or one.done()):
        route.give_up(time.monotonic())
    with pytest.raises(ConnectionLost, match="the client went away"):
        one.result(20)


def test_what_a_function_has_raised_is_no_lost_connection() -> None:
    """Though it be the same error."""
    line = Line()
    one = asking(route_over(line), line)
    line.end(is_lost=False)
    with pytest.raises(ConnectionLost, match="gone"):
        one.result(20)
