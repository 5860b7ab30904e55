"""Which object is written in which way, and that what was one object is one again."""

from __future__ import annotations

import functools
import weakref
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd_protocol.pickling.pack.arguments import pack
from jaxd_protocol.pickling.unpack.unpickler import unpack
from tests.identity.projects import needs
from tests.shared.pickling.processes import (
    call_in_subprocess,
    pack_in_subprocess,
    round_trip,
    write,
)

SHARED = [1]
PAIR = (SHARED, {"k": SHARED})


class Thing:
    pass


THING = Thing()
REFERENCE = weakref.ref(THING)


def test_what_is_one_object_is_one_again() -> None:
    """Between globals, tuples and dicts."""
    assert round_trip(lambda: PAIR[0] is PAIR[1]["k"] is SHARED)()


def test_a_weak_reference_leads_to_its_object() -> None:
    """Which lives as long as the function."""
    assert round_trip(lambda: REFERENCE() is not None)()


class Counted:
    def __init__(self, value: int) -> None:
        self.value = value

    def __reduce__(self) -> Any:
        return Counted, (self.value + 1,)


class Saved:
    def __init__(self) -> None:
        self.kept = 1
        self.stream = (number for number in [1])

    def __getstate__(self) -> Any:
        return {"kept": self.kept}


@pytest.mark.parametrize(
    ("value", "attributes"), [(Counted(1), {"value": 2}), (Saved(), {"kept": 1})]
)
def test_a_class_that_says_how_it_travels_is_heard(value: Any, attributes: Any) -> None:
    """`__reduce__` and `__getstate__`."""
    assert vars(unpack(pack(value, "it"))) == attributes


JAX = """
import dataclasses, functools
import jax, jax.numpy as jnp, optax
import equinox as eqx
from flax import linen as nn, nnx
from jax import Array
from jax.nn import relu
def loss(w, x):
    return jnp.sum((w * x) ** 2)
grad, vmap = jax.grad(loss), jax.vmap(loss, (None, 0))
remat = jax.vmap(jax.checkpoint(loss), (None, 0))
def transforms():
    x = jnp.arange(3.0)
    return grad(x, x).tolist(), vmap(x, x).tolist(), remat(x, x).tolist()
def is_array():
    return isinstance(jnp.ones(1), Array), Array is jax.Array
def annotated(x: jax.Array) -> Array:
    return relu(x)
def by_name():
    return annotated(jnp.ones(1)).tolist(), relu is jax.nn.relu
@functools.partial(jax.jit, static_argnames="n")
def jitted(x, n):
    return x * n
def lowered():
    return jitted(jnp.ones(1), n=2).tolist(), "module" in jitted.lower(jnp.ones(1), n=2).as_text()
@jax.custom_vjp
def custom(x):
    return custom_inner(x) ** 2
def custom_inner(x):
    return x if custom is not None else None
custom.defvjp(lambda x: (custom(x), x), lambda x, g: (3 * x * g,))
def derivative():
    return jax.grad(custom)(2.0).item()
@jax.jit
def recursive(x):
    return x if recursive is None else x + 1
def itself():
    return recursive(1.0).item()
class Net(nn.Module):
    width: int = 4
    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(nn.relu(nn.Dense(self.width)(x)))
net, transform = Net(3), optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1))
def flax():
    params = net.init(jax.random.key(0), jnp.ones((1, 2)))
    updates, _ = transform.update(params, transform.init(params), params)
    return jax.tree.map(jnp.shape, optax.apply_updates(params, updates))["params"]["Dense_0"]
class Linear(eqx.Module):
    weight: Array
    scale: int = eqx.field(static=True)
    def __call__(self, x):
        return self.weight * x * self.scale
class Affine(Linear):
    bias: float = 1.0
    def __call__(self, x):
        return super().__call__(x) + self.bias
affine = Affine(jnp.ones(2), 3)
def equinox():
    return eqx.filter_jit(lambda m, x: m(x))(affine, 2.0).tolist(), jax.tree.leaves(affine)[1]
class Module(nnx.Module):
    def __init__(self, rngs):
        self.layer = nnx.Linear(2, 3, rngs=rngs)
    def __call__(self, x):
        return self.layer(x)
module = Module(nnx.Rngs(0))
def of_nnx():
    return nnx.jit(lambda m, x: m(x))(module, jnp.ones((1, 2))).shape
"""


RESULTS = {
    "transforms": "([0.0, 2.0, 16.0], [0.0, 5.0, 20.0], [0.0, 5.0, 20.0])",
    "is_array": "(True, True)",
    "by_name": "([1.0], True)",
    "lowered": "([2.0], True)",
    "derivative": "6.0",
    "itself": "2.0",
    "flax": "{'bias': (1,), 'kernel': (3, 1)}",
    "equinox": "([7.0, 7.0], 1.0)",
    "of_nnx": "(1, 3)",
}


@pytest.fixture(scope="module")
def author(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of somebody who uses jax and its libraries."""
    for library in ("equinox", "flax", "optax"):
        needs(library)
    return write(tmp_path_factory.mktemp("author"), {"models.py": JAX})


@pytest.fixture(scope="module")
def packed(author: Path) -> dict[str, bytes]:
    """What is in that folder."""
    return pack_in_subprocess(author, "models", RESULTS, PYTHONHASHSEED="1")


@pytest.mark.soak
def test_what_belongs_to_jax_and_its_libraries_arrives(
    packed: dict[str, bytes], tmp_path: Path
) -> None:
    """Transformed functions, jitted ones, models of flax and equinox."""
    assert max(map(len, packed.values())) < 10_000
    assert call_in_subprocess(tmp_path, packed) == RESULTS


@pytest.mark.soak
def test_models_are_equal_bytes_in_every_process(packed: dict[str, bytes], author: Path) -> None:
    """Classes of flax and equinox among them."""
    assert pack_in_subprocess(author, "models", RESULTS, PYTHONHASHSEED="2") == packed


def test_functions_that_jax_has_by_name_stay_small() -> None:
    """A ufunc, a jitted function, one with custom derivatives."""
    for value in (jnp.sin, jax.nn.relu, jnp.add, np.add, jax.Array, jax.lax.sin_p):
        data = pack([value], "it")
        assert unpack(data) == [value]
        assert len(data) < 150


def test_a_bound_method_is_of_the_function_that_it_had() -> None:
    """Not of whatever has its name."""

    def other(self: Thing) -> str:
        return "other"

    method = functools.partial(other.__get__(THING))
    assert unpack(pack(method, "it"))() == "other"
