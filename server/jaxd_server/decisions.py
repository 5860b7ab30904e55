"""Says of each build why it was made, to whoever waits for it and to whoever asks later."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from jaxd_protocol.descriptions import Description, parameter_names
from jaxd_protocol.trees.forms import argument_forms
from jaxd_server.advice import Advice, Advised, advice_for
from jaxd_server.compiler import Executable
from jaxd_server.functions import Function
from jaxd_server.ledger import Built, Ledger, Verdict
from jaxd_server.logs import log_event
from jaxd_server.progress import Emit
from jaxd_server.reasons import Reason, reason_for, versions_of

__all__ = ["Decision", "Decisions", "describe"]

LONG_BUILD_S: Final = 2.0
"""Whoever waited this long for a program is told why."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One program that was made, and why.

    Attributes:
        at: when, as `time.time()`.
        function: whose program it is.
        key: names function, options and configuration.
        verdict: how it was come by.
        seconds: how long that took.
        reason: why.
    """

    at: float
    function: str
    key: bytes
    verdict: Verdict
    seconds: float
    reason: Reason

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        nearest = self.reason.nearest
        return {
            "time": round(self.at, 3),
            "function": self.function,
            "key": self.key.hex(),
            "verdict": self.verdict,
            "seconds": round(self.seconds, 3),
            "reason": self.reason.text,
            "nearest": None if nearest is None else nearest.key.hex(),
            "differences": [each.to_dict() for each in self.reason.differences],
        }


class Decisions:
    """The last builds with their reasons; safe from any thread.

    Args:
        limit: how many to keep.

    Attributes:
        ledger: what was built.
    """

    def __init__(self, limit: int = 200) -> None:
        self.ledger = Ledger()
        self._recent: deque[Decision] = deque(maxlen=limit)
        self._advised = Advised()
        self._lock = threading.Lock()  # guards _recent; one build after the other finds its reason

    def recent(self, count: int) -> list[Decision]:
        """The last ones, the last first."""
        found = list(self._recent)
        return found[: -count - 1 : -1] if count > 0 else []

    def built(
        self, function: Function, skeleton: bytes, executable: Executable, emit: Emit
    ) -> None:
        """Notes a program and tells the caller why it was made, and what to do about it."""
        try:
            decision, advice = self._note(function, skeleton, executable)
        except Exception:  # noqa: BLE001  a program must not be lost over its explanation
            log_event("unexplained_build", level=logging.ERROR, function=function.name)
            return
        if executable.build_s >= LONG_BUILD_S:
            content = {"seconds": executable.build_s, "reason": decision.reason.text}
            emit("built", {"function": function.name, **content})
        for one in advice:
            emit("warning", {"category": "advice", **one._asdict()})

    def _note(
        self, function: Function, skeleton: bytes, executable: Executable
    ) -> tuple[Decision, list[Advice]]:
        described = describe(function)
        arguments = argument_forms(skeleton, described.parameters)
        now, seconds = time.time(), executable.build_s
        built = Built(skeleton, described.parameters, seconds, now, weakref.ref(executable))
        with self._lock:
            reason = reason_for(self.ledger, function.key, described, arguments)
            record = self.ledger.add(function.key, described, built)
            decision = Decision(now, function.name, function.key, "compile", seconds, reason)
            self._recent.append(decision)
        advice = advice_for(record, versions_of(self.ledger, described))
        return decision, self._advised.news(advice)


def describe(function: Function) -> Description:
    """What is known of a function that the server has."""
    meaning = function.described.meaning
    return Description(
        function.name,
        function.described.fingerprint,
        function.options,
        meaning.parts if meaning else (),
        parameter_names(function.function),
        meaning.shared if meaning else True,
    )
