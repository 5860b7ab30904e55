from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from jaxd_server.runtime.child_startup import (
    end_session,
    in_a_file,
    read_argument,
    request_stack_dump,
)
from tests.live_server import source_environment
from tests.server.staging import is_running, until

if TYPE_CHECKING:
    import pytest

ARGUMENT = {"epoch": 7, "suspects": [{"name": "f" * 1_000_000}], "principal": "account:Größe"}


def test_an_argument_is_read_from_where_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any length: a command line has a limit. Nothing is left open."""
    short, descriptor = in_a_file(ARGUMENT)
    assert not os.get_inheritable(descriptor)
    assert len(json.dumps(short)) < 100
    for given in (ARGUMENT, short):
        monkeypatch.setattr(sys, "argv", ["worker", json.dumps(given)])
        assert read_argument() == ARGUMENT
    assert not os.path.exists(f"/proc/self/fd/{descriptor}")


LEAVES = """
import subprocess, sys
for group in (None, 0):  # in its own process group, and in another one
    one = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, process_group=group)
    print(one.pid, flush=True)
sys.stdin.read()
"""


def test_what_is_left_of_a_session_is_ended() -> None:
    """In whatever process group; not while its leader lives, which may be another process."""
    with subprocess.Popen(
        [sys.executable, "-c", LEAVES],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as leader:
        assert leader.stdout is not None
        left = [int(leader.stdout.readline()) for _ in range(2)]
        end_session(leader.pid)
        assert all(map(is_running, left))
        leader.kill()
    end_session(leader.pid)
    until(lambda: not any(map(is_running, left)))


HANGS = """
import ctypes
from jaxd_server.runtime.child_startup import dump_stacks_on_signal
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
