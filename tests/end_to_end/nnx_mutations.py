"""What functions do to flax nnx objects, each with what it is given: rows of test_nnx_as_jit."""

# mypy: ignore-errors
# What a user writes, around a library without types.

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jaxd import persistent_call

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def filled(number: float) -> dict[str, Any]:
    """What makes a layer of such numbers: to trace and compile how it draws them takes longest."""
    return {"kernel_init": nnx.initializers.constant(number)}


class Loss(nnx.Variable):
    """A variable of the user's own."""


class Layer(nnx.Module):
    """Variables, an array, a number that is data, and what is no data."""

    def __init__(self, rngs: nnx.Rngs, **how: Any) -> None:
        self.linear = nnx.Linear(3, 3, rngs=rngs, **how)
        self.scale = nnx.Param(jnp.ones(3))
        self.table = nnx.data(jnp.arange(3.0))
        self.number = nnx.data(2)
        self.pair = nnx.data((jnp.ones(2), 3))
        self.mode = "train"
        self.sizes = (3, 4)
        self.activation = nnx.relu

    def __call__(self, x: Any) -> Any:
        return self.activation(self.linear(x)) * self.scale[...]


class Model(nnx.Module):
    """Statistics, random numbers, layers in containers, and one that is there twice."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = Layer(rngs)
        self.again = self.first
        self.layers = nnx.List([Layer(rngs)])
        self.heads = nnx.Dict(a=nnx.Linear(3, 2, rngs=rngs))
        self.norm = nnx.BatchNorm(3, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.rngs = rngs

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return self.dropout(self.norm(self.again(x)))


class Graph(nnx.Module, pytree=False):
    """No tree of jax: lists and dicts, and a circle."""

    def __init__(self, rngs: nnx.Rngs, **how: Any) -> None:
        first = nnx.Linear(3, 3, rngs=rngs, **how)
        self.blocks = [first, {"deep": Layer(rngs, **how), "count": 3}]
        self.names = ["a", "b"]
        self.weight = nnx.Param(jnp.ones(2))
        self.inner = Inner(self)

    def __call__(self, x: Any) -> Any:
        return self.blocks[1]["deep"](self.blocks[0](x))


class Inner(nnx.Module, pytree=False):
    """Knows what it is in."""

    def __init__(self, owner: Graph) -> None:
        self.owner = owner


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    """A tree of the user's own."""

    model: Model
    steps: Any


def model() -> tuple[Any, ...]:
    return (Model(nnx.Rngs(0)),)


def graph() -> tuple[Any, ...]:
    return (Graph(nnx.Rngs(0)),)


def layers() -> tuple[Any, ...]:
    return Layer(nnx.Rngs(0)), Layer(nnx.Rngs(1))


def twice() -> tuple[Any, ...]:
    found = Layer(nnx.Rngs(0))
    return found, found


def training() -> tuple[Any, ...]:
    (made,) = model()
    optimizer = nnx.Optimizer(made, optax.adam(0.1), wrt=nnx.Param)
    metrics = nnx.MultiMetric(loss=nnx.metrics.Average("loss"), accuracy=nnx.metrics.Accuracy())
    return made, optimizer, metrics


def in_containers() -> tuple[Any, ...]:
    one, two = layers()
    return {"one": [one, (two, 1.0)]}, two


def in_dataclass() -> tuple[Any, ...]:
    return (State(*model(), jnp.zeros(())),)


def variables() -> tuple[Any, ...]:
    same = nnx.Param(jnp.ones(2))
    return same, nnx.Variable({"a": jnp.ones(2), "b": (jnp.zeros(1),)}), same


# what functions do -------------------------------------------------------------------------------


def train(model, optimizer, metrics):
    def loss_of(model):
        return jnp.mean((model(X) - 1) ** 2)

    loss, slopes = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, slopes)
    metrics.update(loss=loss, logits=model.heads["a"](X), labels=jnp.zeros(2, jnp.int32))
    return loss, metrics.compute()


def reset(model, optimizer, metrics):
    metrics.reset()


