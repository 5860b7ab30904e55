"""Class methods, as Python 3.13 finds them."""

from __future__ import annotations

import asyncio
import types
from typing import Any

import pytest

from jaxd import persistent_call


class Counter:
    """A class method of a module's class, as from Python 3.13 on it is found."""

    @classmethod
    @persistent_call
    def step(cls, x: Any = 1.0) -> Any:
        return x * 2


@pytest.mark.parametrize(
    "ask",
    [
        lambda f: f.grad(),
        lambda f: f.submit(3.0),
        lambda f: f.remote(3.0),
        lambda f: f.warm(3.0),
        lambda f: f.lower(3.0),
        lambda f: f.jaxpr(3.0),
        lambda f: asyncio.run(f.call_async(3.0)),
    ],
    ids=["grad", "submit", "remote", "warm", "lower", "jaxpr", "call_async"],
)
def test_a_lost_class_is_an_error(monkeypatch: pytest.MonkeyPatch, ask: Any) -> None:
    """Never a class method of which the first argument is something else."""
    function = vars(Counter)["step"].__func__
    monkeypatch.setattr("jaxd.api.method._CLASS_IS_LOST", True)
    monkeypatch.setenv("JAXD_INLINE", "1")
    found: Any = types.MethodType(function, Counter)
    with pytest.raises(TypeError, match=r"vars\(Counter\)\['step'\].__func__.__get__\(cls\)"):
        ask(found)
    bound = function.__get__(Counter)
    assert float(bound.submit(3.0).result()) == 6.0
    assert float(bound.grad()(3.0)) == 2.0
