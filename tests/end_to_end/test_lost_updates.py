"""A function that changes what it captures: an error, and no other program for anybody."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxd import Client
from jaxd.errors import LostUpdateError

ONES = np.ones(2, np.float32)


def test_a_captured_list_that_grows_is_an_error(client: Client) -> None:
    """It would stay empty here, where under `jax.jit` it would be filled."""
    seen: list[Any] = []

    def noting(x: Any) -> Any:
        seen.append(x.shape)
        return x

    with pytest.raises(LostUpdateError, match="changes a list, 'seen', while it is traced"):
        client.persistent_call(noting)(ONES)


def test_what_is_traced_afterwards_sees_nothing_of_it(client: Client) -> None:
    """The server has one copy of a function for all signatures, and for all of its clients."""
    scales = [2.0]

    def scaled(x: Any) -> Any:
        if x.ndim == 2:
            scales[0] = 100.0
        return x * scales[0]

    remote = client.persistent_call(scaled)
    with pytest.raises(LostUpdateError, match="scales"):
        remote(np.ones((1, 2), np.float32))
    np.testing.assert_array_equal(remote(ONES), [2.0, 2.0])
    with pytest.raises(LostUpdateError, match="scales"):  # asked again, it is traced again
        remote(np.ones((1, 2), np.float32))


def test_a_cache_may_be_left_out(client: Client) -> None:
    """`ignore=` says that what is in it does not matter."""
    cache: dict[int, Any] = {}

    def caching(x: Any) -> Any:
        cache[x.ndim] = x.shape
        return x * len(cache)

    with pytest.raises(LostUpdateError, match="a dict, 'cache',"):
        client.persistent_call(caching)(ONES)
    ignoring = client.persistent_call(caching, ignore="cache")
    np.testing.assert_array_equal(ignoring(ONES), ONES)
