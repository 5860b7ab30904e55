from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os
from jaxd_server.reaper import reap_orphans

def ended_child():
    pid = os.fork() or os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid

assert reap_orphans(None) == []
first, second = ended_child(), ended_child()
assert sorted(reap_orphans(None)) == sorted([first, second])
own = ended_child()
assert reap_orphans(own) == []
assert os.waitpid(own, 0) == (own, 0)
"""


def test_orphans_are_collected_and_the_own_child_is_left() -> None:
    """Whoever waits for the worker still gets its exit code."""
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
