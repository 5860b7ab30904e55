from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxd import Client, connect
from jaxd.connection.connection import ClientConnection
from jaxd_protocol.wire import BulkStream
from tests.client.played_server import ConnectedPair, RecordingHandler, ScriptedServer
from tests.end_to_end.gates import Gate
from tests.live_server import LiveServer


@pytest.fixture
def ends() -> Iterator[ConnectedPair]:
    """The two ends of a connection, and what answers at the client's."""
    ours, theirs = socket.socketpair()
    answering = RecordingHandler()
    client, server = ClientConnection(BulkStream(ours), 1 << 24, answering), ScriptedServer(theirs)
    yield client, server, answering
    client.shut()
    server.shut()


@pytest.fixture(scope="module")
def shared(live: LiveServer) -> Iterator[Client]:
    """One client for all tests of a file that leave nothing behind."""
    with connect(live.unix) as client:
        yield client


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """Where a function on the server waits."""
    return Gate(tmp_path / "gate")
