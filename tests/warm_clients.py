"""Programs in processes forked from one that has imported jax, a client, or the command `jaxd`.

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

_READ_LATER: Final = ("JAXD_", "XDG_", "COLUMNS", "PYTEST_")
"""Variables that nothing reads before the program does."""

_JAX: Final = "jax", "jax.numpy"
_CLIENT: Final = (
    "numpy",
    "jaxd.api.client",
    "jaxd.dispatch.caller",
    "jaxd.interop.remote_array",
    "jaxd.remote_values.call_pipeline",
    "jaxd_protocol.pickling",
)
_COMMAND: Final = "jaxd.cli.__main__", "jaxd.cli.query"
_RUN_COMMAND: Final = "import sys; from jaxd.cli.__main__ import main; sys.exit(main())"

_turns: Final = itertools.count()


class _WarmInterpreter:
    def __init__(self, variables: Mapping[str, str], modules: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", _INTERPRETER, *modules],
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self._close)

    def run(
        self,
        program: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: str,
    ) -> subprocess.CompletedProcess[str]:
        """Waits for it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.NamedTemporaryFile() as stdout, tempfile.NamedTemporaryFile() as stderr:
            job = {
                "program": program,
                "arguments": arguments,
                "environment": environment,
                "folder": folder,
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
def _interpreter(
    variables: tuple[tuple[str, str], ...], modules: tuple[str, ...], turn: int
) -> _WarmInterpreter:
    return _WarmInterpreter(dict(variables), modules)


def _run(
    modules: tuple[str, ...],
    program: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    folder: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    variables = {k: v for k, v in environment.items() if not k.startswith(_READ_LATER)}
    interpreter = _interpreter(tuple(sorted(variables.items())), modules, next(_turns) % 2)
    return interpreter.run(program, arguments, environment, str(folder or Path.cwd()))


def run_warm(
    server: LiveServer, program: str, *arguments: str, **more: str
) -> subprocess.CompletedProcess[str]:
    """As `LiveServer.run`, where it makes no difference that jax is there from the beginning."""
    return _run(_JAX, program, arguments, server.environment | more)


def run_light(
    server: LiveServer,
    program: str,
    *arguments: str,
    folder: Path | None = None,
    **more: str,
) -> subprocess.CompletedProcess[str]:
    """The same where a client without jax has been imported, in this folder."""
    return _run(_CLIENT, program, arguments, server.environment | more, folder)


def run_command(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`jaxd WORDS`, with these variables, where it makes no difference how the process started."""
    return _run(_COMMAND, _RUN_COMMAND, words, {**os.environ, **variables})
