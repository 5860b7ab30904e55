from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from jaxd_protocol.errors import ConfigurationError
from tests.server.in_process import InProcessServer


def test_versions_are_known(shop: InProcessServer) -> None:
    """As the packages say."""
    assert shop.parts.versions == {
        name: metadata.version(name) for name in ("jax", "jaxlib", "numpy")
    }


def test_a_token_file_that_cannot_be_read_ends_the_start(
    runtime: Path, open_shop: Callable[..., InProcessServer]
) -> None:
    """Rather than accepting everybody."""
    with pytest.raises(ConfigurationError, match="jaxd token"):
        open_shop(token_file=str(runtime / "missing"))


def test_options_reach_the_parts(open_shop: Callable[..., InProcessServer]) -> None:
    """The limits that the server was given are those that it keeps."""
    shop = open_shop(slots=3, budget_bytes=1 << 20, max_result_bytes=1 << 10, threads=2)
    workshop = shop.parts._workshop
    assert (workshop.slots, workshop.budget.limit) == (3, 1 << 20)
    assert workshop.max_result_bytes == 1 << 10
