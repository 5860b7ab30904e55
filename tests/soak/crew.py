"""The client processes of the soak: started, ended in all ways, and started anew."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tests.live_server import ROOT

ENDS: Final[Mapping[str, tuple[signal.Signals, tuple[int, ...]]]] = {
    "left": (signal.SIGTERM, (0,)),
    "killed": (signal.SIGKILL, (-signal.SIGKILL,)),
    "interrupted": (signal.SIGINT, (-signal.SIGINT, 130)),
}
"""Ways to end a client: the signal, and the codes with which its process may end."""

HUNG_S: Final = 150.0
"""No turn takes longer, whatever is broken."""

AGAIN_S: Final = 20.0
"""When a whole machine stood still, clients say something in so much time after it."""

Line = dict[str, Any]


class SoakClient:
    """One client, in one process after the other.

    Args:
        name: for people, and part of its seed.
        seed: of the soak.
        folder: its program's, its steps' and its errors'.
        address: the server, as it reaches it.
        oracle: where it learns what is right; None: it has jax.
        environment: of the process.
        take: is given each line, in a thread of its own.
        server: says what the server does, when a process hangs: in a few words, and its stacks.

    Attributes:
        ended: how many processes came to each kind of end.
        complaints: what ended as it should not have.
        process: the present one.
        began: set when it makes calls.
    """

    def __init__(
        self,
        name: str,
        seed: int,
        folder: Path,
        address: str,
        oracle: str | None,
        environment: Mapping[str, str],
        take: Callable[[str, Line], None],
        server: Callable[[], tuple[str, str]],
    ) -> None:
        self.name = name
        self._heard = threading.Event()
        self._server = server
        self._words = [str(seed), str(folder), address, oracle or "-"]
        self._folder, self._take = folder, take
        more = {"PYTHONPATH": f"{environment['PYTHONPATH']}:{ROOT}", "PYTHONFAULTHANDLER": "1"}
        self._environment = dict(environment) | more
        self.ended = dict.fromkeys(ENDS, 0)
        self.complaints: list[str] = []
        self._generation = 0
        folder.mkdir()
        self.start()

    def start(self) -> None:
        """The next process, which goes on with the files that the last one has left."""
        self._generation += 1
        name = f"{self.name}.{self._generation}"
        self._said = self._folder / f"{self._generation}.stderr"
        self._steps = self._folder / f"{self._generation}.steps"
        self.last = time.monotonic()
        self.began = threading.Event()
        with self._said.open("w") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.soak.client", name, *self._words],
                env=self._environment,
                cwd=self._folder,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout, self._steps.open("w") as steps:
            for text in process.stdout:
                if not text.endswith("\n"):
                    return  # it was killed in the middle of it
                steps.write(text)
                self.last = time.monotonic()
                self._heard.set()
                line = json.loads(text)
                if line["kind"] == "began":
                    self.began.set()
                self._take(self.name, line)

    def poll(self) -> None:
        """Complains when the process has ended, or does nothing, though nobody told it to."""
        if self.process.poll() is not None:
            self._complain("ended by itself")
            self.start()
        elif time.monotonic() - self.last > HUNG_S and not self._goes_on():
            self._abort("hung")
            self.start()

    def _goes_on(self) -> bool:
        self._heard.clear()
        return self._heard.wait(AGAIN_S)

    def _abort(self, what: str) -> None:
        """Ends a process that hangs; it says where."""
        quiet_s = time.monotonic() - self.last
        state, stacks = self._server()
        self.process.send_signal(signal.SIGABRT)
        self.process.wait()
        what = f"{what}, silent for {quiet_s:.0f} s beside a server that is {state}"
        self._complain(what, f"\nthe server:\n{stacks}")

    def _complain(self, what: str, more: str = "") -> None:
        self._reader.join()
        code, said = self.process.returncode, self._said.read_text()[-6000:]
        self.complaints.append(f"{self.name}.{self._generation} {what} ({code}):\n{said}{more}")

    def end(self, how: str) -> None:
        """Ends the present process."""
        number, codes = ENDS[how]
        if how != "killed":
            self.began.wait(HUNG_S)  # before, nobody would hear it
        self.process.send_signal(number)
        for patience_s in (HUNG_S, AGAIN_S):
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(patience_s)
        if self.process.poll() is None:
            self._abort(f"was to be {how}")
        elif self.process.returncode not in codes:
            self._complain(f"was to be {how}")
        self._reader.join()
        self.ended[how] += 1
