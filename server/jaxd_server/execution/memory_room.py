"""Handles a lack of memory: frees some and tries once more.

Runs that take much of the machine's memory run side by side only where there is room for all.
"""

from __future__ import annotations

import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from jaxd_protocol.errors import OutOfMemory
from jaxd_server.codec.results import wait_for
from jaxd_server.jax_compat.devices import in_words
from jaxd_server.jax_compat.programs import is_out_of_memory
from jaxd_server.runtime.logs import log_event
from jaxd_server.runtime.memory_reclaimer import Reclaimer

T = TypeVar("T")


class DispatchedRun(Protocol):
    """What takes memory of the machine while it runs."""

    @property
    def results(self) -> Sequence[Any]:
        """The arrays that it returns, once it is dispatched."""


_WANTED = re.compile(r"allocat\w* (\d+(?:\.\d+)?) ?(bytes|B|[KMGTP]iB)\b")
_UNITS = {"bytes": 1, "B": 1, **{f"{u}iB": 1024**n for n, u in enumerate("KMGTP", 1)}}

_ADVICE = "Use smaller arguments, split the call, or free what other clients hold."


class OutOfMemoryHandler:
    """Handles RESOURCE_EXHAUSTED.

    Args:
        reclaimer: makes room.
        holders: describes in a few words what uses the memory.
        capacity: bytes that the device has; 0 when that is unknown.
        spare: bytes of the machine's memory that can be had.
    """

    def __init__(
        self,
        reclaimer: Reclaimer,
        holders: Callable[[], str],
        capacity: Callable[[], int] = lambda: 0,
        spare: Callable[[], int] = lambda: sys.maxsize,
    ) -> None:
        self._reclaimer = reclaimer
        self._holders = holders
        self._capacity = capacity
        self.spare = spare

    def retried_on_oom(self, do: Callable[[], T]) -> T:
        """What `do` returns; when it finds no room, some is made and it is done once more.

        Raises:
            OutOfMemory: when there is no room then either.
            Exception: what else `do` raises.
        """
        try:
            return do()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            failure = str(error)  # the error itself holds the frames that failed, and their arrays
        return self.retry(do, failure)

    def make_room_for(self, nbytes: int) -> None:
        """Returns when the machine has room for what a call takes, if need be after making some.

        Raises:
            OutOfMemory: when it has none; says what uses the memory.
        """
        if nbytes <= self.spare():
            return
        dropped = 0
        if nbytes <= (self._capacity() or nbytes):
            dropped = self._reclaimer.reclaim_all()
            tried = f"Dropping what was idle (executables: {dropped}) did not help."
            if nbytes <= self.spare():
                return
        else:
            tried = "That is more than there is, whatever is dropped."
        failure = f"Out of memory allocating {nbytes} bytes; {in_words(self.spare())} are left."
        log_event("out_of_memory", reason=failure, dropped=dropped)
        raise self._with_advice(failure, tried)

    def retry(self, do: Callable[[], T], failure: str = "") -> T:
        """Makes room and does what had none.

        Args:
            do: does it.
            failure: jax's message; when it asks for too much for any device, nothing is
                dropped, so that one mistaken shape does not cost all clients their programs.

        Raises:
            OutOfMemory: when there is still none; says what uses the memory.
            Exception: what else `do` raises.
        """
        capacity = self._capacity()
        if wanted_bytes(failure) > capacity > 0:
            log_event("out_of_memory", reason=_first_line(failure))
            raise self._with_advice(failure, "That is more than there is, whatever is dropped.")
        dropped = self._reclaimer.reclaim_all()
        log_event(
            "out_of_memory",
            reason=_first_line(failure) or None,
            dropped=dropped,
        )
        try:
            return do()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            tried = f"Dropping what was idle (executables: {dropped}) did not help."
            raise self._with_advice(str(error), tried) from error

    def _with_advice(self, failure: str, tried: str) -> OutOfMemory:
        return OutOfMemory(f"{_first_line(failure)} {tried} {self._holders()} {_ADVICE}")

    @staticmethod
    def are_gone(leaves: Sequence[Any]) -> bool:
        """Whether arguments were donated to the call that failed, so that it cannot be repeated."""
        return any(hasattr(leaf, "is_deleted") and leaf.is_deleted() for leaf in leaves)


def wanted_bytes(failure: str) -> int:
    """The size of the allocation that failed, read from jax's message; 0 when it has none."""
    found = _WANTED.search(failure)
    return int(float(found[1]) * _UNITS[found[2]]) if found else 0


def _first_line(text: str) -> str:
    line = text.partition("\n")[0].rstrip()
    return f"{line}." if line and not line.endswith(".") else line


class MemoryReservations:
    """The reservations of runs in progress. Thread-safe.

    How much a run has taken so far is not known, so each counts in full until it is done. A run
    waits for the device only, and never for one that calls back: that may itself wait for calls
    that its client makes meanwhile.

    Args:
        spare: bytes of the machine's memory that can be had.
    """

    def __init__(self, spare: Callable[[], int]) -> None:
        self._spare = spare
        self._under_way: list[_Reservation] = []
        self._lock = threading.Lock()  # guards the list

    @contextmanager
    def beside(
        self, run: DispatchedRun, nbytes: int, *, calls_python: bool = False
    ) -> Iterator[None]:
        """Within it, `run` is dispatched; before that, waits until it fits beside the other runs.

        Args:
            run: what will take the memory.
            nbytes: how much.
            calls_python: whether it calls Python while it runs.
        """
        this = _Reservation(weakref.ref(run), nbytes, calls_python)
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

    def _in_the_way(self, this: _Reservation) -> _Reservation | None:
        """The oldest of those beside which `this` does not fit; else it is one of them now."""
        with self._lock:
            self._under_way = [one for one in self._under_way if one.run() is not None]
            taken = sum(one.nbytes for one in self._under_way)
            waited_for = next((one for one in self._under_way if not one.calls_python), None)
            if waited_for is not None and taken + this.nbytes > self._spare():
                return waited_for
            self._under_way.append(this)
            return None

    def _remove(self, one: _Reservation) -> None:
        with self._lock, suppress(ValueError):
            self._under_way.remove(one)


@dataclass(slots=True, eq=False)
class _Reservation:
    """One of them. It does not keep the run, so that its arrays can be freed."""

    run: weakref.ref[DispatchedRun]
    nbytes: int
    calls_python: bool
    dispatched: threading.Event = field(default_factory=threading.Event)

    def wait(self) -> None:
        """Returns when the device is done with it."""
        self.dispatched.wait()
        run = self.run()
        if run is not None:
            with suppress(Exception):  # which its own caller gets
                wait_for(run.results)
