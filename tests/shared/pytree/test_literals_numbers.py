from __future__ import annotations

from enum import IntEnum
from typing import Any

import pytest

from jaxd_protocol.pytree.literals import plain_number


class Size(IntEnum):
    TWO = 2


class Metres(float):
    """A number with a way of its own to say what it is."""

    def __float__(self) -> float:
        return 0.0


class Phase(complex):
    """A complex one."""


@pytest.mark.parametrize(
    ("value", "plain"),
    [(Size.TWO, 2), (Metres(2.5), 2.5), (Phase(1j), 1j), (3, 3), ("2", None), (None, None)],
)
def test_a_number_is_the_number_that_it_is(value: Any, plain: Any) -> None:
    """Of exactly its own plain type; what is none is None."""
    found = plain_number(value)
    assert (type(found), found) == (type(plain), plain)
