"""What the first process of a container owes the others: to collect those whose parents died."""

from __future__ import annotations

import os

__all__ = ["reap_orphans"]


def reap_orphans(own_child: int | None) -> list[int]:
    """Collects every child that has ended, except `own_child`; returns the process ids.

    Looks before it takes (`WNOWAIT`): the exit code of `own_child` belongs to who waits for it.
    When `own_child` is found, the rest is left for the call after it was collected.
    """
    reaped: list[int] = []
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return reaped
        if ended is None or ended.si_pid == own_child:
            return reaped
        os.waitpid(ended.si_pid, os.WNOHANG)
        reaped.append(ended.si_pid)
