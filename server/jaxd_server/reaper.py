"""What the first process of a container owes the others: to collect those whose parents died."""

from __future__ import annotations

import os
from collections.abc import Collection

__all__ = ["reap_orphans"]


def reap_orphans(own: Collection[int]) -> list[int]:
    """Collects every child that has ended, except our `own`; returns the process ids.

    Looks before it takes (`WNOWAIT`): the exit code of one of our own belongs to who waits for it.
    When such a one is found, the rest is left for the call after it was collected.
    """
    reaped: list[int] = []
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return reaped
        if ended is None or ended.si_pid in own:
            return reaped
        os.waitpid(ended.si_pid, os.WNOHANG)
        reaped.append(ended.si_pid)
