"""Pipelines that are open at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.server.in_process import PipelineHarness

OpenHarness = Callable[..., PipelineHarness]


@pytest.fixture
def open_beside(runtime: Path) -> Iterator[OpenHarness]:
    """Opens pipelines beside each other, which keep in a folder of that name, or nothing."""
    opened: list[PipelineHarness] = []

    def open_(folder: str | None = "cache") -> PipelineHarness:
        opened.append(PipelineHarness(folder=folder and str(runtime / folder)))
        return opened[-1]

    yield open_
    for harness in opened:
        harness.close()
