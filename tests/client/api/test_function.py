"""The function that users see."""

from __future__ import annotations

import asyncio
import itertools
import pickle
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import cloudpickle
import pytest

from jaxd import Client, persistent_call
from jaxd_protocol import fingerprint
from jaxd_protocol.errors import CompileAdvice, PackingError, SkewWarning, UnsharedWarning
from jaxd_protocol.fingerprint import walk
from tests.server.staging import at_once, join, start


def test_map_ends_with_the_shortest(client: Client) -> None:
    """As the built-in map; and an empty one asks nothing."""
    add = client.persistent_call(lambda x, y: x + y)
    assert len(list(add.map([1.0, 2.0, 3.0], [1.0]))) == 1
    assert list(add.map([], itertools.count())) == []


def test_map_passes_on_what_its_iterable_raises(client: Client) -> None:
    """And leaves no call behind."""

    def items() -> Iterator[float]:
        yield 1.0
        raise KeyError("no more")

    with pytest.raises(KeyError, match="no more"):
        list(client.persistent_call(lambda x: x).map(items()))
    assert float(client.persistent_call(lambda x: x)(5.0)) == 5.0


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


TABLE = {"rate": 2.0, "other": 0.0}


def test_what_changes_and_is_not_read_changes_nothing(client: Client) -> None:
    """The other entries of a table; nothing is traced again."""
    made = client.persistent_call(lambda x: x * TABLE["other"])
    made(1.0)
    before = client.statistics().traces
    TABLE["unread"] = 1.0
    made(1.0)
    assert client.statistics().traces == before


def test_options_of_the_function_win_over_those_of_the_process(client: Client) -> None:
    """What is written at the function is what it means."""
    import jax
    import numpy as np

    made = client.persistent_call(
        lambda x: x * 2, config={"jax_enable_x64": False}, results="numpy"
    )
    with jax.enable_x64(True):
        assert made(np.ones(2)).dtype == np.float32


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


def test_while_one_thread_changes_a_new_function_each_result_is_one_of_both(client: Client) -> None:
    """As fast as it can, while the first calls of it are looked at and packed."""
    for _ in range(5):
        table = {"low": 0.0, "high": 0.0}
        made = client.persistent_call(_reads(table))
        done = threading.Event()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SkewWarning)
            warnings.simplefilter("ignore", CompileAdvice)  # it has had many values
            changing = start(_flip, table, done)
            outcomes = at_once(4, _calls(made))
            done.set()
            join([changing])
        for outcome in outcomes:
            assert not isinstance(outcome, BaseException), outcome
            assert float(outcome[0]) in (1.0, 2.0)
            assert float(outcome[1]) == 1.0


def _reads(table: dict[str, float]) -> Any:
    return lambda x: (x + table["low"], x + table["high"])


def _flip(table: dict[str, float], done: threading.Event) -> None:
    while not done.is_set():
        for value in (1.0, 0.0):
            table["low"] = value


def _calls(made: Any) -> Any:
    return lambda index: made(1.0)
