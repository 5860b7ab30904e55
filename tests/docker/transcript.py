"""The commands of docs/deploy.md, run as they stand there.

`python -m tests.docker.transcript` runs them and writes what they print into the page.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.docker.clients import interpreter
from tests.docker.engine import ROOT, Engine, an_engine

PAGE = ROOT / "docs" / "deploy.md"

_BLOCK = re.compile(r"(<!-- transcript -->\n```console\n)(.*?)(```\n<!-- end -->)", re.DOTALL)
_PORT = "127.0.0.1:18861"
_END = "\x1e"


class Step(NamedTuple):
    """One command.

    Attributes:
        command: as it stands on the page, with the lines that continue it.
        output: what it prints.
        code: how it exits.
    """

    command: str
    output: str
    code: int = 0


def documented(text: str) -> list[Step]:
    """The steps of the page: each begins with `$`, and goes on in lines that begin with `>`."""
    found = _BLOCK.search(text)
    assert found is not None, f"{PAGE} has no transcript"
    steps: list[Step] = []
    for line in found[2].splitlines():
        if line.startswith("$ "):
            steps.append(Step(line[2:], ""))
        elif line.startswith("> "):
            last = steps.pop()
            steps.append(last._replace(command=f"{last.command}\n{line[2:]}"))
        else:
            last = steps.pop()
            steps.append(last._replace(output=f"{last.output}{line}\n"))
    return steps


def shape(output: str) -> str:
    """An output without what is another one each time: numbers, digests, and names made of them."""
    return re.sub(r"\b[0-9a-f]{12,64}\b|\d+(\.\d+)?", "#", output)


def play(engine: Engine, steps: list[Step]) -> Iterator[tuple[Step, float]]:
    """Runs the commands in one shell, from the root of the repository, in a home of their own.

    The port of the page becomes a free one.

    Yields:
        Each step with what it printed now, and the seconds that it took.
    """
    with _home(engine) as environment:
        port = _free_port()
        shell = subprocess.Popen(
            ["bash"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert shell.stdin is not None
        assert shell.stdout is not None
        with shell:
            for step in steps:
                began = time.monotonic()
                command = step.command.replace(_PORT, f"127.0.0.1:{port}")
                shell.stdin.write(f"{command}\nprintf '{_END}%s\\n' $?\n")
                shell.stdin.flush()
                said = ""
                while _END not in said:
                    line = shell.stdout.readline()
                    assert line, f"the shell ended in:\n{step.command}\n{said}"
                    said += line
                output, _, code = said.partition(_END)
                output = output.replace(f"127.0.0.1:{port}", _PORT)
                yield Step(step.command, output, int(code)), time.monotonic() - began


@contextmanager
def _home(engine: Engine) -> Iterator[dict[str, str]]:
    """An environment with an empty home, in which `docker` means the engine's."""
    with tempfile.TemporaryDirectory(prefix="jaxd-laptop-", dir="/var/tmp") as name:
        tools = Path(name, ".tools")
        tools.mkdir()
        build, docker = (_absolute(each) for each in (engine.build_command, engine.command))
        script = (
            f'#!/bin/sh\ncase "$1" in build) shift; exec {build} "$@";; esac\nexec {docker} "$@"\n'
        )
        Path(tools, "docker").write_text(script, encoding="utf-8")
        Path(tools, "docker").chmod(0o755)
        Path(tools, f"python{engine.python}").symlink_to(interpreter(engine.python))
        kept = {name: value for name, value in engine.environment.items() if name[:5] != "JAXD_"}
        yield kept | {
            "HOME": name,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }


def _absolute(command: tuple[str, ...]) -> str:
    """A command for a shell that means another `docker`."""
    return shlex.join([shutil.which(command[0]) or command[0], *command[1:]])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def main() -> None:
    """Runs the page's commands, and writes their output and their times into it."""
    text = PAGE.read_text(encoding="utf-8")
    lines: list[str] = []
    with an_engine() as engine:
        for step, seconds in play(engine, documented(text)):
            sys.stderr.write(f"{seconds:6.1f} s  exit {step.code}  {step.command}\n{step.output}")
            lines.append("$ " + step.command.replace("\n", "\n> ") + "\n")
            lines.append(step.output)
    block = "".join(lines)
    PAGE.write_text(_BLOCK.sub(lambda found: found[1] + block + found[3], text), encoding="utf-8")


if __name__ == "__main__":
    main()
