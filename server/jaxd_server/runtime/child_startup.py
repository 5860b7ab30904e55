"""How a child process starts: reads its argument, ends with its parent, dumps its stacks on signal.

The argument is one JSON object, in the command line or in a file. All users of a machine can read
each other's command lines. What stands in a file without a name is read by whoever was given it,
and only by those.
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
from typing import Any, Final

_FILE: Final = "argument_fd"


def in_a_file(argument: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """What to put into the command line in place of `argument`, and what to pass on with it.

    Returns:
        the shorter argument, and the descriptor of the file that it names, for the caller to close.

    Raises:
        OSError: when there is no memory for it, or the process may open no more files.
    """
    descriptor = os.memfd_create("jaxd", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(json.dumps(argument).encode())
        os.lseek(descriptor, 0, os.SEEK_SET)  # it begins where the process finds it
    except BaseException:
        os.close(descriptor)
        raise
    return {_FILE: descriptor}, descriptor


def read_argument() -> dict[str, Any]:
    """The argument of this process, wherever it stands; to be read once."""
    argument: dict[str, Any] = json.loads(sys.argv[1])
    if _FILE not in argument:
        return argument
    with open(argument[_FILE], "rb") as file:
        found: dict[str, Any] = json.load(file)
    return found


_PR_SET_PDEATHSIG = 1


def die_with_the_parent() -> None:
    """Asks Linux to kill this process when its parent dies, even while it hangs in C code.

    The parent is a thread: when the one ends that started this process, that is its death, too.
    """
    if sys.platform == "linux":
        with suppress(AttributeError, OSError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


_SIGNAL: Final = signal.SIGUSR2


def dump_stacks_on_signal() -> None:
    """Installs the handler for `request_stack_dump`: writes the stacks of all threads to stderr.

    In C, in a handler of a signal: it does not need the interpreter lock.
    """
    faulthandler.register(_SIGNAL, all_threads=True)


def request_stack_dump(pid: int) -> None:
    """Has the worker with this process id write them. It must have got so far as to be ready."""
    with suppress(ProcessLookupError):
        os.kill(pid, _SIGNAL)
