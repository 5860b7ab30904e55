"""One object of each kind that jax has, with functions of this module in them."""

# mypy: ignore-errors
# What a user writes, around libraries without types.

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding


def product(x: Any, n: Any) -> Any:
    return x * n


@jax.custom_vjp
def sine(x: Any) -> Any:
    return jnp.sin(x)


def sine_forward(x: Any) -> Any:
    return sine(x), x  # reaches `sine` again, which reaches this


def sine_backward(kept: Any, given: Any) -> Any:
    return (given * 2,)


sine.defvjp(sine_forward, sine_backward)


@jax.custom_jvp
def cosine(x: Any) -> Any:
    return jnp.cos(x)


cosine.defjvps(lambda tangent, answer, x: tangent * 3)


@jax.custom_batching.custom_vmap
def batched(x: Any) -> Any:
    return x


@batched.def_vmap
def _batched_rule(size: int, is_batched: Any, x: Any) -> Any:
    return x + 1, is_batched[0]


@jax.jit
def down(x: Any) -> Any:
    return x if x.ndim else up(x)


@jax.jit
def up(x: Any) -> Any:
    return down(x[None])


up.rate = 5


def _mesh() -> Mesh:
    return Mesh(np.array(jax.devices()), ("x",))


def _program(x: Any) -> Any:
    inner = jax.jit(lambda y: y + np.arange(3))(x)
    return inner + jax.lax.cond(x.sum() > 0, lambda: 1.0, lambda: 2.0)


def samples() -> dict[str, Any]:
    """The objects by name."""
    device = jax.devices()[0]
    single = SingleDeviceSharding(device)
    named = NamedSharding(_mesh(), PartitionSpec("x"))
    free = PartitionSpec.UNCONSTRAINED
    key = jax.random.key(3)
    return {
        "jit": jax.jit(product, static_argnums=1, donate_argnames="x", inline=True),
        "jit options": jax.jit(product, keep_unused=True, compiler_options={"a": True, "b": 1}),
        "jit shardings": jax.jit(product, in_shardings=(named, None), out_shardings=single),
        "jit layout": jax.jit(
            product, in_shardings=(Format(Layout(major_to_minor=(0, 1)), single), None)
        ),
        "jit cycle": up,
        "jit of jit": jax.jit(functools.partial(jax.jit(product), n=2)),
        "jit of jax": jnp.sin,
        "custom_vjp": sine,
        "custom_jvp": cosine,
        "custom_vmap": batched,
        "custom_jvp of jax": jax.nn.relu,
        "ufunc": jnp.frompyfunc(product, 2, 1, identity=1),
        "ufunc of jax": jnp.add,
        "primitive": jax.lax.sin_p,
        "tree structure": jax.tree.structure({"a": (1, None, [2]), "b": jax.tree_util.Partial}),
        "device": device,
        "mesh": _mesh(),
        "abstract mesh": jax.sharding.AbstractMesh((2,), ("x",)),
        "named sharding": named,
        "single device sharding": single,
        "partition spec": PartitionSpec("x", None, ("a", "b"), free, unreduced={"q", "r", "s"}),
        "shape": jax.ShapeDtypeStruct((2,), jnp.float32, sharding=named, weak_type=True),
        "shape of keys": jax.ShapeDtypeStruct((2,), key.dtype),
        "abstract array": jax.core.ShapedArray((2,), np.dtype("float32")),
        "key type": key.dtype,
        "partial": jax.tree_util.Partial(product, 1, n=2),
        "array": jnp.arange(3),
        "weak array": jnp.asarray(1.0),
        "half array": jnp.ones(2, jnp.bfloat16),
        "key": key,
        "keys": jax.random.split(jax.random.key(3, impl="rbg")),
        "old key": jax.random.PRNGKey(1),
        "jaxpr": jax.make_jaxpr(_program)(jnp.ones(3)),
        "pulled back": jax.vjp(jnp.sin, 1.0)[1],
        "checkpoint": jax.checkpoint(product),
        "shard_map": jax.shard_map(
            lambda x: x, mesh=_mesh(), in_specs=PartitionSpec("x"), out_specs=PartitionSpec("x")
        ),
    }
