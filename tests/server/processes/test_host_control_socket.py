from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from jaxd_protocol.network.addresses import Address
from jaxd_server.auth.listeners import open_listeners
from jaxd_server.config.options import ServerOptions
from jaxd_server.processes.host import Host, serving_control_socket
from jaxd_server.runtime.json_lines import encode_line, messages


class FakeWorkers:
    """Remembers how it was asked to stop."""

    def __init__(self) -> None:
        self.stops: list[bool] = []

    async def status(self) -> dict[str, Any]:
        return {"worker_state": "ready"}

    def describe(self) -> dict[str, Any]:
        return {"epoch": 1}

    def stop(self, *, now: bool = False) -> None:
        self.stops.append(now)

    async def restart(self, *, force: bool = False) -> dict[str, Any]:
        return {"epoch": 2, "seconds": 0.5, "force": force}

    def quarantined(self) -> list[dict[str, Any]]:
        return [{"name": "deadly"}]

    def release(self, what: str) -> list[dict[str, Any]]:
        return [{"name": what}]


Conversation = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def converse(path: Path, workers: FakeWorkers, conversation: Conversation) -> None:
    """Runs `conversation` with the control socket of a host with these workers."""
    host = Host(ServerOptions(cache_dir="none"))
    host._workers = cast("Any", workers)

    async def run(listening: socket.socket) -> None:
        async with serving_control_socket(listening, host.reply):
            reader, writer = await asyncio.open_unix_connection(path)
            await conversation(reader, writer)
            writer.close()
            await writer.wait_closed()

    with open_listeners([Address.unix(str(path))]) as (listener,):
        asyncio.run(run(listener.socket))


async def exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: dict[str, Any]
) -> dict[str, Any]:
    writer.write(encode_line(request))
    return await anext(messages(reader))


@pytest.fixture
def path(runtime: Path) -> Path:
    """Where the control socket is."""
    return runtime / "control"


def test_one_connection_may_ask_several_times(path: Path) -> None:
    """Who watches a server does not have to connect anew."""
    workers = FakeWorkers()

    async def conversation(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            status = await exchange(reader, writer, {"ask": "status"})
            assert (status["worker_state"], status["host"]["epoch"]) == ("ready", 1)

    converse(path, workers, conversation)


def test_stop_is_answered_at_once(path: Path) -> None:
    """With and without patience for running calls."""
    workers = FakeWorkers()

    async def conversation(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await exchange(reader, writer, {"ask": "stop"}) == {"stopping": True}
        assert await exchange(reader, writer, {"ask": "stop", "now": True}) == {"stopping": True}

    converse(path, workers, conversation)
    assert workers.stops == [False, True]


def test_an_unknown_question_is_answered_with_the_known_ones(path: Path) -> None:
    """A newer client learns what this host can do."""

    async def conversation(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reply = await exchange(reader, writer, {"ask": "dance"})
        assert reply == {"error": "'dance' is not known; ask for status or stop"}

    converse(path, FakeWorkers(), conversation)


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n", b"[]\n", b"x" * 100_000])
def test_garbage_ends_its_own_connection_only(path: Path, garbage: bytes) -> None:
    """The next one who asks gets an answer."""

    async def conversation(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        bad_reader, bad_writer = await asyncio.open_unix_connection(path)
        bad_writer.write(garbage)
        assert "error" in await anext(messages(bad_reader))
        bad_writer.close()
        status = await exchange(reader, writer, {"ask": "status"})
        assert status["worker_state"] == "ready"

    converse(path, FakeWorkers(), conversation)


def test_it_knows_what_is_in_quarantine_and_releases_it(path: Path) -> None:
    """By name or fingerprint."""

    async def conversation(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reply = await exchange(reader, writer, {"ask": "quarantined"})
        assert reply == {"quarantined": [{"name": "deadly"}]}
        reply = await exchange(reader, writer, {"ask": "release", "what": "deadly"})
        assert reply == {"released": [{"name": "deadly"}]}

    converse(path, FakeWorkers(), conversation)


@pytest.mark.parametrize("force", [True, False])
def test_a_restart_is_asked_for(path: Path, force: bool) -> None:
    """And what became of it is the reply."""

    async def conversation(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reply = await exchange(reader, writer, {"ask": "restart", "force": force})
        assert reply == {"epoch": 2, "seconds": 0.5, "force": force}

    converse(path, FakeWorkers(), conversation)
