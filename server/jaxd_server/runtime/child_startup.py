"""The start and end of a child process: its argument, its parent's death, dumps, what it leaves.

The argument is one JSON object, in the command line or in a file. All users of a machine can read
each other's command lines, but a file without a name only if they inherit its descriptor.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NoReturn

from jaxd_protocol.base.shared_memory import create_private

_FILE: Final = "argument_fd"


def in_a_file(argument: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Moves an argument from the command line to a file.

    Returns:
        the argument that names the file, and the file's descriptor, which the child has to inherit
        and the caller to close.

    Raises:
        OSError: when there is no memory for it, or the process may open no more files.
    """
    descriptor = create_private()
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(json.dumps(argument).encode())
        os.lseek(descriptor, 0, os.SEEK_SET)  # the child reads from the start
    except BaseException:
        os.close(descriptor)
        raise
    return {_FILE: descriptor}, descriptor


def read_argument() -> dict[str, Any]:
    """The argument of this process; to be read once."""
    argument: dict[str, Any] = json.loads(sys.argv[1])
    if _FILE not in argument:
        return argument
    with open(argument[_FILE], "rb") as file:
        found: dict[str, Any] = json.load(file)
    return found


_PR_SET_PDEATHSIG = 1


def die_with_the_parent() -> None:
    """Asks Linux to kill this process when its parent dies, even while it hangs in C code.

    The parent is the thread that started this process: its end counts as well.
    """
    if sys.platform == "linux":
        with suppress(AttributeError, OSError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


_PR_SET_NAME = 15


def name_process(name: str) -> None:
    """Sets the name of this process that `ps` and `top` show on Linux; at most 15 characters."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode())


_SIGNAL: Final = signal.SIGUSR2


def dump_stacks_on_signal() -> None:
    """Installs the handler for `request_stack_dump`: writes the stacks of all threads to stderr.

    The handler is written in C and does not need the interpreter lock.
    """
    faulthandler.register(_SIGNAL, all_threads=True)


def request_stack_dump(pid: int) -> None:
    """Requests a stack dump of the worker with this process id, which must be ready."""
    with suppress(ProcessLookupError):
        os.kill(pid, _SIGNAL)


_PASSES: Final = 10
"""More than one, for what forks meanwhile; not without an end, for what cannot be ended."""


def end_session(leader: int) -> None:
    """Ends what is left of the session that a process had for itself, which has ended.

    Does nothing where the system has no `/proc`.
    """
    for _ in range(_PASSES):
        left = _members_of(leader)
        if not left:
            return
        for pid in left:
            with suppress(OSError):  # it has ended in between
                os.kill(pid, signal.SIGKILL)


def _members_of(session: int) -> list[int]:
    """Its living processes; none when its number is that of another process by now."""
    found = []
    with suppress(OSError):
        for name in filter(str.isdigit, os.listdir("/proc")):
            state, _, _, number, *_ = *process_facts(int(name)), "X", "", "", "-1"
            if int(number) == session and state not in ("Z", "X"):
                found.append(int(name))
    return [] if session in found else found


def process_facts(pid: int) -> list[str]:
    """What Linux says of a process in `/proc/PID/stat`, behind its name; empty: nothing."""
    with suppress(OSError), open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        return file.read().rpartition(")")[2].split()
    return []


def exit_process() -> NoReturn:
    """Ends this process with exit code 0, without waiting for its threads."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
