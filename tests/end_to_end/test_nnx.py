"""flax nnx objects through a server: the caller's own are changed, as by `nnx.jit`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd import Client, persistent_call
from jaxd.errors import LostUpdateError, ResultError

nnx: Any = pytest.importorskip("flax.nnx")
optax: Any = pytest.importorskip("optax")
pytestmark = pytest.mark.libraries("flax", "optax")

IMAGES = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)


class Model(nnx.Module):  # type: ignore[misc]
    """Running means, random numbers, and a layer that is there twice."""

    def __init__(self, rngs: Any) -> None:
        self.one = nnx.Linear(3, 3, rngs=rngs)
        self.again = self.one
        self.norm = nnx.BatchNorm(3, rngs=rngs)
        self.dropout = nnx.Dropout(0.25, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.dropout(self.norm(self.again(nnx.relu(self.one(x)))))


def start() -> tuple[Any, Any, Any]:
    """A model, an optimizer and a metric."""
    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
    return model, optimizer, nnx.metrics.Average("loss")


def step(model: Any, optimizer: Any, metric: Any, x: Any) -> Any:
    """Changes all three, and returns one of them."""
    loss, slopes = nnx.value_and_grad(lambda model: jnp.mean((model(x) - 1) ** 2))(model)
    optimizer.update(model, slopes)
    metric.update(loss=loss)
    return model, loss


def state_after(function: Callable[..., Any]) -> list[Any]:
    """The numbers in all objects, and the losses, after three steps."""
    model, *others = start()
    losses = []
    for _ in range(3):
        returned, loss = function(model, *others, IMAGES)
        assert returned is model
        losses.append(loss)
    return [*map(_numbers, jax.tree.leaves(nnx.state((model, *others)))), *losses]


def _numbers(leaf: Any) -> Any:
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    """What `nnx.jit` makes of it."""
    return state_after(nnx.jit(step))


@pytest.fixture
def remote_step(client: Client) -> Any:
    """The step on the common server."""
    return client.persistent_call(step)


def add(variable: Any, x: Any) -> Any:
    """Changes a variable, and nothing else."""
    variable[...] = variable[...] + x


@pytest.mark.slow
def test_a_training_leaves_what_nnx_jit_leaves(
    client: Client, remote_step: Any, expected: list[Any]
) -> None:
    """Parameters, moments, running means, counts of random numbers, metrics: bit for bit."""
    before = client.statistics()
    found = state_after(remote_step)
    after = client.statistics()
    assert after.traces - before.traces == 1
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_objects_that_are_given_up_are_whole_again(client: Client) -> None:
    """With donation what did not change comes back, too; here from arrays on the server."""

    def scale(model: Any, x: Any) -> None:
        model.again.kernel[...] *= x

    model = nnx.Linear(3, 3, rngs=nnx.Rngs(0))
    pair = nnx.List([model])
    pair.append(nnx.Dict(same=model.kernel, again=model))
    expected = model.kernel[...] * 4
    scaling = client.persistent_call(lambda pair, x: scale(pair[1], x), donate_argnums=0)
    scaling.remote(pair, 2.0)
    scaling.remote(pair, 2.0)
    np.testing.assert_array_equal(model.kernel[...], expected)
    np.testing.assert_array_equal(model.bias[...], np.zeros(3))
    assert pair[1].same is model.kernel


def test_inline_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a server the objects are changed in the same way."""
    monkeypatch.setenv("JAXD_INLINE", "1")
    variable = nnx.Variable(jnp.ones(2))
    persistent_call(add)(variable, 1.0)
    np.testing.assert_array_equal(variable[...], [2.0, 2.0])


def test_a_variable_alone_by_name_and_twice(client: Client) -> None:
    """Wherever it stands among the arguments, in whatever container."""
    remote_add = client.persistent_call(lambda pair, *, x: add(pair["one"], x) or pair["one"][...])
    variable = nnx.Variable(jnp.ones(2))
    np.testing.assert_array_equal(remote_add({"one": variable}, x=2.0), [3.0, 3.0])
    np.testing.assert_array_equal(variable[...], [3.0, 3.0])

    def both(one: Any, other: Any) -> None:
        one[...] += 1
        other[...] *= 2

    client.persistent_call(both)(variable, variable)
    np.testing.assert_array_equal(variable[...], [8.0, 8.0])


def test_an_awaited_call_brings_the_changes(client: Client) -> None:
    """They are there when the call has been awaited."""
    variable = nnx.Variable(jnp.ones(2))
    asyncio.run(client.persistent_call(add).call_async(variable, 1.0))
    np.testing.assert_array_equal(variable[...], [2.0, 2.0])


