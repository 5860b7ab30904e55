"""Runs one program: in processes of its own, by `python` and by `jaxd run`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jaxd
from jaxd.api.launch.summary import summary_of
from jaxd.tracing.verification import REPORT_VARIABLE
from tests.corpus.places import Corpus, Project
from tests.live_server import ROOT, LiveServer, source_environment

NOTHING_MORE: Mapping[str, str] = {}
HASH_SEEDS: Mapping[str, str] = {"verified": "0", "verified_reseeded": "1"}
"""The runs that compare compiled programs, and Python's hash seed in each; else it is the first."""
_KEPT_OUTPUT = 200_000
_LAST_S = 30.0
"""How long a program that is given up has to write down what it knows."""
_NO_PYTHON = re.compile(r"\s*%%(?!time|capture)")


@dataclass(frozen=True)
class Program:
    """A program of a project.

    Attributes:
        project: whose it is.
        file: in the checkout of the project, or in this repository where the project has none.
        arguments: of its command line; they shorten it.
        environment: variables that it needs; its server has them too, as one that it starts itself.
        path: folders of the checkout whose modules are importable.
        packages: folders of the checkout that are importable themselves.
        launcher: a program that imports the file and calls it with less to do; instead of the file.
        note: what was shortened or made up, and how.
        patience_s: after so many seconds it is given up.
        name: in the table; the file where it is empty.
    """

    project: Project
    file: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    path: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    launcher: str = ""
    note: str = ""
    patience_s: float = field(default=300, repr=False)
    name: str = ""

    @property
    def title(self) -> str:
        """How it is named in lists, unique in its project."""
        return self.name or self.file


