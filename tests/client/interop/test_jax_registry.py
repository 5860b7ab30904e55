from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd.interop.jax_registry import (
    array_class,
    is_registered,
    key_dtype,
    leaf_class,
    register,
    unflatten,
)
from jaxd.interop.remote_array import RemoteArray
from jaxd_protocol.errors import ResultError
from tests.client.fake_fetcher import FakeFetcher, single_array
from tests.client.fresh_process import in_a_fresh_process


@jax.tree_util.register_pytree_node_class
class Node:
    def __init__(self, child: Any, aux: Any) -> None:
        if aux == "bad":
            raise ValueError("no such aux")
        self.child = child
        self.aux = aux

    def tree_flatten(self) -> Any:
        return (self.child,), self.aux

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Any) -> Any:
        (child,) = children
        return cls(child, aux)


class Stranger:
    pass


def test_which_classes_are_registered() -> None:
    """Others cannot be made."""
    assert is_registered(Node)
    assert not is_registered(Stranger)


@pytest.mark.parametrize(
    ("cls", "aux", "count"), [(Node, "bad", 1), (Node, 1, 2), (Stranger, 1, 0)]
)
def test_what_the_class_does_not_take(cls: Any, aux: Any, count: int) -> None:
    """Is an error with what to do."""
    with pytest.raises(ResultError, match="Return dicts"):
        unflatten(cls, aux, [0] * count)


def test_mappings_are_made_of_keys_and_values() -> None:
    """Which need not be plain, and a defaultdict has what makes more."""
    key = frozenset({1})
    assert unflatten(dict, (key,), [2.0]) == {key: 2.0}
    assert type(unflatten(OrderedDict, (key,), [2.0])) is OrderedDict
    made = unflatten(defaultdict, (list, (key,)), [2.0])
    assert (made[key], made["new"]) == (2.0, [])
    with pytest.raises(ResultError, match="cannot be made here"):
        unflatten(dict, (key,), [])


def test_without_jax_only_mappings_are_registered() -> None:
    """And jax is not imported to look."""
    program = (
        "import sys; from jaxd.interop.jax_registry import is_registered, structure\n"
        "from jaxd_protocol.errors import ResultError\n"
        "assert not is_registered(set)\n"
        "assert is_registered(dict)\n"
        "try: structure([0])\n"
        "except ResultError: assert 'jax' not in sys.modules\n"
        "else: raise SystemExit(1)\n"
    )
    in_a_fresh_process(program)


@pytest.mark.parametrize(("aux", "children"), [((1,), []), ((1,), [1, 2]), ((), [1]), ("x", [1])])
def test_a_dataclass_with_other_fields_is_an_error(aux: Any, children: list[Any]) -> None:
    """Not the end of the process: jaxlib looks for the children that it expects."""

    @jax.tree_util.register_dataclass
    @dataclass
    class Layer:
        w: Any
        name: Any = field(metadata={"static": True})

    assert unflatten(Layer, (1,), [2]) == Layer(2, 1)
    with pytest.raises(ResultError, match="1 children and 1 static fields"):
        unflatten(Layer, aux, children)


VECTOR = np.arange(3, dtype=np.float32)


@pytest.fixture
def fetcher() -> FakeFetcher:
    """Nothing kept so far."""
    return FakeFetcher()


TRANSFORMATIONS: dict[str, Callable[[Any], Any]] = {
    "jit": jax.jit(lambda x: x + 1),
    "grad": jax.grad(lambda x: (x**2).sum()),
    "value_and_grad": jax.value_and_grad(lambda x: (x**2).sum()),
    "vmap": jax.vmap(jnp.sin),
    "jvp": lambda x: jax.jvp(jnp.sin, (x,), (x,)),
    "vjp": lambda x: jax.vjp(jnp.sin, x)[1](x),
    "hessian": jax.hessian(lambda x: (x**3).sum()),
    "checkpoint": jax.checkpoint(jnp.sin),
    "lax": lambda x: jax.lax.add(x, x),
    "scan": lambda x: jax.lax.scan(lambda c, a: (c + a, a * 2), 0.0, x),
    "fori_loop": lambda x: jax.lax.fori_loop(0, 3, lambda i, c: c + i, x),
    "while_loop": lambda x: jax.lax.while_loop(lambda c: c[0] < 3, lambda c: c + 1, x),
    "cond": lambda x: jax.lax.cond(x[0] < 3, jnp.sin, jnp.cos, x),
    "map": lambda x: jax.lax.map(jnp.sin, x),
    "closed over": lambda x: jax.jit(lambda y: x + y)(1.0),
    "returned": lambda x: jax.jit(lambda: x)(),
    "donated": lambda x: jax.jit(lambda y: y * 2, donate_argnums=0)(x + 0),
    "lower": lambda x: jax.jit(jnp.sin).lower(x).compile()(x),
    "device_put": jax.device_put,
    "device_put to a device": lambda x: jax.device_put(x, jax.devices()[0]),
    "device_get": lambda x: jax.device_get({"a": x}),
    "asarray": jnp.asarray,
    "tree.map": lambda x: jax.tree.map(lambda a: a + 1, {"a": x, "b": [x]}),
    "tree.leaves": lambda x: [leaf + 0 for leaf in jax.tree.leaves({"a": x})],
    "pure_callback": lambda x: jax.pure_callback(np.asarray, jax.typeof(x), x),
    "nn": jax.nn.softmax,
    "dlpack": jax.dlpack.from_dlpack,
}


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_transformations_take_it(name: str, fetcher: FakeFetcher) -> None:
    """The result is that of the array."""
    transform = TRANSFORMATIONS[name]
    ours, theirs = transform(fetcher.keep(VECTOR)), transform(jnp.asarray(VECTOR))
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    assert jax.tree.map(type, ours) == jax.tree.map(type, theirs)


