"""Whom a warning points to."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest

from jaxd_protocol.packages.installed import user_stacklevel


def of_ours(depth: int) -> Callable[[], None]:
    """A function of our own package, so many calls deep, that warns."""
    names = {"__name__": "jaxd.somewhere", "warnings": warnings, "users_level": user_stacklevel}
    exec(
        "def warn(depth):\n"
        "    if depth:\n"
        "        return warn(depth - 1)\n"
        "    warnings.warn('look here', UserWarning, users_level())\n",
        names,
    )
    return lambda: names["warn"](depth)  # type: ignore[operator]


@pytest.mark.parametrize("depth", [0, 1, 7])
def test_the_first_frame_that_is_not_ours(depth: int) -> None:
    """However deep in our own code the warning is made."""
    with pytest.warns(UserWarning, match="look here") as caught:
        of_ours(depth)()
    assert caught[0].filename == __file__
