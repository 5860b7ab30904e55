"""What a host tells a process that it starts: one JSON object, in the command line or in a file.

All users of a machine can read each other's command lines. What stands in a file without a name is
read by whoever was given it, and only by those.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["in_a_file", "read_argument"]

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
