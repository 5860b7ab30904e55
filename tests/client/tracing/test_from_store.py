"""Calls with programs of a store that is a fake; with a real one they are in `end_to_end`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest

from jaxd import persistent_call
from jaxd.request.function_snapshot import SnapshotCache
from jaxd.tracing import from_store
from jaxd_protocol.errors import ConfigurationError, PackingError, StoreWarning
from jaxd_protocol.messages.recipes import NotOffered


class FakePrograms:
    """A store that offers nothing.

    Attributes:
        asked: the names of the functions of which it was asked.
    """

    def __init__(self, answer: Callable[[], Any]) -> None:
        self.troubles: deque[str] = deque()
        self.asked: list[str] = []
        self._answer = answer

    def find(self, recipe: Any, *_: Any) -> Any:
        self.asked.append(recipe.name)
        return self._answer()

    def close(self) -> None:
        """Nothing waits to be written."""


Use = Callable[[Callable[[str], Any]], None]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch, runtime: Any) -> Use:
    """Has functions use what this opens, and no server."""

    def use_(opening: Callable[[str], Any]) -> None:
        from_store.store_calls.cache_clear()
        monkeypatch.setattr(from_store.pkgutil, "resolve_name", lambda _: opening)  # type: ignore[attr-defined]
        monkeypatch.setattr(from_store.atexit, "register", lambda *_: None)  # type: ignore[attr-defined]
        monkeypatch.setenv("JAXD_SERVER", "none")
        monkeypatch.setenv("JAXD_STORE", "/shared")

    return use_


def failing() -> Any:
    raise RuntimeError("the disk is on fire")


@pytest.mark.parametrize(
    "answer", [failing, lambda: NotOffered("it calls back")], ids=["fails", "refuses"]
)
def test_what_the_store_does_not_offer_runs_under_jit(use: Use, answer: Callable[[], Any]) -> None:
    """No call fails, and of each kind of call the store is asked once."""
    programs = FakePrograms(answer)
    use(lambda _: programs)
    double = persistent_call(lambda x: x * 2)
    assert [float(double(x)) for x in (1.0, 2.0)] == [2.0, 4.0]
    assert double(jnp.ones(2)).tolist() == [2.0, 2.0]
    assert len(programs.asked) == 2
    assert double.warm(1.0).verdict == "compile"


def test_troubles_are_warned_of(use: Use) -> None:
    """In the thread of the call, at its line."""
    programs = FakePrograms(lambda: NotOffered("it is not there"))
    programs.troubles.append("An entry of a shared store is not used.")
    use(lambda _: programs)
    with pytest.warns(StoreWarning, match=r"is not used\. See docs/store\.md") as found:
        assert float(persistent_call(lambda x: x * 2)(1.0)) == 2.0
    assert [each.filename for each in found] == [__file__]


def test_a_store_that_cannot_be_opened_is_warned_of_once(use: Use) -> None:
    """It is not tried again for each function."""
    tried = []

    def opening(store: str) -> Any:
        tried.append(store)
        raise ConfigurationError("it needs fsspec.")

    use(opening)
    with pytest.warns(StoreWarning, match="plain jax.jit: it needs fsspec") as found:
        assert [float(persistent_call(lambda x: x * 2)(x)) for x in (1.0, 2.0)] == [2.0, 4.0]
    assert (tried, len(found)) == (["/shared"], 1)


def test_what_runs_under_jit_is_the_function_as_it_is(use: Use) -> None:
    """As with a program of the store: a change of what it reads counts at the next call."""
    use(lambda _: FakePrograms(lambda: NotOffered("it calls back")))
    scale = {"by": 2.0}
    scaled = persistent_call(lambda x: x * scale["by"])
    assert float(scaled(1.0)) == 2.0
    scale["by"] = 3.0
    assert float(scaled(1.0)) == 3.0


def test_what_cannot_be_walked_is_not_walked_at_each_call(
    use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs as any function of jax."""
    programs = FakePrograms(lambda: NotOffered("it is not there"))
    use(lambda _: programs)
    walks: list[None] = []

    def refused(*_: Any) -> Any:
        walks.append(None)
        raise PackingError("it reaches a socket.")

    monkeypatch.setattr(SnapshotCache, "spec", refused)
    double = persistent_call(lambda x: x * 2)
    assert [float(double(x)) for x in (1.0, 2.0, 3.0)] == [2.0, 4.0, 6.0]
    assert (len(walks), programs.asked) == (1, [])
