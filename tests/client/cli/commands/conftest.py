from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxd.cli.commands import lifecycle
from jaxd.connection import discovery
from jaxd.connection.control_client import stop_and_wait
from jaxd.connection.local_server import start_background
from jaxd_protocol.network.local_server import LocalServerFiles
from tests.server.host_process import FAKE_HOST


@pytest.fixture
def files(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalServerFiles]:
    """The files of the local server, which has a fake worker and is ended with the test."""
    fake = functools.partial(start_background, server_command=(sys.executable, "-P", FAKE_HOST))
    monkeypatch.setattr(lifecycle, "start_background", fake)
    monkeypatch.setattr(discovery, "has_server_extra", lambda: True)
    files = LocalServerFiles.of_this_environment()
    yield files
    stop_and_wait(files.control, now=True)
