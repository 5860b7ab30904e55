"""Transformations by name, through a real server."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd import Client, PersistentFunction, persistent_call
from jaxd.errors import ConfigurationError
from tests.end_to_end.counting import BUILT, WARM, costs
from tests.live_server import LiveServer
from tests.warm_clients import run_light

X, Y = np.arange(1.0, 4.0, dtype="f4"), np.full(3, 2, "f4")


def loss(x: Any, y: Any) -> Any:
    """A number."""
    return jnp.sum(jnp.sin(x) * y**2)


def scaled(x: Any, y: Any, mode: str = "up") -> Any:
    """Something with a static argument."""
    return x * y if mode == "up" else x / y


def _equal(ours: Any, theirs: Any) -> None:
    assert str(jax.tree.structure(ours)) == str(jax.tree.structure(theirs))
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def _both(made: Any, cotangents: Any) -> Any:
    value, pull_back = made
    return value, pull_back(cotangents)


def _pulled_back(primals: Any, cotangents: Any) -> Any:
    value, pull_back = jax.vjp(loss, *primals)
    return value, pull_back(cotangents)


def _rows() -> dict[str, tuple[Any, Any, tuple[Any, ...]]]:
    xx = np.stack([X, Y])
    return {
        "grad": (lambda f: f.grad(), jax.grad(loss), (X, Y)),
        "value_and_grad": (
            lambda f: f.value_and_grad([0, 1]),
            jax.value_and_grad(loss, [0, 1]),
            (X, Y),
        ),
        "vmap": (lambda f: f.vmap((0, None)), jax.vmap(loss, (0, None)), (xx, Y)),
        "jacfwd, jacrev": (lambda f: f.jacrev().jacfwd(1), jax.jacfwd(jax.jacrev(loss), 1), (X, Y)),
        "hessian": (lambda f: f.hessian((0, 1)), jax.hessian(loss, (0, 1)), (X, Y)),
        "grad, vmap": (
            lambda f: f.grad().vmap(in_axes=(0, None)),
            jax.vmap(jax.grad(loss), in_axes=(0, None)),
            (xx, Y),
        ),
        "jvp": (lambda f: f.jvp, lambda p, t: jax.jvp(loss, p, t), ((X, Y), (Y, X))),
        "vjp": (
            lambda f: lambda p, ct: _both(f.vjp(*p), ct),
            _pulled_back,
            ((X, Y), np.float32(2)),
        ),
        "jvp, vmap": (
            lambda f: f._transformed("jvp", has_aux=False).vmap(in_axes=((0, None), (None, 0))),
            jax.vmap(lambda p, t: jax.jvp(loss, p, t), in_axes=((0, None), (None, 0))),
            ((xx, Y), (Y, xx)),
        ),
    }


@pytest.mark.parametrize("name", _rows())
def test_what_comes_home_is_what_jax_gives(shared: Client, name: str) -> None:
    """Bit for bit, also where one is on top of the other."""
    derive, expected, args = _rows()[name]
    _equal(derive(shared.persistent_call(loss))(*args), jax.jit(expected)(*args))


def test_each_is_built_once_and_kept_as_a_function_of_its_own(client: Client) -> None:
    """Asked for twice it is the same one, and the base function is none of it."""

    def fresh(x: Any) -> Any:
        return jnp.sum(jnp.tanh(x) ** 3)

    function = client.persistent_call(fresh)
    with costs(client) as first:
        function.grad()(X)
    with costs(client) as second:
        client.persistent_call(fresh).grad(argnums=0)(X)
    with costs(client) as base:
        function(X)
    assert (first, second, base) == (BUILT, WARM, BUILT)
    assert function.grad() is function.grad(argnums=0)
    assert function.grad() is not function.grad(argnums=(0,))


def _keys(function: PersistentFunction[..., Any]) -> list[bytes]:
    functions = [
        function,
        function.grad(),
        function.grad(1),
        function.grad(allow_int=True),
        function.grad(has_aux=True),
        function.value_and_grad(),
        function.jacfwd(),
        function.jacrev(),
        function._transformed("jvp", has_aux=False),
        function._transformed("vjp", has_aux=False),
        function.hessian(),
        function.vmap(),
        function.vmap((0, None)),
        function.vmap([0, None]),
        function.vmap(out_axes=1),
        function.vmap(axis_name="i"),
        function.vmap(axis_size=3),
        function.vmap().vmap(),
        function.grad().vmap(),
        function.vmap().grad(),
        function.grad().grad(),
    ]
    bindings = [each._binding for each in functions]
    return [bound.snapshots.spec(bound.config()).key for bound in bindings]


def test_every_change_of_the_list_is_another_key(shared: Client) -> None:
    """The kind, each option, how many there are, and their order."""
    keys = _keys(shared.persistent_call(loss))
    assert len(set(keys)) == len(keys)
    assert _keys(shared.persistent_call(loss)) == keys


def test_a_change_of_the_function_is_another_key_for_each(shared: Client) -> None:
    """And of its options: what a transformation is of counts as much as what it is."""

    def other(x: Any, y: Any) -> Any:
        return jnp.sum(jnp.cos(x) * y**2)

    keys = set(_keys(shared.persistent_call(loss)))
    assert not keys & set(_keys(shared.persistent_call(other)))
    for options in (
        {"extra_key": "k"},
        {"keep_unused": True},
        {"config": {"jax_enable_x64": True}},
    ):
        changed: Any = shared.persistent_call(loss, **options)
        assert not keys & set(_keys(changed)), options


FACTOR = 2.0


def test_a_change_underneath_is_noticed(shared: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the transformed function as by the plain one."""
    gradient = shared.persistent_call(lambda x: x * FACTOR).grad()
    assert float(gradient(3.0)) == 2.0
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    assert float(gradient(3.0)) == 5.0


