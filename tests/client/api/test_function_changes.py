"""Functions that change while other threads call them."""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING, Any

from jaxd import Client
from jaxd_protocol.errors import CompileAdvice, SkewWarning
from tests.server.staging import at_once, join, start

if TYPE_CHECKING:
    import pytest


def _first(x: Any) -> Any:
    return x + 10.0


def _second(x: Any) -> Any:
    return x + 20.0


CHANGING = _first


def _changes(x: Any) -> Any:
    return CHANGING(x)


def test_while_one_thread_changes_what_others_call_each_result_is_one_of_both(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A global that is bound again and again, also while the function is being sent."""
    made = client.persistent_call(_changes)
    done = threading.Event()
    outcomes: list[Any] = []
    monkeypatch.setitem(globals(), "CHANGING", _first)

    def change() -> None:
        while not done.is_set():
            for version in (_second, _first):
                globals()["CHANGING"] = version
                made.submit(0.0).result(30)  # gives the others time between two changes

    def call() -> None:
        for number in range(40):
            try:
                outcomes.append(float(made(float(number))) - number)
            except BaseException as error:  # noqa: BLE001  the test looks at it
                outcomes.append(error)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkewWarning)  # one that was changed while it was sent
        warnings.simplefilter("ignore", CompileAdvice)
        changing = start(change)
        callers = [start(call) for _ in range(6)]
        join(callers)
        done.set()
        join([changing])
    assert len(outcomes) == 6 * 40
    assert set(outcomes) <= {10.0, 20.0}
    globals()["CHANGING"] = _second
    assert float(made(1.0)) == 21.0


def test_while_one_thread_changes_a_new_function_each_result_is_one_of_both(
    client: Client,
) -> None:
    """As fast as it can, while the first calls of it are looked at and packed."""
    for _ in range(5):
        table = {"low": 0.0, "high": 0.0}
        made = client.persistent_call(_reads(table))
        done = threading.Event()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SkewWarning)
            warnings.simplefilter("ignore", CompileAdvice)  # it has had many values
            changing = start(_flip, table, done)
            outcomes = at_once(4, _calls(made))
            done.set()
            join([changing])
        for outcome in outcomes:
            assert not isinstance(outcome, BaseException), outcome
            assert float(outcome[0]) in (1.0, 2.0)
            assert float(outcome[1]) == 1.0


def _reads(table: dict[str, float]) -> Any:
    return lambda x: (x + table["low"], x + table["high"])


def _flip(table: dict[str, float], done: threading.Event) -> None:
    while not done.is_set():
        for value in (1.0, 0.0):
            table["low"] = value


def _calls(made: Any) -> Any:
    return lambda index: made(1.0)