def test_results_in_numpy_leave_arrays_of_jax_in_the_variables(client: Client) -> None:
    """What a variable holds is nnx's business, not the result's form."""
    variable = nnx.Variable(jnp.ones(2))
    client.persistent_call(add, results="numpy")(variable, 1.0)
    assert isinstance(variable.get_raw_value(), jax.Array)


def test_results_in_numpy_leave_keys_of_jax_in_the_variables(client: Client) -> None:
    """Typed ones, with which jax draws on."""

    def split(variable: Any) -> None:
        variable[...] = jax.random.split(variable[...])[0]

    variable = nnx.Variable(jax.random.key(5))
    client.persistent_call(split, results="numpy")(variable)
    expected = jax.random.split(jax.random.key(5))[0]
    assert jax.random.key_data(variable[...]).tolist() == jax.random.key_data(expected).tolist()


def test_a_submitted_call_may_use_objects_and_not_change_them(client: Client) -> None:
    """Nobody could tell when they would change; the error says so."""
    variable = nnx.Variable(jnp.ones(2))
    reading = client.persistent_call(lambda variable, x: variable[...] + x)
    np.testing.assert_array_equal(reading.submit(variable, 1.0).result(), [2.0, 2.0])
    with pytest.raises(LostUpdateError, match="Call the function instead of submitting it"):
        client.persistent_call(add).submit(variable, 1.0).result()
    np.testing.assert_array_equal(variable[...], [1.0, 1.0])


def test_a_change_that_cannot_come_home_is_an_error(client: Client) -> None:
    """An attribute that this process does not have; then nothing is changed."""
    model = Model(nnx.Rngs(0))

    def sets(model: Any) -> None:
        model.one.bias[...] += 1
        model.note = lambda: None

    with pytest.raises(ResultError, match="sets the attribute 'note' of a Model"):
        client.persistent_call(sets)(model)
    assert not hasattr(model, "note")
    np.testing.assert_array_equal(model.one.bias[...], np.zeros(3))

    def replaces(model: Any) -> None:
        model.train = helper

    with pytest.raises(ResultError, match=r"in the place of Model.train"):
        client.persistent_call(replaces)(model)


def cached_training(function: Callable[..., Any]) -> list[Any]:
    """The losses of calls with cached objects, and what the caller's own hold afterwards."""
    model, optimizer, metric = start()
    cached = nnx.cached_partial(function, model, optimizer)
    losses = [cached(metric, IMAGES)[1] for _ in range(4)]
    losses.append(function(model, optimizer, metric, IMAGES)[1])  # the caller's own, in between
    losses.append(cached(metric, IMAGES)[1])
    return [*losses, *map(_numbers, jax.tree.leaves([nnx.state(model), nnx.state(optimizer)]))]


def test_by_the_rule_of_jax_objects_are_trees(client: Client) -> None:
    """As to `jax.jit`: the caller's stay as they are, and one that is there twice is two."""

    def bump(pair: list[Any]) -> list[Any]:
        pair[0][...] += 1.0
        return pair

    shared = nnx.Variable(jnp.zeros(()))
    for jitted in (jax.jit(bump), client.persistent_call(bump, static="jax")):
        one, other = jitted([shared, shared])
        assert (float(one[...]), float(other[...]), float(shared[...])) == (1.0, 0.0, 0.0)
    gradient = client.persistent_call(lambda pair: bump(pair)[0][...] ** 2, static="jax").grad()
    slopes = gradient([nnx.Variable(jnp.float32(2.0)), nnx.Variable(jnp.float32(2.0))])
    assert [float(each[...]) for each in slopes] == [6.0, 0.0]


def test_objects_that_nnx_caches_are_the_callers_own(client: Client) -> None:
    """`nnx.cached_partial` over a function that is called without it in between: one program."""
    function = client.persistent_call(step)
    function(*start(), IMAGES)
    traces = client.statistics().traces
    got = cached_training(function)
    assert client.statistics().traces == traces
    jax.tree.map(np.testing.assert_array_equal, got, cached_training(nnx.jit(step)))


def test_a_cached_object_keeps_its_attributes(client: Client) -> None:
    """As in nnx: the caller's own would not have the change."""

    def sets(model: Any, x: Any) -> None:
        model.one.bias[...] += 1
        model.note = x

    for jitted in (client.persistent_call(sets), nnx.jit(sets)):
        model = Model(nnx.Rngs(0))
        cached = nnx.cached_partial(jitted, model)
        with pytest.raises(ValueError, match="cached_partial"):
            cached(1.0)
        np.testing.assert_array_equal(model.one.bias[...], np.zeros(3))


