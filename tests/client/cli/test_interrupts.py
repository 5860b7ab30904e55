"""Signals that end a command are handled, or come later."""

from __future__ import annotations

import signal

import pytest

from jaxd.cli.child_program import deferring_interrupts


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