def sows(model):
    for layer in model.layers:
        layer.sow(nnx.Intermediate, "seen", layer.scale[...] * 2)
        layer.sow(nnx.Intermediate, "seen", layer.scale[...] * 3)
    return model(X)


def sows_and_pops(model):
    sows(model)
    return jax.tree.leaves(nnx.pop(model, nnx.Intermediate))


def pops_parameters(model):
    return jax.tree.leaves(nnx.pop(model.first, nnx.Param))


def to_eval(model):
    before = model(X)
    model.eval()
    return before, model(X)


def sets_attributes(model):
    model.set_attributes(deterministic=True, rate=0.25, raise_if_not_found=False)


def new_variable(model):
    model.first.loss = Loss(jnp.sum(model.first(X)))
    model.first.loss_too = model.first.loss


def array_changes(layer, other):
    layer.table = layer.table * 2
    layer.pair = (layer.pair[0] + 1, layer.pair[1])
    layer.number = layer.number + 1
    for _ in range(layer.pair[1]):
        other.table += 1


def statics_change(layer, other):
    layer.mode, layer.sizes = "eval", (3, 4, 5)
    layer.activation = nnx.gelu
    other.activation = helper
    layer.dtype = jnp.bfloat16
    layer.flag = True
    return layer(X)


def helper(x):
    return x * 2


def attribute_goes(layer, other):
    del layer.mode
    del layer.scale
    other.scale = layer.linear.bias


def data_and_static(layer, other):
    layer.mode = nnx.data(3)
    layer.table = jnp.ones(())
    del other.table
    other.table = "none"


def new_module(layer, other):
    layer.more = nnx.Linear(3, 2, rngs=nnx.Rngs(3), **filled(3.0))
    layer.deep = Layer(nnx.Rngs(4), **filled(4.0))
    layer.deep.other = other
    other.back = layer.deep
    return layer.more(X)


def swaps(layer, other):
    layer.linear, other.linear = other.linear, layer.linear


def shares(layer, other):
    other.scale = layer.scale
    layer.scale[...] *= 3


def circle(layer, other):
    layer.other, other.other = other, layer


def returns_arguments(layer, other):
    return {"other": other, "inner": [layer.linear, layer.scale], "both": (layer, other)}


def returns_new(layer, other):
    made = Layer(nnx.Rngs(5), **filled(5.0))
    made.scale = layer.scale
    made.friend = other
    return made, [made, made.linear]


def takes_out(layer, other):
    taken = layer.linear
    del layer.linear
    taken.kernel[...] *= 3


def takes_out_and_returns(layer, other):
    taken = layer.linear
    del layer.linear
    taken.kernel[...] *= 3
    return taken


def same_twice(layer, other):
    other.scale[...] += 1
    layer.mode = "eval"
    return layer is other, other.mode == "eval"


def tied(model):
    model.again.scale[...] = model.first.scale[...] + 1
    model.again.mode = "other"
    return model.first is model.again, model.first.mode == "other"


def appends(model):
    model.layers.append(model.first)
    model.layers.append(nnx.Linear(3, 3, rngs=model.rngs, **filled(2.0)))
    model.heads["b"] = nnx.Linear(3, 1, rngs=model.rngs, **filled(3.0))
    del model.heads["a"]


def random_numbers(model):
    model.rngs.params()
    model.dropout.rngs = nnx.Rngs(9).dropout
    return jax.random.uniform(model.rngs.noise(), (2,))


def in_graph(graph):
    graph.blocks[0].bias[...] += 1
    for _ in range(graph.blocks[1]["count"]):
        graph.weight[...] += 1
    return graph(X), graph.inner.owner is graph


def graph_changes(graph):
    graph.blocks.append(nnx.Param(jnp.ones(1)))
    graph.blocks[1]["more"] = nnx.Linear(3, 3, rngs=nnx.Rngs(1), **filled(1.0))
    graph.names = [*graph.names, "c"]
    graph.inner.second = Inner(graph)


def graph_returns(graph):
    made = Graph(nnx.Rngs(1), **filled(1.0))
    made.weight = graph.weight
    return made, graph.inner, graph.blocks[0]


