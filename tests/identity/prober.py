"""A program that imports the projects it is told, each in a child of its own, and walks over them.

It reads one job per project from its standard input and writes, for each, what was found: a forked
child starts with nothing of a project loaded, in milliseconds.
"""

from __future__ import annotations

import builtins
import gc
import importlib
import json
import os
import pickle
import pkgutil
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

TIMEOUT_S = 40


def inspect_values(main: ModuleType, names: list[str]) -> dict[str, Any]:
    """What a walk over each of these expressions finds."""
    return {name: _inspect_value(eval(name, vars(main)), name) for name in names}


def _inspect_value(value: Any, name: str) -> dict[str, Any]:
    from jaxd_protocol.errors import JaxdError
    from jaxd_protocol.fingerprint import walk

    try:
        first, again = walk(value, name).fingerprint, walk(value, name).fingerprint
    except JaxdError as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    except Exception:  # noqa: BLE001  whatever it is, the row that asked fails with it
        return {"crash": traceback.format_exc()}
    return {
        "digest": first.digest.hex(),
        "again": again.digest.hex(),
        "unshared": [tuple(each) for each in first.unshared],
        "notes": [tuple(each) for each in first.notes],
        "parts": [tuple(map(str, each)) for each in first.parts],
    }


def load(name: str, file: str, called: str) -> ModuleType:
    """A module, imported; or a file that is run as a program, under a name of its own."""
    if name != "__main__":
        return importlib.import_module(name)
    main = ModuleType("__main__")
    main.__file__, main.__builtins__ = file, builtins  # type: ignore[attr-defined]
    sys.modules["__main__"] = main
    with open(file, encoding="utf-8") as source:
        code = compile(source.read(), called or file, "exec", dont_inherit=True)
    exec(code, vars(main))
    return main


def run_job(job: dict[str, Any]) -> dict[str, Any]:
    """Imports a project in this process and walks over its functions."""
    os.chdir(job["folder"])
    sys.path[:0] = [job["folder"], *job["path"]]
    sys.argv = ["main.py"]
    steps: dict[str, Any] = {}
    exec(job["before"], steps)
    steps["main"] = load(job["module"], job["file"], job["called"])
    exec(job["after"], steps)
    return inspect_values(steps["main"], job["names"])


def in_child_process(task: Callable[[], Any]) -> Any:
    """What the task returns in a process that is thrown away; of a crash, what is told of it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(TIMEOUT_S)
        os.close(reading)
        try:
            found = task()
        except BaseException:  # noqa: BLE001  the test that asked fails with it
            found = {"": f"crashed: {traceback.format_exc()}"}
        with open(writing, "wb") as pipe:
            pickle.dump(found, pipe)
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    return pickle.loads(data) if data else {"": f"crashed: the child ended with {status}"}


class _Sample:
    """A class of the user's."""

    def run(self, x: float) -> float:
        return x + len(self.__dict__)


def _sample(x: float) -> float:
    return _Sample().run(x)


def main() -> None:
    """Does the jobs on the standard input."""
    order = json.load(sys.stdin)
    from jaxd_protocol import fingerprint
    from jaxd_protocol.packages.distributions import package_of

    for name in order["preload"]:
        importlib.import_module(name)
        package_of(name)  # which reads what is installed
    for module in pkgutil.walk_packages(fingerprint.__path__, f"{fingerprint.__name__}."):
        importlib.import_module(module.name)  # else each child loads what its walks need
    _inspect_value(_sample, "sample")  # what it has to know of installed modules, it knows then
    gc.collect()
    gc.freeze()  # else each child looks through all of it
    json.dump([in_child_process(partial(run_job, job)) for job in order["jobs"]], sys.stdout)


if __name__ == "__main__":
    main()
