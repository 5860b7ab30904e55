"""How the program of a call on values reaches its client, over all connections of its session."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from jaxd_protocol.errors import ConnectionLost


class Questions(Protocol):
    """The questions to the client of one connection."""

    @property
    def is_closed(self) -> bool:
        """Whether the client is gone."""


class CallableBack(Protocol):
    """The client of one connection; see `ClientProxy`."""

    @property
    def call_back(self) -> Callable[..., Any]:
        """Has the client call a function of its own."""

    @property
    def questions(self) -> Questions:
        """Those that it has not answered yet."""


class CallbackRoute:
    """How the program of a call on values calls its client back. Thread-safe.

    Such a call runs once, over however many connections its client sends it. A callback whose
    connection is lost waits for the next one, and is asked for again there. Each has a place, by
    which the client knows what it has answered.

    Args:
        client: as it has sent the call first.
        number: its number there.
        asking: what the client's process is asked now; to which this adds.
    """

    def __init__(self, client: CallableBack, number: int, asking: set[object]) -> None:
        self._way = client, number
        self._asking = asking
        self._places = itertools.count()
        self._has_moved = self._is_over = False
        self._lost_at = math.inf
        self._changed = threading.Condition()  # guards these, but for the places

    def call_back(self, *args: Any, wants_result: bool) -> Any:
        """Has the client call a function of its own; see `ClientProxy.call_back`.

        Raises:
            ConnectionLost: when the client went away, and is waited for no longer.
            Exception: what the function raises.
        """
        place, token = next(self._places), object()
        self._asking.add(token)
        try:
            while True:
                way, has_moved = self._way, self._has_moved
                try:
                    return way[0].call_back(
                        way[1],
                        *args,
                        wants_result=wants_result,
                        place=place,
                        has_lost_connection=has_moved,
                    )
                except ConnectionLost:
                    if not way[0].questions.is_closed:
                        raise  # the function has
                    self._await_other(way)
        finally:
            self._asking.discard(token)

    def _await_other(self, way: tuple[CallableBack, int]) -> None:
        with self._changed:
            if self._way is way:
                self._lost_at = min(self._lost_at, time.monotonic())
            self._changed.wait_for(lambda: self._way is not way or self._is_over)
            if self._way is way:
                raise ConnectionLost("the client went away")

    def move_to(self, route: CallbackRoute) -> None:
        """The client has sent the call again, over another connection."""
        with self._changed:
            self._way = route._way
            self._has_moved, self._lost_at = True, math.inf
            self._changed.notify_all()

    def give_up(self, before: float = math.inf) -> None:
        """The client is not waited for any more, where its connection was lost before then."""
        with self._changed:
            if before == math.inf or self._lost_at < before:
                self._is_over = True
                self._changed.notify_all()
