from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from jaxd_protocol.errors import Busy
from jaxd_protocol.messages.calls import FAILED
from jaxd_protocol.messages.failures import decode_failure
from jaxd_server.rpc import connection as module
from tests.server.in_process import InProcessServer, Source
from tests.server.staging import PATIENCE_S, Log, logged_by, until

OpenInProcessServer = Callable[..., InProcessServer]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    """What connections log."""
    return logged_by(module, monkeypatch)


@pytest.mark.parametrize("args", [(), (1, 2), (b"key", b"", b"", "soon", 0)])
def test_a_message_that_makes_no_sense_ends_its_connection_only(
    in_process_server: InProcessServer, log: Log, args: tuple[Any, ...]
) -> None:
    """With a line in the log."""
    other = in_process_server.client()
    other.statistics()
    with pytest.raises(EOFError):
        in_process_server.peer().request("call", args)
    until(lambda: log)
    assert log[0][0] == "connection_dropped"
    until(lambda: in_process_server.parts.status.now()["connections"] == 1)
    assert other.statistics().connections == 1
    assert in_process_server.parts._worker_context.budget.calls == 0


def test_what_no_thread_takes_is_refused_and_gives_back_what_it_held(
    in_process_server: InProcessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the server could not drain any more. The connection stays."""
    start = threading.Thread.start
    peer = in_process_server.peer(Source(lambda x: x))

    def fail(thread: threading.Thread) -> None:
        if thread.name == "jaxd-build":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patches:
        patches.setattr(threading.Thread, "start", fail)
        for (outcome, failure), _ in (peer.call(1.0), peer.request("functions", ())):
            assert outcome == FAILED
            error = decode_failure(failure)
            assert isinstance(error, Busy)
            assert "ulimit -u" in str(error)
    budget = in_process_server.parts._worker_context.budget
    until(lambda: budget.calls == 0)
    assert budget.idle.is_set()
    assert peer.call(1.0)[0][0] != FAILED


def test_an_unknown_question_ends_its_connection_only(
    in_process_server: InProcessServer, log: Log
) -> None:
    """It is part of a protocol that the two ends do not share."""
    other = in_process_server.client()
    other.statistics()
    with pytest.raises(EOFError):
        in_process_server.peer().request("sing", ())
    until(lambda: log)
    assert "'sing'" in log[0][1]["reason"]
    until(lambda: in_process_server.parts.status.now()["connections"] == 1)
    assert other.statistics().connections == 1


def test_a_message_that_announces_too_much_ends_its_connection_only(
    open_in_process_server: OpenInProcessServer, log: Log
) -> None:
    """Before memory is taken for it."""
    in_process_server = open_in_process_server(max_frame_bytes=100_000)
    with pytest.raises(EOFError):
        in_process_server.peer().request("call", (), [memoryview(bytes(1 << 20))])
    until(lambda: log)
    assert "over the limit" in log[0][1]["reason"]
    until(lambda: in_process_server.parts.status.now()["connections"] == 0)
    assert in_process_server.client().statistics().connections == 1


@pytest.mark.parametrize("text", ["\udcff", "a\0b", "x" * (2 << 20)], ids=["path", "nul", "long"])
def test_an_error_with_an_unusual_text_arrives(
    in_process_server: InProcessServer, text: str
) -> None:
    """Names of files need not be Unicode."""

    def fail(x: Any) -> Any:
        raise ValueError(text)

    with pytest.raises((ValueError, RuntimeError)):
        in_process_server.client().persistent_call(fail).submit(1.0).result(PATIENCE_S)


def test_an_error_with_an_enormous_number_arrives(in_process_server: InProcessServer) -> None:
    """Python itself refuses to print it."""

    def fail(x: Any) -> Any:
        raise OverflowError(10**5000)

    with pytest.raises((OverflowError, RuntimeError)):
        in_process_server.client().persistent_call(fail).submit(1.0).result(PATIENCE_S)
