from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxd.cli.__main__ import main
from jaxd_protocol.network.addresses import Address
from tests.live_server import source_environment
from tests.server.host_process import HostProcess, ask, greeting, read_line
from tests.server.staging import until

StartHost = Callable[..., HostProcess]

UNSHARE = ("unshare", "--pid", "--fork", "--kill-child")


def test_the_log_and_the_status_name_the_real_port(start_host: StartHost) -> None:
    """Port 0 is of use only when everybody can find out; all of a status is in one reply."""
    host = start_host("--listen", "tcp://127.0.0.1:0", "--allow-unauthenticated-loopback")
    listening = host.wait_until_ready()
    address = Address.parse(listening["address"])
    with socket.create_connection((address.host, address.port)) as caller:
        assert read_line(caller)["epoch"] == 1
    assert listening["control"].endswith(f"/tcp-{address.port}.control")
    status = ask(listening["control"], ask="status")
    found = status["host"]
    assert (found["listen"], found["pid"]) == ([str(address)], host.process.pid)
    assert (found["restarts"], found["log"], found["epoch"]) == (0, None, 1)
    assert (status["worker_state"], status["worker"]["epoch"]) == ("ready", 1)
    assert status["worker_silent_s"] < 1


def test_whoever_asks_on_the_control_socket_is_answered(start_host: StartHost) -> None:
    """As often as they like on one connection; garbage ends its own, and nobody else's."""
    control = start_host().wait_until_ready()["control"]
    with socket.socket(socket.AF_UNIX) as one, one.makefile("r") as lines:
        one.connect(control)

        def exchange(**request: Any) -> Any:
            one.sendall(json.dumps(request).encode() + b"\n")
            return json.loads(lines.readline())

        for garbage in (b"GET / HTTP/1.1\r\n", b"[]\n", b"x" * 100_000):
            assert exchange(ask="status")["worker_state"] == "ready"
            with socket.socket(socket.AF_UNIX) as bad:
                bad.connect(control)
                bad.sendall(garbage)
                assert "error" in read_line(bad)
        known = {"error": "'dance' is not known; ask for status or stop"}
        assert exchange(ask="dance") == known
        assert exchange(ask="quarantined") == {"quarantined": []}
        assert exchange(ask="release", what="deadly") == {"released": []}


