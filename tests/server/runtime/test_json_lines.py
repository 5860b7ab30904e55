from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from jaxd_server.runtime.json_lines import HostChannel, encode_line, messages
from tests.server.staging import PATIENCE_S, at_once


def read(data: bytes, limit: int = 1 << 16) -> list[dict[str, Any]]:
    """What `messages` makes of `data`."""

    async def collect() -> list[dict[str, Any]]:
        reader = asyncio.StreamReader(limit=limit)
        reader.feed_data(data)
        reader.feed_eof()
        return [message async for message in messages(reader)]

    return asyncio.run(collect())


def test_messages_come_back_one_a_line() -> None:
    """Line ends inside of strings do not tear a message."""
    sent: list[dict[str, Any]] = [{"ask": "status"}, {"text": "two\nlines", "n": [1]}]
    assert read(b"".join(encode_line(message) for message in sent)) == sent


def test_others_have_their_turn_between_messages_that_have_all_arrived() -> None:
    """Whoever sends without pause holds up nobody's task."""
    turns = 0

    async def count() -> int:
        nonlocal turns

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        reader = asyncio.StreamReader()
        reader.feed_data(b"{}\n" * 100)
        reader.feed_eof()
        task = asyncio.create_task(other())
        async for _ in messages(reader):
            pass
        task.cancel()
        return turns

    assert asyncio.run(count()) >= 99


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"hello\n", "."),
        (b"[1]\n", "."),
        (b"\xff\n", "."),
        (b'{"a": ' + b"1" * (1 << 20) + b"}\n", "."),
        (b'{"a":' + b"[" * 200_000 + b"\n", "nested"),
    ],
    ids=["no JSON", "no object", "no text", "too long", "nested without end"],
)
def test_anything_else_is_an_error(data: bytes, words: str) -> None:
    """The reader is told, and does not guess."""
    with pytest.raises(ValueError, match=words):
        read(data, limit=1 << 20)


class Host:
    """The host's end of a host channel, and what happened at the worker's."""

    def __init__(self) -> None:
        self.sock, theirs = socket.socketpair()
        self.sock.settimeout(PATIENCE_S)
        self.lines = self.sock.makefile("rb")
        self.drained, self.lost = threading.Event(), threading.Event()
        self.host_channel = HostChannel(
            theirs, lambda: {"calls": 7}, self.drained.set, lambda _: None, self.lost.set
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
    """One JSON object a line; a request for the status is answered with that moment's."""
    host.host_channel.notify({"event": "ready"})
    assert host.hear() == {"event": "ready"}
    host.send(b'{"ask": "status"}')
    assert host.hear() == {"status": {"calls": 7}}
    host.send(b'{"ask": "sing"}')
    host.send(b'{"ask": "status"}')
    assert "status" in host.hear()


def test_a_drain_is_confirmed_and_begun(host: Host) -> None:
    """Questions are answered meanwhile."""
    host.send(b'{"ask": "drain"}')
    assert host.hear() == {"event": "draining"}
    assert host.drained.wait(PATIENCE_S)
    host.send(b'{"ask": "status"}')
    assert "status" in host.hear()


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


def test_lines_of_many_threads_do_not_mix(host: Host) -> None:
    """Each arrives whole."""
    at_once(8, lambda number: host.host_channel.notify({"event": "x" * 5_000, "number": number}))
    assert sorted(host.hear()["number"] for _ in range(8)) == list(range(8))
