"""The server's inside, for the tests beside this file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.server.in_process import Kitchen, Shop


@pytest.fixture
def kitchen() -> Iterator[Kitchen]:
    """A pipeline without sockets."""
    kitchen = Kitchen()
    yield kitchen
    kitchen.close()


@pytest.fixture
def open_shop() -> Iterator[Callable[..., Shop]]:
    """Opens whole workers in this process that are closed with the test; takes server options."""
    shops: list[Shop] = []

    def open_(**options: Any) -> Shop:
        shops.append(Shop(**options))
        return shops[-1]

    yield open_
    for shop in shops:
        shop.close()


@pytest.fixture
def shop(open_shop: Callable[..., Shop]) -> Shop:
    """A whole worker in this process, with the usual options."""
    return open_shop()
