from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from jaxd_server.runtime.child_process import request_stack_dump
from tests.live_server import source_environment

HANGS = """
import ctypes
from jaxd_server.runtime.child_process import dump_stacks_on_signal
dump_stacks_on_signal()
def hangs():
    print("hangs", flush=True)
    ctypes.PyDLL(None).getchar()
hangs()
"""


def test_a_process_whose_interpreter_is_held_shows_where(tmp_path: Path) -> None:
    """And goes on: nothing is ended by asking."""
    with subprocess.Popen(
        [sys.executable, "-c", HANGS],
        env=source_environment(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "hangs\n"
        request_stack_dump(process.pid)
        assert any("in hangs" in line for line in iter(process.stderr.readline, ""))
        assert process.poll() is None
        process.communicate("\n")
    request_stack_dump(process.pid)  # gone, which is no error
