"""A persistent function on an instance: every name of it has the instance, as the call has."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import pickle
import types
from typing import Any

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd import Client, PersistentFunction, persistent_call
from jaxd.api.method import PersistentMethod
from jaxd.api.transforms import TransformMethods
from jaxd_protocol.fingerprint import walk
from tests.end_to_end.counting import BUILT, WARM, costs

X, Y = np.arange(1.0, 4.0, dtype="f4"), np.full(3, 2, "f4")


class Plain:
    """What jax sees: the same methods without us."""

    base = 3.0

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def loss(self, x: Any, y: Any = 2.0) -> Any:
        return jnp.sum(self.scale * x**2 * y)

    def powers(self, mode: str, x: Any, n: Any = 2) -> Any:
        return self.scale * (x**n if mode == "up" else x / n)

    @classmethod
    def of_class(cls, x: Any, y: Any = 2.0) -> Any:
        return jnp.sum(x**3 * y) * cls.base

    @staticmethod
    def of_nothing(x: Any, y: Any = 2.0) -> Any:
        return jnp.sum(x**3 * y)


def made(client: Client) -> Any:
    """The same class, each method persistent."""
    call = client.persistent_call

    class Model(Plain):
        loss = call(Plain.loss)
        powers = call(Plain.powers, static_argnames="mode")
        of_class = classmethod(call(Plain.of_class.__func__))  # type: ignore[attr-defined]
        of_nothing = staticmethod(call(Plain.of_nothing))

    class Other(Model):
        base = 5.0

    Model.Other = Other  # type: ignore[attr-defined]
    return Model


@pytest.fixture(scope="module")
def model(shared: Client) -> Any:
    return made(shared)(3.0)


def equal(ours: Any, theirs: Any) -> None:
    assert str(jax.tree.structure(ours)) == str(jax.tree.structure(theirs))
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def _our_vjp(function: Any) -> Any:
    def both(primals: Any, cotangents: Any) -> Any:
        value, pull_back = function.vjp(*primals)
        return value, pull_back(cotangents)

    return both


def _vjp(function: Any) -> Any:
    def both(primals: Any, cotangents: Any) -> Any:
        value, pull_back = jax.vjp(function, *primals)
        return value, pull_back(cotangents)

    return both


ROWS: dict[str, tuple[Any, Any, tuple[Any, ...]]] = {
    "grad": (lambda f: f.grad(), jax.grad, (X,)),
    "the last one": (lambda f: f.grad(-1), lambda f: jax.grad(f, -1), (X, 2.0)),
    "two of them": (lambda f: f.grad([1, 0]), lambda f: jax.grad(f, [1, 0]), (X, Y)),
    "value": (lambda f: f.value_and_grad(1), lambda f: jax.value_and_grad(f, 1), (X, Y)),
    "vmap": (lambda f: f.vmap(), jax.vmap, (np.stack([X, Y]), Y[:2])),
    "axes": (lambda f: f.vmap((0, None)), lambda f: jax.vmap(f, (0, None)), (np.stack([X, Y]), Y)),
    "jacobians": (lambda f: f.jacrev().jacfwd(1), lambda f: jax.jacfwd(jax.jacrev(f), 1), (X, Y)),
    "hessian": (lambda f: f.hessian((0, 1)), lambda f: jax.hessian(f, (0, 1)), (X, Y)),
    "jvp": (lambda f: f.jvp, lambda f: lambda p, t: jax.jvp(f, p, t), ((X, Y), (Y, X))),
    "vjp": (_our_vjp, _vjp, ((X, Y), np.float32(2))),
    "on top": (
        lambda f: f.grad().vmap((0, None)),
        lambda f: jax.vmap(jax.grad(f), (0, None)),
        (np.stack([X, Y]), Y),
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_a_transformation_is_that_of_jax_of_the_method(model: Any, row: str) -> None:
    """The instance counts among neither positions nor axes, whatever the defaults."""
    ours, theirs, args = ROWS[row]
    equal(ours(model.loss)(*args), jax.jit(theirs(Plain(3.0).loss))(*args))


def test_methods_of_a_class_have_their_class(shared: Client) -> None:
    """That on which they are found, also for a subclass; static ones are functions."""
    cls = made(shared)
    for holder in (cls, cls(1.0)):
        equal(holder.of_nothing.grad()(X), jax.grad(Plain.of_nothing)(X))
    if isinstance(cls.of_class, PersistentMethod):  # until Python 3.12
        equal(cls.of_class.grad()(X), jax.jit(jax.grad(Plain.of_class))(X))
        assert float(cls.Other.of_class.submit(X, 1.0).result()) == 5 * float(np.sum(X**3))
    assert float(cls.Other.of_class(X, 1.0)) == 5 * float(np.sum(X**3))


def test_static_arguments_are_counted_without_the_instance(model: Any) -> None:
    """By position and name, and where the others come as one tuple."""
    powers, plain = model.powers, Plain(3.0).powers
    equal(powers.vmap()("up", X, Y), plain("up", X, jnp.asarray(Y)))
    equal(powers.vmap((None, 0, None))("down", X, 2.0), plain("down", jnp.asarray(X), 2.0))
    equal(powers.vmap()(mode="down", x=X, n=Y), plain("down", X, jnp.asarray(Y)))
    value, pull_back = powers.vjp(X, mode="up")
    equal((value, *pull_back(np.ones(3, "f4"))), (plain("up", jnp.asarray(X)), jnp.asarray(6 * X)))
    equal(powers.jvp((X, 2.0), (Y, None), mode="down")[1], jnp.asarray(3 * Y / 2))


def test_a_method_that_is_derived_of_a_function_is_one(shared: Client) -> None:
    """`slope = loss.grad(1)` in a class takes the instance first, as `jax.grad(loss, 1)` does."""

    class Model(Plain):
        slope: Any = shared.persistent_call(Plain.loss).grad(argnums=1)

    plain = Plain(3.0)
    equal(Model(3.0).slope(X), jax.grad(plain.loss)(X))
    stacked = np.stack([X, Y])
    equal(Model(3.0).slope.vmap()(stacked), jax.vmap(jax.grad(plain.loss))(stacked))


def test_every_way_to_call_has_the_instance(model: Any) -> None:
    """The server's answers are those of the call."""
    expected = float(model.loss(X, 1.0))
    assert float(model.loss.remote(X, 1.0)) == expected
    assert float(model.loss.submit(X, y=1.0).result()) == expected
    assert float(asyncio.run(model.loss.call_async(X, 1.0))) == expected
    assert [float(x) for x in model.loss.map([X, X], [1.0, 2.0])] == [expected, 2 * expected]
    assert list(model.loss.map()) == []


