"""Every row of the table, in its order."""

from __future__ import annotations

from benchmarks.harness import Row
from benchmarks.rows.executables import BESIDE_BUILDS, DISPATCH, RESTART
from benchmarks.rows.fresh import FRESH_PROCESS, FRESH_SCALAR
from benchmarks.rows.here import HERE_FRESH, HERE_PROGRAMS, HERE_TINY, HERE_TRAINING
from benchmarks.rows.key import KEY
from benchmarks.rows.pool import POOL
from benchmarks.rows.small import IN_FLIGHT, SMALL_CALL, SMALL_RECOVERY, WATCHED
from benchmarks.rows.training import (
    TRAINING,
    TRAINING_BYTES,
    TRAINING_KINDS,
    TRAINING_ONE_THREAD,
    TRAINING_RECOVERY,
)
from benchmarks.rows.transfer import FETCH, TRANSFERS
from benchmarks.rows.trees import TREES

ROWS: tuple[Row, ...] = (
    FRESH_PROCESS,
    FRESH_SCALAR,
    SMALL_CALL,
    IN_FLIGHT,
    SMALL_RECOVERY,
    WATCHED,
    *TREES,
    *TRANSFERS,
    FETCH,
    TRAINING,
    TRAINING_ONE_THREAD,
    TRAINING_RECOVERY,
    *TRAINING_KINDS,
    TRAINING_BYTES,
    KEY,
    RESTART,
    DISPATCH,
    BESIDE_BUILDS,
    HERE_FRESH,
    HERE_TRAINING,
    HERE_TINY,
    HERE_PROGRAMS,
    *POOL,
)
