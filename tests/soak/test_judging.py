"""What clients may be told, and when."""

from __future__ import annotations

from typing import Any

import pytest

from jaxd import errors
from tests.soak.judging import Fault, Faults, explanation


def line(error: type[Exception], kind: str = "small") -> dict[str, Any]:
    """Of a turn from second 8 to second 20, and of a call that was made in second 10.

    The answer to the one before came in second 9.
    """
    names = [one.__name__ for one in error.__mro__ if issubclass(one, errors.JaxdError)]
    when = {"since": 5.0, "began": 8.0, "answered": 9.0, "called": 10.0, "ended": 20.0}
    return {"kind": kind, "message": "", "error": names, **when}


def faults(*these: tuple[str, float, float]) -> Faults:
    """That were going on."""
    all_of_them = Faults()
    for what, began, ended in these:
        times = iter([began, ended])
        with all_of_them.going_on(what, lambda times=times: next(times)):
            pass
    return all_of_them


KILLED = ("worker killed", 12.0, 13.0)
AGAIN = ("worker killed", 14.0, 15.0)
CUT = ("connection cut", 12.0, 12.1)

EXPLAINED = [
    (line(errors.ValuesDied), [KILLED]),
    (line(errors.ValuesDied), [("restart forced", 6.0, 7.0)]),
    (line(errors.WorkerLost), [KILLED, AGAIN]),
    (line(errors.ConnectionLost, "calling_back"), [CUT]),
    (line(errors.ConnectionLost), [CUT, ("connections cut", 14.0, 14.0)]),
    (line(errors.ConnectionLost), [("connections cut", 9.5, 9.6), CUT]),
    (line(errors.NoServer), [("server killed", 9.0, 11.0)]),
    (line(errors.ProtocolError, "connect"), [CUT]),
    (line(errors.Quarantined), [("worker killed", 1.0, 2.0), KILLED]),
]
NOT = [
    (line(errors.ValuesDied), []),
    (line(errors.ValuesDied, "name"), [KILLED]),
    (line(errors.ValuesDied), [("worker killed", 1.0, 2.0)]),
    (line(errors.ValuesDied), [CUT, ("restart", 12.0, 13.0), ("worker stopped", 12.0, 13.0)]),
    (line(errors.WorkerLost), [KILLED]),
    (line(errors.WorkerLost), [("worker killed", 8.0, 9.0), KILLED]),
    (line(errors.ConnectionLost), [CUT]),
    (line(errors.ConnectionLost), [("connections cut", 8.5, 8.6), CUT]),
    (line(errors.ConnectionLost, "calling_back"), [("client killed", 12.0, 13.0)]),
    (line(errors.NoServer), [KILLED]),
    (line(errors.ProtocolError), [CUT]),
    (line(errors.ProtocolError, "connect"), []),
    (line(errors.Busy), [KILLED]),
    (line(errors.InternalError), [KILLED, AGAIN, CUT]),
    (line(errors.DeadlineExceeded), [KILLED, AGAIN, CUT]),
    (line(ValueError), [KILLED, AGAIN, CUT]),
]


@pytest.mark.parametrize(("told", "these"), EXPLAINED)
def test_what_the_documents_promise_is_explained(told: dict[str, Any], these: Any) -> None:
    """By what was broken while it mattered."""
    assert explanation(told, faults(*these)) is not None


@pytest.mark.parametrize(("told", "these"), NOT)
def test_anything_else_is_a_finding(told: dict[str, Any], these: Any) -> None:
    """Whatever else was broken, or when."""
    assert explanation(told, faults(*these)) is None


def test_a_fault_counts_from_its_beginning() -> None:
    """A client may be told before whoever breaks things goes on."""
    going_on = Faults()
    with going_on.going_on("worker killed", lambda: 12.0):
        assert going_on.between(13.0, 14.0) == [Fault("worker killed", 12.0, float("inf"))]
        assert going_on.between(10.0, 11.0) == []
