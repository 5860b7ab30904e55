"""One browser for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.client.cli.dashboard.running import chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless; skips where there is none."""
    with chromium() as found:
        yield found