def test_every_question_is_about_calls_on_the_instance(shared: Client) -> None:
    """And what is built ahead is what such a call finds."""

    class Model(Plain):
        step: Any = shared.persistent_call(lambda self, x, y: jnp.tanh(x * self.scale) + y)

    model = Model(1.25)
    assert model.step.warm(X, 1.0).verdict == "compile"
    with costs(shared) as spent:
        model.step(X, 1.0)
    assert spent == WARM
    assert model.step.why(X, 1.0).verdict == model.step.why().verdict == "hit"
    assert model.step.why(Y[:1], 1.0).verdict == "compile"
    assert "1.25" in model.step.jaxpr(X, 1.0)
    assert "tanh" in model.step.lower(X, 1.0).as_text()
    assert model.step.fingerprint == Model.step.fingerprint
    assert model.step.clear() >= 1
    assert model.step.why(X, 1.0).verdict == "compile"


def test_calls_and_derivatives_share_what_is_built(shared: Client) -> None:
    """On one instance, on an equal one, and by the class."""

    class Model(Plain):
        step: Any = shared.persistent_call(lambda self, x: jnp.sum(jnp.cos(x * self.scale)))

    with costs(shared) as first:
        Model(1.5).step(X)
        Model(1.5).step.grad()(X)
    with costs(shared) as second:
        Model.step(Model(1.5), X)
        Model(1.5).step.grad(argnums=0)(X)
    assert first == {name: 2 * count for name, count in BUILT.items()}
    assert second == {name: 2 * count for name, count in WARM.items()}


def test_an_instance_with_arrays_is_traced(shared: Client) -> None:
    """Where its class is a node of jax's trees: one program for all that differ in numbers."""

    @functools.partial(jax.tree_util.register_dataclass, data_fields=["scale"], meta_fields=[])
    class Model(Plain):
        step: Any = shared.persistent_call(Plain.loss)

    with costs(shared) as spent:
        for scale in (2.0, 3.0):
            equal(Model(scale).step.grad()(X), jax.grad(Plain(scale).loss)(X))
    assert spent == BUILT | WARM


@pytest.mark.slow
def test_tracers_go_the_way_of_any_call(model: Any) -> None:
    """jax here differentiates over the method, and over what was derived of it."""
    equal(jax.grad(model.loss)(X), jax.grad(Plain(3.0).loss)(X))
    second = jax.jacfwd(jax.grad(Plain(3.0).loss))
    equal(jax.jacfwd(model.loss.grad())(jnp.asarray(X)), second(X))


