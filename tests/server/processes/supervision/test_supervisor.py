from __future__ import annotations

import json
import os
import select
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxd import connect
from jaxd.connection.connect import probe
from jaxd.connection.settings import Settings
from jaxd_protocol.errors import AuthenticationFailed, Busy, JaxdError, ServerStartFailed
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.tokens import write_token_file
from tests.server.host_process import HostProcess, ask, greeting

StartHost = Callable[..., HostProcess]


def test_a_killed_worker_is_replaced_and_nobody_is_refused(
    start_host: StartHost, runtime: Path
) -> None:
    """Callers in between wait for the next worker, which has the next epoch."""
    path = str(runtime / "server.sock")
    host = start_host("--listen", f"unix://{path}")
    host.wait_until_ready()
    first = greeting(path)
    os.kill(first["pid"], signal.SIGKILL)
    assert host.wait_for("worker_lost")["level"] == "warning"
    assert host.wait_for("worker_exited")["signal"] == "SIGKILL"
    second = greeting(path)
    assert second["epoch"] == first["epoch"] + 1
    assert second["pid"] != first["pid"]
    host.wait_for("worker_ready")
    status = ask(path + ".control", ask="status")
    assert status["host"]["restarts"] == 1
    assert status["worker_state"] == "ready"


def test_a_worker_that_is_outdated_is_replaced_at_once(
    start_host: StartHost, runtime: Path
) -> None:
    """That it ended is no death: nobody waits longer for the next one because of it."""
    path = str(runtime / "server.sock")
    host = start_host("--listen", f"unix://{path}", FAKE_WORKER="outdated")
    host.wait_until_ready()
    assert greeting(path)["epoch"] == 1
    assert host.wait_for("worker_outdated")["changes"] == ["optax was changed from 1 to 2"]
    exited = host.wait_for("worker_exited")
    assert (exited["exit_code"], exited["restart_in_s"]) == (0, 0.0)
    assert greeting(path)["epoch"] == 2


def test_a_worker_that_rests_is_replaced_when_somebody_comes(
    start_host: StartHost, runtime: Path
) -> None:
    """Not before; who comes waits a moment. Meanwhile the server says so, and can be stopped."""
    path = str(runtime / "server.sock")
    host = start_host("--listen", f"unix://{path}", FAKE_WORKER="resting")
    host.wait_until_ready()
    assert greeting(path)["epoch"] == 1
    assert (host.wait_for("worker_exited")["restart_in_s"]) == 0.0
    status = ask(path + ".control", ask="status")
    assert status["worker_state"] == "resting"
    assert (status["host"]["worker_pid"], status["host"]["epoch"]) == (None, 1)
    assert greeting(path)["epoch"] == 2
    host.wait_for("worker_ready")
    assert ask(path + ".control", ask="status")["worker_state"] == "ready"


