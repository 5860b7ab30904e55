"""jax on the client, over code that calls a persistent function: each row beside plain jax."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd import Client, RemoteArray, connect, last_error
from tests.end_to_end.counting import costs
from tests.live_server import LiveServer

X, Y = np.arange(1.0, 4.0, dtype="f4"), np.full(3, 2, "f4")
XX = np.stack([X, X + 1])
KEY = jax.random.key(1)
READY: Any = jax.block_until_ready

Function = Callable[..., Any]


class Point(NamedTuple):
    x: Any
    y: Any


# what is called ----------------------------------------------------------------------------------


def loss(x: Any, y: Any) -> Any:
    return (jnp.sin(x) * y**2).sum()


def power(x: Any, n: Any) -> Any:
    return (x**n).sum()


def chosen(x: Any, mask: Any) -> Any:
    return jnp.where(mask, x, x**2)


def noisy(key: Any, x: Any) -> Any:
    return (jax.random.normal(key, (3,)) * x).sum()


def split(key: Any, x: Any) -> Any:
    return jax.random.split(key), x * 2


def by_mode(mode: str, x: Any, y: Any = 1.0) -> Any:
    return (x**2 if mode == "square" else x).sum() * y


def scaled(x: Any, y: Any, n: Any) -> Any:
    """A static number has another result than a traced one."""
    return x**2 * y * (n if isinstance(n, int) else 100)


def swapped(tree: Any) -> Any:
    return {"b": Point(tree["a"].y, tree["z"]), "a": (tree["a"].x * 2, None)}


def largest(x: Any) -> Any:
    return (x**2).sum(), jnp.argmax(x)


def halves(x: Any, b: Any) -> Any:
    return (x * b).sum()


def parts(x: Any, y: Any) -> Any:
    """One result of each argument, one of both, one of none, and an argument itself."""

    def body(carry: Any, row: Any) -> Any:
        return (carry[0] + row, carry[1] * 2), carry[1]

    of_x, of_none = jax.lax.scan(body, (0.0, 1), x)
    return of_x, jax.lax.cond(y > 1, lambda: y, lambda: -y), jnp.sin(x) * y, of_none, y


def step(carry: Any, x: Any) -> Any:
    return carry * x, carry + x


def constant_step(carry: Any, x: Any) -> Any:
    return carry + x, 1


def doubled(x: Any) -> Any:
    return x * 2


@jax.custom_vjp
def hundredfold(x: Any) -> Any:
    """Its derivative is not what one would think, so that it is seen that it is used."""
    return jnp.sin(x)


hundredfold.defvjp(lambda x: (hundredfold(x), x), lambda x, ct: (ct * 100 * x,))


def own_rule(x: Any) -> Any:
    return hundredfold(x).sum()


# what is done with it ----------------------------------------------------------------------------


def _thrice(f: Function) -> Function:
    once = jax.grad(lambda x: f(x, Y))
    twice = jax.grad(lambda x: once(x).sum())
    return jax.grad(lambda x: twice(x).sum())


def _twice_pulled(f: Function) -> Any:
    pull_back = jax.vjp(f, X, Y)[1]
    return pull_back(jnp.float32(1)), pull_back(jnp.float32(2))


def _summed(f: Function) -> Function:
    def body(carry: Any, x: Any) -> Any:
        return carry + f(x, Y), None

    return lambda xx: jax.lax.scan(body, 0.0, xx)[0]


def _where(f: Function) -> Function:
    return lambda x: jax.lax.cond(x[0] > 1.5, lambda: f(x, Y), lambda: 0.0)


def _tree() -> Any:
    return {"z": X, "a": Point(Y, XX)}


LOSS: dict[str, Callable[[Function], Any]] = {
    "jit": lambda f: jax.jit(f)(X, Y),
    "grad": lambda f: jax.grad(f, (0, 1))(X, Y),
    "value_and_grad": lambda f: jax.value_and_grad(f)(X, Y),
    "jit, grad": lambda f: jax.jit(jax.grad(f, (0, 1)))(X, Y),
    "jvp": lambda f: jax.jvp(f, (X, Y), (Y, X)),
    "linearize": lambda f: jax.linearize(f, X, Y)[1](Y, X),
    "vjp, called twice": _twice_pulled,
    "vmap": lambda f: jax.vmap(f)(XX, XX),
    "vmap with axes": lambda f: jax.vmap(f, (1, None))(XX.T, Y),
    "vmap, grad": lambda f: jax.vmap(jax.grad(f))(XX, XX),
    "vmap of vmap": lambda f: jax.vmap(jax.vmap(f, (0, None)), (None, 0))(XX, XX),
    "grad of a sum of vmap": lambda f: jax.grad(lambda a: jax.vmap(f)(a, XX).sum())(XX),
    "jacrev of jacrev": lambda f: jax.jacrev(jax.jacrev(f))(X, Y),
    "jacfwd of jacfwd": lambda f: jax.jacfwd(jax.jacfwd(f))(X, Y),
    "jit, hessian": lambda f: jax.jit(jax.hessian(f))(X, Y),
    "third derivative": lambda f: _thrice(f)(X),
    "scan, grad": lambda f: jax.grad(_summed(f))(XX),
    "checkpoint, grad": lambda f: jax.grad(jax.checkpoint(lambda x: f(x, Y) ** 2))(X),
    "cond taken": lambda f: jax.jit(jax.grad(_where(f)))(X + 1),
    "cond not taken": lambda f: jax.jit(jax.grad(_where(f)))(X),
    "vmap of cond": lambda f: jax.vmap(_where(f))(XX),
    "among other steps": lambda f: jax.grad(lambda x: jnp.sin(f(jnp.cos(x), x)))(X),
    "python numbers": lambda f: jax.value_and_grad(f, (0, 1))(2.0, 3.0),
}

OTHERS: dict[str, tuple[Function, Callable[[Function], Any], dict[str, Any]]] = {
    "an integer": (power, lambda f: jax.jit(jax.grad(f))(X, 3), {}),
    "an integer that has a tangent": (
        power,
        lambda f: jax.jvp(f, (X, 3), (Y, np.zeros((), jax.dtypes.float0))),
        {},
    ),
    "integers, mapped": (power, lambda f: jax.vmap(f, (None, 0))(X, np.arange(3)), {}),
    "gradient of an integer": (power, lambda f: jax.grad(f, (0, 1), allow_int=True)(X, 3), {}),
    "an integer that comes out": (largest, lambda f: jax.grad(f, has_aux=True)(X), {}),
    "an integer that comes out, with a tangent": (largest, lambda f: jax.jvp(f, (X,), (Y,)), {}),
    "bools": (chosen, lambda f: jax.vmap(jax.grad(f))(X, X > 1), {}),
    "bools in jit": (chosen, lambda f: jax.jit(jax.jacrev(f))(X, X > 1), {}),
    "a key": (noisy, lambda f: jax.grad(f, 1)(KEY, X), {}),
    "keys, mapped, in jit": (
        noisy,
        lambda f: jax.jit(jax.vmap(jax.grad(f, 1), (0, None)))(jax.random.split(KEY, 4), X),
        {},
    ),
    "a key of numbers": (noisy, lambda f: jax.jit(f)(jax.random.PRNGKey(1), X), {}),
    "a key of another generator": (
        noisy,
        lambda f: jax.grad(f, 1)(jax.random.key(1, impl="rbg"), X),
        {},
    ),
    "keys that come out": (split, lambda f: jax.vmap(f)(jax.random.split(KEY, 3), X), {}),
    "static by position": (
        by_mode,
        lambda f: jax.grad(lambda x, y: f("square", x, y), (0, 1))(X, 2.0),
        {"static_argnums": 0},
    ),
    "static by position from the end": (
        scaled,
        lambda f: jax.vmap(jax.grad(lambda x, y: f(x, y, 3)))(X, Y),
        {"static_argnums": -1},
    ),
    "static by name": (
        by_mode,
        lambda f: jax.jit(jax.vmap(lambda x: f(x=x, mode="sum")))(XX),
        {"static_argnames": "mode"},
    ),
    "trees": (swapped, lambda f: jax.jit(f)(_tree()), {}),
    "trees, mapped": (
        swapped,
        lambda f: jax.vmap(f)({"z": X, "a": Point(Y, np.ones((3, 2), "f4"))}),
        {},
    ),
    "weak types": (halves, lambda f: jax.grad(f, (0, 1))(3.0, jnp.ones(2, jnp.bfloat16)), {}),
    "weak types in jit": (halves, lambda f: jax.jit(f)(3.0, jnp.ones(2, jnp.bfloat16)), {}),
    "complex": (
        doubled,
        lambda f: jax.jit(jax.jacfwd(f, holomorphic=True))(X + 1j),
        {},
    ),
    "the step of a scan": (step, lambda f: jax.lax.scan(f, 1.0, X), {}),
    "the body of a loop": (doubled, lambda f: jax.lax.while_loop(lambda x: x < 50, f, 1.0), {}),
    "a derivative of its own": (own_rule, lambda f: jax.jit(jax.vmap(jax.grad(f)))(XX), {}),
    "results that are the same for all": (
        parts,
        lambda f: jax.vmap(f, (0, None), ((0, None), None, 0, None, None))(XX, 2.0),
        {},
    ),
    "the same, by the other argument": (
        parts,
        lambda f: jax.vmap(f, (None, 0), ((None, None), 0, 0, None, 0))(X, Y),
        {},
    ),
    "the same, mapped twice, in jit": (
        parts,
        lambda f: jax.jit(
            jax.vmap(
                jax.vmap(f, (0, None), ((0, None), None, 0, None, None)),
                (None, 0),
                ((None, None), 0, 0, None, 0),
            )
        )(XX, Y),
        {},
    ),
    "the same, differentiated": (
        parts,
        lambda f: jax.grad(
            lambda x, y: sum(jax.tree.leaves(jax.tree.map(jnp.sum, jax.vmap(f, (0, None))(x, y)))),
            (0, 1),
        )(XX, 2.0),
        {},
    ),
    "the step of a scan with a result that is the same for all": (
        constant_step,
        lambda f: jax.vmap(lambda xs: jax.lax.scan(f, 1.0, xs), out_axes=(0, None))(XX),
        {},
    ),
    "transposed": (doubled, lambda f: jax.linear_transpose(f, X)(Y), {}),
    "donated": (own_rule, lambda f: jax.grad(lambda x: f(x * 1))(X), {"donate_argnums": 0}),
    "no arrays at all": (doubled, lambda f: jax.jit(f)(jnp.zeros((0, 3))), {}),
}


@pytest.fixture(scope="module")
def shared(live: LiveServer) -> Iterator[Client]:
    with connect(live.unix) as client:
        yield client


@cache
def _persistent(client: Client, function: Function) -> Function:
    return client.persistent_call(function)


def _locally(use: Callable[[Function], Any], function: Function) -> Any:
    """What plain jax gives, in one program: that takes a fifth of the time."""
    return jax.jit(lambda: use(function))()


def _bare(leaf: Any) -> Any:
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def _alike(ours: Any, theirs: Any) -> None:
    assert str(jax.tree.structure(ours)) == str(jax.tree.structure(theirs))
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert getattr(one, "weak_type", False) == getattr(other, "weak_type", False)
        if one.dtype != jax.dtypes.float0:
            np.testing.assert_allclose(
                _bare(one).astype("c16"), _bare(other).astype("c16"), rtol=1e-5, atol=1e-6
            )


COMBINED = (
    "vmap of vmap",
    "grad of a sum of vmap",
    "jacrev of jacrev",
    "jacfwd of jacfwd",
    "third derivative",
    "vmap of cond",
)
"""Of steps that other rows take."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in COMBINED)) for name in LOSS]
)
def test_a_transformation_gives_what_it_gives_for_a_local_function(
    shared: Client, name: str
) -> None:
    """Values, dtypes, weak types."""
    use = LOSS[name]
    _alike(use(_persistent(shared, loss)), _locally(use, loss))