class Runner:
    """Runs one program in any mode.

    Args:
        corpus: where its files lie.
        program: the program.

    Raises:
        MissingError: when something is not there that it needs.
    """

    def __init__(self, corpus: Corpus, program: Program) -> None:
        self._corpus = corpus
        self._program = program
        project = program.project
        self._files = corpus.checkout(project) if project.repository else ROOT
        self._python = corpus.python(project)

    def in_plain_jax(self) -> dict[str, dict[str, Any]]:
        """Runs by `python`: without jax's disk cache, with an empty one, and with a warm one."""
        with working_directory() as place:
            cache = {
                "JAX_COMPILATION_CACHE_DIR": str(place / "jax-cache"),
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            }
            first = self._run(place / "plain", {})
            if first["status"] != 0:
                return dict.fromkeys(("plain", "plain_again", "plain_warm"), first)
            return {
                "plain": first,
                "plain_again": self._run(place / "again", cache),
                "plain_warm": self._run(place / "warm", cache),
            }

    def by_jaxd_run(self) -> dict[str, dict[str, Any]]:
        """Two processes of `jaxd run`, as a user starts them, on a server that knows nothing."""
        with working_directory() as place, self._server(place) as server:
            return {name: self._run_served(place / name, server) for name in ("cold", "warm")}

    def verified(self) -> dict[str, dict[str, Any]]:
        """The first of these processes, and one for each hash seed that compares.

        Neither keys nor programs may depend on it.
        """
        with working_directory() as place, self._server(place) as server:
            runs = {"cold": self._run_served(place / "cold", server)}
            for name, seed in HASH_SEEDS.items():
                report = place / f"{name}-report"
                comparing = {
                    "JAXD_VERIFY": "1",
                    REPORT_VARIABLE: str(report),
                    "PYTHONHASHSEED": seed,
                }
                run = self._run_served(place / name, server, comparing)
                lines = report.read_text().splitlines() if report.exists() else []
                runs[name] = {
                    **run,
                    "verification": summary_of([json.loads(each) for each in lines]),
                }
            return runs

    @contextlib.contextmanager
    def _server(self, place: Path) -> Iterator[LiveServer]:
        environment = {"HOME": str(self._corpus.home), **self._own_environment()}
        server = LiveServer(place, executable=str(self._python), **environment)
        try:
            yield server
        finally:
            server.close()

    def _run_served(
        self, place: Path, server: LiveServer, more: Mapping[str, str] = NOTHING_MORE
    ) -> dict[str, Any]:
        pid = server.process.pid
        with jaxd.connect(server.unix) as client:
            before, used_s = client.statistics(), cpu_of_tree(pid)
            served = {"JAXD_SERVER": server.unix, "JAXD_FALLBACK": "local", **more}
            served["XDG_CACHE_HOME"] = server.environment["XDG_CACHE_HOME"]  # as for a user
            run = self._run(place, served, ("-m", "jaxd.cli", "run", "--report"))
            after = client.statistics()
            run["cpu_server_s"] = round(cpu_of_tree(pid) - used_s, 2)
        run["server"] = {
            name: getattr(after, name) - getattr(before, name)
            for name in ("calls", "failed_calls", "traces", "compiles", "executable_loads")
        }
        run["worker_restarts"] = after.epoch - before.epoch
        return run

    def _run(
        self, place: Path, more: Mapping[str, str], words: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        place.mkdir(parents=True)
        program = self._program
        folders = [str(self._files / folder) for folder in program.path]
        if program.packages:
            folders.append(str(place / "packages"))
            (place / "packages").mkdir()
            for name in program.packages:
                (place / "packages" / name).symlink_to(self._files / name)
        environment = {
            **source_environment(place),
            "HOME": str(self._corpus.home),
            "MPLBACKEND": "agg",
            "PYTHONHASHSEED": "0",
            **self._own_environment(),
            **more,
            "PYTHONPATH": os.pathsep.join((_python_path(), *folders)),
        }
        work = place / "work"
        work.mkdir()
        command = [str(self._python), *words, str(self._main(place))]
        command += map(self._filled, program.arguments)
        return run_measured(command, environment, work, program.patience_s)

    def _main(self, place: Path) -> Path:
        file = self._files / self._program.file
        if self._program.launcher:
            main = place / "launcher.py"
            main.write_text(self._program.launcher)
        elif file.suffix == ".ipynb":
            main = place / f"{file.stem.replace('-', '_')}.py"
            main.write_text(code_of_notebook(file))
        else:
            main = file
        return main

    def _own_environment(self) -> dict[str, str]:
        return {name: self._filled(value) for name, value in self._program.environment.items()}

    def _filled(self, text: str) -> str:
        return text.replace("{files}", str(self._files)).replace("{home}", str(self._corpus.home))


def code_of_notebook(file: Path) -> str:
    """The code cells of a notebook, without lines that are for the notebook alone.

    A cell that is there to show an error, which its author has tagged, may raise one.
    """
    lines: list[str] = []
    for cell in json.loads(file.read_text())["cells"]:
        if cell["cell_type"] == "code" and not re.match(_NO_PYTHON, "".join(cell["source"])):
            lines += [*_lines_of_cell(cell), ""]
    return "\n".join(lines) + "\n"


def _lines_of_cell(cell: Mapping[str, Any]) -> list[str]:
    code = [
        re.sub(r"^(\s*)[%!].*", r"\1pass", line) for line in "".join(cell["source"]).splitlines()
    ]
    if "raises-exception" not in cell.get("metadata", {}).get("tags", ()):
        return code
    return [
        "try:",
        *(f"    {line}" for line in (*code, "pass")),
        "except Exception as error:",
        "    print(type(error))",
    ]


def run_measured(
    command: list[str], environment: Mapping[str, str], work: Path, patience_s: float
) -> dict[str, Any]:
    """Runs a command; its exit status, output, and the processor time of all its processes."""
    started = time.monotonic()
    with (work.parent / "stdout").open("wb") as out, (work.parent / "stderr").open("wb") as err:
        process = subprocess.Popen(
            command,
            env=dict(environment),
            cwd=work,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        status, used = _wait(process, started + patience_s)
    with contextlib.suppress(ProcessLookupError):  # what it has left behind
        os.killpg(process.pid, signal.SIGKILL)
    return {
        "status": status,
        "cpu_s": round(used, 2),
        "wall_s": round(time.monotonic() - started, 2),
        "stdout": (work.parent / "stdout").read_text(errors="replace")[-_KEPT_OUTPUT:],
        "stderr": (work.parent / "stderr").read_text(errors="replace")[-20_000:],
    }


def _wait(process: subprocess.Popen[bytes], until: float) -> tuple[int | str, float]:
    """Its exit status, and the seconds that it and what it started have computed."""
    told = False
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            ended = "gave up" if told else process.returncode
            return ended, usage.ru_utime + usage.ru_stime
        if time.monotonic() > until + _LAST_S:
            os.killpg(process.pid, signal.SIGKILL)
        elif time.monotonic() > until and not told:
            told = True  # it writes down what it knows
            os.kill(process.pid, signal.SIGINT)
        time.sleep(0.05)


def cpu_of_tree(pid: int) -> float:
    """Seconds of processor time of a process and all below it, also of those that have ended."""
    parents, seconds = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = int(fields[1])
            seconds[int(folder.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return sum(used for each, used in seconds.items() if _is_below(each, pid, parents))


def _is_below(pid: int, top: int, parents: Mapping[int, int]) -> bool:
    while pid and pid != top:
        pid = parents.get(pid, 0)
    return pid == top


def _python_path() -> str:
    return os.pathsep.join(map(str, (ROOT / "client", ROOT / "server", ROOT / "shared")))


@contextlib.contextmanager
def working_directory() -> Iterator[Path]:
    """A folder with a short name, because the names of sockets are short."""
    place = Path(tempfile.mkdtemp(prefix="jaxd-", dir="/tmp"))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