def test_jit_compiles_once_for_it_and_for_arrays(fetcher: FakeFetcher) -> None:
    """In either order."""
    traces = []

    @jax.jit
    def traced(x: Any) -> Any:
        traces.append(x)
        return x + 1

    for value in (fetcher.keep(VECTOR), jnp.asarray(VECTOR), fetcher.keep(VECTOR), VECTOR):
        assert not traced(value).committed
    assert len(traces) == 1


def test_it_is_an_instance_and_its_class_a_subclass(fetcher: FakeFetcher) -> None:
    """Libraries ask for either."""
    array = fetcher.keep(VECTOR)
    assert all(isinstance(array, kind) for kind in (jax.Array, RemoteArray))
    assert issubclass(type(array), jax.Array)
    assert type(array) is leaf_class(RemoteArray)
    assert type(array).__name__ == "RemoteArray"


def test_every_name_of_jaxs_class_is_answered(fetcher: FakeFetcher) -> None:
    """None of the abstract methods of `jax.Array` is inherited."""
    cls = leaf_class(RemoteArray)
    inherited = [name for name in vars(jax.Array) if getattr(cls, name) is vars(jax.Array)[name]]
    assert [name for name in inherited if callable(vars(jax.Array)[name])] == []
    assert array_class() is type(jnp.asarray(VECTOR))


def test_what_it_says_of_itself_is_what_the_array_says(fetcher: FakeFetcher) -> None:
    """Before anything has moved."""
    for value in (VECTOR, np.arange(3), np.float32(1)):
        ours = fetcher.keep(value)
        found = (ours.aval, ours.sharding, jax.typeof(ours), ours._committed)
        assert fetcher.moved == 0
        theirs = single_array(fetcher, ours.id, ours.leaf).fetch()
        assert found == (theirs.aval, theirs.sharding, jax.typeof(theirs), theirs._committed)
        fetcher.moved = 0
    assert key_dtype("rbg") == jax.random.key(0, impl="rbg").dtype


def test_the_tables_of_jax_are_where_they_were() -> None:
    """Fails when jax moves them: find the new place for `register`."""
    assert RemoteArray in sys.modules["jax._src.core"].pytype_aval_mappings
    assert callable(sys.modules["jax._src.dtypes"].register_canonicalize_value_handler)


def test_where_the_tables_have_moved_the_rest_goes_on(
    fetcher: FakeFetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operators and functions of numpy need no table."""
    monkeypatch.delitem(sys.modules, "jax._src.core")
    register(RemoteArray)
    np.testing.assert_array_equal(fetcher.keep(VECTOR) + 1, VECTOR + 1)


def test_optax_steps_with_it(fetcher: FakeFetcher) -> None:
    """Gradients, parameters and state may all lie on the server."""
    optax = pytest.importorskip("optax")
    adam = optax.adam(1e-2)
    here = {"a": jnp.asarray(VECTOR)}
    there = {"a": fetcher.keep(VECTOR)}
    expected, _ = adam.update(here, adam.init(here), here)
    assert fetcher.moved == 0
    held = jax.tree.map(fetcher.keep, adam.init(there))
    found, _ = adam.update(there, held, there)
    np.testing.assert_array_equal(found["a"], expected["a"])
    np.testing.assert_array_equal(
        optax.apply_updates(there, found)["a"], optax.apply_updates(here, expected)["a"]
    )


def test_equinox_takes_it_for_an_array(fetcher: FakeFetcher) -> None:
    """And jit and grad follow."""
    eqx = pytest.importorskip("equinox")
    tree = {"a": fetcher.keep(VECTOR), "name": "x"}
    assert eqx.is_array(tree["a"])
    np.testing.assert_array_equal(eqx.filter_jit(lambda t: t["a"] + 1)(tree), VECTOR + 1)
    np.testing.assert_array_equal(eqx.filter_grad(lambda t: t["a"].sum())(tree)["a"], np.ones(3))


def test_jax_may_be_tracing_when_it_is_first_asked() -> None:
    """What is found then is kept."""
    array_class.cache_clear()

    def traced(x: Any) -> Any:
        array_class()
        return x

    jax.jit(traced)(1.0)
    assert isinstance(jax.numpy.ones(1), array_class())
