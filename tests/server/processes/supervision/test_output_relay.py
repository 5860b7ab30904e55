from __future__ import annotations

import os

import pytest

from jaxd_server.processes.supervision.output_relay import OutputRelay


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


def test_it_can_be_ended_although_somebody_may_still_write(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """After what is there; neither thread nor file is left, however many such writers stay."""
    reading, writing = os.pipe()
    relay = OutputRelay(reading)
    os.write(writing, b"the last words\n")
    relay.start()
    relay.end()
    assert relay.last_lines(30.0) == ["the last words"]
    assert not relay.is_alive()
    with pytest.raises(BrokenPipeError):
        os.write(writing, b"more")
    os.close(writing)
    relay.end()  # the worker is collected afterwards
    assert "the last words" in capfd.readouterr().err


def test_one_that_never_stops_writing_is_not_listened_to_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pipe need not be empty at any moment."""
    reading, writing = os.pipe()
    monkeypatch.setattr("jaxd_server.processes.supervision.output_relay._FINAL_READ_S", 0.0)
    monkeypatch.setattr(
        "jaxd_server.processes.supervision.output_relay._write_all",
        lambda data: os.write(writing, data),
    )
    relay = OutputRelay(reading)
    os.write(writing, b"and so on\n")
    relay.start()
    relay.end()
    relay.join(30.0)
    assert not relay.is_alive()
    os.close(writing)
