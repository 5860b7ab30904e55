from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from jaxd import connect
from jaxd.connection import local_server
from jaxd.connection.control_client import send_request, stop_and_wait
from jaxd.connection.local_server import start_background
from jaxd_protocol.errors import ConfigurationError, DeadlineExceeded, NoServer, ServerStartFailed
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import (
    LocalServerFiles,
    has_listener,
    make_private_directory,
)
from tests.server.host_process import FAKE_HOST
from tests.server.staging import until

FAKE_SERVER = (sys.executable, "-P", FAKE_HOST)


@pytest.fixture
def files(runtime: Path) -> Iterator[LocalServerFiles]:
    """The files of a local server that is ended with the test."""
    files = LocalServerFiles.of_this_environment()
    yield files
    stop_and_wait(files.control, now=True)


def command_line(files: LocalServerFiles) -> list[str]:
    """The words with which the running server was started."""
    status = send_request(files.control, {"ask": "status"})
    assert status is not None
    words = Path(f"/proc/{status['host']['pid']}/cmdline").read_text().split("\0")
    return words[words.index("--listen") : -1]


def test_a_server_is_ready_when_the_starter_returns(files: LocalServerFiles) -> None:
    """It knows its log, and stops after an idle hour."""
    start_background(files, server_command=FAKE_SERVER)
    status = send_request(files.control, {"ask": "status"})
    assert status is not None
    assert status["worker_state"] == "ready"
    assert status["host"]["log"] == files.log
    assert command_line(files)[2:] == ["--idle-timeout-s", "3600", "--auto"]


def test_a_server_started_by_hand_stays(files: LocalServerFiles) -> None:
    """Until it is stopped by hand."""
    start_background(files, by_hand=True, server_command=FAKE_SERVER)
    assert command_line(files)[2:] == ["--idle-timeout-s", "0"]


@pytest.mark.slow
def test_a_server_whose_workers_cannot_start_is_quoted(
    files: LocalServerFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their own words, and what to run next; it stays, and tells the next one at once."""
    make_private_directory(files.directory)
    Path(files.directory).chmod(0o700)
    Path(files.log).write_text("an earlier server wrote this\n")
    monkeypatch.setenv("FAKE_WORKER", "fail")
    with pytest.raises(ServerStartFailed) as caught:
        start_background(files, server_command=FAKE_SERVER)
    assert "libaccelerator.so: cannot open shared object file" in str(caught.value)
    assert "earlier server" not in str(caught.value)
    assert "jaxd doctor" in str(caught.value)
    with pytest.raises(ServerStartFailed, match=r"libaccelerator\.so"):
        connect(str(Address.unix(files.socket)))


def test_a_server_that_never_answers_is_ended(
    files: LocalServerFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The starter does not wait for ever, and leaves nothing half started behind."""
    monkeypatch.setattr(local_server, "_START_TIMEOUT_S", 0.05)
    silent = [sys.executable, "-c", "import time; time.sleep(600)"]
    with pytest.raises(NoServer, match=r"did not answer within .* `jaxd serve`"):
        start_background(files, server_command=silent)
    assert not has_listener(files.socket)


def test_a_worker_that_is_slow_to_start_is_left_to_the_first_call(
    files: LocalServerFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever answers on the socket is a server; its caller may wait as long as it likes."""
    clock = SimpleNamespace(ahead=0.0, sleep=time.sleep)
    clock.monotonic = lambda: time.monotonic() + clock.ahead

    def is_ready(files: LocalServerFiles) -> bool:
        if has_listener(files.socket):
            clock.ahead = 3600.0
        return False

    monkeypatch.setattr(local_server, "time", clock)
    monkeypatch.setattr(local_server, "_is_ready", is_ready)
    start_background(files, server_command=FAKE_SERVER)
    assert has_listener(files.socket)


@pytest.mark.slow
def test_a_log_stays_small(files: LocalServerFiles) -> None:
    """That of a server that is started every day, or runs for months, does not fill the disk."""
    make_private_directory(files.directory)
    Path(files.directory).chmod(0o700)
    log, earlier = Path(files.log), Path(files.log + ".1")
    log.write_text("what an earlier server wrote\n" + "x" * (8 << 20))
    start_background(files, server_command=FAKE_SERVER)
    until(lambda: "log_shortened" in log.read_text())
    assert earlier.read_text().startswith("what an earlier server wrote")
    with log.open("a") as file:
        file.write("what this one wrote\n" + "x" * (8 << 20))
    until(lambda: log.stat().st_size < 1 << 20)
    assert "what this one wrote" in earlier.read_text()


def test_a_process_that_does_not_get_done_with_starting_is_named(
    files: LocalServerFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that was stopped; who waits for it does not do so for ever."""
    monkeypatch.setattr(local_server, "_START_TIMEOUT_S", 0.1)
    make_private_directory(files.directory)
    with (
        local_server._start_lock(files, None),
        pytest.raises(NoServer, match=rf"process {os.getpid()} has been starting .* end it; or"),
    ):
        start_background(files, server_command=FAKE_SERVER)


def test_who_has_no_more_time_does_not_wait_for_a_start(
    files: LocalServerFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for that of another process, nor until its own can run calls; it goes on starting."""
    make_private_directory(files.directory)
    with local_server._start_lock(files, None), pytest.raises(DeadlineExceeded, match="jaxd start"):
        start_background(files, server_command=FAKE_SERVER, deadline=time.monotonic() + 0.05)
    monkeypatch.setenv("FAKE_WORKER", "fail")  # it never is ready
    start_background(files, server_command=FAKE_SERVER, deadline=time.monotonic())
    status = send_request(files.control, {"ask": "status"})
    assert status is not None
    assert status["worker_state"] != "ready"


def test_a_directory_that_is_not_private_is_refused(files: LocalServerFiles) -> None:
    """Nothing is written into it."""
    make_private_directory(files.directory)
    Path(files.directory).chmod(0o755)
    with pytest.raises(ConfigurationError, match="chmod 700"):
        start_background(files, server_command=FAKE_SERVER)
    assert list(Path(files.directory).iterdir()) == []
