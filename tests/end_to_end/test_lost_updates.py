"""A function that changes what it captures: an error, and no other program for anybody."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, ClassVar

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


class Counter:
    """Counts in the class, in a list of it, and in a slot of an instance."""

    __slots__ = ("own",)
    count = 0
    seen: ClassVar[list[int]] = []

    def __init__(self) -> None:
        self.own = 0

    def in_class(self) -> int:
        """Counts in the class."""
        Counter.count += 1
        return Counter.count

    def in_list(self) -> int:
        """Counts in a list that the class holds."""
        Counter.seen.append(1)
        return len(Counter.seen)

    def in_slot(self) -> int:
        """Counts in the instance."""
        self.own += 1
        return self.own


def in_place(numbers: Any) -> int:
    """Counts in an array."""
    numbers[0] += 1
    return int(numbers[0])


COUNTING: list[tuple[Callable[[], Any], Callable[[Any], Any]]] = [
    (lambda: itertools.count(1), next),
    (lambda: np.random.default_rng(0), lambda rng: int(rng.integers(100))),
    (lambda: np.zeros(2, int), in_place),
    (Counter, Counter.in_class),
    (Counter, Counter.in_list),
    (Counter, Counter.in_slot),
]


@pytest.mark.parametrize(
    ("make", "count"),
    COUNTING,
    ids=["iterator", "random", "array", "class", "list of a class", "slot"],
)
@pytest.mark.parametrize("ask", ["call", "jaxpr"])
def test_state_of_any_kind(
    client: Client, make: Callable[[], Any], count: Callable[[Any], Any], ask: str
) -> None:
    """What is traced next, for whomever, begins with the function as it was sent."""
    state = make()
    first = str(count(make()))
    Counter.count, Counter.seen[:] = 0, []

    def counted(x: Any) -> Any:
        if x.ndim == 1:
            raise ValueError(f"counted {count(state)}")
        count(state)
        return x

    remote = client.persistent_call(counted)
    asked = remote if ask == "call" else remote.jaxpr
    for _ in range(2):
        with pytest.raises(LostUpdateError, match="while it is traced"):
            asked(np.ones((1, 2), np.float32))
        with pytest.raises(ValueError, match=rf"counted {first}\b"):
            asked(ONES)


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
