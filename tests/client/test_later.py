"""What is made when it is first needed."""

from __future__ import annotations

import threading

from jaxd.later import Later


def test_it_is_made_when_somebody_asks() -> None:
    """And looking whether it was does not make it."""
    made: list[object] = []

    def make() -> object:
        made.append(object())
        return made[-1]

    later = Later(make)
    assert later.made is None
    assert made == []
    assert later() is later() is later.made is made[0]
    assert len(made) == 1


def test_threads_that_ask_together_get_the_same() -> None:
    """Although each of them has made one."""
    both = threading.Barrier(2)

    def make() -> object:
        both.wait(10)
        return object()

    later, found = Later(make), list[object]()
    threads = [threading.Thread(target=lambda: found.append(later())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] is found[1] is later.made
