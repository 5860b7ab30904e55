"""Workers that are replaced on purpose, and workers that hang."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from jaxd import Client, connect, errors
from jaxd.connection.control_client import send_request, stop_and_wait
from jaxd.connection.local_server import start_background
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import LocalServerFiles, control_path
from tests.end_to_end.gates import Gate, in_thread
from tests.fake_packages import FakeSite
from tests.faults.others import answers_correctly
from tests.live_server import ROOT, TOKEN, LiveServer
from tests.server.staging import until

pytestmark = pytest.mark.faults

StartLive = Callable[..., LiveServer]
PARTS: Final = ("client", "server", "shared")


def control(server: LiveServer, what: str, **more: Any) -> Any:
    """What the host says."""
    return send_request(
        control_path(Address.parse(server.unix)), {"ask": what, **more}, is_slow=True
    )


def installed(tmp_path: Path, site: FakeSite, name: str) -> dict[str, str]:
    """The environment of a server all of whose processes import an installed package at once."""
    hook = tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(f"import {name}\n")
    folders = [str(hook), str(site.path), *(str(ROOT / part) for part in PARTS)]
    return {"PYTHONPATH": os.pathsep.join(folders), "PYTHONDONTWRITEBYTECODE": "1"}


@contextmanager
def load(server: LiveServer, threads: int = 4) -> Iterator[list[Any]]:
    """Clients that call all the time; what is not right, or raised, stands in the list."""
    wrong: list[Any] = []
    done = threading.Event()
    counts = [0] * threads

    def call(number: int) -> None:
        with connect(server.unix) as client:
            double = client.persistent_call(lambda x: x * 2)
            while not done.is_set():
                counts[number] += 1
                x = float(counts[number])
                try:
                    futures = [double.submit(x), double.submit(x + 1)]
                    right = (float(double(x)), *(float(f.result()) for f in futures))
                except BaseException as error:  # noqa: BLE001  none is expected
                    wrong.append(error)
                else:
                    if right != (2 * x, 2 * x, 2 * x + 2):
                        wrong.append(right)

    running = [in_thread(call, number) for number in range(threads)]
    until(lambda: all(count > 10 for count in counts))
    yield wrong
    before = list(counts)
    until(lambda: all(now > then + 10 for now, then in zip(counts, before, strict=True)))
    done.set()
    for one in running:
        one.result(30)


@pytest.mark.parametrize("standby", ["--standby", "--no-standby"])
def test_a_restart_under_load_is_not_noticed(start_live: StartLive, standby: str) -> None:
    """No caller sees an error or a wrong result; what was compiled is loaded."""
    server = start_live(standby)
    with load(server) as wrong, connect(server.unix) as client:
        for epoch in (2, 3):
            assert control(server, "restart")["epoch"] == epoch
        assert client.statistics().epoch == 3
    assert wrong == []
    with connect(server.unix) as client:
        assert float(client.persistent_call(lambda x: x * 2)(7.0)) == 14.0
        seen = client.statistics()
        assert (seen.traces, seen.compiles) == (0, 0)
    server.wait_for("worker_exited", 2, exit_code=0)


def test_a_long_call_is_finished_beside_the_next_worker(
    start_live: StartLive, runtime: Path
) -> None:
    """With --force, when nothing is lost by it; without, the worker says what it waits for."""
    server, gate = start_live("--builds", "2"), Gate(runtime / "gate")

    def stopping(x: Any) -> Any:
        Path(gate.path).read_bytes()
        return x + 1

    with connect(server.unix) as client, connect(server.unix) as other:
        long = in_thread(client.persistent_call(stopping), 1.0)
        with gate.reached():
            refused = control(server, "restart")["refused"]
            assert "stopping has been running for" in refused
            assert control(server, "restart", force=True)["epoch"] == 2
            array: Any = other.put(np.ones(3))
            assert float(other.persistent_call(lambda x: x * 2)(4.0)) == 8.0
            assert other.statistics().epoch == 2
            assert not long.done()
        assert float(long.result(30)) == 2.0
        server.wait_for("worker_exited", 1, epoch=1, exit_code=0)
        assert np.asarray(array).tolist() == [1.0] * 3


@pytest.fixture
def local(runtime: Path) -> Iterator[LocalServerFiles]:
    """A server that listens on a Unix socket alone."""
    files = LocalServerFiles.of_this_environment()
    start_background(files, by_hand=True)
    yield files
    stop_and_wait(files.control)


def test_the_socket_of_a_server_is_removed(local: LocalServerFiles, runtime: Path) -> None:
    """Who is connected goes on, the status says so; then it ends, and the next can be started."""
    gate = Gate(runtime / "gate")

    def stopping(x: Any) -> Any:
        Path(gate.path).read_bytes()
        return x + 1

    with connect(f"unix://{local.socket}") as client:
        running = in_thread(client.persistent_call(stopping), 1.0)
        with gate.reached():
            os.unlink(local.socket)
            status = {"ask": "status"}
            until(lambda: bool((send_request(local.control, status) or {})["host"]["lost"]))
            assert answers_correctly(client)
        assert float(running.result(30)) == 2.0
    until(lambda: send_request(local.control, {"ask": "status"}) is None)
    start_background(local, by_hand=True)
    with connect(f"unix://{local.socket}") as client:
        assert answers_correctly(client)


def test_arrays_of_clients_keep_a_worker(start_live: StartLive) -> None:
    """They are only lost by force; then they are made again on the next one."""
    server = start_live()
    with connect(server.unix) as client:
        state: Any = client.put(np.ones(1 << 15, np.float32))
        double = client.persistent_call(lambda x: x * 2)
        state = double(state)
        assert "holds arrays of uid:" in control(server, "restart")["refused"]
        assert float(double(state)[0]) == 4.0
        assert client.statistics().epoch == 1
        assert control(server, "restart", force=True)["epoch"] == 2
        assert float(double(state)[0]) == 4.0


@pytest.mark.usefixtures("arrays_die_with_workers")
def test_a_call_on_arrays_comes_too_late(start_live: StartLive, runtime: Path) -> None:
    """Its worker gives way by force, and finishes a call of somebody else: what it needs dies."""
    server, gate = start_live("--builds", "2"), Gate(runtime / "gate")

    def stopping(x: Any) -> Any:
        Path(gate.path).read_bytes()
        return x + 1

    with connect(server.unix) as client, connect(server.unix) as other:
        state: Any = client.put(np.ones(1 << 15, np.float32))
        double = client.persistent_call(lambda x: x * 2)
        for _ in range(2):  # the second time it returns before it has run
            assert float(np.asarray(double(state))[0]) == 2.0
        long = in_thread(other.persistent_call(stopping), 1.0)
        with gate.reached():
            assert control(server, "restart", force=True)["epoch"] == 2
            with pytest.raises(errors.ValuesDied, match="needs 1 of them"):
                np.asarray(double(state))
        assert float(long.result(30)) == 2.0


def test_a_worker_is_recycled_after_so_many_calls(start_live: StartLive) -> None:
    """Under load, without an error."""
    server = start_live("--recycle-after-calls", "30")
    with load(server, 2) as wrong:
        server.wait_for("worker_recycled")
    assert wrong == []


def holds_the_interpreter(path: str) -> Callable[[Any], Any]:
    """A function that reads a named pipe in C while it is traced, and gives way to nobody."""

    def function(x: Any) -> Any:
        import ctypes

        library = ctypes.PyDLL(None)
        descriptor = library.open(path.encode(), os.O_RDONLY)
        library.read(descriptor, ctypes.create_string_buffer(1), 1)
        library.close(descriptor)
        return x + 1

    return function


def is_stuck(server: LiveServer) -> Any:
    report = send_request(control_path(Address.parse(server.unix)), {"ask": "status"})
    return report if report is not None and report["worker_state"] == "stuck" else None


def test_a_worker_whose_interpreter_is_held(start_live: StartLive, runtime: Path) -> None:
    """The host says so, names the call and for how long; the log has the stack. Then it goes on."""
    server = start_live("--build-in", "worker", "--stuck-after-s", "2")
    gate = Gate(runtime / "gate")
    with connect(server.unix) as client:
        holding = client.persistent_call(holds_the_interpreter(gate.path))
        call = in_thread(holding, 1.0)
        with open(gate.path, "wb"):
            until(lambda: is_stuck(server))
            report = is_stuck(server)
            (running,) = report["worker"]["running"]
            assert "holds_the_interpreter" in running["function"]
            assert running["seconds"] > 1
            assert report["worker_process"] == "sleeping"
            server.wait_for("worker_stuck")
            until(lambda: any("in function" in line for line in server.raw))
        assert float(call.result(30)) == 2.0
        server.wait_for("worker_answers_again")
        assert client.statistics().epoch == 1


def test_a_stopped_worker(start_live: StartLive) -> None:
    """By a signal: the host knows it from the system; all goes on when it does."""
    server = start_live("--stuck-after-s", "2")
    with connect(server.unix) as client:
        double = client.persistent_call(lambda x: x * 2)
        assert float(double(1.0)) == 2.0
        os.kill(server.worker_pid(), signal.SIGSTOP)
        call = in_thread(double, 2.0)
        server.wait_for("worker_stuck", state="stopped")
        assert is_stuck(server)["worker_process"] == "stopped"
        os.kill(server.worker_pid(), signal.SIGCONT)
        assert float(call.result(30)) == 4.0


def put(client: Client) -> Any:
    return client.put(np.ones(1 << 15, np.float32))


def test_a_stuck_worker_is_killed_where_that_was_asked_for(
    start_live: StartLive, runtime: Path
) -> None:
    """Its caller learns why; a function that does so alone twice is called no more."""
    server = start_live("--build-in", "worker", "--stuck-after-s", "2", "--recycle-stuck-s", "3")
    gate = Gate(runtime / "gate")
    with connect(server.unix) as client:
        mine = put(client)  # one's own arrays do not keep it
        holding = client.persistent_call(holds_the_interpreter(gate.path))
        with (
            open(os.open(gate.path, os.O_RDWR)),
            pytest.raises(errors.WorkerLost, match=r"nothing else ran \(stuck: no word for \d s"),
        ):
            holding(1.0)
        del mine
        assert float(client.persistent_call(lambda x: x * 2)(2.0)) == 4.0


@pytest.mark.parametrize("thread", ["accepting", "sending", "reading the host's channel"])
def test_a_thread_of_the_worker_ends(start_live: StartLive, tmp_path: Path, thread: str) -> None:
    """Without which nobody would be served: the worker ends, and the next one serves all."""
    server = start_live("--build-in", "worker")
    marker = tmp_path / "marker"

    def end_thread(x: Any) -> Any:
        if not marker.exists():
            marker.touch()
            import ctypes
            import gc
            import threading

            if thread == "sending":

                def end() -> None:
                    raise SystemExit

                for one in gc.get_objects():
                    if type(one).__name__ == "SendQueue":
                        one.put(end)
            name = "jaxd-accept-tcp" if thread == "accepting" else "jaxd-tether"
            for each in threading.enumerate():
                if each.name.startswith(name) and thread != "sending":
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(
                        ctypes.c_ulong(each.ident or 0), ctypes.py_object(SystemExit)
                    )
        return x + 1

    with connect(server.unix) as client:
        assert answers_correctly(client)
        assert float(client.persistent_call(end_thread)(1.0)) == 2.0
        others = [in_thread(_call_once, server) for _ in range(3)]
        server.wait_for("worker_ready", 2)
        assert all(one.result(50) for one in others)
        assert answers_correctly(client)
    assert _call_once(server)


def _call_once(server: LiveServer) -> bool:
    with connect(server.tcp, token=TOKEN) as client:
        return answers_correctly(client)


def test_a_worker_accepts_nobody_any_more(start_live: StartLive, tmp_path: Path) -> None:
    """Though it answers the host: this replaces it, and who has connected is served."""
    server = start_live("--build-in", "worker")
    marker = tmp_path / "marker"

    def hold_doors(x: Any) -> Any:
        if not marker.exists():
            marker.touch()
            import gc
            import threading

            for one in gc.get_objects():
                if type(one).__name__ == "Endpoint":
                    one._accept = lambda: threading.Event().wait()  # as one that hangs
        return x + 1

    with connect(server.unix) as client:
        assert float(client.persistent_call(hold_doors)(1.0)) == 2.0
        others = [in_thread(_call_once, server) for _ in range(3)]
        server.wait_for("not_accepting")
        assert all(one.result(50) for one in others)
        assert answers_correctly(client)


def test_packages_are_installed_that_cannot_be_imported(
    start_live: StartLive, tmp_path: Path
) -> None:
    """The worker stays until they can, and until nothing has changed for a while."""
    site = FakeSite(tmp_path)
    site.install("servlib", "1.0", {"servlib.py": "number = 1"})
    server = start_live(**installed(tmp_path, site, "servlib"))
    pid = server.worker_pid()
    with load(server) as wrong:
        site.install("servlib", "2.0", {"servlib.py": "import os; os._exit(3)"})
        server.wait_for("renewal_failed")
        assert server.worker_pid() == pid
        site.install("servlib", "3.0", {"servlib.py": "number = 3"})
        server.wait_for("worker_ready", 2)
        assert server.worker_pid() != pid
    assert not wrong, wrong
    assert not [line for line in server.lines if line["event"] == "worker_broken"]


def test_a_worker_cannot_be_started_again(start_live: StartLive, tmp_path: Path) -> None:
    """The server stays: clients are told the worker's last words, and served once it is mended."""
    site = FakeSite(tmp_path)
    site.install("servlib", "1.0", {"servlib.py": "number = 1"})
    server = start_live(**installed(tmp_path, site, "servlib"))
    with connect(server.unix) as client:
        double = client.persistent_call(lambda x: x * 2)
        assert float(double(1.0)) == 2.0
        broken = "import os, sys; print('half installed', file=sys.stderr, flush=True); os._exit(3)"
        (site.path / "servlib.py").write_text(broken)
        os.kill(server.worker_pid(), signal.SIGKILL)
        server.wait_for("worker_broken", 3)
        for address in (server.unix, server.tcp, server.tls):
            with pytest.raises(errors.ServerStartFailed, match="half installed"):
                connect(address, token=TOKEN)
        with pytest.raises(errors.ServerStartFailed, match="half installed"):
            double(2.0)
        status = control(server, "status")
        assert status["worker_state"] == "broken"
        assert "half installed" in status["why"]
        site.install("servlib", "2.0", {"servlib.py": "number = 2"})
        server.wait_for("worker_ready", 2)
        assert float(double(3.0)) == 6.0
        assert control(server, "status")["worker_state"] == "ready"
