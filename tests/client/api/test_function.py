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

from jaxd import Client, persistent_call
from jaxd_protocol import fingerprint
from jaxd_protocol.base import process
from jaxd_protocol.errors import PackingError, UnsharedWarning
from jaxd_protocol.fingerprint import walk


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


def test_packed_it_is_the_function_jitted() -> None:
    """Inside another persistent function, or in a pickle of the user's own."""
    made = persistent_call(lambda x: x + 1)
    plain: Any = pickle.loads(cloudpickle.dumps(made))
    assert not isinstance(plain, type(made))
    assert float(plain(1)) == 2


def test_its_repr_names_the_function() -> None:
    """For people who print it."""

    def step(x: Any) -> Any:
        return x

    assert repr(persistent_call(step)).startswith("<persistent <function test_its_repr")


def test_its_repr_does_not_raise() -> None:
    """Where that of what was decorated does."""

    class Model:
        def __call__(self, x: Any) -> Any:
            return x

        def __repr__(self) -> str:
            raise ValueError

    assert "Model object" in repr(persistent_call(Model()))


def test_its_fingerprint_is_hexadecimal_and_stable(client: Client) -> None:
    """It needs no server."""
    made = persistent_call(lambda x: x + 1)
    assert made.fingerprint == made.fingerprint
    assert len(bytes.fromhex(made.fingerprint)) == 16
    with pytest.raises(PackingError, match="__import__"):
        _ = persistent_call(lambda x: __import__(f"{x}")).fingerprint


RATE = 2.0
TABLE = {"rate": 2.0, "other": 0.0}


@pytest.mark.parametrize(
    ("function", "holder", "key"),
    [
        (lambda x: x * RATE, globals(), "RATE"),
        (lambda x: x * TABLE["rate"], TABLE, "rate"),
    ],
    ids=["global", "entry"],
)
def test_what_changes_is_seen_at_the_next_call(
    client: Client, monkeypatch: pytest.MonkeyPatch, function: Any, holder: Any, key: Any
) -> None:
    """Unlike with jax.jit, which keeps what it found when it traced."""
    made = client.persistent_call(function)
    before = made.fingerprint
    assert float(made(1.0)) == 2.0
    monkeypatch.setitem(holder, key, 3.0)
    assert float(made(1.0)) == 3.0
    assert made.fingerprint != before


def test_a_closure_that_changes_is_seen_at_the_next_call(client: Client) -> None:
    """Rebound in the function around it; and what it was before is found again."""
    scale = 2.0
    made = client.persistent_call(lambda x: x * scale)
    first = made.fingerprint
    assert float(made(1.0)) == 2.0
    scale = 3.0
    assert float(made(1.0)) == 3.0
    scale = 2.0
    assert made.fingerprint == first


def test_a_list_that_changes_is_seen_at_the_next_call(client: Client) -> None:
    """In place, which nobody announces."""
    scale = [2.0]
    made = client.persistent_call(lambda x: x * scale[0])
    assert float(made(1.0)) == 2.0
    scale[0] = 3.0
    assert float(made(1.0)) == 3.0


def test_what_changes_and_is_not_read_changes_nothing(client: Client) -> None:
    """The other entries of a table; nothing is traced again."""
    made = client.persistent_call(lambda x: x * TABLE["other"])
    made(1.0)
    before = client.statistics().traces
    TABLE["unread"] = 1.0
    made(1.0)
    assert client.statistics().traces == before


def test_settings_are_read_at_each_call(client: Client) -> None:
    """Another setting is another key; coming back to the first finds the first again."""
    import jax
    import numpy as np

    made = client.persistent_call(lambda x: x * 2, results="numpy")
    found = []
    before = client.statistics().traces
    for x64 in (False, True, False):
        with jax.enable_x64(x64):
            found.append(made(np.ones(2)).dtype.name)
    assert found == ["float32", "float64", "float32"]
    assert client.statistics().traces == before + 2


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


def test_a_coroutine_does_not_block_its_loop(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function is looked at elsewhere, under the settings of the thread that called."""
    import jax
    import numpy as np

    looked_in = []

    def noted(*args: Any, **kwargs: Any) -> Any:
        looked_in.append(threading.current_thread())
        return walk(*args, **kwargs)

    monkeypatch.setattr(fingerprint, "walk", noted)
    double = client.persistent_call(lambda x: x * 2, results="numpy")

    async def main() -> Any:
        with jax.enable_x64(True):
            return await double.call_async(np.ones(2))

    assert asyncio.run(main()).dtype == np.float64
    assert looked_in
    assert threading.current_thread() not in looked_in


def test_the_child_of_a_fork_can_look() -> None:
    """Also when another thread of the parent was looking as it forked."""
    made = persistent_call(lambda x: x + 1)
    made._binding.snapshots._lock.acquire()
    process._in_child()
    assert made.fingerprint


@pytest.mark.parametrize(
    "use",
    [
        lambda made: made.fingerprint,
        lambda made: made(1.0),
        lambda made: made.submit(1.0).result(),
        lambda made: list(made.map([1.0])),
    ],
    ids=["fingerprint", "call", "submit", "map"],
)
def test_a_warning_about_a_function_points_to_the_line_that_used_it(
    client: Client, use: Any
) -> None:
    """Not into this library."""
    stream = (number for number in [1.0])
    made = client.persistent_call(lambda x: x if x is not None else next(stream))
    with pytest.warns(UnsharedWarning) as heard:
        use(made)
    assert {warning.filename for warning in heard} == {__file__}