def test_inside_of_another_function_it_is_the_method(shared: Client, model: Any) -> None:
    """Captured, given as an argument, and made persistent once more."""
    method, slope = model.loss, model.loss.grad()
    outer = shared.persistent_call(lambda x: method(x) + jnp.sum(slope(x)))
    plain = Plain(3.0)
    equal(outer(X), jax.jit(lambda x: plain.loss(x) + jnp.sum(jax.grad(plain.loss)(x)))(X))
    apply = shared.persistent_call(lambda f, x: f(x))
    equal(apply(model.loss, X), jax.jit(plain.loss)(X))
    equal(shared.persistent_call(model.loss)(X), jax.jit(plain.loss)(X))


def test_what_it_means_is_what_a_bound_method_means() -> None:
    """In the key of a function that captures one."""
    function = persistent_call(lambda self, x: x * self.scale)

    class Model(Plain):
        step: Any = function

    model = Model(2.0)
    plain_method = types.MethodType(function, model)
    assert walk((model.step,), "f").fingerprint == walk((plain_method,), "f").fingerprint
    assert walk(model.step, "f").fingerprint == walk(plain_method, "f").fingerprint
    assert walk((Model(2.5).step,), "f").fingerprint != walk((plain_method,), "f").fingerprint
    plain: Any = pickle.loads(cloudpickle.dumps(model.step))
    assert float(plain(4.0)) == 8.0


def test_it_looks_like_a_method(model: Any) -> None:
    """To `inspect`, to `==` and to people."""
    loss = model.loss
    assert str(inspect.signature(loss)) == "(x: 'Any', y: 'Any' = 2.0) -> 'Any'"
    assert (loss.__name__, loss.__self__) == ("loss", model)
    assert loss == model.loss
    assert hash(loss) == hash(model.loss)
    assert loss != type(model)(3.0).loss
    assert loss != model.powers
    assert {loss: 1}[model.loss] == 1
    assert repr(loss).startswith("<persistent <bound method Plain.loss of <tests.client")
    assert repr(loss.grad().vmap()).startswith("<persistent <bound method vmap(grad(")
    assert loss.__wrapped__(X, 0.0) == 0.0
    type(model).again = loss  # bound already
    assert model.again is type(model).again is loss


def test_a_copy_is_that_of_a_method(shared: Client) -> None:
    """Of an object that holds one: on the copied instance, and still on the server."""

    class Model(Plain):
        step: Any = shared.persistent_call(Plain.loss)

    model = Model(3.0)
    model.kept = model.step  # type: ignore[attr-defined]
    again: Any = copy.deepcopy(model)
    again.scale = 5.0
    assert copy.copy(model.step) == model.step
    assert copy.deepcopy(Model.step) is copy.copy(Model.step) is Model.step
    assert (again.kept.__self__, again.kept.__func__) == (again, Model.step)
    assert float(again.kept(X, 1.0)) == 5 * float(np.sum(X**2))


SELFLESS = {
    "fingerprint": "of the function, whatever the instance",
    "clear": "forgets what is built for all instances",
    "clear_cache": "as clear",
}


def test_no_name_of_a_function_loses_the_instance() -> None:
    """A new one has to be added to the method, or to the names that have nothing to do with it."""
    public = {name for name in dir(PersistentFunction) if not name.startswith("_")}
    own = {
        name
        for name in (*vars(PersistentMethod), *vars(TransformMethods))
        if not name.startswith("_")
    }
    assert public == own | set(SELFLESS)


class Counter:
    """A class method of a module's class, as from Python 3.13 on it is found."""

    @classmethod
    @persistent_call
    def step(cls, x: Any = 1.0) -> Any:
        return x * 2


@pytest.mark.parametrize(
    "ask",
    [
        lambda f: f.grad(),
        lambda f: f.submit(3.0),
        lambda f: f.remote(3.0),
        lambda f: f.warm(3.0),
        lambda f: f.lower(3.0),
        lambda f: f.jaxpr(3.0),
        lambda f: asyncio.run(f.call_async(3.0)),
    ],
    ids=["grad", "submit", "remote", "warm", "lower", "jaxpr", "call_async"],
)
def test_a_lost_class_is_an_error(monkeypatch: pytest.MonkeyPatch, ask: Any) -> None:
    """Never a class method of which the first argument is something else."""
    function = vars(Counter)["step"].__func__
    monkeypatch.setattr("jaxd.api.method._CLASS_IS_LOST", True)
    monkeypatch.setenv("JAXD_INLINE", "1")
    found: Any = types.MethodType(function, Counter)
    with pytest.raises(TypeError, match=r"vars\(Counter\)\['step'\].__func__.__get__\(cls\)"):
        ask(found)
    bound = function.__get__(Counter)
    assert float(bound.submit(3.0).result()) == 6.0
    assert float(bound.grad()(3.0)) == 2.0
