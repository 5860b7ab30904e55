"""What cannot travel is replaced, and says so when it is touched."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from jaxd_protocol.errors import PackingError
from jaxd_protocol.pickling.unpack.rebuild import make_placeholder
from tests.shared.pickling.processes import round_trip

STREAM = (number for number in [1])
LATER = 1


def test_a_function_that_does_not_touch_it_works() -> None:
    """It may only refer to it in a branch that is not taken."""

    def use(really: bool) -> Any:
        return next(STREAM) if really else LATER

    copied = round_trip(use)
    assert copied(False) == 1
    with pytest.raises(PackingError, match=r"STREAM is a generator, which cannot travel"):
        copied(True)


@pytest.mark.parametrize(
    "touch",
    [
        lambda it: it.value,
        lambda it: it(),
        lambda it: it[0],
        lambda it: it + 1,
        lambda it: 1 + it,
        list,
        bool,
        lambda it: it < 1,
        len,
        lambda it: setattr(it, "a", 1),
    ],
)
def test_whatever_is_done_with_it_raises(touch: Callable[[Any], Any]) -> None:
    """With its path, its type, the reason and the way out."""
    it = make_placeholder("f → STREAM", "generator", "it has no content")
    with pytest.raises(PackingError) as caught:
        touch(it)
    assert str(caught.value) == (
        "f → STREAM is a generator, which cannot travel to the server: it has no content. Make it "
        "inside the function, or pass what it yields as an argument."
    )


def test_it_can_be_passed_around() -> None:
    """Asking for its type, its identity or special names is not touching it."""
    it = make_placeholder("f", "socket", "no")
    assert not hasattr(it, "__fspath__")
    assert it is it  # noqa: PLR0124  that is the question
    assert repr(it)
    assert copy.copy([it])[0] is it
