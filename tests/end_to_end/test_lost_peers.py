"""Peers that die, are interrupted or fork at the worst moment: everybody else stays right."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from jaxd import Client, connect, errors
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.handshake import UNIX, handshake_with_server
from jaxd_protocol.wire.connection import encode_request
from tests.end_to_end.gates import Gate, advice, in_thread, stop_at
from tests.live_server import LiveServer
from tests.server.staging import until

pytestmark = pytest.mark.soak

StartLive = Callable[..., LiveServer]


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """A gate of this test's own."""
    return Gate(tmp_path / "gate")


@contextmanager
def bare_client(live: LiveServer) -> Iterator[socket.socket]:
    """A client that was let in, and speaks byte by byte."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(30)
        sock.connect(Address.parse(live.unix).path)
        handshake_with_server(sock, UNIX, {}, None, None)
        yield sock


@contextmanager
def program(live: LiveServer, text: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A client process whose stdin and stdout are the test's."""
    with subprocess.Popen(
        [sys.executable, "-c", text, *arguments],
        env=live.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def output(process: subprocess.Popen[str]) -> str:
    """What a process still says; it has to end well."""
    said, complaints = process.communicate(timeout=150)
    assert (process.returncode, complaints) == (0, "")
    return said


# clients that die ---------------------------------------------------------------------------------


def test_a_client_that_dies_in_the_middle_of_a_frame(start_live: StartLive, gate: Gate) -> None:
    """The room that its message was to have is free again."""
    server = start_live("--budget-bytes", "8M")
    announced = 7 << 20
    body = encode_request(1, "call", (b"k" * 16, b"", b"", None, 0))
    head = struct.pack("!LB", len(body), 2) + body + b"\n" + struct.pack("!LQ", 1, announced)
    with connect(server.unix) as client:
        for _ in range(3):
            with bare_client(server) as sock:
                sock.sendall(head + bytes(1 << 20))
        until(lambda: client.statistics().connections == 1)
        total = client.persistent_call(lambda x: x.sum())
        total(np.ones(3 << 19, np.float32))
        running = client.persistent_call(stop_at(gate.path)).submit(1.0)
        with gate.reached():  # with a call under way, only what fits into the budget is read
            assert float(total.submit(np.ones(3 << 19, np.float32)).result()) == 3 << 19
        running.result()


ROOT = str(Path(__file__).resolve().parents[2])


# servers that die ---------------------------------------------------------------------------------


def test_a_server_that_dies_while_threads_wait(start_live: StartLive, gate: Gate) -> None:
    """Each of them gets a typed error that says what to do, and none waits for ever."""
    server = start_live()
    with connect(server.unix) as client:
        stopping = client.persistent_call(stop_at(gate.path))
        waiting = [in_thread(stopping, 1.0) for _ in range(4)]
        waiting += [stopping.submit(1.0) for _ in range(4)]
        with gate.reached():
            server.process.kill()
            for each in waiting:
                error = each.exception()
                assert isinstance(error, errors.JaxdError)
                advice(error)


def test_a_server_that_dies_while_it_is_sent_a_large_argument(start_live: StartLive) -> None:
    """The sender gets a typed error."""
    server = start_live()
    with connect(server.unix) as client:
        total = client.persistent_call(lambda x: x.sum())
        x = np.ones(16 << 20, np.float32)
        total(x)

        def until_it_fails() -> BaseException:
            while True:
                try:
                    assert float(total(x)) == 16 << 20
                except errors.JaxdError as error:
                    return error

        failing = in_thread(until_it_fails)
        os.kill(server.process.pid, signal.SIGKILL)
        advice(failing.result())


# Ctrl-C -------------------------------------------------------------------------------------------

INTERRUPTED_WHILE_WAITING = """
import sys, threading
sys.path.insert(0, sys.argv[2])
from tests.end_to_end.gates import stop_at
from jaxd import connect
client = connect()
double = client.persistent_call(lambda x: x * 2)
stopping = client.persistent_call(stop_at(sys.argv[1]))
right, done = [], threading.Event()

def many():
    i = 0.0
    while not done.is_set():
        i += 1
        right.append(float(double(i)) == 2 * i)

thread = threading.Thread(target=many)
double(0.0)
thread.start()
try:
    stopping(1.0)
except KeyboardInterrupt:
    print("interrupted", flush=True)
own = [float(double(float(i))) == 2 * i for i in range(100)]
own += [float(f.result()) == 6.0 for f in [double.submit(3.0) for _ in range(20)]]
print("asked", flush=True)
sys.stdin.readline()
own.append(float(client.persistent_call(lambda x: x + 1)(5.0)) == 6.0)
done.set()
thread.join()
print(all(own), all(right) and len(right) > 0)
"""


def test_an_interrupt_while_waiting(live: LiveServer, gate: Gate) -> None:
    """Ctrl-C ends the wait of the main thread, and nothing else: not what other threads do."""
    with program(live, INTERRUPTED_WHILE_WAITING, gate.path, ROOT) as process:
        assert process.stdout is not None
        with gate.reached():
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "interrupted\n"
            assert process.stdout.readline() == "asked\n"
        assert output(process) == "True True\n"


INTERRUPTED_ANYWHERE = """
import random, signal, sys, threading
import numpy as np
from jaxd import connect

client = connect()
add = client.persistent_call(lambda x: x + 1)
right, interrupts, done = [], 0, threading.Event()

class Alarm(BaseException):
    pass

def complain(unraisable, before=sys.unraisablehook):
    if unraisable.exc_type is not Alarm:  # Python itself swallows what is raised in a `__del__`
        before(unraisable)

sys.unraisablehook = complain
armed = False

def ring(number, frame):
    if armed:
        raise Alarm

def echoed(value, size):
    result = add(np.full(size, value, np.float32))
    return bool(result.shape == (size,) and result[0] == value + 1 and result[-1] == value + 1)

def many(start):
    i = start
    while not done.is_set():
        i += 1
        right.append(echoed(i % 1000, 3 if i % 7 else 1 << 16))

signal.signal(signal.SIGALRM, ring)
echoed(0, 3), echoed(0, 1 << 16), echoed(0, 1 << 21)
threads = [threading.Thread(target=many, args=(1000 * n,)) for n in range(2)]
for thread in threads:
    thread.start()
chance = random.Random(int(sys.argv[1]))
for i in range(60):
    size = chance.choice([3, 1 << 16, 1 << 21])
    try:
        armed = True
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 2e-2 if size > 3 else 2e-3))
        echoed(i, size)
        armed = False
    except Alarm:
        interrupts += 1
    armed = False
    signal.setitimer(signal.ITIMER_REAL, 0)
    right.append(echoed(i, size))
done.set()
for thread in threads:
    thread.join()
print(all(right), interrupts > 0)
"""


@pytest.mark.parametrize("seed", ["1", "2"])
def test_an_interrupt_anywhere(live: LiveServer, seed: str) -> None:
    """While sending, waiting or receiving: all threads get their own right answers."""
    with program(live, INTERRUPTED_ANYWHERE, seed) as process:
        assert output(process) == "True True\n"


# forks --------------------------------------------------------------------------------------------

FORKS = """
import gc, os, sys, threading, warnings
warnings.filterwarnings("ignore", category=DeprecationWarning)  # that threads and forks do not mix
from jaxd import connect, persistent_call
client = connect()
double = client.persistent_call(lambda x: x * 2)
plain = persistent_call(lambda x: x * 3)
right, done = [float(double(1.0)) == 2.0, float(plain(1.0)) == 3.0], threading.Event()
connection, session = client.caller.session.connection(), client.info()["session"]

def many():
    i = 0.0
    while not done.is_set():
        i += 1
        right.append(float(double(i)) == 2 * i)

thread = threading.Thread(target=many)
thread.start()
for _ in range(3):
    child = os.fork()
    if child == 0:
        ok = [float(double(float(i))) == 2 * i for i in range(50)]
        ok += [float(f.result()) == 8.0 for f in [double.submit(4.0) for _ in range(40)]]
        ok += [float(plain(5.0)) == 15.0, client.caller.session.connection() is not connection]
        ok += [client.info()["session"] != session]
        del connection, double, client
        gc.collect()
        sys.stdout.flush()
        os._exit(0 if all(ok) else 1) if sys.argv[1] == "at once" else sys.exit(0 if all(ok) else 1)
    right += [float(double(float(i))) == 2 * i for i in range(50)]
    _, status = os.waitpid(child, 0)
    right += [status == 0, float(double(3.0)) == 6.0]
done.set()
thread.join()
print(all(right), client.caller.session.connection() is connection)
"""


@pytest.mark.parametrize("ending", ["at once", "in order"])
def test_a_fork_after_connecting(live: LiveServer, ending: str) -> None:
    """The child makes a connection of its own; the parent's stays whole, also after the child."""
    with program(live, FORKS, ending) as process:
        assert output(process) == "True True\n"


FORKS_INSIDE_A_CALL = """
import os, sys, threading, warnings
warnings.filterwarnings("ignore", category=DeprecationWarning)
sys.path.insert(0, sys.argv[2])
from tests.end_to_end.gates import stop_at
from jaxd import connect
client = connect()
double = client.persistent_call(lambda x: x * 2)
stopping = client.persistent_call(stop_at(sys.argv[1]))
double(1.0)
results = []
thread = threading.Thread(target=lambda: results.append(float(stopping(1.0))))
thread.start()
future = double.submit(4.0)
print("waiting", flush=True)
sys.stdin.readline()
child = os.fork()
if child == 0:
    os._exit(0 if float(double(2.0)) == 4.0 else 1)
_, status = os.waitpid(child, 0)
print("child", status, flush=True)
thread.join()
print(results, float(future.result()))
"""


def test_a_fork_while_a_call_is_open(live: LiveServer, gate: Gate) -> None:
    """The call is the parent's: it gets the result, and the child is not held up."""
    with program(live, FORKS_INSIDE_A_CALL, gate.path, ROOT) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        with gate.reached():
            assert process.stdout.readline() == "waiting\n"
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "child 0\n"
        assert output(process) == "[2.0] 8.0\n"


# many at once -------------------------------------------------------------------------------------


def test_a_client_that_is_dropped_without_close(live: LiveServer, client: Client) -> None:
    """Its connection ends with it."""
    import gc
    import warnings

    before = client.statistics().connections
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        forgotten = connect(live.unix)
        assert float(forgotten.persistent_call(lambda x: x + 1).submit(1.0).result()) == 2.0
        del forgotten
        gc.collect()
        until(lambda: client.statistics().connections <= before)
