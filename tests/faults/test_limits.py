"""Too few open files, threads or processes."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from jaxd import connect, errors
from tests.end_to_end.gates import in_thread
from tests.faults.others import answers_correctly, unharmed
from tests.live_server import LiveServer, live_server, run_client

pytestmark = pytest.mark.faults

StartLive = Callable[..., LiveServer]


@pytest.fixture(scope="module")
def server_for_all() -> Iterator[LiveServer]:
    """One for the rows that leave it as it was."""
    with live_server() as server:
        yield server


def test_the_worker_has_no_files_left(start_live: StartLive) -> None:
    """New clients wait until there are some; those that are connected notice nothing."""
    server = start_live()
    pid = server.worker_pid()
    with unharmed(server, 2):
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        used = max(map(int, os.listdir(f"/proc/{pid}/fd")))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 34, limits[1]))
        may_leave = threading.Event()
        clients = [in_thread(_visit, server, may_leave) for _ in range(60)]
        server.wait_for("cannot_accept")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        may_leave.set()
        assert all(one.result(50) for one in clients)


def _visit(server: LiveServer, may_leave: threading.Event | None = None) -> bool:
    with connect(server.unix) as client:
        is_right = answers_correctly(client)
        if may_leave is not None:
            may_leave.wait(50)
        return is_right


def test_the_host_has_no_files_left(start_live: StartLive) -> None:
    """Calls do not go through it; a worker that dies meanwhile is replaced when there are some."""
    server = start_live()
    host = server.process.pid
    with unharmed(server, 1):
        limits = resource.prlimit(host, resource.RLIMIT_NOFILE)
        used = max(map(int, os.listdir(f"/proc/{host}/fd")))
        resource.prlimit(host, resource.RLIMIT_NOFILE, (used + 1, limits[1]))
        assert _visit(server)
        os.kill(server.worker_pid(), 9)
        server.wait_for("worker_not_started")
        resource.prlimit(host, resource.RLIMIT_NOFILE, limits)
        assert _visit(server)


@contextmanager
def at_most_threads(pid: int, more: int) -> Iterator[None]:
    """A control group in which a process may have only so many more threads."""
    group = Path(f"/sys/fs/cgroup/pids/jaxd-test-{os.getpid()}")
    try:
        group.mkdir()
        (group / "cgroup.procs").write_text(str(pid))
    except OSError:
        pytest.skip("only root may limit threads, where there are control groups (version 1)")
    try:
        now = int((group / "pids.current").read_text())
        (group / "pids.max").write_text(str(now + more))
        yield
    finally:
        (group / "pids.max").write_text("max")
        (group.parent / "cgroup.procs").write_text(str(pid))
        with suppress(OSError):
            group.rmdir()


def test_the_worker_has_no_threads_left(
    start_live: StartLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new client is refused with a typed error, or answered; none waits for ever."""
    monkeypatch.setattr("jaxd.dispatch.retry._MAX_BUSY_S", 5.0)
    server = start_live()
    with unharmed(server, 2), connect(server.unix) as client:
        assert answers_correctly(client)
        with at_most_threads(server.worker_pid(), 1):
            outcomes = [in_thread(_outcome, server) for _ in range(6)]
            found = [one.result(50) for one in outcomes]  # they come again for a while
            assert all(one is True or isinstance(one, errors.JaxdError) for one in found), found
            assert answers_correctly(client)
        assert _visit(server)


def test_the_worker_has_no_thread_for_a_call(
    start_live: StartLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new function is refused with a typed error that names the limit; its connection stays."""
    monkeypatch.setattr("jaxd.dispatch.retry._MAX_BUSY_S", 2.0)
    server = start_live()
    with unharmed(server, 0), connect(server.unix) as client:
        assert answers_correctly(client)
        session = client.info()["session"]
        new = client.persistent_call(lambda x: x - 1, results="numpy")
        with at_most_threads(server.worker_pid(), 0):
            with pytest.raises(errors.Busy, match=r"pids\.max"):
                new(np.ones(3, np.float32))
            assert answers_correctly(client)
        assert (new(np.ones(3, np.float32)) == 0).all()
        assert client.info()["session"] == session


NO_THREADS = """
import resource, sys, threading
import numpy as np
import jaxd
from jaxd import errors

client = jaxd.connect(sys.argv[1])
double = client.persistent_call(lambda x: x * 2, results="numpy")
x = np.ones(3, np.float32)
assert (double(x) == 2).all()
pages = int(open("/proc/self/statm").read().split()[0])
before = resource.getrlimit(resource.RLIMIT_AS)
threading.stack_size(1 << 30)
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 28), before[1]))
try:
    double.submit(x)
except errors.JaxdError as error:
    print(type(error).__name__, error)
print((double(x) == 2).all())
resource.setrlimit(resource.RLIMIT_AS, before)
print((double.submit(x).result(30) == 2).all())
"""


def test_a_client_has_no_threads_left(server_for_all: LiveServer) -> None:
    """What needs one is a typed error that names the limits; what needs none goes on."""
    with unharmed(server_for_all, 1):
        done = run_client(NO_THREADS, server_for_all.unix, environment=server_for_all.environment)
        assert not done.returncode, done.stderr
        error, alone, after = done.stdout.splitlines()
        assert error.startswith("Busy")
        assert "ulimit -u" in error
        assert (alone, after) == ("True", "True")


def _outcome(server: LiveServer) -> bool | BaseException:
    try:
        return _visit(server)
    except errors.JaxdError as error:
        return error
