"""Running the recorded program, or waiting for Ctrl-C; `test_warm.py` sends signals."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from jaxd.cli.child_program import deferring_interrupts, run_program
from jaxd.cli.commands.warm import wait_for_interrupt

WATCHED = (signal.SIGINT, signal.SIGTERM)


def python(program: str) -> list[str]:
    """The words that run it."""
    return [sys.executable, "-c", program]


@pytest.mark.parametrize(
    ("program", "code"),
    [("", 0), ("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137)],
)
def test_the_exit_code_is_the_programs(program: str, code: int) -> None:
    """As a shell says it, when a signal ended it."""
    assert run_program(python(program), None, "jaxd warm") == code


def test_signals_are_as_before_in_the_program_and_afterwards(tmp_path: Path) -> None:
    """Also where a script has ignored Ctrl-C for us."""
    program = (
        "import signal, sys; from pathlib import Path\n"
        f"Path({str(tmp_path / 'out')!r}).write_text(str(signal.getsignal(signal.SIGINT)))"
    )
    before = [signal.getsignal(number) for number in WATCHED]
    run_program(python(program), None, "jaxd warm")
    assert "default_int_handler" in (tmp_path / "out").read_text()
    assert [signal.getsignal(number) for number in WATCHED] == before


@pytest.mark.parametrize("number", WATCHED)
def test_a_signal_ends_the_waiting(number: int) -> None:
    """One that comes as soon as it is waited for as well."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        wait_for_interrupt(lambda: os.kill(os.getpid(), number))
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_deferred_signal_interrupts_at_the_end(number: signal.Signals) -> None:
    """What runs meanwhile is completed; the handlers are those from before."""
    before = signal.getsignal(number)
    steps: list[str] = []

    def interrupted_work() -> None:
        with deferring_interrupts():
            signal.raise_signal(number)
            steps.append("completed")
        steps.append("continued")

    with pytest.raises(KeyboardInterrupt):
        interrupted_work()
    assert steps == ["completed"]
    assert signal.getsignal(number) is before


def test_without_a_signal_nothing_is_raised() -> None:
    """The code behind it runs."""
    with deferring_interrupts():
        pass
