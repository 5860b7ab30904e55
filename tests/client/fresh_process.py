"""Programs in a process that has imported neither jax nor numpy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any


def in_a_fresh_process(program: str, **more: str) -> Any:
    """What a program prints, as JSON, or None; it has to succeed.

    Args:
        program: runs with the tree on its path.
        more: variables of its environment.
    """
    env = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)} | more
    ran = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    return json.loads(ran.stdout or "null")
