from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd.request.arguments import encode_arguments
from jaxd.results.reader import ResultReader
from jaxd_protocol.errors import CallbackError, ProtocolError, ResultError
from jaxd_protocol.jit.static_args import NO_STATIC_ARGS
from jaxd_protocol.pytree import load_literal
from jaxd_server.codec.result_encoder import ResultEncoder
from jaxd_server.user_code.callback_targets import pack_callback, read_callback

CALLBACK_TARGET = ("partial", ("given", 0), (("held", 0),), ())


def arrived(*args: Any, held: tuple[Any, ...] = (), **kwargs: Any) -> Any:
    """What a client reads."""
    (skeleton, blob), buffers = pack_callback(CALLBACK_TARGET, held, args, kwargs)
    return ResultReader({}).read(skeleton, blob, buffers, "auto")


def test_arguments_arrive_as_they_are() -> None:
    """Arrays of any size, text, and what the function itself holds."""
    large = np.arange(100_000, dtype=np.float64)
    tree = {"w": jnp.ones((2, 3), jnp.bfloat16), "name": "x"}
    callback_target, held, args, kwargs = arrived(
        tree, np.float32(2), 7, key=jax.random.key(1), held=(large,)
    )
    assert load_literal(callback_target, 0) == (CALLBACK_TARGET, len(callback_target))
    assert held[0].dtype == np.float64
    np.testing.assert_array_equal(held[0], large)
    assert (args[0]["w"].dtype, args[0]["name"], float(args[1]), args[2]) == (
        jnp.bfloat16,
        "x",
        2.0,
        7,
    )
    assert jax.random.key_data(kwargs["key"]).tolist() == [0, 1]


def test_what_cannot_travel_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the word that it was for a callback."""

    def refuse(*_: Any) -> None:
        raise ResultError("it has no form")

    monkeypatch.setattr(ResultEncoder, "node", refuse)
    with pytest.raises(CallbackError, match=r"given something that cannot travel: it has no form"):
        arrived(1)


@pytest.mark.parametrize("argument", [len, [print], {"k": jnp.float32}], ids=["one", "in", "class"])
def test_a_function_is_no_argument(argument: Any) -> None:
    """The client would refuse it."""
    with pytest.raises(CallbackError, match="given a function as an argument"):
        arrived(argument)


def test_results_are_read_as_arguments_are() -> None:
    """Trees of arrays and numbers."""
    result = {"a": np.arange(3), "b": (1.5, None)}
    encoded = encode_arguments((result,), {}, NO_STATIC_ARGS, {})
    back = read_callback((encoded.skeleton, encoded.blob), encoded.buffers)
    assert back["a"].tolist() == [0, 1, 2]
    assert back["b"] == (1.5, None)


def test_other_answers_are_refused() -> None:
    """Such as of a client that does not know the question."""
    with pytest.raises(ProtocolError, match="callback's result cannot be read"):
        read_callback((1, 2), ())
