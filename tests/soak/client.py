"""One client process of the soak: turn after turn, each told on the standard output as a line.

    python -m tests.soak.client NAME SEED FOLDER ADDRESS ORACLE

`ORACLE` is where to ask for right answers; a client that has jax (`-`) knows them by itself.
"""

from __future__ import annotations

import io
import json
import os
import random
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import jaxd
from jaxd.errors import JaxdError, ValuesLost
from tests.soak.keeping import ValueTurns
from tests.soak.oracle import Asking, answer
from tests.soak.program import Ask, Program, WrongAnswer
from tests.soak.turns import TURNS, TURNS_OF_JAX

PAUSE_S: Final = 0.02
"""Mean of what passes between two turns: clients do other things, too."""


class LineWriter:
    """Says on the standard output, a line each, how turns went; from now on nothing else does."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", buffering=1)
        self._count = 0
        os.dup2(2, 1)
        sys.stdout = StrayOutput(self)

    def __call__(self, **what: Any) -> None:
        """A line for the soak."""
        self._count += 1
        line = {"number": self._count, "ended": time.monotonic(), **what}
        self._out.write(f"{json.dumps(line)}\n")

    def of_error(self, kind: str, began: float, since: float, error: BaseException) -> None:
        """That somebody was told an error."""
        times = {"began": began, "called": began, "answered": began, "since": since}
        self(kind=kind, outcome="error", **times, **_described(error))


class Work:
    """Turns of all kinds, until it is told to leave.

    Args:
        tell: says how they went.
        program: whose functions are called.
        chance: decides everything.
        has_jax: whether this process may use jax.
    """

    def __init__(
        self, tell: LineWriter, program: Program, chance: random.Random, *, has_jax: bool
    ) -> None:
        self._tell, self._program, self._chance = tell, program, chance
        self.keeping = ValueTurns(program, chance, self._lost)
        self._turns: list[tuple[str, Callable[[], None], int]] = [
            (turn.__name__, lambda turn=turn: turn(program, chance), weight)  # type: ignore[misc]
            for turn, weight in (TURNS | (TURNS_OF_JAX if has_jax else {})).items()
        ]
        self._turns += [(t.__name__, t, weight) for t, weight in self.keeping.turns().items()]
        self.is_leaving = False

    def go_on(self) -> None:
        """Turn after turn."""
        weights = [weight for *_, weight in self._turns]
        while not self.is_leaving:
            ((name, turn, _),) = self._chance.choices(self._turns, weights)
            self.take(name, turn)
            time.sleep(self._chance.expovariate(1 / PAUSE_S))
        self.take("leave", self.keeping.leave)
        self._tell(kind="left", outcome="right")

    def take(self, name: str, turn: Callable[[], None]) -> None:
        """One turn, and tells how it went."""
        program, began = self._program, time.monotonic()
        calls, edits = program.calls, program.edits
        self.keeping.since = began
        said: dict[str, Any] = {"outcome": "right"}
        try:
            turn()
        except WrongAnswer as wrong:
            said = {"outcome": "wrong", "message": str(wrong)}
        except Exception as error:  # noqa: BLE001  whoever reads this judges
            called = max(began, program.called)
            times_of_it = {"since": self.keeping.since, "called": called}
            times_of_it["answered"] = min(called, program.answered or called)
            said = {"outcome": "error", **times_of_it, **_described(error)}
        times, program.times = program.times, []
        said |= {"calls": program.calls - calls, "edits": program.edits - edits, "times": times}
        self._tell(kind=name, began=began, **said)

    def _lost(self, error: ValuesLost, since: float) -> None:
        self._tell.of_error("held", time.monotonic(), since, error)


class StrayOutput(io.TextIOBase):
    """Takes what is printed when nobody expects it: late, or a second time.

    Args:
        tell: is told of it.
    """

    def __init__(self, tell: LineWriter) -> None:
        self._tell = tell

    def write(self, text: str) -> int:
        """Tells."""
        self._tell(kind="stray", outcome="wrong", message=f"printed out of place: {text!r}")
        return len(text)


def _described(error: BaseException) -> dict[str, Any]:
    kind = type(error)
    names = [one.__name__ for one in kind.__mro__ if issubclass(one, JaxdError)]
    text = "".join(traceback.format_exception(error))
    return {"error": names or [kind.__qualname__], "message": str(error), "traceback": text}


def _unraisable(what: Any) -> None:
    if what.exc_type is KeyboardInterrupt:  # Python itself swallows it in a finalizer
        os._exit(130)
    sys.__unraisablehook__(what)


def main(name: str, seed: str, folder: str, address: str, oracle: str) -> None:
    """Works until SIGTERM."""
    sys.unraisablehook = _unraisable
    signal.signal(signal.SIGINT, signal.default_int_handler)  # who started the soak may ignore it
    warnings.simplefilter("ignore")  # it compiles on purpose
    chance = random.Random(f"{seed} {name}")
    has_jax = oracle == "-"
    ask: Ask = answer if has_jax else Asking(oracle)
    if has_jax:
        import jax  # noqa: F401  before the first result
    tell = LineWriter()
    with _connected(address, tell) as client:
        program = Program(client, ask, Path(folder), int(seed))
        work = Work(tell, program, chance, has_jax=has_jax)

        def leave(*_: object) -> None:
            work.is_leaving = True

        signal.signal(signal.SIGTERM, leave)
        tell(kind="began", outcome="right")
        work.go_on()


def _connected(address: str, tell: LineWriter) -> jaxd.Client:
    """As soon as that is possible."""
    while True:
        began = time.monotonic()
        try:
            return jaxd.connect(address)
        except JaxdError as error:
            tell.of_error("connect", began, began, error)
            time.sleep(PAUSE_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
