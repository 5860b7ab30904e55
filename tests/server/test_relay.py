from __future__ import annotations

import os
from typing import TYPE_CHECKING

from jaxd_server.relay import OutputRelay

if TYPE_CHECKING:
    import pytest


def test_lines_are_copied_and_the_last_are_remembered(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """What a worker wrote is in the log, and its end can be quoted."""
    reading, writing = os.pipe()
    relay = OutputRelay(reading)
    relay.start()
    text = "".join(f"line {number}\n" for number in range(100))
    os.write(writing, text.encode() + b"\xff without end")
    os.close(writing)
    assert relay.last_lines()[-2:] == ["line 99", "\ufffd without end"]
    assert capfd.readouterr().err.startswith(text)


def test_a_pipe_that_stays_open_is_not_waited_for() -> None:
    """A process that outlives the worker cannot hold up the host."""
    reading, writing = os.pipe()
    relay = OutputRelay(reading)
    relay.start()
    assert relay.last_lines(patience_s=0.0) == []
    os.close(writing)
    relay.join()
