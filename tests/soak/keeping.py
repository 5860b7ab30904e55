"""What a client does in one turn with arrays that stay on the server."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

import jaxd
from jaxd.errors import ValueDeleted, ValuesLost
from tests.soak.program import Program, WrongAnswer
from tests.soak.turns import LARGE, numbers

MOST: Final = 8
"""Values that a client holds."""

NAMES: Final = 6


class HeldValue(NamedTuple):
    """A value, what it has to be, and since when it is there."""

    value: Any
    expected: Any
    since: float


class ValueTurns:
    """The values of one client.

    Args:
        program: whose functions make them.
        chance: decides.
        lost: is told of each value that is gone: the error, and since when it was there.

    Attributes:
        since: from when on the values are that the turn uses, which may be lost.
    """

    def __init__(
        self,
        program: Program,
        chance: random.Random,
        lost: Callable[[ValuesLost, float], None],
    ) -> None:
        self._program, self._chance, self._lost = program, chance, lost
        self._held: list[HeldValue] = []
        self._state: HeldValue | None = None
        self.since = 0.0

    def turns(self) -> dict[Callable[[], None], int]:
        """What can be done, and how often, compared with others."""
        return {
            self.keep: 8,
            self.poll: 8,
            self.train: 8,
            self.name: 3,
            self.find: 3,
            self.share: 3,
        }

    def leave(self) -> None:
        """Looks at all of them a last time."""
        while self._held:
            self.poll()

    def keep(self) -> None:
        """Leaves a result there, of some calls on each other."""
        self.since = time.monotonic()
        program, size = self._program, self._chance.choice([4, 1 << 15, LARGE, 1 << 20])
        expected = numbers(self._chance, size)
        value = program.client.put(expected)
        for _ in range(self._chance.randrange(1, 4)):
            value = program.function("large").remote(value)
            expected = program.expected("large", expected).result
        self._held.append(HeldValue(value, expected, self.since))
        if len(self._held) > MOST:
            self.poll()

    def poll(self) -> None:
        """Brings one home that has been there for a while."""
        if not self._held:
            return
        value, expected, since = self._held.pop(self._chance.randrange(len(self._held)))
        self.since = since
        try:
            found = value.fetch() if self._chance.random() < 0.5 else np.asarray(value)
        except ValuesLost as error:
            self._lost(error, since)
        else:
            self._program.compare(found, expected, "kept")

    def train(self) -> None:
        """Some more steps of one loop, whose state is given up to each; edits change its step."""
        state, self._state = self._state, None
        if state is None:
            first = {"w": np.ones(LARGE // 4, np.float32), "n": np.int32(0)}
            state = HeldValue(self._program.client.put(first), first, time.monotonic())
        self.since = state.since
        update = self._program.function("update", donate_argnums=0)
        value, expected = state.value, state.expected
        for _ in range(self._chance.randrange(1, 8)):
            batch = numbers(self._chance, 64)
            value, loss = update(value, batch)
            expected, right = self._program.expected("update", expected, batch).result
        self._program.compare(loss, right, "loss")
        if self._chance.random() < 0.3:
            self._program.compare(jaxd.get(value), expected, "state")
        if expected["n"] < 200:
            self._state = HeldValue(value, expected, state.since)

    def name(self) -> None:
        """Leaves a tree under a name, for whoever finds it."""
        self.since = time.monotonic()
        tag = self._chance.randrange(1000)
        tree = {"x": np.full(self._chance.choice([16, 1 << 15]), tag, np.int32), "tag": tag}
        self._program.client.put(tree, name=f"soak-{tag % NAMES}", ttl_s=10.0)

    def find(self) -> None:
        """What somebody has left is whole."""
        self.since = time.monotonic()
        try:
            tree = self._program.client.named(f"soak-{self._chance.randrange(NAMES)}")
            found, tag = np.asarray(tree["x"]), int(tree["tag"])
        except ValueDeleted:
            return  # nobody has, or its time is over
        self._program.calls += 1
        if found.size not in (16, 1 << 15) or (found != tag).any():
            raise WrongAnswer(f"named {tag}, but found {found}")

    def share(self) -> None:
        """Memory that the server has mapped, written to again and again."""
        array = jaxd.empty(LARGE, np.float32)
        for _ in range(2):
            array[:] = numbers(self._chance, LARGE)
            self._program.check("large", array)
