"""`python -m jaxd_server` with the fake worker: the real host, in a process of its own.

With `--fork N` it makes hosts of which none has to import what it is made of. On the socket with
that number it is told a host's arguments, its environment and how many files it may open, and given
two descriptors: the host's standard error, and where its number and its exit code are said.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import socket
import sys
from typing import Any, Final

from jaxd_protocol.fingerprint.code import bytecode  # noqa: F401  a host needs it
from jaxd_server.__main__ import main

_WORKER: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fake_worker.py")


def serve(arguments: list[str]) -> int:
    """Serves as they say; returns the exit code."""
    return main(arguments, worker_command=[sys.executable, "-P", _WORKER])


def fork_hosts(told: socket.socket) -> int:
    """Forks one for each message, until the other end is closed."""
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how those ended that wait for hosts
    while True:
        message, descriptors, _, _ = socket.recv_fds(told, 1 << 20, 2)
        if not message:
            return 0
        if os.fork() == 0:
            told.close()
            return _host(json.loads(message), *descriptors)
        for one in descriptors:
            os.close(one)


def _host(asked: dict[str, Any], stderr: int, told: int) -> int:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    host = os.fork()
    if host == 0:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(told)
        resource.setrlimit(resource.RLIMIT_NOFILE, asked["files"])
        os.environ.clear()
        os.environ.update(asked["environment"])
        named = os.environ.get("PYTHONPATH", "").split(os.pathsep)  # as Python does at its start
        sys.path[1:1] = [folder for folder in named if folder and folder not in sys.path]
        return serve(asked["arguments"])
    os.close(stderr)
    os.write(told, b"%d\n" % host)
    os.write(told, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(host, 0)[1]))
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--fork"]:
        sys.exit(fork_hosts(socket.socket(fileno=int(sys.argv[2]))))
    sys.exit(serve(sys.argv[1:]))