def containers(tree, two):
    tree["one"][0].scale[...] += 1
    tree["one"][1][0].mode = "eval"
    return two.mode == "eval", tree["one"][1][1]


def dataclass(state):
    state.model.first.extra = nnx.Param(jnp.ones(1))
    state.model.train()
    return state.model.first(X), state.steps + 1


def of_variables(one, other, same):
    same[...] = one[...] + 1
    held = other.get_value()
    other.set_value({"a": held["a"] * 2, "b": (held["b"][0], jnp.ones(1)), "c": jnp.ones(())})
    return one is same


def replaces_variable(model):
    model.first.scale = nnx.Param(jnp.full(3, 7.0))
    model.norm.mean[...] = jnp.ones(3)


def several(model):
    sets_attributes(model)
    new_variable(model)
    replaces_variable(model)
    return tied(model)


def nothing(model):
    return model.first.scale[...] + 1


def nested_call(model):
    @nnx.jit
    def inner(model):
        model.first.mode = "inner"
        model.norm.mean[...] += 1

    inner(model)
    inner(model)
    return model.first.mode == "inner"


@persistent_call
def inner(layer, *, other):
    layer.mode = "inner"
    layer.scale[...] += 1
    other.extra = nnx.Param(layer.scale[...])
    return other, other.mode == "train"


def persistent_inside(layer, other):
    returned, _ = inner(layer, other=other)
    inner(layer, other=other)
    return returned is other, layer.mode == "inner", other.extra[...]


class Row(NamedTuple):
    """One case: what is given, made anew for each run, and what is done."""

    given: Callable[[], tuple[Any, ...]]
    does: Callable[..., Any]

    def __str__(self) -> str:
        return f"{self.does.__name__}-{self.given.__name__}"


ROWS = [
    *[Row(training, does) for does in (train, reset)],
    *[
        Row(model, does)
        for does in (
            *(sows, sows_and_pops, pops_parameters, to_eval, several, appends, random_numbers),
            *(nothing, nested_call),
        )
    ],
    *[
        Row(layers, does)
        for does in (
            *(array_changes, statics_change, attribute_goes, data_and_static, new_module, swaps),
            *(shares, circle, returns_new, takes_out, takes_out_and_returns, persistent_inside),
        )
    ],
    *[Row(twice, does) for does in (same_twice, returns_arguments)],
    *[Row(graph, does) for does in (in_graph, graph_changes, graph_returns)],
    Row(in_containers, containers),
    Row(in_dataclass, dataclass),
    Row(variables, of_variables),
]


def described(*values: Any) -> list[Any]:
    """All that can be seen of values: types, attributes, numbers, and what is the same object."""
    seen: dict[int, int] = {}
    return [_described(value, seen) for value in values]


def _described(value: Any, seen: dict[int, int]) -> Any:
    if isinstance(value, nnx.Pytree | nnx.Variable):
        if id(value) in seen:
            return f"object {seen[id(value)]}"
        seen[id(value)] = len(seen)
        return type(value), _object(value, seen)
    if isinstance(value, Mapping):  # HashableMapping and State among them
        return type(value), [(key, _described(value[key], seen)) for key in sorted(value)]
    if isinstance(value, list | tuple):
        return type(value).__name__, [_described(each, seen) for each in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return type(value), _described(vars(value), seen)
    return _leaf(value)


def _object(value: Any, seen: dict[int, int]) -> Any:
    if isinstance(value, nnx.Variable):
        return _described(value.get_raw_value(), seen), value.get_metadata()
    nodes = value._pytree__nodes if type(value)._pytree__is_pytree else {}
    return [
        (name, nodes.get(name), _described(each, seen))
        for name, each in sorted(vars(value).items())
        if not name.startswith("_pytree__")
    ]


def _leaf(value: Any) -> Any:
    if callable(value) and hasattr(value, "__qualname__"):
        return value.__module__, value.__qualname__
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    if hasattr(value, "dtype") or isinstance(value, int | float):
        array = np.asarray(value)
        return array.shape, array.tolist()
    return value
