"""The program that stands behind `--` in a command, and the signals that end a command."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from jaxd.connection.settings import Settings
from jaxd_protocol.errors import ConfigurationError, NoServer

_ENDINGS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def handling_interrupts(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Installs a handler of both signals; unlike SIG_IGN, it is not inherited by a child process.

    Also where they were ignored, as in the background jobs of a shell script.
    """
    before = {number: signal.signal(number, handler) for number in _ENDINGS}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, signal.SIG_DFL if old is None else old)


@contextmanager
def deferring_interrupts() -> Iterator[None]:
    """Defers both signals: at the end, `KeyboardInterrupt` is raised if one has arrived."""
    arrived: list[int] = []
    with handling_interrupts(lambda number, _: arrived.append(number)):
        yield
    if arrived:
        raise KeyboardInterrupt


def checked_program(arguments: argparse.Namespace, example: str, purpose: str) -> Sequence[str]:
    """The program behind `--`, where there is one and its calls go to a server.

    Args:
        arguments: of the command.
        example: a whole command, for the error.
        purpose: what is to be done with the calls, such as `traced`.

    Raises:
        ConfigurationError: when there is no program.
        NoServer: when `JAXD_INLINE=1` rules a server out.
    """
    if not arguments.program:
        raise ConfigurationError(f"there is no program to run. Write it behind --: {example}")
    check_not_inline(Settings.resolve(server=arguments.server), f"nothing to be {purpose}")
    return arguments.program  # type: ignore[no-any-return]


def check_not_inline(settings: Settings, what: str) -> None:
    """Returns when calls go to a server.

    Raises:
        NoServer: when `JAXD_INLINE=1` rules that out; says that there is `what`.
    """
    if settings.inline:
        raise NoServer(
            f"JAXD_INLINE=1 means that no server is used, so there is {what}. Unset JAXD_INLINE."
        )


def run_program(words: Sequence[str], server: str | None, example: str, **variables: str) -> int:
    """Runs a program to its end; returns its exit code, as a shell counts it.

    Ctrl-C reaches the program by itself, which may end in its own way; this process waits for it.
    SIGTERM is passed on.

    Args:
        words: the program and its arguments.
        server: where its calls go; None: where they would go anyway.
        example: a whole command, for the error.
        **variables: further ones of its environment.

    Raises:
        ConfigurationError: when it cannot be started.
    """
    environment = os.environ | ({} if server is None else {"JAXD_SERVER": server}) | variables
    process: list[subprocess.Popen[bytes]] = []

    def forward(number: int, _: FrameType | None) -> None:
        if number == signal.SIGTERM and process:
            process[0].send_signal(number)

    with handling_interrupts(forward):
        try:
            process.append(subprocess.Popen(words, env=environment))  # noqa: S603  the user's own words behind --
        except OSError as error:
            raise ConfigurationError(
                f"cannot run {words[0]}: {error.strerror}. Write the program behind --, such as: "
                f"{example}"
            ) from error
        code = process[0].wait()
    return 128 - code if code < 0 else code
