"""The checks of `jaxd doctor`, in the order in which one thing depends on another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from jaxd.cli.doctor import connection, gpu, installation
from jaxd.cli.doctor.context import Check, DoctorContext

CHECKS: Final[tuple[Callable[[DoctorContext], Check | None], ...]] = (
    installation.python,
    installation.packages,
    installation.server_extra,
    installation.configuration,
    installation.runtime_directory,
    installation.disk,
    installation.shared_memory_files,
    installation.token,
    gpu.driver,
    gpu.plugin,
    gpu.jax_sees_gpu,
    gpu.other_processes,
    gpu.preallocation,
    gpu.shared_memory,
    connection.local_server,
)


def examine(context: DoctorContext) -> list[Check]:
    """What every check found, and how far the server was reached; without what does not apply."""
    found = [check(context) for check in CHECKS]
    return [each for each in found if each is not None] + connection.steps(context)