@pytest.mark.slow
def test_a_server_whose_worker_rests_can_be_stopped(start_host: StartHost, runtime: Path) -> None:
    """And stops by itself after its time, as if the idle worker were there."""
    path = str(runtime / "server.sock")
    host = start_host("--listen", f"unix://{path}", FAKE_WORKER="resting")
    host.wait_until_ready()
    greeting(path)
    host.wait_for("worker_exited")
    host.signal(signal.SIGTERM)
    assert host.wait()[0] == 0
    words = ("--listen", f"unix://{path}", "--idle-timeout-s", "0.3")
    host = start_host(*words, FAKE_WORKER="resting")
    host.wait_until_ready()
    greeting(path)
    host.wait_for("idle")
    assert host.wait()[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_a_restart_replaces_the_worker(start_host: StartHost, runtime: Path, platform: str) -> None:
    """Beside the old one where the device has room for two, else after it."""
    path = str(runtime / "server.sock")
    host = start_host("--listen", f"unix://{path}", FAKE_WORKER_PLATFORM=platform)
    host.wait_until_ready()
    first = greeting(path)
    assert ask(path + ".control", ask="restart")["epoch"] == 2
    second = greeting(path)
    assert (first["epoch"], second["epoch"]) == (1, 2)
    assert ask(path + ".control", ask="restart")["epoch"] == 3
    assert ask(path + ".control", ask="status")["worker_state"] == "ready"
    host.signal(signal.SIGTERM)
    code, said = host.wait()
    assert code == 0
    lines = [json.loads(line) for line in [*host.said, *said.splitlines()] if line[:1] == "{"]
    order = [(one["event"], one["epoch"]) for one in lines if "epoch" in one]
    first_event, then = {
        "cpu": (("worker_prepared", 2), ("worker_gave_way", 1)),
        "gpu": (("worker_exited", 1), ("worker_started", 2)),
    }[platform]
    assert order.index(first_event) < order.index(then)


def test_a_worker_that_is_needed_is_not_replaced(start_host: StartHost, runtime: Path) -> None:
    """Unless by force; the reason is the worker's."""
    path = str(runtime / "server.sock")
    host = start_host("--listen", f"unix://{path}", FAKE_WORKER="needed")
    host.wait_until_ready()
    assert ask(path + ".control", ask="restart") == {"refused": "it holds arrays of uid:7"}
    assert greeting(path)["epoch"] == 1
    assert ask(path + ".control", ask="restart", force=True)["epoch"] == 2
    assert greeting(path)["epoch"] == 2


@pytest.mark.parametrize("mode", ["needed", "resting", ""])
def test_a_stop_that_may_lose_nothing_is_for_a_worker_that_nobody_needs(
    start_host: StartHost, runtime: Path, mode: str
) -> None:
    """It is refused with the worker's reason; else the server ends, and no next worker begins."""
    path = str(runtime / "server.sock")
    host = start_host("--listen", f"unix://{path}", FAKE_WORKER=mode)
    host.wait_until_ready()
    greeting(path)
    if mode == "needed":
        why = {"refused": "it holds arrays of uid:7"}
        assert ask(path + ".control", ask="stop", loses_values=False) == why
        assert greeting(path)["epoch"] == 1
        return
    if mode == "resting":
        host.wait_for("worker_exited")
    assert ask(path + ".control", ask="stop", loses_values=False) == {"stopping": True}
    code, said = host.wait()
    assert code == 0
    assert '"epoch": 2' not in said


def test_a_worker_stays_when_the_next_one_fails(start_host: StartHost, runtime: Path) -> None:
    """Who asked is told so, and calls are answered as before."""
    path = str(runtime / "server.sock")
    host = start_host("--listen", f"unix://{path}", FAKE_WORKER="failing")
    host.wait_until_ready()
    assert "ended before it was ready" in ask(path + ".control", ask="restart")["refused"]
    assert greeting(path)["epoch"] == 1
    assert ask(path + ".control", ask="status")["worker_state"] == "ready"


@pytest.mark.faults
def test_one_that_stood_by_for_too_long_is_no_failed_start(
    start_host: StartHost, runtime: Path
) -> None:
    """Packages have changed meanwhile: the next one starts at once, and imports what is there."""
    path = str(runtime / "server.sock")
    host = start_host("--listen", f"unix://{path}", "--standby", FAKE_WORKER="stale")
    host.wait_until_ready()
    standby = host.wait_for("worker_standing_by")["pid"]
    os.kill(greeting(path)["pid"], signal.SIGKILL)
    assert host.wait_for("worker_stale")["pid"] == standby
    assert host.wait_for("worker_exited")["restart_in_s"] == 0.0
    second = greeting(path)
    assert (second["epoch"], second["pid"] != standby) == (3, True)


@pytest.mark.slow
def test_a_server_whose_workers_never_start_stays(start_host: StartHost, runtime: Path) -> None:
    """After five attempts clients are told why, in the worker's own words; it can be stopped."""
    address = f"unix://{runtime}/server.sock"
    host = start_host("--listen", address, FAKE_WORKER="fail")
    text = host.wait_for("worker_broken")["reason"]
    assert "ended 5 times before it was ready" in text
    assert "libaccelerator.so: cannot open shared object file" in text
    status = ask(f"{runtime}/server.sock.control", ask="status")
    assert (status["worker_state"], status["why"]) == ("broken", text)
    with pytest.raises(ServerStartFailed, match=r"libaccelerator\.so") as caught:
        connect(address)
    assert "jaxd doctor" in str(caught.value)
    host.wait_for("worker_broken")  # it goes on trying
    host.signal(signal.SIGTERM)
    code, said = host.wait()
    assert code == 0
    assert said.count('"event": "worker_started"') >= 6
    assert list(runtime.glob("server.sock*")) == []


@pytest.mark.slow
def test_who_says_nothing_is_not_waited_for_while_no_worker_starts(
    start_host: StartHost, runtime: Path
) -> None:
    """The host has no room for many, and a worker may never come."""
    path = f"{runtime}/server.sock"
    host = start_host("--listen", f"unix://{path}", FAKE_WORKER="fail")
    host.wait_for("worker_broken")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.settimeout(30.0)
        silent.connect(path)
        assert silent.recv(1) == b""


@pytest.mark.slow
def test_wrong_tokens_count_also_while_no_worker_starts(
    start_host: StartHost, runtime: Path
) -> None:
    """Each attempt to start one gives a stranger no more attempts of its own."""
    write_token_file(f"{runtime}/token")
    host = start_host(
        *("--listen", "tcp://127.0.0.1:0", "--token-file", f"{runtime}/token"), FAKE_WORKER="fail"
    )
    address = Address.parse(host.wait_for("listening")["address"])

    def come() -> type[JaxdError]:
        with pytest.raises(JaxdError) as caught:
            probe(address, Settings(token="a-wrong-token-for-tests"))
        return caught.type

    host.wait_for("worker_broken")
    assert {come() for _ in range(20)} == {AuthenticationFailed}
    host.wait_for("worker_broken")
    assert Busy in {come() for _ in range(8)}


@pytest.mark.slow
def test_a_server_whose_workers_start_again_serves(
    start_host: StartHost, tmp_path: Path, runtime: Path
) -> None:
    """At once when something was installed, however long it would have waited."""
    site = tmp_path / "site-packages"
    site.mkdir()
    path = str(runtime / "server.sock")
    folders = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    host = start_host(
        *("--listen", f"unix://{path}"),
        FAKE_WORKER="unless installed",
        FAKE_WORKER_NEEDS=str(site / "needed.py"),
        PYTHONPATH=folders,
    )
    while host.wait_for("worker_broken")["retry_in_s"] < 5.0:
        pass
    (site / "needed.py").touch()
    host.wait_for("packages_changed")
    host.wait_for("worker_ready")
    assert greeting(path)["epoch"] > 5
    assert ask(path + ".control", ask="status")["worker_state"] == "ready"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(start_host: StartHost, runtime: Path, number: signal.Signals) -> None:
    """Running calls are finished; exit code 0; no file is left."""
    release = runtime / "release"
    host = start_host(
        *("--listen", f"unix://{runtime}/server.sock"),
        FAKE_WORKER="busy",
        FAKE_WORKER_RELEASE=str(release),
    )
    control = host.wait_until_ready()["control"]
    host.signal(number)
    host.wait_for("draining")
    assert ask(control, ask="status")["worker_state"] == "draining"
    assert ask(control, ask="status")["worker"]["running_calls"] == 1
    release.touch()
    code, said = host.wait()
    assert code == 0
    assert "drain_timed_out" not in said
    assert list(runtime.glob("server.sock*")) == []


@pytest.mark.parametrize("asked", [False, True], ids=["signal", "control socket"])
def test_a_second_signal_or_word_stops_at_once(
    start_host: StartHost, runtime: Path, asked: bool
) -> None:
    """A call that never ends does not keep its user waiting; exit code 1."""
    host = start_host("--listen", f"unix://{runtime}/server.sock", FAKE_WORKER="busy")
    control = host.wait_until_ready()["control"]
    if asked:
        assert ask(control, ask="stop") == {"stopping": True}
        host.wait_for("draining")
        assert ask(control, ask="stop", now=True) == {"stopping": True}
    else:
        host.signal(signal.SIGTERM)
        host.wait_for("draining")
        host.signal(signal.SIGINT)
    code, said = host.wait()
    assert code == 1
    assert '"signal": "SIGKILL"' in said
    assert list(runtime.glob("server.sock*")) == []


@pytest.mark.slow
def test_a_worker_that_hangs_is_killed_when_the_drain_timed_out(start_host: StartHost) -> None:
    """Without a word of a running call, patience is limited; exit code 1."""
    host = start_host("--drain-timeout-s", "0.1")
    control = host.wait_until_ready()["control"]
    os.kill(ask(control, ask="status")["host"]["worker_pid"], signal.SIGSTOP)
    host.signal(signal.SIGTERM)
    code, said = host.wait()
    assert code == 1
    assert '"event": "drain_timed_out"' in said


def test_the_worker_ends_with_its_host(start_host: StartHost, runtime: Path) -> None:
    """Also when the host is killed: the end of the host channel tells it."""
    path = str(runtime / "server.sock")
    host = start_host("--listen", f"unix://{path}")
    host.wait_until_ready()
    worker = os.pidfd_open(greeting(path)["pid"])
    try:
        host.signal(signal.SIGKILL)
        assert select.select([worker], [], [], 30)[0]
    finally:
        os.close(worker)
