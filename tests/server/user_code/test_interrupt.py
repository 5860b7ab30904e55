from __future__ import annotations

import itertools
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import pytest

from jaxd_server.user_code import interrupt as interrupting_module
from jaxd_server.user_code.interrupt import (
    Interrupted,
    Interruptible,
    may_interrupt,
    run_interruptibly,
)
from tests.server.staging import PATIENCE_S, join, start, until


def endless() -> None:
    """Python code that never ends by itself."""
    for _ in itertools.count():
        pass


def ends(one: Interruptible, thread: threading.Thread) -> bool:
    """Interrupts it once more; whether it has ended."""
    one.interrupt()
    return not thread.is_alive()


def begun(one: Interruptible, work: Callable[[], object]) -> threading.Thread:
    """A thread that does it, and is interrupted in it."""

    def run() -> None:
        with pytest.raises(Interrupted):
            one.run(work)

    return start(run)


@contextmanager
def interrupting(one: Interruptible) -> Iterator[None]:
    """Within it, a thread interrupts as fast as it can."""
    over = threading.Event()

    def hammer() -> None:
        while not over.is_set():
            one.interrupt()

    thread = start(hammer)
    try:
        yield
    finally:
        over.set()
        join([thread])


def test_what_is_not_interrupted_returns_what_the_work_does() -> None:
    """Or raises it; nobody is interrupted who did not say so."""
    one = Interruptible()
    assert one.run(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        one.run(lambda: 1 // 0)
    assert not one.is_running
    one = Interruptible()
    assert not one.interrupt()
    one.run(lambda: None)
    assert not one.interrupt()
    assert one.sent == 0


def test_endless_work_is_interrupted() -> None:
    """In the thread that does it, and nothing comes after."""
    one = Interruptible()
    seen: list[str] = []

    def run() -> None:
        try:
            one.run(endless)
        except Interrupted:
            seen.append("interrupted")
        seen.append("went on")

    thread = start(run)
    until(lambda: one.is_running)
    assert one.interrupt()
    join([thread])
    assert seen == ["interrupted", "went on"]
    assert not one.interrupt()


def test_what_comes_of_interrupted_work_is_not_used() -> None:
    """Code that swallows the exception may have gone another way than it does else."""
    one = Interruptible()

    def stubborn() -> str:
        with suppress(BaseException):  # as careless code does
            endless()
        return "another way"

    thread = begun(one, stubborn)
    until(lambda: one.is_running)
    one.interrupt()
    join([thread])


def test_what_swallows_one_is_interrupted_again() -> None:
    """Until it leaves."""
    one = Interruptible()
    swallowed: list[int] = []

    def stubborn() -> None:
        while len(swallowed) < 5:
            try:
                endless()
            except BaseException:  # noqa: BLE001  as careless code does
                swallowed.append(1)

    thread = begun(one, stubborn)
    until(lambda: ends(one, thread))
    assert len(swallowed) == 5


@pytest.mark.parametrize("length", [3, 30, 300])
def test_no_interrupt_ever_comes_too_late(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However close to the end of a section it is sent: its thread goes on with other things."""
    # so that threads get in each other's way as often as they can
    monkeypatch.setattr(interrupting_module, "_without_thread_switches", nullcontext)
    monkeypatch.setattr(interrupting_module, "_is_uninterruptible", lambda thread: False)
    one = Interruptible()
    outcomes = {"done": 0, "failed": 0, "interrupted": 0}
    innocent = 0
    usual = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)

    def work() -> int:
        count = 0
        for _ in range(length):
            count += 1
        return count // (outcomes["done"] % 2)  # it fails every other time

    try:
        with interrupting(one):
            end = time.monotonic() + 0.4
            while time.monotonic() < end:
                try:
                    one.run(work)
                    outcomes["done"] += 1
                except ZeroDivisionError:
                    outcomes["failed"] += 1
                    outcomes["done"] += 1
                except Interrupted:
                    outcomes["interrupted"] += 1
                    one.sent = 0
                for _ in range(20):  # an interrupt that is left over would come here
                    innocent += 1
    finally:
        sys.setswitchinterval(usual)
    assert min(outcomes.values()) > 0, outcomes
    assert innocent == 20 * (outcomes["done"] + outcomes["interrupted"])


def test_python_does_not_look_for_more_afterwards() -> None:
    """It would at each step of every thread; and on Python 3.11 a profiler then never returns."""
    one = Interruptible()
    thread = begun(one, endless)
    until(lambda: ends(one, thread))
    one.sent = 0
    one.run(lambda: None)

    def profiled() -> None:
        sys.setprofile(lambda *_: None)
        sum(map(abs, range(10)))
        sys.setprofile(None)

    join([start(profiled)])


@pytest.mark.slow
def test_threads_beside_it_are_left_alone() -> None:
    """Also those that get the number of a thread that has ended."""
    one = Interruptible()
    failures: list[BaseException] = []

    def innocent() -> None:
        try:
            sum(range(200))
        except BaseException as error:  # noqa: BLE001  there must be none
            failures.append(error)

    with interrupting(one):
        for _ in range(20):
            one.sent = 0
            join([begun(one, endless), *(start(innocent) for _ in range(3))])
    assert failures == []


@pytest.mark.slow
def test_locks_of_the_library_are_not_left_taken() -> None:
    """Logging takes and gives them back in steps."""
    one = Interruptible()
    logger = logging.getLogger("test_interrupting")
    logger.addHandler(handler := logging.StreamHandler(io := _Nothing()))
    logger.propagate = False

    def talk() -> None:
        for number in itertools.count():
            logger.warning("line %d", number)
            for _ in range(100):
                pass

    for _ in range(10):
        one.sent = 0
        thread = begun(one, talk)
        until(lambda: one.is_running)
        until(partial(ends, one, thread))
        lock: Any = handler.lock
        assert lock.acquire(timeout=PATIENCE_S)
        lock.release()
    assert io.lines > 0


def test_an_import_is_not_interrupted(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that is half made would be so for everybody."""
    (tmp_path / "slowly_imported.py").write_text(
        "import tests.server.user_code.test_interrupt as test\ntest.REACHED.set()\n"
        "test.GO_ON.wait(30)\nvalue = sum(range(1000))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    one = Interruptible()

    def work() -> None:
        import slowly_imported  # type: ignore[import-not-found]

        assert slowly_imported.value == 499500
        endless()

    REACHED.clear()
    GO_ON.clear()
    thread = begun(one, work)
    assert REACHED.wait(PATIENCE_S)
    assert one.interrupt()
    assert one.sent == 0
    GO_ON.set()
    until(lambda: ends(one, thread))
    assert sys.modules.pop("slowly_imported").value == 499500


def test_only_what_is_said_to_be_is_interruptible() -> None:
    """Where nothing is, the work is simply done."""
    assert run_interruptibly(lambda: 4) == 4
    one = Interruptible()

    def run() -> None:
        with may_interrupt(one), pytest.raises(Interrupted):
            run_interruptibly(endless)

    thread = start(run)
    until(lambda: one.is_running)
    one.interrupt()
    join([thread])


REACHED, GO_ON = threading.Event(), threading.Event()


class _Nothing:
    """A file that counts what is written to it."""

    def __init__(self) -> None:
        self.lines = 0

    def write(self, text: str) -> None:
        """Takes it."""
        self.lines += 1

    def flush(self) -> None:
        """There is nothing to flush."""
