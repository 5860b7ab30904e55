from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.live_server import source_environment

PROGRAM = """
import os
from jaxd_server.processes.host.host import reap_orphans

def ended_child():
    pid = os.fork() or os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid

assert reap_orphans(()) == []
first, second = ended_child(), ended_child()
assert sorted(reap_orphans(())) == sorted([first, second])
own = ended_child()
assert reap_orphans({own}) == []
assert os.waitpid(own, 0) == (own, 0)
"""


def test_orphans_are_collected_and_the_own_child_is_left(tmp_path: Path) -> None:
    """Whoever waits for the worker still gets its exit code."""
    environment = source_environment(tmp_path)
    subprocess.run([sys.executable, "-P", "-c", PROGRAM], check=True, env=environment)