SOAK = (
    "bools in jit",
    "a key of another generator",
    "a key of numbers",
    "trees, mapped",
    "complex",
    "the step of a scan",
    "the body of a loop",
)
"""What the rows beside them show as well, but for what can go wrong in jax."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.soak] * (name in SOAK)) for name in OTHERS]
)
def test_so_does_one_over_arguments_and_results_of_any_kind(shared: Client, name: str) -> None:
    """Integers, bools, keys, static arguments and trees."""
    function, use, options = OTHERS[name]
    _alike(use(shared.persistent_call(function, **options)), _locally(use, function))


def test_the_settings_of_the_moment_count(shared: Client) -> None:
    """They are those under which jax traces, not those of the thread in which its program runs."""
    program = jax.jit(jax.grad(lambda x: (shared.persistent_call(doubled)(x) ** 2).sum()))
    with jax.enable_x64(True):
        found = program(np.arange(3.0))
    assert found.dtype == "float64"
    np.testing.assert_array_equal(np.asarray(found), 8 * np.arange(3.0))


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("jit", 1),
        ("grad", 2),
        ("value_and_grad", 2),
        ("jit, grad", 1),
        ("vmap", 1),
        ("vmap, grad", 2),
        ("jit, hessian", 1),
        ("cond not taken", 0),
    ],
)
def test_so_many_calls_are_made(shared: Client, name: str, calls: int) -> None:
    """What a program does not need is not asked for; nothing waits on the server in between."""
    function, use = _persistent(shared, loss), LOSS[name]
    READY(use(function))
    before = shared.statistics()
    READY(use(function))
    after = shared.statistics()
    assert after.calls - before.calls == calls
    assert after.traces == before.traces
    assert after.values <= before.values  # fewer where another client has just left


def test_each_step_is_built_once_for_all_clients(live: LiveServer) -> None:
    """As functions of their own, under keys that another client finds again."""

    def fresh(x: Any) -> Any:
        return (jnp.cosh(x) * x).sum()

    spent = []
    for _ in range(2):
        with connect(live.unix) as client, costs(client) as cost:
            READY(jax.vmap(jax.grad(client.persistent_call(fresh)))(XX))
        spent.append(cost)
    assert (spent[0]["traces"], spent[0]["compiles"]) == (3, 3)  # the plain one, for its form
    assert "traces" not in spent[1]


def test_large_arrays_stay_on_the_server(shared: Client) -> None:
    """Between the steps of a derivative that jax takes one by one."""
    there = shared.put(np.ones((200, 100), "f4"))
    square = shared.persistent_call(lambda x: x**2)
    assert isinstance(jax.vmap(square)(there), RemoteArray)
    gradient = jax.grad(lambda x: square(x).sum())(there)
    assert isinstance(gradient, RemoteArray)
    np.testing.assert_array_equal(np.asarray(gradient), np.full((200, 100), 2, "f4"))


def test_a_transformation_by_name_can_be_transformed_here(shared: Client) -> None:
    """And the other way round a function that jax has transformed can be made persistent."""
    slope = shared.persistent_call(loss).grad()
    ours = jax.jit(jax.jacfwd(slope))(X, Y)
    _alike(ours, jax.jit(jax.jacfwd(jax.grad(loss)))(X, Y))


def test_no_tracer_is_kept(shared: Client) -> None:
    """jax would say which."""
    function = shared.persistent_call(doubled)
    with jax.checking_leaks():
        np.testing.assert_array_equal(jax.jit(jax.vmap(function))(XX), XX * 2)
        np.testing.assert_array_equal(jax.jacfwd(function)(X), 2 * np.eye(3))


def test_programs_may_run_in_many_threads(shared: Client) -> None:
    """Some call while others do, and with what a program has not computed yet."""
    cube = shared.persistent_call(lambda x: (x**3).sum())
    slope, shifted = jax.jit(jax.grad(cube)), jax.jit(lambda x: x + cube(x))

    def work(start: float) -> list[bool]:
        rows = [X + start + k for k in range(5)]
        slopes = [np.allclose(slope(row), 3 * row**2) for row in rows]
        return slopes + [
            np.allclose(cube(shifted(row)), ((row + (row**3).sum()) ** 3).sum(), rtol=1e-4)
            for row in rows
        ]

    with ThreadPoolExecutor(4) as threads:
        assert all(map(all, threads.map(work, [0.0, 1.0, 2.0, 3.0])))


def test_a_change_of_the_function_counts_when_jax_traces_anew(shared: Client) -> None:
    """As for a function of jax's own: what is traced is traced."""

    def scaled(x: Any) -> Any:
        return x * factor

    factor = 2.0
    function = shared.persistent_call(scaled)
    jitted = jax.jit(function)
    assert float(jitted(3.0)) == 6.0
    factor = 5.0
    assert (float(jitted(3.0)), float(jax.grad(function)(3.0))) == (6.0, 5.0)


