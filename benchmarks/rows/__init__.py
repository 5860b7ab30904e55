"""Every row of the table, in its order."""

from __future__ import annotations

from benchmarks.harness import Row
from benchmarks.rows.executables import BESIDE_BUILDS, DISPATCH, RESTART
from benchmarks.rows.fresh import FRESH_PROCESS, FRESH_SCALAR
from benchmarks.rows.key import KEY
from benchmarks.rows.large import LARGE_TCP, LARGE_UNIX
from benchmarks.rows.small import IN_FLIGHT, SMALL_CALL

__all__ = ["ROWS"]

ROWS: tuple[Row, ...] = (
    FRESH_PROCESS,
    FRESH_SCALAR,
    SMALL_CALL,
    IN_FLIGHT,
    LARGE_TCP,
    LARGE_UNIX,
    KEY,
    RESTART,
    DISPATCH,
    BESIDE_BUILDS,
)
