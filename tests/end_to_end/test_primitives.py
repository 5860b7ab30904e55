"""Primitives of jax that a user's module defines are served with their rules, as jax has them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jaxd import Client
from tests.live_server import LiveServer

pytestmark = pytest.mark.libraries("jax")

PROGRAM = """
import json, sys
import jax, jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxd import persistent_call

factor = float(sys.argv[1])
scaled_p = Primitive("scaled")

def compute(x):
    return x * factor

def tangent(primals, tangents):
    return scaled_p.bind(*primals), tangents[0] * factor * 10

def late_tangent(primals, tangents):
    return scaled_p.bind(*primals), tangents[0] * factor * 100

scaled_p.def_impl(compute)
scaled_p.def_abstract_eval(lambda x: jax.core.ShapedArray(x.shape, x.dtype))
ad.primitive_jvps[scaled_p] = tangent
batching.primitive_batchers[scaled_p] = lambda args, axes: (scaled_p.bind(*args), axes[0])
mlir.register_lowering(scaled_p, mlir.lower_fun(compute, multiple_results=False))

class Scale:
    primitive = scaled_p

def step(x):
    mapped = jax.vmap(scaled_p.bind)(jnp.ones(3) * x)
    return scaled_p.bind(x), jax.grad(scaled_p.bind)(x), mapped[2]

served = persistent_call(step, fallback="error")

@persistent_call(static_argnums=(1, 2, 3), fallback="error")
def given(x, apply, scale, primitive):
    same = apply(None) is scaled_p and scale.primitive is scaled_p and primitive is scaled_p
    return apply(x) + 1000 * same

def apply(x):
    return scaled_p if x is None else scaled_p.bind(x)

x = jnp.float32(1)
found = [float(each) for each in (*served(x), given(x, apply, Scale, scaled_p))]
assert found[:3] == [float(each) for each in jax.jit(step)(x)]
ad.primitive_jvps[scaled_p] = late_tangent
found.append(float(served(x)[1]))
print(json.dumps(found))
"""


def answers(live: LiveServer, factor: int) -> Any:
    """What the program prints."""
    done = live.run(PROGRAM, str(factor))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.counts_builds
def test_a_primitive_is_served_with_its_rules(live: LiveServer, client: Client) -> None:
    """Each version with its own, one object in all of a call; a rule that is replaced counts."""
    assert answers(live, 2) == [2.0, 20.0, 2.0, 1002.0, 200.0]
    before = client.statistics()
    assert answers(live, 2) == [2.0, 20.0, 2.0, 1002.0, 200.0]
    assert client.statistics().traces == before.traces
    assert answers(live, 3) == [3.0, 30.0, 3.0, 1003.0, 300.0]
