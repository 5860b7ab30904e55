"""A client process whose stderr is a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Self


class TerminalProcess:
    """Started at once; what it writes to its terminal is read as it comes.

    Attributes:
        process: it; its stdout is a pipe.
        said: everything it wrote to the terminal so far.
    """

    def __init__(self, program: str, arguments: Sequence[str], env: Mapping[str, str]) -> None:
        self.said = ""
        self._master, slave = pty.openpty()
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program, *arguments],
                env=env,
                stdout=subprocess.PIPE,
                stderr=slave,
                text=True,
            )
        finally:
            os.close(slave)

    def wait_for(self, text: str) -> None:
        """Returns once it has written `text`."""
        while text not in self.said:
            assert self._read(), f"ended without {text!r}: {self.said!r}"

    def end(self) -> tuple[int, str]:
        """Exit code and stdout, once it has ended; `said` is complete then."""
        assert self.process.stdout is not None
        while self._read():
            pass
        with self.process.stdout:
            output = self.process.stdout.read()
        return self.process.wait(), output

    def _read(self) -> bool:
        try:
            part = os.read(self._master, 4096)
        except OSError:  # EIO: nobody holds the other end any more
            return False
        self.said += part.decode()
        return bool(part)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        os.close(self._master)
