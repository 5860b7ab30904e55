"""Runs a program whose calls are recorded, or waits for Ctrl-C while others run."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from jaxd_protocol.errors import ConfigurationError

_ENDINGS = (signal.SIGINT, signal.SIGTERM)


def run_program(words: Sequence[str], server: str | None) -> int:
    """Runs a program to its end; returns its exit code, as a shell would say it.

    Ctrl-C reaches the program by itself, which may want to end in its own way; this process waits
    for it. SIGTERM is handed on.

    Args:
        words: the program and its arguments.
        server: where its calls are to go; None: where they would go anyway.

    Raises:
        ConfigurationError: when it cannot be started.
    """
    environment = os.environ | ({} if server is None else {"JAXD_SERVER": server})
    process: list[subprocess.Popen[bytes]] = []

    def hand_on(number: int, _: FrameType | None) -> None:
        if number == signal.SIGTERM and process:
            process[0].send_signal(number)

    with _handled(hand_on):
        try:
            process.append(subprocess.Popen(words, env=environment))  # noqa: S603  the user's own words behind --
        except OSError as error:
            raise ConfigurationError(
                f"cannot run {words[0]}: {error.strerror}. Write the program behind --, such as: "
                "jaxd warm --record warm.lock -- python train.py"
            ) from error
        code = process[0].wait()
    return 128 - code if code < 0 else code


def wait_for_interrupt(ready: Callable[[], None]) -> None:
    """Returns after Ctrl-C or SIGTERM; calls `ready` once these are waited for."""
    ended = threading.Event()
    with _handled(lambda *_: ended.set()):
        ready()
        ended.wait()


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Both signals are handled so; a handler, unlike SIG_IGN, is not inherited by a program.

    Also where they were ignored, as in the background jobs of a shell script.
    """
    before = {number: signal.signal(number, handler) for number in _ENDINGS}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, signal.SIG_DFL if old is None else old)
