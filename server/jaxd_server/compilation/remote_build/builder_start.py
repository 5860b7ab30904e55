"""How a builder starts: forked from the worker's fork server, or as a new interpreter.

Most of what a builder takes to start is the import of jax and of the modules of the server. A
worker has imported them as well. So it forks a *fork server* before it has a device, or threads
that compute: those do not survive a fork. The fork server builds nothing; it forks a builder for
each request, and ends with its worker. Once a package that it has imported has changed on disk it
forks none any more. From then on, and where processes are not forked (other systems than Linux, a
client that builds without a server), a builder is a new interpreter.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NoReturn, Protocol

from jaxd_server.runtime.child_startup import die_with_the_parent, name_process
from jaxd_server.runtime.imported_packages import ImportedPackages
from jaxd_server.runtime.logs import log_event

BUILDER_MODULE: Final = "jaxd_server.processes.builder"
BUILDER_COMMAND: Final = (sys.executable, "-P", "-m", BUILDER_MODULE)

_MAX_MESSAGE: Final = 1 << 16

_ANSWER_S: Final = 30.0
"""A fork server that does not answer within so many seconds is not asked again."""


class ChildProcess(Protocol):
    """A process that this one has started, or had started.

    Attributes:
        pid: its process id; that of no other until `wait` has returned.
        returncode: as in `subprocess.Popen`; None until `wait` has returned.
    """

    pid: int
    returncode: int | None

    def wait_for_exit(self) -> None:
        """Waits until it has ended; leaves it to be reaped by `wait`."""

    def wait(self) -> int:
        """Waits until it has ended, and reaps it; returns the `returncode`."""


Start = Callable[[Mapping[str, Any], int], ChildProcess]
"""Starts a builder, in a process group of its own.

Args:
    argument: for `child_startup.read_argument`.
    descriptor: the only one that it inherits beside its output.

Raises:
    OSError: when there can be no more processes.
"""


def new_interpreter(command: Sequence[str] = BUILDER_COMMAND) -> Start:
    """Starts builders by a command, to which the argument is added."""

    def start(argument: Mapping[str, Any], descriptor: int) -> ChildProcess:
        argument = {**argument, "fd": descriptor, "parent": os.getpid()}
        return _Interpreter(
            [*command, json.dumps(argument)],
            stdin=subprocess.DEVNULL,
            pass_fds=[descriptor],
            process_group=0,
        )

    return start


NEW_INTERPRETER: Final = new_interpreter()


class _Interpreter(subprocess.Popen[bytes]):
    def wait_for_exit(self) -> None:
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            self.wait()
            return
        with suppress(ChildProcessError):  # another thread has reaped it
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)


class _Forked:
    """A child of the fork server, which reaps it when it is told to."""

    def __init__(self, pid: int, reap: Callable[[int], int]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._reap = reap
        self._descriptor = os.pidfd_open(pid)

    def wait_for_exit(self) -> None:
        select.select([self._descriptor], [], [])

    def wait(self) -> int:
        if self.returncode is None:
            self.wait_for_exit()
            self.returncode = self._reap(self.pid)
            os.close(self._descriptor)
        return self.returncode


class ForkServer:
    """The process that forks builders for this worker. Thread-safe.

    It is forked by the constructor, so this process may have no threads yet that hold locks.

    Args:
        module: whose `main(argument)` is the builder.

    Raises:
        OSError: when there can be no more processes, or the system cannot watch those of others.
    """

    def __init__(self, module: str = BUILDER_MODULE) -> None:
        os.close(os.pidfd_open(os.getpid()))  # since Linux 5.3
        self._lock = threading.Lock()  # one request at a time
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.settimeout(_ANSWER_S)
        self._has_ended = False
        worker = os.getpid()
        with theirs, warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, such as numpy's
            gc.freeze()  # a collection would copy the pages that both processes have
            self._pid = os.fork()
            if not self._pid:
                _exit_after(lambda: _serve(theirs, worker, module))
        log_event("fork_server_started", pid=self._pid)

    def start(self, argument: Mapping[str, Any], descriptor: int) -> ChildProcess:
        """Starts a builder: a `Start`."""
        try:
            answer = self._ask({"start": dict(argument)}, descriptor)
        except OSError:
            answer = {"is_outdated": True}
        if "is_outdated" in answer:
            return NEW_INTERPRETER(argument, descriptor)
        if "error" in answer:
            raise OSError(answer["error"])
        return _Forked(answer["pid"], self._reap)

    def _reap(self, pid: int) -> int:
        try:
            return int(self._ask({"reap": pid})["code"])
        except OSError:  # its children have ended with it
            return -signal.SIGKILL

    def _ask(self, request: Mapping[str, Any], *descriptors: int) -> dict[str, Any]:
        with self._lock:
            try:
                socket.send_fds(self._ours, [json.dumps(request).encode()], descriptors)
                line = self._ours.recv(_MAX_MESSAGE)
                if not line:
                    raise ConnectionError
            except OSError:
                self._end()  # an answer that comes too late answers no later request
                raise
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Ends it; the builders that it has forked end as well."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        """See `close`. The lock is held."""
        self._ours.close()
        if not self._has_ended:
            self._has_ended = True
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            log_event("fork_server_ended", pid=self._pid)


def _serve(requests: socket.socket, worker: int, module: str) -> None:
    """The fork server: answers until its worker ends."""
    die_with_the_parent()
    if os.getppid() != worker:
        return  # it ended before this process could notice
    os.setpgid(0, 0)  # a terminal interrupts the group of the worker
    name_process("jaxd-fork")
    _close_all_but(requests.fileno())
    main = importlib.import_module(module).main
    packages = ImportedPackages()
    packages.record()
    gc.freeze()

    def answer(request: Mapping[str, Any], descriptors: Sequence[int]) -> dict[str, Any]:
        if "reap" in request:
            _, status = os.waitpid(request["reap"], 0)
            return {"code": os.waitstatus_to_exitcode(status)}
        if packages.changes():  # what it has imported is not what is on disk
            return {"is_outdated": True}
        return _fork(main, request["start"], descriptors[0], requests)

    while (message := socket.recv_fds(requests, _MAX_MESSAGE, 1))[0]:
        answered = answer(json.loads(message[0]), message[1])
        for descriptor in message[1]:
            os.close(descriptor)
        requests.send(json.dumps(answered).encode())


def _close_all_but(kept: int) -> None:
    """Closes what this process has of its worker, such as listeners, but for its output."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2 and descriptor != kept:
            with suppress(OSError):  # that of the listing
                os.close(descriptor)


def _fork(
    main: Callable[[dict[str, Any]], object],
    argument: dict[str, Any],
    descriptor: int,
    requests: socket.socket,
) -> dict[str, Any]:
    """Forks a builder; returns the answer to the request."""
    server = os.getpid()

    def build() -> None:
        os.setpgid(0, 0)
        name_process("jaxd-builder")
        requests.close()
        importlib.invalidate_caches()  # packages may have been installed meanwhile
        main({**argument, "fd": descriptor, "parent": server})

    try:
        pid = os.fork()
    except OSError as error:
        return {"error": str(error)}
    if not pid:
        _exit_after(build)
    with suppress(OSError):
        os.setpgid(pid, pid)  # the worker may end the group before the child has run
    return {"pid": pid}


def _exit_after(act: Callable[[], None]) -> NoReturn:
    """Ends this process once that has returned, and nothing else of what its parent runs."""
    try:
        act()
    except BaseException:  # noqa: BLE001  shown as by the interpreter
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
