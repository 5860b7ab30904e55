"""Runs that take much of the machine's memory: side by side only where there is room for all."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from jaxd_server.result_forms import wait_for
from jaxd_server.run import Run

__all__ = ["LargeRuns"]


class LargeRuns:
    """Those under way. Thread-safe.

    What one of them has taken so far nobody knows, so each counts in full until it is done. What
    waits does so for the device alone: nobody waits for a run that calls back, which may itself
    wait for what its client calls meanwhile.

    Args:
        spare: bytes of the machine's memory that can be had.
    """

    def __init__(self, spare: Callable[[], int]) -> None:
        self._spare = spare
        self._under_way: list[_Large] = []
        self._lock = threading.Lock()  # guards the list

    @contextmanager
    def beside(self, run: Run, nbytes: int) -> Iterator[None]:
        """Within it, `run` is dispatched; before that, who leaves it no room is waited for.

        Args:
            run: what will take the memory.
            nbytes: how much.
        """
        this = _Large(run, nbytes)
        while (other := self._in_the_way(this)) is not None:
            other.wait()
            self._remove(other)
        try:
            yield
        except BaseException:
            self._remove(this)
            raise
        finally:
            this.dispatched.set()

    def _in_the_way(self, this: _Large) -> _Large | None:
        """The oldest of those beside which `this` does not fit; else it is one of them now."""
        with self._lock:
            self._under_way = [one for one in self._under_way if one.run() is not None]
            taken = sum(one.nbytes for one in self._under_way)
            waited_for = next((one for one in self._under_way if not one.calls_python), None)
            if waited_for is not None and taken + this.nbytes > self._spare():
                return waited_for
            self._under_way.append(this)
            return None

    def _remove(self, one: _Large) -> None:
        with self._lock, suppress(ValueError):
            self._under_way.remove(one)


class _Large:
    """One of them; it does not keep the run, whose arrays somebody may let go of."""

    __slots__ = ("calls_python", "dispatched", "nbytes", "run")

    def __init__(self, run: Run, nbytes: int) -> None:
        self.run = weakref.ref(run)
        self.nbytes = nbytes
        self.calls_python = run.executable.program.calls_python
        self.dispatched = threading.Event()

    def wait(self) -> None:
        """Returns when the device is done with it."""
        self.dispatched.wait()
        run = self.run()
        if run is not None:
            with suppress(Exception):  # which its own caller is told
                wait_for(run.results)
