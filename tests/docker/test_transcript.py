"""What docs/deploy.md shows is what happens."""

from __future__ import annotations

import pytest

from tests.docker.engine import Engine
from tests.docker.transcript import PAGE, documented, play, shape


def test_commands_and_outputs_are_told_apart() -> None:
    """A command may go on in lines of its own."""
    text = "<!-- transcript -->\n```console\n$ a \\\n> b\none\n\ntwo\n$ c\n```\n<!-- end -->\n"
    first, second = documented(text)
    assert (first.command, first.output) == ("a \\\nb", "one\n\ntwo\n")
    assert (second.command, second.output) == ("c", "")


def test_numbers_and_digests_are_no_part_of_a_shape() -> None:
    """Words are: what was built, and what was not."""
    assert shape("built in 1.25 s, 0f3c9a8b7d6e5f41") == shape("built in 10 s, aaaabbbbcccc")
    assert shape("nothing built") != shape("built")


@pytest.mark.docker
def test_the_page_shows_what_happens(engine: Engine, image: str) -> None:
    """Every command of it works, and prints what the page says but for numbers."""
    if engine.is_real:
        pytest.skip("the page's container and volume may be somebody's own here")
    steps = documented(PAGE.read_text())
    for written, (step, _) in zip(steps, play(engine, steps), strict=True):
        assert step.code == 0, f"{step.command}\n{step.output}"
        assert shape(step.output) == shape(written.output), step.command
