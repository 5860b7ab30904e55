from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from jaxd.connection.connection import ClientConnection
from jaxd_protocol.wire import BulkStream
from tests.client.played_server import ConnectedPair, RecordingHandler, ScriptedServer


@pytest.fixture
def ends() -> Iterator[ConnectedPair]:
    """The two ends of a connection, and what answers at the client's."""
    ours, theirs = socket.socketpair()
    answering = RecordingHandler()
    client, server = ClientConnection(BulkStream(ours), 1 << 24, answering), ScriptedServer(theirs)
    yield client, server, answering
    client.shut()
    server.shut()
