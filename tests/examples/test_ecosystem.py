"""The usual libraries train through the server as in plain jax, and a second process at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.examples.measuring import FILES, Example, is_installed, rows
from tests.live_server import LiveServer


def test_the_table_lists_every_example() -> None:
    """And no other; `python -m tests.examples.measuring` writes it."""
    assert list(rows()) == list(FILES)


@pytest.mark.soak
def test_a_second_process_builds_nothing(live: LiveServer) -> None:
    """A class of `__main__`, made anew in each process, is the same class to the server."""
    example = Example(FILES["equinox_modules"], live.environment)
    if not is_installed(example.file):
        pytest.skip("a library is not installed")
    assert example.first["built"] == (3, 3)
    assert example.second["built"] == (0, 0)
    assert example.first["heard"] == example.second["heard"] == []


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FILES)
def test_an_example_does_what_the_table_says(
    name: str, start_live: Callable[..., LiveServer]
) -> None:
    """As often traced and compiled, not at all from the second process, with plain jax's bits."""
    if not is_installed(FILES[name]):
        pytest.skip("a library is not installed")
    example = Example(FILES[name], start_live().environment)
    assert example.row == rows()[name]
    assert "| 0 / 0 | the same bits |" in example.row
    assert example.first["heard"] == example.second["heard"] == []
