from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from jaxd_protocol.errors import ConfigurationError
from tests.server.in_process import InProcessServer


def test_versions_are_known(in_process_server: InProcessServer) -> None:
    """As the packages say."""
    assert in_process_server.parts.versions == {
        name: metadata.version(name) for name in ("jax", "jaxlib", "numpy")
    }


def test_a_token_file_that_cannot_be_read_ends_the_start(
    runtime: Path, open_in_process_server: Callable[..., InProcessServer]
) -> None:
    """Rather than accepting everybody."""
    with pytest.raises(ConfigurationError, match="jaxd token"):
        open_in_process_server(token_file=str(runtime / "missing"))


def test_options_reach_the_parts(open_in_process_server: Callable[..., InProcessServer]) -> None:
    """The limits that the server was given are those that it keeps."""
    in_process_server = open_in_process_server(
        slots=3, budget_bytes=1 << 20, max_result_bytes=1 << 10, threads=2
    )
    worker_context = in_process_server.parts._worker_context
    assert (worker_context.options.slots, worker_context.budget.limit) == (3, 1 << 20)
    assert worker_context.options.max_result_bytes == 1 << 10
