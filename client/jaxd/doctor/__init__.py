"""What `jaxd doctor` looks at: small checks, each of one thing. They read, and change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from jaxd.doctor import gpu, installation, reaching
from jaxd.doctor.situation import Check, Situation

__all__ = ["CHECKS", "Check", "Situation", "examine"]

CHECKS: Final[tuple[Callable[[Situation], Check | None], ...]] = (
    installation.python,
    installation.packages,
    installation.server_extra,
    installation.configuration,
    installation.runtime_directory,
    installation.disk,
    installation.memory_to_share,
    installation.token,
    gpu.driver,
    gpu.plugin,
    gpu.visible,
    gpu.other_processes,
    gpu.preallocation,
    gpu.shared_folder,
    reaching.local_server,
)
"""In the order in which one thing depends on another."""


def examine(situation: Situation) -> list[Check]:
    """What every check found, and how far the server was reached; without what does not apply."""
    found = [check(situation) for check in CHECKS]
    return [each for each in found if each is not None] + reaching.steps(situation)
