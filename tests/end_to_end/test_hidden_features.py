"""A client, and a server, where the system offers little: as elsewhere than on Linux."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxd import connect
from tests.end_to_end.test_builders import compiles_for_ever
from tests.end_to_end.test_client_jax import CHECKS
from tests.end_to_end.test_client_jax import PRELUDE as OF_JAX
from tests.live_server import ROOT, LiveServer

PRELUDE = """
import os, select, socket, sys
for module, names in [
    (socket, ["AF_UNIX", "SCM_RIGHTS", "CMSG_LEN", "CMSG_SPACE", "SO_PEERCRED", "TCP_USER_TIMEOUT",
              "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_CONGESTION"]),
    (os, ["memfd_create", "register_at_fork", "fork", "getuid", "eventfd", "sched_getaffinity"]),
    (select, ["poll", "epoll"]),
]:
    for name in names:
        if hasattr(module, name):
            delattr(module, name)

def hidden(sock):
    raise AttributeError("hidden")

for name in ["sendmsg", "recvmsg", "recvmsg_into", "sendmsg_afalg"]:
    setattr(socket.socket, name, property(hidden))
sys.modules["fcntl"] = None
"""

CALLS = """
import json, sys
import jaxd
from jaxd import persistent_call

@persistent_call
def double(x):
    return x * 2

@persistent_call
def broken(x):
    raise KeyError("broken")

small = float(double(1.5))
futures = [double.submit(float(i)) for i in range(50)]
many = [float(f.result()) for f in futures] + [float(y) for y in double.map([1.0, 2.0])]
try:
    broken(1.0)
except KeyError as error:
    failure = str(error)
import numpy as np
x = np.arange(4 << 20, dtype=np.float32).reshape(1 << 10, -1)
large = double(x)
right = bool((large == 2 * x).all())
futures = [double.submit(x + i) for i in range(4)]
right = right and all((f.result() == 2 * (x + i)).all() for i, f in enumerate(futures))
try:
    jaxd.connect("unix:///tmp/none.sock")
except jaxd.errors.ConfigurationError as error:
    unix = str(error)
print(json.dumps([small, many == [2.0 * i for i in range(50)] + [2.0, 4.0], failure, right, unix,
                  jaxd.statistics().connections]))
"""


@pytest.mark.soak
def test_all_of_it_works_over_tcp(live: LiveServer) -> None:
    """Small and large calls, futures, maps, errors; and a Unix address is refused with a reason."""
    run = live.run(PRELUDE + CALLS, JAXD_SERVER=live.tcp)
    assert run.stderr == ""
    small, many, failure, right, unix, connections = json.loads(run.stdout)
    assert (small, many, failure, right) == (3.0, True, "'broken'", True)
    assert "tcp://" in unix
    assert connections >= 1


NOT_POSIX = """
import builtins, concurrent.futures, io, multiprocessing, os, select, signal, socket, ssl
import subprocess, sys, tempfile

MODULES = '''fcntl resource pwd grp termios tty pty syslog readline curses _posixshmem'''.split()
SOCKET = '''AF_UNIX SCM_RIGHTS CMSG_LEN CMSG_SPACE SO_PEERCRED SO_REUSEPORT TCP_USER_TIMEOUT
TCP_KEEPIDLE TCP_KEEPINTVL TCP_KEEPCNT TCP_CONGESTION MSG_DONTWAIT MSG_NOSIGNAL MSG_CMSG_CLOEXEC
send_fds recv_fds'''.split()
OS = '''memfd_create register_at_fork fork forkpty getuid geteuid getgid getegid getgroups setuid
setgid setresuid getresuid eventfd sched_getaffinity sched_setscheduler killpg getpgid getpgrp
setsid setpgid chown fchown lchown fchmod mkfifo mknod nice getloadavg ctermid ttyname openpty wait
wait3
wait4 waitid pidfd_open posix_fallocate posix_fadvise sendfile readv writev pread pwrite O_NOFOLLOW
O_DIRECTORY O_CLOEXEC O_NONBLOCK sync fdatasync pipe2 environb getenvb'''.split()
SIGNALS = '''SIGCHLD SIGHUP SIGKILL SIGUSR1 SIGUSR2 SIGPIPE SIGQUIT SIGALRM pthread_kill
pthread_sigmask setitimer alarm siginterrupt sigwait'''.split()
for module, names in [
    (socket, SOCKET), (os, OS), (select, ["poll", "epoll"]), (signal, SIGNALS),
]:
    for name in names:
        if hasattr(module, name):
            delattr(module, name)

