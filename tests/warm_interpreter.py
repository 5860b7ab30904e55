"""A process that has imported some libraries and runs each program in a child forked from it.

It reads jobs from its standard input, a JSON line each, and writes a line with each exit code. A
program finds what a fresh interpreter with `-c` has, and these libraries imported.
"""

from __future__ import annotations

import builtins
import gc
import importlib
import json
import os
import signal
import sys
import traceback
from types import ModuleType, TracebackType
from typing import Any, Final

LIMIT_S: Final = 50


def main() -> None:
    """Serves until the standard input ends; the libraries are named by the arguments."""
    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            return _run(job)
        _, status = os.waitpid(child, 0)
        answers.write(f"{os.waitstatus_to_exitcode(status)}\n")
        answers.flush()
    return None


def _run(job: dict[str, Any]) -> None:
    """Does what an interpreter does with a program; when this returns, the process ends as one."""
    signal.alarm(LIMIT_S)
    os.chdir(job["folder"])
    null = os.open(os.devnull, os.O_RDONLY)
    for number, file in enumerate((null, *(_written(job[name]) for name in ("stdout", "stderr")))):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(job["environment"])
    sys.path.insert(0, "")
    sys.argv = ["-c", *job["arguments"]]
    sys.orig_argv = [sys.executable, "-c", job["program"], *job["arguments"]]
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__builtins__ = builtins  # type: ignore[attr-defined]
    try:
        exec(compile(job["program"], "<string>", "exec", dont_inherit=True), vars(main))
    except Exception as error:  # noqa: BLE001  whatever it is, it is told as Python tells it
        _tell(error, error.__traceback__)
        sys.exit(1)


def _written(path: str) -> int:
    return os.open(path, os.O_WRONLY)


def _tell(error: Exception, frames: TracebackType | None) -> None:
    traceback.print_exception(type(error), error, frames and frames.tb_next)


if __name__ == "__main__":
    main()
