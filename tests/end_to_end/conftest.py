"""What end-to-end tests of several files share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxd import Client, connect
from tests.client.fake_server import FakeServer
from tests.end_to_end.several_devices import EIGHT
from tests.live_server import LiveServer
from tests.server.in_process import InProcessServer


@pytest.fixture
def victim(evil: FakeServer) -> Iterator[Client]:
    """A client of the server that `evil` plays, a fixture of the test's own file."""
    with connect(evil.address) as client:
        yield client


@pytest.fixture
def in_process_server() -> Iterator[InProcessServer]:
    """A server of the test's own in this process, so that the test sees what it holds."""
    in_process_server = InProcessServer()
    yield in_process_server
    in_process_server.close()


@pytest.fixture(scope="session")
def folder_of_eight() -> Iterator[Path]:
    """The own files of `eight`, which another server finds later."""
    directory = Path(tempfile.mkdtemp(prefix="jaxd-", dir="/tmp"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def eight(folder_of_eight: Path) -> Iterator[LiveServer]:
    """A server with eight devices."""
    server = LiveServer(folder_of_eight, **EIGHT)
    yield server
    assert server.close() == 0
