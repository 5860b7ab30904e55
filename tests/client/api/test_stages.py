"""`f.lower(...)` and `f.jaxpr(...)`."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd import Client
from jaxd.api.stages import MemoryAnalysis
from jaxd.errors import ConfigurationError
from tests.end_to_end.counting import costs
from tests.live_server import LiveServer

X = np.ones((2, 3), np.float32)


def layer(x: Any, w: Any, mode: str = "plus") -> Any:
    """One that has something to count."""
    return jnp.dot(x, w) + 1 if mode == "plus" else x


SPEC = jax.ShapeDtypeStruct((3, 2), np.float32)


def test_it_shows_what_jax_shows(client: Client) -> None:
    """For arrays and for specs of them; the lowered program in both dialects."""
    function, jitted = client.persistent_call(layer), jax.jit(layer)
    assert function.jaxpr(X, SPEC) == str(jax.make_jaxpr(layer)(X, SPEC))
    ours, theirs = function.lower(X, SPEC), jitted.lower(X, SPEC)
    assert ours.as_text() == ours.as_text("stablehlo") == theirs.as_text()
    assert ours.as_text("hlo") == theirs.as_text("hlo")
    assert "loc(" in ours.as_text(debug_info=True)
    assert ours.cost_analysis() == theirs.cost_analysis()
    assert repr(ours) == "<lowered layer>"
    with pytest.raises(ConfigurationError, match="'stablehlo' or 'hlo'"):
        ours.as_text("xla")  # type: ignore[arg-type]


def test_a_compiled_one_says_what_it_costs(client: Client) -> None:
    """As XLA thinks."""
    ours = client.persistent_call(layer).lower(X, SPEC).compile()
    theirs = jax.jit(layer).lower(X, SPEC).compile()
    assert ours.cost_analysis() == theirs.cost_analysis()
    memory, expected = ours.memory_analysis(), theirs.memory_analysis()
    assert isinstance(memory, MemoryAnalysis)
    for name in MemoryAnalysis.__dataclass_fields__:
        assert getattr(memory, name) == getattr(expected, name)
    assert ours.as_text().startswith("HloModule jit_layer")
    assert repr(ours) == "<compiled layer>"


def test_nothing_stays_on_the_server(client: Client) -> None:
    """Each question is traced anew, and calls are built as if nobody had asked."""
    function = client.persistent_call(layer, extra_key="stages")
    with costs(client) as spent:
        function.jaxpr(X, SPEC)
        function.lower(X, SPEC)
    assert spent == {"traces": 2, "lowers": 1}
    with costs(client) as spent:
        function(X, np.ones((3, 2), np.float32))
    assert spent["traces"] == 1


def test_clients_without_jax_can_look_as_well(live: LiveServer) -> None:
    """The texts are the server's."""
    program = """
import json, sys
from jaxd import persistent_call

@persistent_call
def double(x, how):
    return x * 2 if how == "double" else x

class Spec:
    shape, dtype = (4,), "float32"

compiled = double.lower(Spec(), "double").compile()
found = [double.jaxpr(Spec(), "double"), compiled.cost_analysis()["flops"]]
found.append(compiled.memory_analysis().output_size_in_bytes)
assert "jax" not in sys.modules
print(json.dumps(found))
"""
    ended = live.run(program)
    expected = str(jax.make_jaxpr(lambda x: x * 2)(X[0, :1].repeat(4)))
    assert json.loads(ended.stdout) == [expected, 4.0, 16], ended.stderr