def hidden(sock):
    raise AttributeError("hidden")

for name in ["sendmsg", "recvmsg", "recvmsg_into", "sendmsg_afalg"]:
    setattr(socket.socket, name, property(hidden))
for name in MODULES:
    sys.modules[name] = None

def without_system_folders(function):
    def hidden(path=".", *args, **kwargs):
        if isinstance(path, str) and path.startswith(("/proc", "/sys/", "/dev/shm")):
            raise FileNotFoundError(2, "No such file or directory", path)
        return function(path, *args, **kwargs)
    return hidden

for module, name in [(builtins, "open"), (io, "open"), (os, "listdir"), (os, "stat"), (os, "open")]:
    setattr(module, name, without_system_folders(getattr(module, name)))
"""
"""What Windows has not, after Python's own modules have seen what system this is."""


@pytest.mark.slow
@pytest.mark.parametrize("address", ["tcp", "tls"])
def test_a_client_without_posix_has_all_of_it(
    start_live: Callable[..., LiveServer], address: str
) -> None:
    """With jax as without it: in a process that has no forks, users, locks or Unix signals."""
    server = start_live()
    places = {"JAXD_SERVER": getattr(server, address)}
    found = json.loads(server.run(NOT_POSIX + CALLS, **places).stdout)
    small, many, failure, right, unix, _ = found
    assert (small, many, failure, right) == (3.0, True, "'broken'", True)
    assert "tcp://" in unix
    done = server.run(NOT_POSIX + OF_JAX + CHECKS, **places)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)[1].values()) == {True}, done.stdout + done.stderr


UNCHANGED = """
import jax
function = jax.jit(lambda x: x * 2)
print(float(function(3.0)), type(function).__module__.partition(".")[0])
"""


@pytest.mark.slow
def test_commands_without_posix_do_their_work_or_say_where(
    live: LiveServer, tmp_path: Path
) -> None:
    """Those that look after a server do it on the machine of the server."""
    (tmp_path / "sitecustomize.py").write_text(NOT_POSIX)
    program = tmp_path / "unchanged.py"
    program.write_text(UNCHANGED)
    path = os.pathsep.join([str(tmp_path), live.environment["PYTHONPATH"]])

    def run(*words: str) -> tuple[int, str, str]:
        begin = f"import sys; sys.argv[1:] = {list(words)!r}; from jaxd.cli.__main__ import main"
        code = f"{begin}\nraise SystemExit(main())"
        done = live.run(code, JAXD_SERVER=live.tls, PYTHONPATH=path)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout, done.stderr

    for words in (["version"], ["doctor"], ["status"], ["functions"], ["devices"], ["report"]):
        assert run(*words)[0] == 0, words
    for words in (["start"], ["serve"], ["cache", "list"]):
        code, _, said = run(*words)
        assert (code, "needs Unix sockets" in said, "on Linux" in said) == (1, True, True), said
    for words in (["restart"], ["logs"]):
        code, _, said = run(*words)
        assert (code, "on the machine of the server at tls://" in said) == (3, True), said
    assert run("run", str(program))[1] == "6.0 jaxd\n"


