from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from jaxd_server.runtime.json_lines import HostChannel
from tests.server.staging import PATIENCE_S, at_once


class Host:
    """The host's end of a host channel, and what happened at the worker's."""

    def __init__(self) -> None:
        self.sock, theirs = socket.socketpair()
        self.sock.settimeout(PATIENCE_S)
        self.lines = self.sock.makefile("rb")
        self.drained, self.lost = threading.Event(), threading.Event()
        self.host_channel = HostChannel(
            theirs, lambda: {"calls": 7}, self.drained.set, self.lost.set
        )
        self._theirs = theirs

    def send(self, line: bytes) -> None:
        """Sends one line."""
        self.sock.sendall(line + b"\n")

    def hear(self) -> Any:
        """The worker's next object."""
        return json.loads(self.lines.readline())

    def leave(self) -> None:
        """Dies."""
        self.lines.close()
        self.sock.close()

    def close(self) -> None:
        """Cleans up."""
        self.leave()
        assert self.lost.wait(PATIENCE_S)
        self._theirs.close()


@pytest.fixture
def host() -> Iterator[Host]:
    """A host with a worker's host channel at the other end."""
    host = Host()
    yield host
    host.close()


def test_the_host_is_told_of_events(host: Host) -> None:
    """One JSON object a line."""
    host.host_channel.notify({"event": "ready"})
    assert host.hear() == {"event": "ready"}


def test_a_question_is_answered_with_its_number(host: Host) -> None:
    """And with the status as it is then."""
    host.send(b'{"ask": "status", "id": 12}')
    assert host.hear() == {"answer": 12, "status": {"calls": 7}}


def test_a_drain_is_confirmed_and_begun(host: Host) -> None:
    """Questions are answered meanwhile."""
    host.send(b'{"ask": "drain", "id": 1}')
    assert host.hear() == {"event": "draining"}
    assert host.drained.wait(PATIENCE_S)
    host.send(b'{"ask": "status", "id": 2}')
    assert host.hear()["answer"] == 2


def test_the_end_of_the_host_is_noticed(host: Host) -> None:
    """Whoever speaks to it then is not harmed."""
    host.leave()
    assert host.lost.wait(PATIENCE_S)
    host.host_channel.notify({"event": "ready"})


@pytest.mark.parametrize("line", [b"garbage", b"\xff\xfe", b'{"ask": '])
def test_a_host_that_talks_nonsense_is_none(host: Host, line: bytes) -> None:
    """A worker that no longer listens to its host must not outlive it."""
    host.send(line)
    assert host.lost.wait(PATIENCE_S)


def test_unknown_questions_are_ignored(host: Host) -> None:
    """A later host may ask more."""
    host.send(b'{"ask": "sing", "id": 3}')
    host.send(b'{"ask": "status", "id": 4}')
    assert host.hear()["answer"] == 4


def test_lines_of_many_threads_do_not_mix(host: Host) -> None:
    """Each arrives whole."""
    at_once(8, lambda number: host.host_channel.notify({"event": "x" * 5_000, "number": number}))
    assert sorted(host.hear()["number"] for _ in range(8)) == list(range(8))
