"""KeyboardInterrupt at any place: what a Ctrl-C may do, made exact."""

from __future__ import annotations

import _thread
import dis
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any, NoReturn, Self

HANDLES_SIGNALS = frozenset(
    dis.opmap[name]
    for name in ("CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD", "RESUME")
    if name in dis.opmap
)
"""The opcodes at whose end CPython looks for signals."""


@contextmanager
def swallowed_interrupt(*functions: Callable[..., object]) -> Iterator[None]:
    """KeyboardInterrupt in the main thread, once that waits in one of the functions.

    As Ctrl-C just before a system call, or as a debugger's: no system call is ended by it.
    """
    codes = {function.__code__ for function in functions}
    begun, over = threading.Event(), threading.Event()

    def watch() -> None:
        begun.wait()  # to start a thread takes a wait as well
        while not over.is_set():
            if sys._current_frames()[me].f_code in codes:
                _thread.interrupt_main(signal.SIGUSR1)
                return
            time.sleep(0)

    me = threading.get_ident()
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    watching = threading.Thread(target=watch)
    watching.start()
    begun.set()
    try:
        yield
    finally:
        over.set()
        watching.join()
        signal.signal(signal.SIGUSR1, before)


def endlessly(function: Callable[..., object], *args: object) -> NoReturn:
    """Calls it again and again."""
    while True:
        function(*args)


class Interrupt:
    """While it is entered, the `n`-th opcode of the modules raises KeyboardInterrupt, once.

    Args:
        n: counted from 1, over all frames of the modules.
        modules: whose code is interrupted.
        after: counts only opcodes that follow one of these in their frame; None counts all.

    Attributes:
        fired: whether there were that many.
    """

    def __init__(self, n: int, *modules: ModuleType, after: frozenset[int] | None = None) -> None:
        self.fired = False
        self._left = n
        self._files = {module.__file__ for module in modules}
        self._after = after

    def __enter__(self) -> Self:
        sys._getframe().f_trace_opcodes = True  # Python 3.12 looks at this in settrace
        self._before = sys.gettrace()
        sys.settrace(self._on_call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _on_call(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        if self.fired or frame.f_code.co_filename not in self._files:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        code, after = frame.f_code.co_code, self._after
        last: int | None = None

        def on_opcode(frame: FrameType, event: str, arg: Any) -> Any:
            nonlocal last
            if event == "opcode":
                if after is None or (last is not None and code[last] in after):
                    self._left -= 1
                    if not self._left:
                        self.fired = True
                        raise KeyboardInterrupt
                last = frame.f_lasti
            return on_opcode

        return on_opcode
