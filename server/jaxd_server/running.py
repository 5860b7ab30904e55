"""A call that was admitted, and what is said of it while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from jaxd_server.interest import EVER, Interest

__all__ = ["Running"]


@dataclass(slots=True, eq=False)
class Running:
    """A call that was admitted.

    Attributes:
        function: what people call its function.
        started: `time.monotonic()` when it was admitted.
        is_suspect: whether it was to run alone.
        place: where it stands in the black box; -1: nowhere.
        leaves: called when it is over.
        interest: whether anybody still waits for it.
    """

    function: str
    started: float = field(default_factory=time.monotonic)
    is_suspect: bool = False
    place: int = -1
    leaves: list[Callable[[], None]] | None = None
    interest: Interest = EVER

    @property
    def is_left(self) -> bool:
        """Whether nobody waits for it any more, and its client was told."""
        return self.interest.is_settled

    def row(self) -> dict[str, str | float]:
        """The same for the status page."""
        seconds = round(time.monotonic() - self.started, 3)
        row: dict[str, str | float] = {"function": self.function, "seconds": seconds}
        if self.interest is EVER:
            return row
        waited_s = self.interest.spent()["waiting"]
        return {**row, "phase": self.interest.phase, "waited_s": round(waited_s, 3)}
