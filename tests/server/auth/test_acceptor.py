from __future__ import annotations

import resource
import socket
import threading
from contextlib import suppress
from typing import Any

import pytest

import jaxd
from jaxd_protocol.network.handshake import MAGIC, UNIX, handshake_with_server
from jaxd_server.auth import acceptor as module
from jaxd_server.runtime.limits import RateLimiter
from tests.server.in_process import InProcessServer
from tests.server.staging import Log, logged_by, until


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    """What receptions log."""
    return logged_by(module, monkeypatch)


def test_those_who_are_refused_do_not_fill_the_log(
    in_process_server: InProcessServer, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some lines for one address there is one a second, which says how many had none."""
    now = [0.0]
    place, port = in_process_server.tcp.removeprefix("tcp://").split(":")
    monkeypatch.setattr(
        in_process_server.endpoints[1], "_log_limiter", RateLimiter(2, 1.0, lambda: now[0])
    )

    def come() -> None:
        with socket.create_connection((place, int(port)), 30) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with suppress(ConnectionResetError):
                assert stranger.recv(1) == b""  # logged before it is dropped, or not at all

    for _ in range(5):
        come()
    now[0] = 1.0
    come()
    assert [fields["not_logged"] for _, fields in log] == [None, None, 3]
    assert [event for event, _ in log] == ["client_refused"] * 3
    assert log[0][1]["peer"].startswith("127.0.0.1:")
    assert "does not speak jaxd's protocol" in log[0][1]["reason"]


def test_a_client_that_leaves_early_is_logged_and_harms_nobody(
    in_process_server: InProcessServer, log: Log
) -> None:
    """In the middle of its greeting, too."""
    with in_process_server.raw() as stranger:
        stranger.sendall(MAGIC + b"\x00")
    until(lambda: log)
    assert log[0][0] == "client_left_early"
    assert log[0][1]["peer"] == "unix"
    assert in_process_server.client().statistics().connections == 1


@pytest.mark.slow
def test_a_mistake_of_ours_ends_one_client_only(
    in_process_server: InProcessServer, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is logged with its traceback."""
    client = in_process_server.client()
    client.statistics()
    with monkeypatch.context() as broken:
        broken.setattr(in_process_server, "welcome", None)
        for endpoint in in_process_server.endpoints:
            broken.setattr(endpoint, "_welcome", lambda: 1 / 0)
        with pytest.raises(jaxd.errors.JaxdError):
            in_process_server.client().statistics()
    until(lambda: log)
    assert log[0][0] == "client_failed"
    assert client.statistics().connections == 1


def test_closing_does_not_shut_the_listener_for_others(in_process_server: InProcessServer) -> None:
    """The host and the next worker hold the same socket, and get every client from then on."""
    listener = in_process_server.endpoints[0].listener
    theirs = listener.dup()
    in_process_server.endpoints[0].close()
    until(lambda: listener.fileno() < 0)
    with theirs, in_process_server.raw() as client:
        theirs.settimeout(30)
        accepted, _ = theirs.accept()
        accepted.sendall(b"hello")
        assert client.recv(5) == b"hello"
        accepted.close()


def test_accepting_happens_in_a_thread_of_its_own(in_process_server: InProcessServer) -> None:
    """Named after its address, for whoever reads a stack dump."""
    names = {thread.name for thread in threading.enumerate()}
    assert {
        f"jaxd-accept-{in_process_server.unix}",
        f"jaxd-accept-{in_process_server.tcp}",
    } <= names


def test_a_process_that_may_open_no_more_files_goes_on_later(
    in_process_server: InProcessServer, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients wait meanwhile; the listener is not given up."""

    class Full:
        def accept(self) -> Any:
            monkeypatch.setattr(endpoint, "listener", listener)
            raise OSError(24, "Too many open files")

        def fileno(self) -> int:
            return listener.fileno()

    monkeypatch.setattr(module, "_RETRY_S", 0.01)
    endpoint = in_process_server.endpoints[0]
    listener = endpoint.listener
    in_process_server.client().statistics()  # now it waits for the next one
    monkeypatch.setattr(endpoint, "listener", Full())
    assert [in_process_server.client().statistics().connections for _ in range(2)] == [2, 3]
    assert [event for event, _ in log] == ["cannot_accept"]


def test_the_last_files_are_kept_for_those_who_are_here(
    in_process_server: InProcessServer, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New clients wait before a program that runs is short of them."""
    limits = iter([(8, 8)])
    getrlimit = resource.getrlimit
    monkeypatch.setattr(module, "_RETRY_S", 0.01)
    monkeypatch.setattr(resource, "getrlimit", lambda what: next(limits, None) or getrlimit(what))
    assert in_process_server.client().statistics().connections == 1
    assert [event for event, _ in log] == ["cannot_accept"]
    assert "8 files are open; the rest is kept" in log[0][1]["reason"]


def test_a_process_that_may_have_no_more_threads_goes_on_later(
    in_process_server: InProcessServer, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who came is told to come again; the listener is not given up."""
    in_process_server.client().statistics()
    start = threading.Thread.start

    def fail(thread: threading.Thread) -> None:
        if thread.name != "jaxd-client":
            return start(thread)
        monkeypatch.setattr(threading.Thread, "start", start)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(module, "_RETRY_S", 0.01)
    monkeypatch.setattr(threading.Thread, "start", fail)
    with in_process_server.raw() as sock, pytest.raises(jaxd.errors.Busy):
        handshake_with_server(sock, UNIX, {}, None, None)
    assert in_process_server.client().statistics().connections == 2
    assert [event for event, _ in log] == ["cannot_serve"]
