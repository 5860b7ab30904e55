"""What of a call a builder needs to build it, and what it makes of that."""

from __future__ import annotations

import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd_protocol.jax_objects.arrays import key_array, weak_array
from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.static_args import NO_STATIC_ARGS
from jaxd_protocol.messages.function_manifest import FunctionManifest
from jaxd_server.codec.arguments import parse_arguments, read_leaves
from jaxd_server.codec.signature import signature_of
from jaxd_server.compilation.functions.function import Described
from jaxd_server.compilation.remote_build.messages import BuildOrder, leaves_of_request, sent_data
from tests.server.in_process import encode


def odd(values: Any) -> dict[Any, Any]:
    """What is pickled as a whole."""
    return {frozenset(): values}


ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "arrays": (np.ones((2, 3), np.float32), np.arange(5000.0)),
    "numbers": (1.5, 2, True, 1j, -3),
    "both": (np.float32(3), 7, {"a": np.ones(2), "b": 2.5}),
    "keys": (key_array("threefry2x32", jnp.asarray([1, 2], np.uint32)),),
    "weak": (weak_array(np.ones(2, np.float32)), 1),
    "pickled": (3, odd(np.arange(40_000.0)), np.ones(20_000), 4.5, odd(np.ones(2))),
    "nothing": (),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_a_call_looks_the_same_there(case: str) -> None:
    """Numbers and pickled objects are what they were; arrays have their shapes and zeros."""
    skeleton, blob, buffers = encode(ARGUMENTS[case])
    layout = parse_arguments(skeleton)
    here: Any = layout.build(read_leaves(layout.whole, blob, buffers))
    scalars, pickled = sent_data(layout.whole, blob, buffers)
    leaves = leaves_of_request(layout, scalars, list(map(bytes, pickled)))
    there: Any = layout.build(leaves)
    assert signature_of(there[0], there[1], NO_STATIC_ARGS) == signature_of(
        here[0], here[1], NO_STATIC_ARGS
    )
    numbers = [leaf for leaf in jax.tree.leaves(here) if type(leaf) in (bool, int, float, complex)]
    assert numbers == [
        leaf for leaf in jax.tree.leaves(there) if type(leaf) in (bool, int, float, complex)
    ]
    for value in there[0]:
        if isinstance(value, dict) and frozenset() in value:
            assert value[frozenset()].any()
        elif isinstance(value, np.ndarray):
            assert not value.any()


def test_of_arrays_only_the_shapes_are_sent() -> None:
    """However large they are."""
    skeleton, blob, buffers = encode((np.ones(100_000), np.ones(2), odd(np.ones(50_000)), 5))
    layout = parse_arguments(skeleton)
    scalars, pickled = sent_data(layout.whole, blob, buffers)
    assert scalars == (5,)
    assert 400_000 <= sum(map(len, pickled)) < 402_000


def test_a_call_to_warm_up_has_no_numbers() -> None:
    """And its buffers are those of pickled leaves already."""
    skeleton, _, buffers = encode((np.ones(20_000), 5, odd(np.ones(20_000))))
    layout = parse_arguments(skeleton)
    scalars, pickled = sent_data(layout.whole, b"", buffers[1:], warm_only=True)
    assert scalars == ()
    assert len(pickled) == len(buffers) - 1
    leaves = leaves_of_request(layout, scalars, list(map(bytes, pickled)))
    assert leaves[1] == 0
    assert leaves[2][frozenset()].all()


def test_an_order_says_what_the_client_said() -> None:
    """All of it, also in another process."""
    options = Options(donate_argnums=(1,), config=(("jax_enable_x64", True),))
    described = Described(b"f" * 16, "step", options, FunctionManifest(b"f" * 16, ignored=("it",)))
    order = BuildOrder(1, b"k", described, None, b"N", (), (), b"")
    assert pickle.loads(pickle.dumps(order)).described == described
