from __future__ import annotations

from jaxd_server.processes.supervision.worker_process import WorkerFlags


def test_a_mark_is_set_once() -> None:
    """Said again, it is nothing new."""
    marks = WorkerFlags()
    assert [marks.set("prepared") for _ in range(2)] == [True, False]
    assert marks.prepared.is_set()
    assert not marks.standing_by.is_set()


def test_what_is_no_mark_is_known_to_be_none() -> None:
    """Whatever somebody says."""
    marks = WorkerFlags()
    names = ("standing_by", "prepared", "stale", "outdated", "resting", "gave_way")
    assert all(marks.is_known(name) for name in names)
    assert not any(marks.is_known(name) for name in ("ready", "draining", "set", "_by_name", ""))


def test_some_are_of_a_worker_that_drains() -> None:
    """One that ends as it stands by has nothing to drain."""
    marks = WorkerFlags()
    for name in ("stale", "prepared", "resting"):
        marks.set(name)
    assert [mark.is_set() for mark in marks.draining] == [False, True, False]
