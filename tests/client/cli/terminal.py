"""A terminal with a program in it: keys go in by a pty, an emulator knows what the screen shows."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Mapping
from typing import Any, Self

import pyte


class Terminal:
    """Used as a context manager; the program is killed at the end, if it still runs.

    Args:
        *command: of this interpreter.
        environment: of the program.
        columns, rows: of the screen.

    Attributes:
        said: all that the program has written.
        modes_before: how the terminal was set when the program came.
    """

    def __init__(
        self, *command: str, environment: Mapping[str, str], columns: int = 80, rows: int = 24
    ) -> None:
        self._ours, self._theirs = pty.openpty()
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self._heard = threading.Condition()
        self.said = b""
        self.resize(columns, rows)
        self.modes_before = self.modes()
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            env={**environment, "TERM": "xterm-256color"},
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while piece := self._piece():
            with self._heard:
                self.said += piece
                self._stream.feed(piece)
                self._heard.notify_all()

    def _piece(self) -> bytes:
        try:
            return os.read(self._ours, 1 << 16)
        except OSError:  # nobody has the other end any more
            return b""

    def modes(self) -> list[Any]:
        """How the terminal is set: echo, lines, signals."""
        return termios.tcgetattr(self._theirs)

    def resize(self, columns: int, rows: int) -> None:
        """Makes it as large."""
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        with self._heard:
            self._screen.resize(rows, columns)

    def type(self, keys: str) -> None:
        """Presses keys."""
        os.write(self._ours, keys.encode())

    def until(self, text: str) -> None:
        """Returns when this is on the screen; a test that waits longer than a minute is ended."""
        with self._heard:
            self._heard.wait_for(lambda: text in "\n".join(self._screen.display))

    def until_gone(self, text: str) -> None:
        """Returns when this is not on the screen."""
        with self._heard:
            self._heard.wait_for(lambda: text not in "\n".join(self._screen.display))

    def wait(self) -> int:
        """The exit code of the program, once it has ended and all that it wrote was read."""
        code = self.process.wait()
        modes = self.modes()
        os.close(self._theirs)
        self._reader.join()
        self._theirs = -1
        self.modes_after = modes
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        if self._theirs >= 0:
            self.wait()
        os.close(self._ours)
