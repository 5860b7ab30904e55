from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from jaxd.connection.connection import ClientConnection
from jaxd_protocol.wire import BulkStream
from tests.client.played_server import Answering, Ends, Server


@pytest.fixture
def ends() -> Iterator[Ends]:
    """The two ends of a connection, and what answers at the client's."""
    ours, theirs = socket.socketpair()
    answering = Answering()
    client, server = ClientConnection(BulkStream(ours), 1 << 24, answering), Server(theirs)
    yield client, server, answering
    client.shut()
    server.shut()
