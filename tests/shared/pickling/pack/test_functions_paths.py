"""How an object is reached, for messages."""

from __future__ import annotations

import functools
import types
from typing import Any

import pytest

from jaxd_protocol.pickling.pack.functions import object_path

CULPRIT = object()
CONFIG = {"stream": [1, CULPRIT]}


class Holder:
    __slots__ = ("slot",)

    def __init__(self) -> None:
        self.slot = CULPRIT

    def method(self) -> None:
        pass


HOLDER = Holder()
MODULE = types.ModuleType("of_mine")
MODULE.inner = {"a": CULPRIT}  # type: ignore[attr-defined]


def by_config() -> Any:
    return CONFIG


def by_helper() -> Any:
    return by_config()


def by_slot() -> Any:
    return HOLDER


def by_module() -> Any:
    return MODULE.inner


def by_default(x: Any = (CULPRIT,)) -> Any:
    return x


def by_closure() -> Any:
    value = CULPRIT
    return lambda: value


@pytest.mark.parametrize(
    ("root", "path"),
    [
        (by_config, "by_config → CONFIG['stream'][1]"),
        (by_helper, "by_helper → by_config → CONFIG['stream'][1]"),
        (by_slot, "by_slot → HOLDER.slot"),
        (by_module, "by_module → MODULE.inner['a']"),
        (by_default, "by_default → its defaults[0][0]"),
        (by_closure(), "by_closure.<locals>.<lambda> → value"),
        (functools.partial(print, CULPRIT), "partial[0]"),
        (HOLDER.method, "Holder.method.__self__.slot"),
        ([{"k": CULPRIT}], "list[0]['k']"),
        (CULPRIT, "object"),
    ],
)
def test_the_path_names_each_step(root: Any, path: str) -> None:
    """Globals, closures, defaults, attributes, keys and positions."""
    assert object_path(root, CULPRIT) == path


def test_a_path_that_is_not_found_says_so() -> None:
    """Something that a `__reduce__` has made is nowhere."""
    assert object_path(by_config, object()) == "something that by_config reaches"


def test_an_empty_cell_is_passed_over() -> None:
    """It leads nowhere."""

    def outer(is_set: bool) -> Any:
        if is_set:
            later = 1
        return lambda: (later, CONFIG)

    assert object_path(outer(False), CULPRIT).endswith("<lambda> → CONFIG['stream'][1]")
