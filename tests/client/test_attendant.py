"""A connection's own thread: there when wanted, gone with the connection."""

from __future__ import annotations

import gc
import threading

from jaxd.attendant import Attendant


class Connection:
    """Counts how often it was attended."""

    def __init__(self) -> None:
        self.alive = True
        self.attended = threading.Semaphore(0)
        self.attendant = Attendant(self)

    def attend_once(self) -> None:
        self.attended.release()


def threads() -> list[threading.Thread]:
    """The reader threads that are alive."""
    return [thread for thread in threading.enumerate() if thread.name == "jaxd-reader"]


def test_no_thread_is_started_before_it_is_wanted() -> None:
    """A client that only waits for its calls never has one."""
    before = len(threads())
    connection = Connection()
    assert len(threads()) == before
    connection.alive = False


def test_it_looks_each_time_that_it_is_wanted() -> None:
    """By one thread, however often."""
    before = len(threads())
    connection = Connection()
    for _ in range(3):
        connection.attendant.want()
        assert connection.attended.acquire(timeout=10)
    assert len(threads()) == before + 1
    connection.alive = False
    connection.attendant.dismiss()


def test_it_ends_when_the_connection_has_ended() -> None:
    """Dismissed, it looks once more and leaves."""
    connection = Connection()
    connection.attendant.want()
    assert connection.attended.acquire(timeout=10)
    (mine,) = [thread for thread in threads() if thread.is_alive()][-1:]
    connection.alive = False
    connection.attendant.dismiss()
    mine.join(10)
    assert not mine.is_alive()


def test_it_does_not_keep_a_dropped_connection_alive() -> None:
    """Its thread ends when the connection is collected."""
    connection = Connection()
    connection.attendant.want()
    assert connection.attended.acquire(timeout=10)
    (mine,) = threads()[-1:]
    del connection
    gc.collect()
    mine.join(10)
    assert not mine.is_alive()
