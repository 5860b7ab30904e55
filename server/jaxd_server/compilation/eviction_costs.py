"""What an executable occupies and what rebuilding it would cost: the input of eviction."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Final

from jaxd_server.compilation.compiling.executable import Executable
from jaxd_server.compilation.compiling.program import Program
from jaxd_server.compilation.eviction import Entry, Limits

_MIN_BYTES: Final = 256 << 10
"""What a program takes at least: less than this is not to be seen in the size of a process."""

_LOAD_COST_SHARE: Final = 0.3
"""Seconds that loading takes for each second of tracing and compiling, for a large program."""


class EvictionCosts:
    """Makes the entries from which victims of eviction are chosen.

    Args:
        is_kept: whether an executable is on disk as well, and so is cheap to have again.
        resident: bytes of memory that the process has; 0 where nobody knows.
    """

    def __init__(self, is_kept: Callable[[Executable], bool], resident: Callable[[], int]) -> None:
        self._is_kept = is_kept
        self._resident = resident
        self._resident_before = resident()

    def entries(
        self,
        items: Sequence[tuple[Hashable, Executable]],
        is_in_use: Callable[[Executable], bool],
    ) -> list[Entry]:
        """What the choice of victims depends on.

        Args:
            items: executables by what the table calls them.
            is_in_use: whether one has to stay.
        """
        sizes = {one.program: _host_bytes(one.program) for _, one in items}
        # What a program takes is seen in the growth of the process while it was compiled, of which
        # others, at work meanwhile, have a part. Together they cannot have taken more than it grew.
        grown = max(0, self._resident() - self._resident_before)
        scale = min(1.0, grown / max(1, sum(sizes.values()))) if self._resident_before else 1.0
        return [
            Entry(
                name,
                one.principal,
                one.program,
                int(sizes[one.program] * scale),
                one.program.device_bytes,
                one.last_use,
                self._rebuild_s(one),
                not is_in_use(one),
            )
            for name, one in items
        ]

    def _rebuild_s(self, executable: Executable) -> float:
        """What it would take to have it again."""
        costs = executable.costs
        if executable.structure is None:  # it came from disk
            return costs.paid_s
        if costs.build_s > 1 and self._is_kept(executable):
            return executable.program.load_s or costs.build_s * _LOAD_COST_SHARE
        return costs.build_s


def are_within(limits: Limits, executables: Sequence[Executable]) -> bool:
    """Whether nothing has to go, as nearly always; a quick look after each build."""
    programs = {one.program for one in executables}
    return (
        len(executables) <= limits.count
        and sum(map(_host_bytes, programs)) <= limits.host_bytes
        and sum(one.device_bytes for one in programs) <= limits.device_bytes
    )


def _host_bytes(program: Program) -> int:
    return max(_MIN_BYTES, program.host_bytes)