def test_a_pull_back_is_a_tree_as_that_of_jax(shared: Client) -> None:
    """It may be given on, to jax and to the server, and another one has the same structure."""
    function = shared.persistent_call(loss)
    pulls = [function.vjp(X * n, Y)[1] for n in (1, 2)]
    jitted: Any = jax.jit(lambda pull, ct: pull(ct))
    steps: list[Any] = [jitted, shared.persistent_call(lambda pull, ct: pull(ct))]
    for step in steps:
        for n, pull in zip((1, 2), pulls, strict=True):
            np.testing.assert_allclose(step(pull, 1.0)[0], jax.grad(loss)(X * n, Y), rtol=1e-6)
    assert jitted._cache_size() == 1
    structures: list[Any] = [jax.tree.structure(pull) for pull in pulls]
    assert structures[0] == structures[1]


def test_static_arguments_stay_static(shared: Client) -> None:
    """By position, by name, and where the others come as one tuple."""
    function = shared.persistent_call(scaled, static_argnames="mode")
    _equal(function.vmap()(X, Y, mode="up"), jnp.asarray(X * Y))
    _equal(function.vmap()(X, Y, "down"), jnp.asarray(X / Y))
    value, pull_back = function.vjp(X, Y, mode="up")
    left, right = pull_back(np.ones(3, "f4"))
    _equal((value, left, right), (jnp.asarray(X * Y), jnp.asarray(Y), jnp.asarray(X)))
    _equal(function.jvp((X, Y), (Y, None), mode="up")[1], jnp.asarray(Y * Y))


def test_static_arguments_from_the_end_stay_there(shared: Client) -> None:
    """They are mapped over by none, and stand behind all primals."""
    function = shared.persistent_call(lambda x, y, n: x / y * n, static_argnums=-1)
    _equal(function.vmap()(X, Y, 3), jnp.asarray(X / Y * 3))
    _equal(function.jvp((X, Y), (Y, None), n=3)[1], jnp.asarray(Y / Y * 3))
    value, _ = function.vjp(X, Y, n=3)
    _equal(value, jnp.asarray(X / Y * 3))


def test_what_has_no_derivative_is_none(shared: Client) -> None:
    """Where jax has an array of `float0`, which no client without jax knows."""
    function = shared.persistent_call(lambda x, n: jnp.sum(x) * n)
    assert function.grad((0, 1), allow_int=True)(X, 3)[1] is None
    value, pull_back = function.vjp(X, 3)
    _, nothing = pull_back(np.float32(1))
    assert (float(value), nothing) == (18.0, None)


def test_a_pullback_keeps_its_primals(shared: Client) -> None:
    """It can be called again, whatever was overwritten or donated meanwhile; aux comes last."""

    def cubed(x: Any) -> Any:
        return jnp.sum(x**3), x + 1

    function = shared.persistent_call(cubed, donate_argnums=0)
    x = X.copy()
    kept = jnp.asarray(X)
    for given in (x, kept):
        value, pull_back, aux = function.vjp(given, has_aux=True)
        x[:] = 0
        _equal((value, aux), (jnp.sum(jnp.asarray(X) ** 3), jnp.asarray(X + 1)))
        for weight in (1.0, 2.0):
            _equal(pull_back(np.float32(weight)), (jnp.asarray(3 * weight * X**2),))
    assert not kept.is_deleted()
    found = function.jvp((X,), (Y,), has_aux=True)
    _equal(found, jax.jvp(cubed, (jnp.asarray(X),), (jnp.asarray(Y),), has_aux=True))