def test_several_addresses_have_one_control_socket(start_host: StartHost, runtime: Path) -> None:
    """Beside the first one."""
    paths = [str(runtime / "a.sock"), str(runtime / "b.sock")]
    host = start_host(*(word for path in paths for word in ("--listen", f"unix://{path}")))
    assert host.wait_until_ready()["control"] == paths[0] + ".control"
    assert [greeting(path)["epoch"] for path in paths] == [1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("is_replaced", [False, True], ids=["gone", "foreign"])
def test_a_host_that_nobody_finds_any_more_ends(
    start_host: StartHost, runtime: Path, is_replaced: bool
) -> None:
    """It would hold the device for ever. What has taken the place of its socket stays."""
    path = runtime / "s.sock"
    host = start_host("--listen", f"unix://{path}")
    host.wait_until_ready()
    path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        if is_replaced:
            other.bind(str(path))
        lost = host.wait_for("socket_lost")
        assert str(path) in lost["reason"]
        host.wait_for("unreachable")
        assert host.wait()[0] == 0
        assert path.exists() is is_replaced


@pytest.mark.slow
def test_a_host_that_is_found_elsewhere_stays(
    start_host: StartHost, runtime: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The status says what is lost, until it is there again."""
    paths = [runtime / "a.sock", runtime / "b.sock"]
    host = start_host(*(word for path in paths for word in ("--listen", f"unix://{path}")))
    control = host.wait_until_ready()["control"]
    aside = paths[1].rename(runtime / "aside")
    host.wait_for("socket_lost")
    assert ask(control, ask="status")["host"]["lost"] == [f"{paths[1]} was removed"]
    assert main(["status", "--server", f"unix://{paths[0]}"]) == 0
    assert "was removed" in capsys.readouterr().out
    assert greeting(str(paths[0]))["epoch"] == 1
    aside.rename(paths[1])
    until(lambda: ask(control, ask="status")["host"]["lost"] == [])


def test_its_log_is_named_when_it_has_one(start_host: StartHost, runtime: Path) -> None:
    """A server in the background says where its words go."""
    log = runtime / "server.log"
    path = runtime / "server.sock"
    with log.open("wb") as stderr:
        host = start_host("--listen", f"unix://{path}", stderr=stderr)
    greeting(wait_for_socket(path, log))
    assert ask(f"{path}.control", ask="status")["host"]["log"] == str(log)
    assert host.process.returncode is None


def wait_for_socket(path: Path, log: Path) -> str:
    """Returns when the log says that the host listens."""
    until(lambda: "worker_ready" in log.read_text())
    return str(path)


@pytest.mark.slow
def test_an_idle_server_stops(start_host: StartHost, runtime: Path) -> None:
    """After the time it was given, with exit code 0 and nothing left behind."""
    host = start_host("--idle-timeout-s", "0.2", "--listen", f"unix://{runtime}/s/server.sock")
    code, said = host.wait()
    assert code == 0
    assert '"event": "idle"' in said
    assert list((runtime / "s").iterdir()) == []


@pytest.mark.slow
def test_a_running_call_keeps_a_server_from_being_idle(
    start_host: StartHost, runtime: Path
) -> None:
    """Idleness is what the worker says, and not what the clock says."""
    release = runtime / "release"
    host = start_host("--idle-timeout-s", "0.05", **busy_until(release))
    control = host.wait_until_ready()["control"]
    while ask(control, ask="status")["worker"]["idle_s"] < 0.2:
        pass
    assert ask(control, ask="status")["worker_state"] == "ready"
    release.touch()
    assert host.wait()[0] == 0


def busy_until(release: Path) -> dict[str, str]:
    """The environment of a worker with a running call that ends when the file appears."""
    return {"FAKE_WORKER": "busy", "FAKE_WORKER_RELEASE": str(release)}


def test_a_second_server_on_the_same_socket_is_refused(
    start_host: StartHost, runtime: Path
) -> None:
    """Exit code 1, one line that says what to do, no traceback, and the first one lives on."""
    first = start_host()
    control = first.wait_until_ready()["control"]
    for private in (Path(control).parent, runtime / "jaxd"):  # what guards the default socket
        assert stat.S_IMODE(private.stat().st_mode) == 0o700
    code, said = start_host().wait()
    assert code == 1
    assert said.startswith("jaxd: a server already answers at ")
    assert "jaxd stop" in said
    assert said.count("\n") == 1
    assert ask(control, ask="status")["worker_state"] == "ready"


def test_an_unsafe_address_is_refused_before_anything_is_opened(start_host: StartHost) -> None:
    """The refusal is the only thing in the log."""
    code, said = start_host("--listen", "tcp://0.0.0.0:0").wait()
    assert code == 1
    assert said.startswith("jaxd: tcp://0.0.0.0:0 is reachable from other machines")


def test_a_directory_that_is_not_private_is_refused(start_host: StartHost, runtime: Path) -> None:
    """Also from the command line the mending command is shown."""
    public = runtime / "public"
    public.mkdir()
    public.chmod(0o755)
    code, said = start_host("--listen", f"unix://{public}/server.sock").wait()
    assert code == 1
    assert f"chmod 700 {public}" in said


def test_as_first_process_of_a_container_it_obeys_sigterm(start_host: StartHost) -> None:
    """The kernel drops signals for which process 1 has installed no handler."""
    if subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("making a PID namespace is not allowed here")
    host = start_host(prefix=UNSHARE)
    control = host.wait_until_ready()["control"]
    assert ask(control, ask="status")["host"]["pid"] == 1
    os.kill(child_of(host.process.pid), signal.SIGTERM)
    code, said = host.wait()
    assert code == 0
    assert '"event": "stopped"' in said


def child_of(pid: int) -> int:
    """The only child of a process, by its id out here."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())


PROGRAM = """
import os
from jaxd_server.processes.host import reap_orphans

def ended_child():
    pid = os.fork() or os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid

assert reap_orphans(()) == []
first, second = ended_child(), ended_child()
assert sorted(reap_orphans(())) == sorted([first, second])
own = ended_child()
assert reap_orphans({own}) == []
assert os.waitpid(own, 0) == (own, 0)
"""


def test_orphans_are_collected_and_the_own_child_is_left(tmp_path: Path) -> None:
    """Whoever waits for the worker still gets its exit code."""
    environment = source_environment(tmp_path)
    subprocess.run([sys.executable, "-P", "-c", PROGRAM], check=True, env=environment)