# errors ------------------------------------------------------------------------------------------


def test_what_the_function_raises_while_it_is_traced_arrives_as_itself(shared: Client) -> None:
    """Also inside of `jax.jit`: that is when the server traces it."""

    def odd(x: Any) -> Any:
        raise LookupError(f"no {x.shape}")

    for use in (jax.jit, jax.grad, jax.vmap):
        with pytest.raises(LookupError, match="no "):
            use(shared.persistent_call(odd))(X)


def test_what_a_call_raises_arrives_as_itself_where_jax_does_not_wait(shared: Client) -> None:
    """With the remote traceback."""
    function = shared.persistent_call(jnp.log, config={"jax_debug_nans": True})
    with pytest.raises(FloatingPointError, match="nan") as caught:
        jax.vmap(function)(-X)
    assert any("log" in note for note in caught.value.__notes__)


def test_inside_of_a_program_its_text_is_in_the_error_of_jax(shared: Client) -> None:
    """jax chooses its type, by the way that it takes; the original is kept."""
    function = shared.persistent_call(jnp.log, config={"jax_debug_nans": True})
    program = jax.jit(lambda x: function(x) + 1)
    assert np.isfinite(program(X)).all()
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="invalid value"):
        READY(program(-X))
    assert isinstance(last_error(), FloatingPointError)