def test_jax_transforms_what_they_return(shared: Client) -> None:
    """The value and the pullback are operations of the caller's own jax as well."""
    function = shared.persistent_call(loss)

    def slope(x: Any) -> Any:
        value, pull_back = function.vjp(x, Y)
        return value + jnp.sum(pull_back(jnp.float32(1))[0])

    expected = jax.grad(lambda x: loss(x, Y) + jnp.sum(jax.grad(loss)(x, Y)))(X)
    np.testing.assert_allclose(jax.jit(jax.grad(slope))(X), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("derive", "args"),
    [
        (lambda f: f.grad(), (np.arange(3), Y)),
        (lambda f: f.grad(5), (X, Y)),
        (lambda f: f.grad("x"), (X, Y)),
        (lambda f: f.vmap(1.5), (X, Y)),
        (lambda f: f.vmap((0,)), (X, Y)),
        (lambda f: f.vmap(), (X, np.ones(4, "f4"))),
        (lambda f: f.vmap(out_axes=3), (X, Y)),
        (lambda f: f.vmap().grad(), (X, Y)),
        (lambda f: f.hessian(), (1j, Y)),
    ],
    ids=["int", "argnums", "no number", "axis", "axes", "sizes", "out_axes", "scalar", "complex"],
)
def test_the_errors_are_those_of_jax(shared: Client, derive: Any, args: Any) -> None:
    """Type and words."""

    class Local:
        """The same names as a persistent function has, of jax."""

        def __init__(self, function: Any) -> None:
            self.function = function

        def __getattr__(self, name: str) -> Any:
            return lambda *a, **k: Local(getattr(jax, name)(self.function, *a, **k))

    with pytest.raises((TypeError, ValueError)) as theirs:
        jax.jit(derive(Local(loss)).function)(*args)
    with pytest.raises(type(theirs.value)) as ours:
        derive(shared.persistent_call(loss))(*args)
    assert str(ours.value).splitlines()[0] == str(theirs.value).splitlines()[0]


def test_what_cannot_be_part_of_a_key_is_refused(shared: Client) -> None:
    """With the way that is left."""
    with pytest.raises(ConfigurationError, match=r"persistent_call\(jax.vmap\(f"):
        shared.persistent_call(loss).vmap(in_axes=object())


def test_inside_of_another_function_it_is_what_it_stands_for(shared: Client) -> None:
    """Traced there, and part of that function's key."""
    inner: Any = shared.persistent_call(loss)
    rows = [(inner.grad(), jax.grad(loss)), (inner.grad(1), jax.grad(loss, 1)), (inner, loss)]
    seen = []
    for slope, plain in rows:
        outer = shared.persistent_call(lambda x, y, slope=slope: slope(x, y) * 2)
        seen.append(outer.fingerprint)
        _equal(outer(X, Y), jax.jit(lambda x, y, plain=plain: plain(x, y) * 2)(X, Y))
    assert len(set(seen)) == 3


def test_what_jax_here_makes_of_it_can_be_made_persistent(shared: Client) -> None:
    """`jax.grad(f)` holds a copy of what is in `f.__dict__`, where nothing is that stays here."""
    inner: Any = shared.persistent_call(loss)
    _equal(shared.persistent_call(jax.grad(inner))(X, Y), jax.jit(jax.grad(loss))(X, Y))


def test_donation_is_for_the_function_itself(shared: Client) -> None:
    """Its derivative needs what it would give up."""
    function = shared.persistent_call(lambda x: jnp.sum(x**2), donate_argnums=0)
    there = shared.put(X)
    for _ in range(2):
        _equal(function.grad()(there), jnp.asarray(2 * X))


def test_people_see_what_is_transformed(shared: Client) -> None:
    """In what is said of it, and why it was built."""

    def step(x: Any) -> Any:
        return jnp.sum(x**5)

    step.__qualname__ = "step"
    function = shared.persistent_call(step)
    function.grad()(X)
    assert repr(function.grad()).startswith("<persistent grad(<function step")
    why = function.value_and_grad().why(X)
    assert why.function == "value_and_grad(step)"
    assert "transformations: grad → value_and_grad" in str(why)


def test_a_client_without_jax_needs_none(live: LiveServer) -> None:
    """In a fresh process that imports numpy alone."""
    program = """
import sys, numpy as np
from jaxd import persistent_call

@persistent_call
def energy(x, scale):
    import jax.numpy as jnp
    return scale * jnp.sum(x ** 3)

class Spring:
    @persistent_call
    def energy(self, x, scale=2.0):
        return scale * (x ** 3).sum()

rows = np.arange(6, dtype="f4").reshape(2, 3)
print(np.asarray(energy.grad().vmap(in_axes=(0, None))(rows, 2.0)).tolist())
value, pull_back = energy.vjp(rows, 1.0)
slope, _ = pull_back(np.float32(1))
print(np.asarray(Spring().energy.grad().vmap()(rows)).tolist())
print(float(value), np.asarray(slope).tolist() == (3 * rows**2).tolist(), "jax" in sys.modules)
"""
    done = run_light(live, program)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "[[0.0, 6.0, 24.0], [54.0, 96.0, 150.0]]",
        "[[0.0, 6.0, 24.0], [54.0, 96.0, 150.0]]",
        "225.0 True False",
    ]


def test_without_a_server_it_is_jax_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `JAXD_INLINE=1`."""
    monkeypatch.setenv("JAXD_INLINE", "1")
    function = persistent_call(scaled, static_argnames="mode")
    _equal(function.vmap()(X, Y, mode="down"), jnp.asarray(X / Y))
    _equal(function.grad(1).vmap()(X, Y), jnp.asarray(X))
