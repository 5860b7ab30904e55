"""The function that users see."""

from __future__ import annotations

import asyncio
import itertools
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import cloudpickle
import pytest

from jaxd import Client, forking, persistent_call
from jaxd_protocol.errors import PackingError


def test_it_calls_submits_awaits_and_maps(client: Client) -> None:
    """The same function in all four ways, with positional and keyword arguments."""
    sub = client.persistent_call(lambda x, y=1.0: x - y)
    assert float(sub(3.0)) == 2.0
    assert float(sub(3.0, y=2.0)) == 1.0
    assert float(sub.submit(3.0, y=3.0).result()) == 0.0
    assert float(asyncio.run(sub.call_async(3.0, 4.0))) == -1.0
    assert [float(x) for x in sub.map([1.0, 2.0], [3.0, 5.0])] == [-2.0, -3.0]


def test_map_ends_with_the_shortest(client: Client) -> None:
    """As the built-in map; and an empty one asks nothing."""
    add = client.persistent_call(lambda x, y: x + y)
    assert len(list(add.map([1.0, 2.0, 3.0], [1.0]))) == 1
    assert list(add.map([], itertools.count())) == []


def test_map_raises_where_the_result_would_stand(client: Client) -> None:
    """What came before it was delivered; what comes after is given up."""

    def picky(x: Any) -> Any:
        if x.shape:
            raise ValueError("too many")
        return x

    import numpy as np

    results = client.persistent_call(picky).map([1.0, np.ones(2), 3.0])
    assert float(next(results)) == 1.0
    with pytest.raises(ValueError, match="too many"):
        next(results)


def test_map_passes_on_what_its_iterable_raises(client: Client) -> None:
    """And leaves no call behind."""

    def items() -> Iterator[float]:
        yield 1.0
        raise KeyError("no more")

    with pytest.raises(KeyError, match="no more"):
        list(client.persistent_call(lambda x: x).map(items()))
    assert float(client.persistent_call(lambda x: x)(5.0)) == 5.0


def test_as_a_method_it_is_bound_to_its_instance(client: Client) -> None:
    """As any function in a class; the instance travels as an argument."""
    function: Any = client.persistent_call(lambda factor, x: factor * x)

    class Scale:
        apply = function

    assert float(function(2.0, 4.0)) == 8.0
    assert Scale().apply.__func__ is Scale.apply is function


def test_packed_it_is_the_plain_function() -> None:
    """Inside another persistent function, or in a pickle of the user's own."""
    made = persistent_call(lambda x: x + 1)
    plain: Any = pickle.loads(cloudpickle.dumps(made))
    assert type(plain).__name__ == "function"
    assert plain(1) == 2


def test_its_repr_names_the_function() -> None:
    """For people who print it."""

    def step(x: Any) -> Any:
        return x

    assert repr(persistent_call(step)).startswith("<persistent <function test_its_repr")


def test_its_fingerprint_is_hexadecimal_and_stable(client: Client) -> None:
    """It needs no server."""
    made = persistent_call(lambda x: x + 1)
    assert made.fingerprint == made.fingerprint
    assert len(bytes.fromhex(made.fingerprint)) == 16
    lock = threading.Lock()
    with pytest.raises(PackingError):
        _ = persistent_call(lambda x: lock).fingerprint


def test_a_function_is_packed_once(client: Client) -> None:
    """A closure that changes afterwards does not change the function, as with jax.jit."""
    scale = [2.0]
    made = client.persistent_call(lambda x: x * scale[0])
    assert float(made(1.0)) == 2.0
    scale[0] = 3.0
    assert float(made(1.0)) == 2.0


def test_settings_are_read_at_each_call(client: Client) -> None:
    """Another setting is another key; coming back to the first finds the first again."""
    import jax
    import numpy as np

    made = client.persistent_call(lambda x: x * 2, results="numpy")
    found = []
    for x64 in (False, True, False):
        with jax.enable_x64(x64):
            found.append(made(np.ones(2)).dtype.name)
    assert found == ["float32", "float64", "float32"]
    assert len(made._specs) == 2


def test_options_of_the_function_win_over_those_of_the_process(client: Client) -> None:
    """What is written at the function is what it means."""
    import jax
    import numpy as np

    made = client.persistent_call(
        lambda x: x * 2, config={"jax_enable_x64": False}, results="numpy"
    )
    with jax.enable_x64(True):
        assert made(np.ones(2)).dtype == np.float32


def test_many_coroutines_on_one_loop(client: Client) -> None:
    """More than the server takes at once; the loop runs on meanwhile."""
    double = client.persistent_call(lambda x: x * 2)

    async def main() -> tuple[list[Any], int]:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        results = await asyncio.gather(*(double.call_async(float(i)) for i in range(100)))
        counting.cancel()
        return results, turns

    results, turns = asyncio.run(main())
    assert [float(x) for x in results] == [2.0 * i for i in range(100)]
    assert turns > 1


def test_a_coroutine_does_not_block_its_loop(client: Client) -> None:
    """Packing is done elsewhere, under the settings of the thread that called."""
    import jax
    import numpy as np

    packed_in = []

    class Noted:
        def __reduce__(self) -> Any:
            packed_in.append(threading.current_thread())
            return float, (2.0,)

    noted: Any = Noted()
    double = client.persistent_call(lambda x: x * noted, results="numpy")

    async def main() -> Any:
        with jax.enable_x64(True):
            return await double.call_async(np.ones(2))

    assert asyncio.run(main()).dtype == np.float64
    assert packed_in
    assert threading.current_thread() not in packed_in


def test_the_child_of_a_fork_can_pack() -> None:
    """Also when another thread of the parent was packing as it forked."""
    made = persistent_call(lambda x: x + 1)
    made._lock.acquire()
    forking._in_child()
    assert made.fingerprint
