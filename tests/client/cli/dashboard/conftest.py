"""One browser for all tests of a module, and one page of its dashboard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.client.cli.dashboard.running import Dashboard, chromium, opened


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless; skips where there is none."""
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def page(board: Dashboard, browser: Any) -> Iterator[Any]:
    """A page of the dashboard of the module."""
    with opened(browser, board.link) as found:
        yield found
