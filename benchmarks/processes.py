"""Child processes: services that listen, drivers that measure, and programs timed as a whole."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TIMEOUT_S = 600.0
"""A child that is silent for longer is ended: nothing measured here takes minutes."""


class ChildFailed(RuntimeError):
    """A child process ended, or stayed silent, before it did what it was started for."""


class NotMeasurable(Exception):
    """What was to be measured is not available; the message says why."""


@dataclass(slots=True)
class Service:
    """A child that prints one JSON line when it is ready and ends when its input closes.

    Attributes:
        greeting: what the child printed when it was ready.
    """

    process: subprocess.Popen[str]
    log: Path
    greeting: dict[str, Any]

    @classmethod
    def start(cls, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> Service:
        """Starts the command in `folder` and waits for its first line.

        Raises:
            ChildFailed: when it ends without one; the message quotes its last words.
        """
        log = folder / f"child-{time.monotonic_ns()}.log"
        with log.open("w") as errors:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=dict(environment),
                cwd=folder,
            )
        service = cls(process, log, {})
        try:
            service.greeting = service.read()
        except BaseException:
            service.end()
            raise
        return service

    def read(self) -> dict[str, Any]:
        """The child's next JSON line.

        Raises:
            ChildFailed: when the child ended, or was silent for too long, instead.
        """
        assert self.process.stdout is not None
        watchdog = threading.Timer(_TIMEOUT_S, self.process.kill)
        watchdog.start()
        try:
            line = self.process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            words = self.log.read_text(errors="replace")[-2000:]
            raise ChildFailed(f"{self.process.args!r} ended early; its last words:\n{words}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Sends one JSON line and returns the child's answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.read()

    def end(self) -> None:
        """Closes the child's input, and kills it if that does not end it."""
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass(frozen=True, slots=True)
class Driver:
    """A child that measures itself, so that no two variants share an interpreter."""

    service: Service

    def seconds(self, what: str, calls: int) -> float:
        """One round of `calls` calls: the figure that the driver names `what`, in seconds."""
        return self.figure(what, calls)

    def figure(self, what: str, calls: int) -> float:
        """The same in whatever unit it has."""
        return float(self.service.ask({"measure": what, "calls": calls})["figure"])

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Within it the child does what it has between its `begin` and its `end`."""
        self.seconds("begin", 1)
        try:
            yield
        finally:
            self.seconds("end", 1)

    def end(self) -> None:
        """Ends the child."""
        self.service.end()


def time_process(
    command: Sequence[str], environment: Mapping[str, str], folder: Path
) -> tuple[float, str]:
    """Runs a command to its end: seconds from fork to exit, and what it printed.

    Raises:
        ChildFailed: when its exit status is not 0.
    """
    began = time.perf_counter_ns()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(environment),
        cwd=folder,
    )
    watchdog = threading.Timer(_TIMEOUT_S, process.kill)
    watchdog.start()
    output, errors = process.communicate()
    ended = time.perf_counter_ns()
    watchdog.cancel()
    if process.returncode:
        raise ChildFailed(f"{command!r} exited with {process.returncode}:\n{errors[-2000:]}")
    return (ended - began) / 1e9, output
