"""Client programs in processes that have imported jax already: each is forked from one that has.

Every second one comes from another interpreter, with other hashes and addresses, so that what
depends on these is seen to differ. A test of how a process starts has a fresh one.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from tests.live_server import LiveServer

_INTERPRETER: Final = str(Path(__file__).with_name("warm_interpreter.py"))

_READ_LATER: Final = ("JAXD_", "XDG_")
"""Variables that nothing reads before the program does."""

_turns: Final = itertools.count()


class _WarmInterpreter:
    def __init__(self, variables: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", _INTERPRETER, "jax", "jax.numpy"],
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self._close)

    def run(
        self, program: str, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Waits for it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.NamedTemporaryFile() as stdout, tempfile.NamedTemporaryFile() as stderr:
            job = {
                "program": program,
                "arguments": arguments,
                "environment": environment,
                "folder": os.getcwd(),
                "stdout": stdout.name,
                "stderr": stderr.name,
            }
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            code = int(self._process.stdout.readline())
            texts = [Path(file.name).read_text() for file in (stdout, stderr)]
        return subprocess.CompletedProcess([*arguments], code, *texts)

    def _close(self) -> None:
        self._process.communicate()


@cache
def _interpreter(variables: tuple[tuple[str, str], ...], turn: int) -> _WarmInterpreter:
    return _WarmInterpreter(dict(variables))


def run_warm(
    server: LiveServer, program: str, *arguments: str, **more: str
) -> subprocess.CompletedProcess[str]:
    """As `LiveServer.run`, where it makes no difference that jax is there from the beginning."""
    environment = server.environment | more
    variables = {k: v for k, v in environment.items() if not k.startswith(_READ_LATER)}
    interpreter = _interpreter(tuple(sorted(variables.items())), next(_turns) % 2)
    return interpreter.run(program, arguments, environment)