class Derived(nnx.Linear):  # type: ignore[misc]
    """Its base class has defaults that its own signature does not show."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


@pytest.mark.slow
def test_a_new_module_has_the_defaults_of_its_base(client: Client) -> None:
    """Functions that `__init__` of a base class has put into it."""

    def sets(model: Any) -> None:
        model.one = Derived(3, 3, rngs=nnx.Rngs(1))
        model.low = nnx.LoRALinear(3, 3, lora_rank=2, rngs=nnx.Rngs(2))

    def outcome(jitted: Callable[..., Any]) -> Any:
        model = Model(nnx.Rngs(0))
        jitted(model)
        assert model.one.dot_general is jax.lax.dot_general
        return model.one(IMAGES), model.low(IMAGES)

    got, expected = outcome(client.persistent_call(sets)), outcome(nnx.jit(sets))
    jax.tree.map(np.testing.assert_array_equal, got, expected)


def helper() -> None:
    """Stands in the place of a method."""


def test_an_object_of_a_class_that_only_jax_takes_apart_is_updated(client: Client) -> None:
    """Wherever jax finds it."""

    class Box(SimpleNamespace):
        """A node of jax's trees."""

    jax.tree_util.register_pytree_node(
        Box, lambda box: ((box.inner,), None), lambda _, children: Box(inner=children[0])
    )
    box = Box(inner=nnx.Variable(jnp.zeros(())))
    client.persistent_call(lambda box: add(box.inner, 1.0))(box)
    assert float(box.inner[...]) == 1


def test_new_objects_of_a_function_without_any_come_home(client: Client) -> None:
    """Whole: what the class has by default, types of numbers, and what nnx keeps of them."""

    def make() -> Any:
        return nnx.Linear(2, 3, rngs=nnx.Rngs(0)), nnx.Rngs(1)

    made, rngs = client.persistent_call(make)()
    expected, others = make()
    x = jnp.ones((1, 2))
    np.testing.assert_array_equal(made(x), expected(x))
    np.testing.assert_array_equal(jax.random.key_data(rngs()), jax.random.key_data(others()))
    made.extra = nnx.Param(jnp.ones(1))
    assert made.dot_general is expected.dot_general
    assert "extra" in nnx.state(made)


def test_a_method_of_a_module_changes_it(client: Client) -> None:
    """As `nnx.jit` over a method."""

    class Counting(nnx.Module):  # type: ignore[misc]
        """Counts its calls, and keeps what it saw last."""

        def __init__(self) -> None:
            self.calls = nnx.data(jnp.zeros((), jnp.int32))

        @client.persistent_call
        def __call__(self, x: Any) -> Any:
            self.calls = self.calls + 1
            self.last = nnx.Intermediate(x)
            return x * 2

    model = Counting()
    model(1.0)
    np.testing.assert_array_equal(model(3.0), 6.0)
    assert (int(model.calls), float(model.last[...])) == (2, 3.0)


def test_equal_objects_share_a_program(client: Client) -> None:
    """However they came about: attributes in another order, a copy, one that was changed back."""
    function = client.persistent_call(lambda model, x: model(x))
    model = Model(nnx.Rngs(0))
    function(model, IMAGES)
    before = client.statistics()
    copy = nnx.clone(model)
    mode = copy.dropout.__dict__.pop("deterministic")
    copy.dropout.deterministic = mode
    function(copy, IMAGES)
    model.eval()
    model.train()
    function(model, IMAGES)
    assert client.statistics().traces == before.traces


@pytest.mark.parametrize("change", ["deterministic", "alias"])
def test_other_objects_have_programs_of_their_own(client: Client, change: str) -> None:
    """A static attribute counts, and so does which objects are the same one."""
    function = client.persistent_call(lambda model, x: model(x))
    function(Model(nnx.Rngs(0)), IMAGES)
    before = client.statistics()
    model = Model(nnx.Rngs(0))
    if change == "alias":
        model.again = nnx.clone(model.one)
    else:
        model.dropout.deterministic = True
    function(model, IMAGES)
    assert client.statistics().traces == before.traces + 1


def test_what_is_warmed_cleared_and_explained_is_such_a_call(
    client: Client, remote_step: Any
) -> None:
    """They are about the program that a call with the same arguments runs."""
    arguments = *start(), IMAGES
    remote_step.warm(*arguments)
    assert str(remote_step.why(*arguments)).startswith("step: hit")
    before = client.statistics()
    remote_step(*arguments)
    assert client.statistics().traces == before.traces
    assert remote_step.clear() >= 1
    assert not str(remote_step.why(*arguments)).startswith("step: hit")


def test_threads_share_a_function(client: Client) -> None:
    """Each has objects of its own."""
    remote_add = client.persistent_call(add)
    variables = [nnx.Variable(jnp.full(2, float(i))) for i in range(4)]
    threads = [threading.Thread(target=remote_add, args=(each, 1.0)) for each in variables]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [float(each[...][0]) for each in variables] == [1.0, 2.0, 3.0, 4.0]
