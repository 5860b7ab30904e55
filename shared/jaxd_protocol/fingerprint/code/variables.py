"""What code reads of its variables, also by way of others: `c = cfg.model`, and then `c.width`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from jaxd_protocol.fingerprint.code.callbacks import AS_CALLBACK
from jaxd_protocol.fingerprint.data_model import Steps


class Alias(NamedTuple):
    """A value that is assigned to a variable as it is read.

    Attributes:
        base: the variable, or the global, that it is read of.
        is_global: which of the two.
        steps: what is read of that.
        target: the variable that is assigned.
        line: where.
    """

    base: str
    is_global: bool
    steps: Steps
    target: str
    line: int


class VariableReads:
    """Reads of variables; a variable that escapes or is bound twice counts whole.

    Attributes:
        reads: of each variable, with the line of each.
        whole: those of which all may be read.
        aliases: values that are assigned to variables.
    """

    def __init__(self) -> None:
        self.reads: dict[str, dict[Steps, int]] = {}
        self.whole: set[str] = set()
        self.aliases: list[Alias] = []

    def add(self, name: str, steps: Steps, line: int) -> None:
        """Adds one; without steps all is read."""
        if steps:
            self.reads.setdefault(name, {}).setdefault(steps, line)
        else:
            self.whole.add(name)

    def look_through(self, once: Collection[str]) -> Iterator[tuple[str, Steps, int]]:
        """Adds what is read by way of aliases; gives what is read of globals in that way.

        Args:
            once: the code's own variables that are assigned once.
        """
        found: dict[str, dict[Steps, int] | None] = {}
        for alias in self.aliases:
            for steps, line in self._by_alias(alias, once, found, frozenset()).items():
                if alias.is_global:
                    yield alias.base, steps, line
                else:
                    self.add(alias.base, steps, line)

    def _by_alias(
        self,
        alias: Alias,
        once: Collection[str],
        found: dict[str, dict[Steps, int] | None],
        inside: frozenset[str],
    ) -> dict[Steps, int]:
        """What is read by way of an alias; where that is not certain, all of the value."""
        name = alias.target
        if name not in found and name not in inside:
            found[name] = self._all_reads(name, once, found, inside | {name})
        further = None if name in inside else found[name]
        if not further:
            return {alias.steps: alias.line}
        return {(*alias.steps, *steps): line for steps, line in further.items()}

    def _all_reads(
        self,
        name: str,
        once: Collection[str],
        found: dict[str, dict[Steps, int] | None],
        inside: frozenset[str],
    ) -> dict[Steps, int] | None:
        """All that is read of a variable; None where that is not certain."""
        if name not in once or name in self.whole:
            return None
        reads = dict(self.reads.get(name, {}))
        for alias in self.aliases:
            if alias.base == name and not alias.is_global:
                reads.update(self._by_alias(alias, once, found, inside))
        return None if () in reads or AS_CALLBACK in reads else reads
