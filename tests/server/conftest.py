"""The server's inside, for the tests beside this file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.in_process import InProcessServer, PipelineHarness


@pytest.fixture
def harness() -> Iterator[PipelineHarness]:
    """A pipeline without sockets."""
    harness = PipelineHarness()
    yield harness
    harness.close()


@pytest.fixture
def open_harness(tmp_path: Path) -> Iterator[Callable[..., PipelineHarness]]:
    """Opens pipelines that keep on disk, in one folder; closes the one before: a restart."""
    kitchens: list[PipelineHarness] = []

    def open_(**options: Any) -> PipelineHarness:
        for harness in kitchens:
            harness.close()
        kitchens[:] = [PipelineHarness(folder=str(tmp_path / "cache"), **options)]
        return kitchens[0]

    yield open_
    for harness in kitchens:
        harness.close()


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Says which events were warned of since the start of the test."""
    caplog.set_level(logging.INFO, logger="jaxd")  # jax warns of each compilation

    def warnings() -> list[str]:
        ours = (each for each in caplog.records if each.name.partition(".")[0] == "jaxd")
        return [each.getMessage() for each in ours if each.levelname == "WARNING"]

    return warnings


@pytest.fixture
def open_in_process_server() -> Iterator[Callable[..., InProcessServer]]:
    """Opens whole workers in this process that are closed with the test; takes server options."""
    shops: list[InProcessServer] = []

    def open_(**options: Any) -> InProcessServer:
        shops.append(InProcessServer(**options))
        return shops[-1]

    yield open_
    for in_process_server in shops:
        in_process_server.close()


@pytest.fixture
def in_process_server(open_in_process_server: Callable[..., InProcessServer]) -> InProcessServer:
    """A whole worker in this process, with the usual options."""
    return open_in_process_server()