INTERRUPTED = """
import signal, threading
from jaxd import persistent_call
import numpy as np
double = persistent_call(lambda x: x * 2)

class Alarm(BaseException):
    pass

armed = False
def ring(number, frame):
    if armed:
        raise Alarm

signal.signal(signal.SIGALRM, ring)
x = np.ones(1 << 21, np.float32)
double(x), double(1.0)
right = []
for i in range(20):
    try:
        armed = True
        signal.setitimer(signal.ITIMER_REAL, 0.0005 * (i + 1))
        double(x)
    except Alarm:
        pass
    armed = False
    right += [float(double(float(i))) == 2.0 * i, float(double(x + i)[-1]) == 2.0 * (1 + i)]
print(all(right))
"""


@pytest.mark.slow
def test_an_interrupt_leaves_the_connection_right(live: LiveServer) -> None:
    """Also where messages are sent piece by piece, without sendmsg."""
    run = live.run(PRELUDE + INTERRUPTED, JAXD_SERVER=live.tcp)
    assert (run.stdout, run.stderr) == ("True\n", "")


def test_without_unix_sockets_there_is_no_local_server(live: LiveServer) -> None:
    """The error says to name a server."""
    program = "import jaxd\ntry: jaxd.connect()\nexcept jaxd.errors.NoServer as e: print(e)"
    run = live.run(PRELUDE + program, JAXD_SERVER="")
    assert "JAXD_SERVER" in run.stdout
    assert run.stderr == ""


@pytest.mark.parametrize("command", [["status"], ["doctor"], ["--help"]])
def test_the_commands_fail_in_words(live: LiveServer, command: list[str]) -> None:
    """No traceback, whatever is missing."""
    program = f"from jaxd.cli.__main__ import main\nraise SystemExit(main({command!r}))"
    run: Any = live.run(PRELUDE + program)
    assert "Traceback" not in run.stderr


NOT_LINUX = """
import builtins, io, os, select, socket

for module, names in [
    (socket, ["SO_PEERCRED", "AF_NETLINK", "TCP_USER_TIMEOUT"]),
    (os, ["memfd_create", "eventfd", "eventfd_write", "waitid", "pidfd_open", "sched_getaffinity",
          "sched_setscheduler", "sched_param", "SCHED_IDLE", "setresuid", "getresuid"]),
    (select, ["epoll"]),
]:
    for name in names:
        if hasattr(module, name):
            delattr(module, name)

def without_system_folders(function):
    def hidden(path=".", *args, **kwargs):
        if isinstance(path, str) and path.startswith(("/proc", "/sys/")):
            raise FileNotFoundError(2, "No such file or directory", path)
        return function(path, *args, **kwargs)
    return hidden

for module, name in [(builtins, "open"), (io, "open"), (os, "listdir"), (os, "stat")]:
    setattr(module, name, without_system_folders(getattr(module, name)))
"""
"""What macOS has not, before anything is imported."""


@pytest.mark.slow
def test_a_server_needs_nothing_that_only_linux_has(
    start_live: Callable[..., LiveServer], tmp_path: Path
) -> None:
    """Calls, values, builders, a build that is given up, and a worker that is killed."""
    (tmp_path / "sitecustomize.py").write_text(NOT_LINUX)
    folders = [str(tmp_path), *(str(ROOT / part) for part in ("client", "server", "shared"))]
    server = start_live("--build-in", "builder", PYTHONPATH=os.pathsep.join(folders))
    x = np.linspace(0, 1, 4, dtype=np.float32)
    with connect(server.unix) as client, connect(server.unix) as other:
        double = client.persistent_call(lambda x: x * 2)
        assert double(x).tolist() == (x * 2).tolist()
        assert other.persistent_call(lambda x: x * 3)(x).tolist() == (x * 3).tolist()
        kept = client.put(x)
        before = client.statistics().lowers
        endless = client.persistent_call(compiles_for_ever).submit(x)
        while client.statistics().lowers == before:
            pass
        assert endless.cancel()
        os.kill(server.worker_pid(), signal.SIGKILL)
        assert double(x).tolist() == (x * 2).tolist()
        assert np.asarray(kept).tolist() == x.tolist()
