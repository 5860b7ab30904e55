"""What a server says of calls, as warnings."""

from __future__ import annotations

import sys
import warnings
from types import ModuleType
from typing import TYPE_CHECKING

from jaxd.errors import SkewWarning
from jaxd.events.warnings import WarningQueue

if TYPE_CHECKING:
    import pytest

CONNECTION = object()


def said(notices: WarningQueue, number: int = 1) -> list[str]:
    """What is warned of at the end of a call."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        notices.issue(CONNECTION, number)
    assert all(one.category is SkewWarning for one in seen)
    return [str(one.message) for one in seen]


def hear(
    notices: WarningQueue, text: str, number: int = 1, function: str = "f", of: str = "p"
) -> None:
    """The server says something."""
    notices.event(CONNECTION, number, {"function": function, "package": of, "text": text})


def test_each_thing_is_said_once() -> None:
    """For each function and package."""
    notices = WarningQueue()
    for number in range(3):
        hear(notices, "f uses p", number)
        hear(notices, "g uses p", number, function="g")
    assert [said(notices, number) for number in range(3)] == [["f uses p", "g uses p"], [], []]


def test_what_nearly_all_functions_need_is_said_once_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """jax, jaxlib and numpy: at the first connection, or by the first function."""
    module = ModuleType("jaxlib")
    module.__version__ = "1"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jaxlib", module)
    notices = WarningQueue()
    notices.compare_versions(
        {"jaxlib": "2", "numpy": sys.modules["numpy"].__version__, "jaxd": "0"}
    )
    notices.compare_versions({"jaxlib": "2"})
    assert said(notices) == [
        "jaxlib is 1 here and 2 on the server: results come from the server's."
    ]
    for function in ("f", "g"):
        hear(notices, f"{function} uses jax", function=function, of="jax")
    assert said(notices) == ["f uses jax"]


def test_what_is_not_loaded_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is imported to find out."""
    monkeypatch.delitem(sys.modules, "jaxlib", raising=False)
    notices = WarningQueue()
    notices.compare_versions({"jaxlib": "2"})
    assert not notices.has_pending


def test_calls_that_were_given_up_are_forgotten() -> None:
    """Nobody takes what is said of them."""
    notices = WarningQueue()
    for number in range(1000):
        hear(notices, str(number), number)
    assert said(notices, 0) == []
    assert said(notices, 999) == ["999"]


def test_a_fork_begins_afresh() -> None:
    """The parent's calls are none of the child's."""
    notices = WarningQueue()
    hear(notices, "something")
    notices.after_fork()
    assert not notices.has_pending
