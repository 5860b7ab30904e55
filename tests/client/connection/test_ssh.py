from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxd
from jaxd import errors
from jaxd.connection import ssh
from jaxd.connection.connect import Patience
from jaxd.connection.ssh import dial_over_ssh, ssh_command
from jaxd_protocol.network.addresses import Address
from tests.live_server import LiveServer
from tests.ssh_program import install_ssh


def calls_of(log: Path) -> list[dict[str, Any]]:
    """How ssh was called, each time."""
    return [json.loads(line) for line in log.read_text().splitlines()]


def behind(live: LiveServer, place: str = "ann@gpu-host:99") -> str:
    """The address of a server over ssh."""
    return f"ssh://{place}{live.unix.removeprefix('unix://')}"


def test_calls_over_ssh(live: LiveServer, runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One ssh for the connection, without a token; it ends with the client."""
    log = install_ssh(runtime, monkeypatch)
    with jaxd.connect(behind(live)) as client:
        f = client.persistent_call(lambda x: (x.sum(), x + 1))
        x = np.arange(1 << 19, dtype="f4")
        total, more = f(x)
        assert float(total) == float(x.sum(dtype="f4"))
        assert np.array_equal(np.asarray(more), x + 1)
        assert client.info()["address"] == behind(live)
    (call,) = calls_of(log)
    assert call["host"] == "gpu-host"
    assert call["options"][-4:] == ["-p", "99", "-l", "ann"]
    _has_ended(call["pid"])


def _has_ended(pid: int) -> None:
    """Waits until the process is gone, which a thread of ours notices."""
    for thread in threading.enumerate():
        if thread.name == "jaxd-ssh":
            thread.join(20)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_an_ssh_that_dies_is_replaced(
    live: LiveServer, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next call logs in again, and finds its session and its values."""
    log = install_ssh(runtime, monkeypatch)
    with jaxd.connect(behind(live)) as client:
        kept = client.put(np.full(3, 2.0, "f4"))
        os.kill(calls_of(log)[0]["pid"], signal.SIGKILL)
        assert float(client.persistent_call(lambda x: x.sum())(kept)) == 6.0
    assert len(calls_of(log)) == 2


def test_the_socket_is_found_over_there(
    live: LiveServer, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the address has no path: that of the only server that runs there."""
    install_ssh(runtime, monkeypatch)
    folder = runtime / "jaxd" / "environment"
    folder.mkdir(parents=True, mode=0o700)
    os.link(live.unix.removeprefix("unix://"), folder / "server.sock")
    with jaxd.connect("ssh://gpu-host") as client:
        assert client.info()["session"]


def test_what_a_login_prints_is_skipped(
    live: LiveServer, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a greeting in somebody's .bashrc."""
    install_ssh(runtime, monkeypatch, 'print("welcome\\nto this machine", flush=True)')
    with jaxd.connect(behind(live)) as client:
        assert client.info()["session"]


def test_no_large_array_goes_by_way_of_shared_memory(
    live: LiveServer, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although there is a Unix socket at either end."""
    install_ssh(runtime, monkeypatch)
    with jaxd.connect(behind(live)) as client:
        assert not client.caller.session.connection().passes_descriptors


@pytest.mark.parametrize(
    ("behaviour", "hint", "may_pass"),
    [
        (
            'sys.exit("Permission denied.")',
            "Permission denied.*Try: ssh -p 99 ann@gpu-host true",
            False,
        ),
        ("sys.exit(127)", "python3 is not there.*Try: ssh ann@gpu-host python3 -V", False),
        ('sys.exit("Connection refused")', "refused", True),
        ("sys.exit(0)", "it said nothing", True),
        ('os.write(1, b"x" * 100000); sys.exit(1)', "it said nothing", True),
    ],
)
def test_an_ssh_that_does_not_get_there(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, behaviour: str, hint: str, may_pass: bool
) -> None:
    """The error has its words, what to try by hand, and whether to try again is of use."""
    install_ssh(runtime, monkeypatch, behaviour)
    with pytest.raises(errors.NoServer, match=hint) as caught:
        dial_over_ssh(Address.parse("ssh://ann@gpu-host:99/run/s.sock"))
    assert isinstance(caught.value.__cause__, PermissionError) is not may_pass


def test_a_login_takes_no_more_than_the_callers_time(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where ssh is connected and nothing comes."""
    install_ssh(runtime, monkeypatch, "import threading; threading.Event().wait()")
    with pytest.raises(errors.NoServer, match="it said nothing"):
        dial_over_ssh(
            Address.parse("ssh://gpu-host/run/s.sock"), Patience(time.monotonic() + 0.3).seconds
        )


def test_no_server_over_there(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what is missing, and where."""
    install_ssh(runtime, monkeypatch)
    with pytest.raises(errors.NoServer, match=r"on that machine, /run/none\.sock: No such file"):
        dial_over_ssh(Address.parse("ssh://gpu-host/run/none.sock"))


def test_without_ssh(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    monkeypatch.setenv("PATH", str(runtime))
    with pytest.raises(errors.NoServer, match="ssh is not here"):
        dial_over_ssh(Address.parse("ssh://gpu-host/run/s.sock"))


def test_without_a_terminal_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A password could not be typed; ssh would wait for it all the same."""
    address = Address.parse("ssh://gpu-host")
    monkeypatch.setattr(ssh, "_has_terminal", lambda: False)
    assert "BatchMode=yes" in ssh_command(address)
    monkeypatch.setattr(ssh, "_has_terminal", lambda: True)
    command = ssh_command(address)
    assert "BatchMode=yes" not in command
    assert command[command.index("--") + 1] == "gpu-host"
    assert "-p" not in command
    assert "-l" not in command


@pytest.mark.skipif(shutil.which("ssh") is None, reason="takes ssh")
def test_nothing_of_this_machine_is_forwarded(runtime: Path) -> None:
    """Whatever the user's configuration says, as ssh itself reads it."""
    config = runtime / "config"
    config.write_text(
        "ForwardAgent yes\nForwardX11 yes\nForwardX11Trusted yes\nTunnel yes\n"
        "LocalForward 1 localhost:2\nRemoteForward 3 localhost:4\n"
    )
    _, *words = ssh_command(Address.parse("ssh://gpu-host"))
    options = words[: words.index("--")]
    command = ["ssh", "-G", "-F", str(config), *options, "gpu-host"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for line in ("forwardagent no", "forwardx11 no", "tunnel false", "clearallforwardings yes"):
        assert line in said.splitlines()


def test_an_interrupt_of_the_terminal_does_not_reach_ssh(
    live: LiveServer, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Ctrl-C is for the call."""
    log = install_ssh(runtime, monkeypatch)
    with jaxd.connect(behind(live)) as client:
        session = client.info()["session"]
        os.kill(calls_of(log)[0]["pid"], signal.SIGINT)
        assert client.info()["session"] == session
    assert len(calls_of(log)) == 1
