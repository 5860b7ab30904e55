"""Interrupts Python code whose result no call waits for, and nothing else.

CPython can raise an exception in another thread (`PyThreadState_SetAsyncExc`). It is delivered when
that thread starts, jumps back in, or returns from a call of a Python function, some time later; by
then the thread may be at something else. So a thread marks the section that may be interrupted, and
the end of that section waits for what is still on its way. `except:` and a finalizer swallow
such an exception, so it is sent again until the section ends.
"""

from __future__ import annotations

import ctypes
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any, Final, TypeVar

import jaxd_protocol
import jaxd_server
from jaxd_server.runtime.threads.cancellation import assigned

T = TypeVar("T")

_LONG_SWITCH_INTERVAL_S: Final = 0.002
_switch_interval_lock = threading.Lock()  # held while the switch interval is longer than usual

_PYTHON: Final = ctypes.PyDLL(None)
"""Not `ctypes.pythonapi`, whose functions a user's code may have given other types."""


class Interrupted(BaseException):
    """The work was interrupted: no call waits for it. No `Exception`, because those are caught."""


class Interruptible:
    """Work in one thread that may be interrupted, one section at a time. Thread-safe.

    Attributes:
        sent: how often it was interrupted; what comes of it then is not to be used, because code
            that swallowed the exception may have gone another way than it else does.
    """

    __slots__ = ("_is_acting", "_is_closed", "_lock", "_thread", "sent")

    def __init__(self) -> None:
        self.sent = 0
        self._thread = 0
        self._is_closed = True
        self._is_acting = False
        self._lock = threading.Lock()  # held while interrupting, by the thread that interrupts

    def run(self, work: Callable[[], T]) -> T:
        """What `work` returns; while it runs, and not after this returns, it may be interrupted.

        Raises:
            Interrupted: when it was, whatever has become of it.
            BaseException: what `work` raises.
        """
        # An exception is delivered only where Python calls, is called, or jumps back. So there is
        # no gap between the end of `work` and `_is_closed`, nor between that and the inner `try`.
        # Two can still come after that: one that is on its way, and one by a thread that has just
        # looked whether it is closed. Each is met here, so that none is left when this returns.
        self._thread = threading.get_ident()
        try:
            self._is_closed = False
            result = work()
            self._is_closed = True
            try:
                self._discard_pending()
            except Interrupted:
                try:  # noqa: SIM105  a block of `suppress` begins with a call
                    self._discard_pending()
                except Interrupted:
                    pass
        except BaseException:
            self._is_closed = True
            try:
                self._discard_pending()
            except Interrupted:
                try:  # noqa: SIM105  a block of `suppress` begins with a call
                    self._discard_pending()
                except Interrupted:
                    pass
            if self.sent:
                raise Interrupted from None
            raise
        if self.sent:
            raise Interrupted
        return result

    def _discard_pending(self) -> None:
        """Returns when nothing is on its way to this thread; or raises what was.

        CPython can take back an exception that was not raised yet, but then looks for it for ever,
        at each step of every thread. So one is sent that takes the place of any other: it is
        raised as soon as it is sent, because the thread that sends it is the one that gets it.
        """
        while self._is_acting:  # a thread looked before it was closed
            time.sleep(0)
        if self.sent:
            _raise_in(self._thread, Interrupted)

    def interrupt(self) -> bool:
        """Raises `Interrupted` in it if it runs; whether it does.

        Not while an asynchronous exception would do harm, see `_is_uninterruptible`: then
        it is to be interrupted again later.
        """
        with self._lock:
            self._is_acting = True  # before looking: either the thread sees this or we see its end
            try:
                if self._is_closed:
                    return False
                with _without_thread_switches():
                    if not _is_uninterruptible(self._thread):
                        self.sent += 1
                        _raise_in(self._thread, Interrupted)
                return True
            finally:
                self._is_acting = False

    @property
    def is_running(self) -> bool:
        """Whether it is in a section that may be interrupted."""
        return not self._is_closed


def _raise_in(thread: int, kind: type[BaseException]) -> None:
    """Has an exception raised in a thread, in place of one that it would raise anyway."""
    _PYTHON.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))


@contextmanager
def _without_thread_switches() -> Iterator[None]:
    """Within it, no other thread runs between a look and an act: the switch interval is longer."""
    with _switch_interval_lock:
        usual = sys.getswitchinterval()
        sys.setswitchinterval(_LONG_SWITCH_INTERVAL_S)
        try:
            time.sleep(0)  # a thread that has already asked for the interpreter runs now
            yield
        finally:
            sys.setswitchinterval(usual)


def _is_uninterruptible(thread: int) -> bool:
    """Whether a thread, within its section, is where it must not be interrupted.

    A module that is imported would be left half made for everybody. The library takes locks in
    steps, between which an exception leaves them taken; and so may what is ours, when it is called.
    """
    frame: FrameType | None = sys._current_frames().get(thread)  # noqa: SLF001  its only name
    on_top = True  # whether only the library has been called from here so far
    while frame is not None and frame.f_code is not _SECTION:
        name = frame.f_code.co_filename
        if name.startswith(_UNINTERRUPTIBLE) or (on_top and name.startswith(_OURS)):
            return True
        on_top = on_top and name.startswith(_LIBRARY) and "-packages" not in name
        frame = frame.f_back
    return False


_SECTION: Final = Interruptible.run.__code__
_UNINTERRUPTIBLE: Final = (
    "<frozen importlib",
    os.path.dirname(logging.__file__) + os.sep,
    str(threading.__file__),
    str(queue.__file__),
)
_OURS: Final = tuple(
    os.path.dirname(str(one.__file__)) + os.sep for one in (jaxd_protocol, jaxd_server)
)
_LIBRARY: Final = os.path.dirname(os.__file__) + os.sep

_current: ContextVar[Interruptible | None] = ContextVar("interruptible", default=None)


def may_interrupt(one: Interruptible) -> AbstractContextManager[None]:
    """Within it, what `run_interruptibly` runs can be interrupted through this one."""
    return assigned(_current, one)


def run_interruptibly(work: Callable[[], Any]) -> Any:
    """What `work` returns; it may be interrupted where `may_interrupt` is in force.

    Raises:
        Interrupted: when it was.
        BaseException: what `work` raises.
    """
    one = _current.get()
    return work() if one is None else one.run(work)
