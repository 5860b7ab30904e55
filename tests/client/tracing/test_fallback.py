"""What the server cannot answer runs in this process, right and with a warning."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify

import jaxd
from jaxd import Client, FallbackWarning, errors
from jaxd.api.launch.jit_hook import hooked
from jaxd.tracing import fallback
from tests.xla_flags import devices


class Unpackable:
    """Travels nowhere, is hashed by its identity, and is a static argument all the same."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __reduce__(self) -> Any:
        raise TypeError("stays here")


@pytest.fixture(autouse=True)
def _warned_of_nothing() -> None:
    fallback._warned.clear()


@contextmanager
def falling_back(count: int = 1) -> Iterator[list[warnings.WarningMessage]]:
    """So many functions warn within it, once each."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield seen
    assert [each.category for each in seen] == [FallbackWarning] * count, [
        str(each.message) for each in seen
    ]


def listing(seen: list[Any]) -> Callable[[Any], Any]:
    """A function that changes what it captures, which the server refuses when it traces it."""

    def listed(x: Any) -> Any:
        seen.append(x.shape)
        return x * 2

    return listed


def scaled(x: Any, by: Unpackable) -> Any:
    """Takes a static argument that cannot travel."""
    return x * by.factor


def local(client: Client, function: Callable[..., Any], **options: Any) -> Any:
    """The function, which falls back."""
    return client.persistent_call(function, fallback="local", **options)


def test_what_cannot_be_traced_there_is_traced_here_once(client: Client) -> None:
    """And asked of the server once: from then on such calls run here at once."""
    seen: list[Any] = []
    function = local(client, listing(seen))
    with falling_back() as warned:
        results = [function(np.ones(3, np.float32)) for _ in range(3)]
    assert all(isinstance(each, jax.Array) for each in results)
    np.testing.assert_array_equal(results[2], [2.0, 2.0, 2.0])
    assert seen == [(3,)]
    before = client.statistics()
    function(np.ones(3, np.float32))
    after = client.statistics()
    assert (after.calls, after.traces) == (before.calls, before.traces)
    text = str(warned[0].message)
    assert "listed runs under plain jax.jit in this process" in text
    assert "changes a list, 'seen'" in text
    assert warned[0].filename == __file__


SPREAD_OUT = """
import warnings

import jax, jaxd, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

x = np.arange(16, dtype=np.float32).reshape(8, 2)
mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
explicit = NamedSharding(mesh, P("x", "y"))
alone = NamedSharding(jax.make_mesh((1,), ("x",), axis_types=(AxisType.Explicit,)), P("x"))
automatic = NamedSharding(jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,)), P("d"))
captured = jax.device_put(x, automatic)

def by_type(x):
    return x * x * len([each for each in jax.typeof(x).sharding.spec if each])

def adding(x):
    return x + captured

@jaxd.persistent_call(fallback="error")
def served(x):
    return x * 3

for function in by_type, adding:
    for where in explicit, alone, automatic:
        if function is by_type or where is automatic:
            array = jax.device_put(x, where)
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                result = jaxd.persistent_call(function, fallback="local")(array)
            assert {each.category for each in seen} <= {jaxd.FallbackWarning}, seen
            wanted = jax.jit(function)(array)
            np.testing.assert_array_equal(result, wanted)
            assert result.sharding == wanted.sharding, (result.sharding, wanted.sharding)

for error in (by_type, jax.device_put(x, explicit)), (adding, x):
    try:
        jaxd.persistent_call(error[0], fallback="error")(error[1])
    except jaxd.errors.PackingError as refused:
        print(str(refused).partition(": ")[0])
function = jaxd.persistent_call(by_type, fallback="local")
with warnings.catch_warnings():
    warnings.simplefilter("ignore", jaxd.FallbackWarning)
    array = jax.device_put(x, explicit)
    spec = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=explicit)
    for given in array, spec:
        assert function.lower(given).compile()(array).sharding == explicit
    gradient = jax.jit(jax.grad(lambda x: function(x).sum()))
    assert gradient(array).sharding == explicit
    array = jax.device_put(x, automatic)
    np.testing.assert_array_equal(jax.grad(lambda x: (served(x) * x).sum())(array), 6 * x)
try:
    jaxd.persistent_call(by_type, fallback="error").lower(spec)
except jaxd.errors.PackingError as refused:
    print(str(refused).partition(": ")[0])
one = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Explicit,))
with jax.set_mesh(one):
    here = jax.numpy.asarray(x)
    np.testing.assert_array_equal(served(here), 3 * x)
    np.testing.assert_array_equal(jax.grad(lambda x: served(x).sum())(here), 0 * x + 3)
sent = jaxd.put(jax.device_put(x, explicit))
np.testing.assert_array_equal(jaxd.persistent_call(lambda x: x @ x.T)(sent), x @ x.T)
"""


@pytest.mark.slow
def test_arrays_that_are_spread_over_devices_of_this_process(live: Any) -> None:
    """The type of such an array says how, and so do results; what is put on the server is whole."""
    done = live.run(SPREAD_OUT, **devices(4))
    assert (done.stderr, done.stdout.splitlines()) == (
        "",
        [
            "an argument is placed on devices of this process",
            (
                "a jax array that a function captures, or an object holds, "
                "is placed on devices of this process"
            ),
            "a spec is placed on devices of this process",
        ],
    )


def test_a_function_of_jax_in_a_result_that_can_only_be_called_there(client: Client) -> None:
    """What `jax.vjp` returns is a tree of arrays, around a function that jax has made."""

    def pulled(x: Any) -> Any:
        return jax.vjp(lambda y: y**2 * 5, x)[1]

    with falling_back():
        assert local(client, pulled)(2.0)(3.0) == (60.0,)
    with pytest.raises(errors.ResultError, match=r"VJP of jax.* Call it in the function"):
        client.persistent_call(pulled)(2.0)


def test_programs_of_this_process_are_counted_and_dropped(client: Client) -> None:
    """Beside those of the server, of which there are none."""
    function = local(client, listing([]))
    with falling_back():
        function(1.0)
    function(2.0)
    assert function._cache_size() == 1
    function.clear_cache()
    assert function._cache_size() == 0


def test_fallback_error_is_the_servers_answer(client: Client) -> None:
    """As option, and as the tests of this repository are run."""
    with pytest.raises(errors.LostUpdateError):
        client.persistent_call(listing([]), fallback="error")(1.0)
    with pytest.raises(errors.LostUpdateError):
        client.persistent_call(listing([]))(1.0)


def test_a_client_decides_for_its_functions(client: Client) -> None:
    """Unless a function decides for itself."""
    with jaxd.connect(str(client.caller.session.address), fallback="local") as falling:
        with falling_back():
            assert float(falling.persistent_call(listing([]))(1.0)) == 2.0
        with pytest.raises(errors.LostUpdateError):
            falling.persistent_call(listing([]), fallback="error")(1.0)


def test_an_error_of_the_functions_own_is_final(client: Client) -> None:
    """What a `raise` or `assert` of the user's has raised is not tried again here."""
    traced = []

    def refusing(x: Any) -> Any:
        traced.append(x)
        raise KeyError("mine")

    def asserting(x: Any) -> Any:
        assert x.ndim == 2, "two"
        return x

    for function, kind in ((refusing, KeyError), (asserting, AssertionError)):
        with pytest.raises(kind) as caught:
            local(client, function)(jnp.ones(3))
        assert "on the jaxd server" in "".join(caught.value.__notes__)
    assert traced == []


def test_an_error_that_jax_raises_here_too_is_shown_alone(client: Client) -> None:
    """That of this process, without the server's; and nothing is warned of."""

    def mismatched(x: Any) -> Any:
        return jnp.dot(x, jnp.ones(7))

    with falling_back(0), pytest.raises(TypeError, match="contracting dimensions") as caught:
        local(client, mismatched)(jnp.ones(3))
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert not any("jaxd" in note for note in getattr(caught.value, "__notes__", ()))


def test_other_ways_to_call(client: Client) -> None:
    """Each falls back, and one warning is enough."""
    by = Unpackable(2.0)
    function = local(client, scaled, static_argnums=1)
    traced = local(client, listing([]))
    with falling_back(2):
        assert float(function(1.0, by)) == 2.0
        assert float(function.submit(1.5, by).result()) == 3.0
        assert float(function.remote(2.5, by)) == 5.0
        assert list(map(float, function.map([1.0, 2.0], [by, by]))) == [2.0, 4.0]
        assert float(asyncio.run(function.call_async(3.5, by))) == 7.0
        assert function.warm(jax.ShapeDtypeStruct((2,), "float32"), by).verdict == "compile"
        assert "mul" in function.jaxpr(1.0, by)
        assert "multiply" in function.lower(1.0, by).as_text()
        assert float(traced.submit(1.0).result()) == 2.0
        assert list(map(float, traced.map([1.0, 2.0]))) == [2.0, 4.0]
        assert float(asyncio.run(traced.call_async(2.0))) == 4.0
        assert float(traced.remote(3.0)) == 6.0


def test_arguments_of_submitted_calls_may_be_overwritten(client: Client) -> None:
    """Also where the server refuses them later."""
    function = local(client, listing([]))
    x = np.ones(3, np.float32)
    with falling_back():
        future = function.submit(x)
        x[:] = 7
        np.testing.assert_array_equal(future.result(), [2.0, 2.0, 2.0])


def test_transformations_and_methods(client: Client) -> None:
    """Each is a function of its own, which falls back by itself."""
    seen: list[Any] = []

    class Model:
        factor = 3.0

        @client.persistent_call(fallback="local")
        def applied(self, x: Any) -> Any:
            seen.append(x.shape)
            return x * x * self.factor

    function = local(client, lambda x: listing(seen)(x) * x)
    with falling_back(4):
        assert float(function.grad()(3.0)) == 12.0
        np.testing.assert_array_equal(function.vmap()(jnp.arange(3.0)), [0.0, 2.0, 8.0])
        assert float(Model().applied(2.0)) == 12.0
        assert float(Model().applied.grad()(2.0)) == 12.0


def test_inside_of_what_jax_traces_here(client: Client) -> None:
    """`jax.grad(f)` and `jax.jit` of a function that falls back trace it here."""
    function = local(client, listing([]))
    with falling_back():
        assert float(jax.grad(lambda x: function(x) * x)(3.0)) == 12.0
        assert float(jax.jit(function)(4.0)) == 8.0


def test_a_derivative_that_cannot_be_traced_there(client: Client) -> None:
    """Its own rule changes what it captures: that is seen when the function itself has run."""
    count = 0

    @jax.custom_vjp
    def function(x: Any) -> Any:
        return x * 2

    def backward(_: Any, coming: Any) -> tuple[Any]:
        nonlocal count
        count += 1
        return (coming + 1,)

    function.defvjp(lambda x: (x * 2, None), backward)
    served = hooked(function, client=client, fallback="local")
    assert float(served(3.0)) == 6.0
    with falling_back():
        assert [float(jax.grad(served)(x)) for x in (3.0, 4.0)] == [2.0, 2.0]
    assert count == 1
    strict = client.persistent_call(function, fallback="error")
    with pytest.raises(errors.LostUpdateError, match="count"):
        jax.grad(strict)(3.0)


@pytest.mark.slow
def test_checkify_looks_into_a_function(client: Client) -> None:
    """As into one of `jax.jit`: it is traced here, also when no argument is a tracer."""

    def taken(x: Any, index: Any, by: Any) -> Any:
        return x[index] / by

    def drawn(key: Any, by: Any) -> Any:
        return jax.random.normal(key) / by

    function, random = local(client, taken), local(client, drawn)
    checked = partial(checkify.checkify, errors=checkify.float_checks | checkify.index_checks)
    x = jnp.ones(2)
    many = jax.vmap(function, (None, 0, None))
    for each in (function, jax.jit(function), function.grad(), jax.grad(function)):
        assert "division by zero" in str(checked(each)(x, 1, 0.0)[0].get())
        assert "out-of-bounds" in str(checked(each)(x, 5, 2.0)[0].get())
        assert checked(each)(x, 1, 2.0)[0].get() is None
    assert "out-of-bounds" in str(checked(many)(x, jnp.array([0, 7]), 2.0)[0].get())
    assert "division by zero" in str(checked(random)(jax.random.key(1), 0.0)[0].get())
    assert checkify.checkify(function)(x, 1, 0.0)[0].get() is None  # no checks but the user's own
    with pytest.raises(errors.TracerError, match="checkify cannot check what is in it"):
        checked(client.persistent_call(taken))(x, 1, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("check", [checkify.check, checkify.debug_check])
def test_checks_in_a_function_are_made(client: Client, check: Any) -> None:
    """Also those that nobody misses where checkify does not see them; others stay on the server."""

    def small(x: Any) -> Any:
        check(x < 1, "{x} is large", x=x)
        return x + 1

    def inside(x: Any) -> Any:
        return jax.lax.fori_loop(0, 2, lambda _, y: small(y), x)

    warnings.simplefilter("ignore", FallbackWarning)
    checked = checkify.checkify(local(client, small))
    assert [str(checked(x)[0].get())[:12] for x in (2.0, 0.0)] == ["2.0 is large", "None"]
    assert "1.0 is large" in str(checkify.checkify(local(client, inside))(0.0)[0].get())
    words = "checkify cannot check what is in it|checkify.check which was not functionalized"
    with pytest.raises((errors.TracerError, ValueError), match=words):  # of jaxd, or of jax there
        checkify.checkify(client.persistent_call(small))(2.0)
    before = client.statistics().calls
    assert checkify.checkify(client.persistent_call(lambda x: x + 1))(2.0)[1] == 3
    assert client.statistics().calls == before + 1


def test_a_closure_over_a_tracer(client: Client) -> None:
    """What jax traces around it is captured, as under `jax.jit`."""

    @jax.jit
    def outer(x: Any) -> Any:
        return local(client, lambda y: x + y)(1.0)

    with falling_back():
        assert float(outer(2.0)) == 3.0


def test_arrays_on_the_server_are_fetched_once(client: Client) -> None:
    """And the warning says so."""
    remote = client.persistent_call(lambda x: x + 1).remote(np.ones(3, np.float32))
    function = local(client, listing([]))
    with falling_back() as warned:
        for _ in range(2):
            np.testing.assert_array_equal(function(remote), [4.0, 4.0, 4.0])
    assert "The arrays on the server that it takes are fetched, once." in str(warned[0].message)


def test_donated_arguments_are_donated(client: Client) -> None:
    """As `jax.jit` does it on this platform."""
    function = local(client, listing([]), donate_argnums=0)
    given = jnp.ones(3)
    expected = jnp.ones(3)
    with falling_back():
        function(given)
    jax.jit(lambda x: x * 2, donate_argnums=0)(expected)
    assert given.is_deleted() == expected.is_deleted()


def test_a_new_version_of_the_function_is_asked_anew(client: Client) -> None:
    """What falls back is a version of a function, and not the function for ever."""
    seen: Any = []

    def kept(x: Any) -> Any:
        if isinstance(seen, list):
            seen.append(x.shape)
        return x * 2

    function = local(client, kept)
    with falling_back():
        assert float(function(1.0)) == 2.0
    assert function.why(1.0).verdict == "local"
    seen = ()
    assert function.why(1.0).verdict == "compile"
    before = client.statistics()
    assert float(function(1.0)) == 2.0
    after = client.statistics()
    assert (after.traces - before.traces, after.fallback_calls) == (1, before.fallback_calls)


def test_it_is_counted(client: Client) -> None:
    """Calls, and functions, by the server; `why` gives the reason."""
    function = local(client, scaled, static_argnums=1)
    by = Unpackable(2.0)
    before = client.statistics()
    with falling_back():
        for x in (1.0, 2.0, 3.0):
            function(x, by)
    after = client.statistics()
    assert after.fallback_calls - before.fallback_calls == 3
    assert after.fallback_functions - before.fallback_functions == 1
    why = function.why(1.0, by)
    assert why.verdict == "local"
    assert "stays here" in str(why)
    assert why.to_dict()["verdict"] == "local"


def test_callbacks_run_here_in_order_and_once(client: Client) -> None:
    """What is called back has not been called for the attempt on the server."""
    called: list[float] = []
    seen: list[Any] = []

    def noting(x: Any) -> Any:
        seen.append(x.shape)
        for factor in (1, 2):
            jax.experimental.io_callback(
                lambda v: called.append(float(v)), None, x * factor, ordered=True
            )
        return x

    with falling_back():
        function = local(client, noting)
        jax.block_until_ready([function(1.0), function(5.0)])
        jax.effects_barrier()
    assert called == [1.0, 2.0, 5.0, 10.0]


def test_what_has_run_is_not_repeated(client: Client) -> None:
    """An error of the program itself, and of what it calls back, is final."""
    called = []

    def failing(x: Any) -> Any:
        called.append(float(x))
        raise ValueError("in the callback")

    def calling(x: Any) -> Any:
        return jax.experimental.io_callback(failing, x, x)

    with falling_back(0), pytest.raises(Exception, match="in the callback"):
        local(client, calling)(jnp.float32(2.0))
    assert called == [2.0]


def test_a_result_that_cannot_travel(client: Client) -> None:
    """As `jax.jit` returns it: an object of a class that only this process has registered."""

    def returning(x: Any) -> Any:
        return jax.tree_util.Partial(Unpackable(2.0).__reduce__, x)

    expected = jax.jit(returning)(1.0)
    with falling_back():
        found = local(client, returning)(1.0)
    assert float(found.args[0]) == float(expected.args[0])


def test_stages(client: Client) -> None:
    """What the server cannot compile, or not return, is compiled in this process."""
    before, weights = client.statistics().fallback_calls, jnp.arange(3.0)
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        with falling_back():
            compiled = local(client, lambda x: x * weights).lower(jnp.ones(3)).compile()
    finally:
        jax.config.update("jax_disable_most_optimizations", False)
    np.testing.assert_array_equal(compiled(jnp.ones(3)), weights)
    assert "HloModule" in compiled.as_text()

    def returning(x: Any) -> Any:
        return jax.tree_util.Partial(Unpackable(2.0).__reduce__, x * weights)

    with falling_back():
        compiled = local(client, returning).lower(jnp.ones(3)).compile()
        found = compiled(jnp.ones(3))
    np.testing.assert_array_equal(found.args[0], weights)
    assert client.statistics().fallback_calls == before + 2


def test_a_setting_that_no_server_has(client: Client) -> None:
    """Is jax's own here."""
    function = local(client, lambda x: x * 2)
    with falling_back():
        jax.config.update("jax_disable_most_optimizations", True)
        try:
            assert float(function(1.0)) == 2.0
            assert float(function.remote(1.0)) == 2.0
        finally:
            jax.config.update("jax_disable_most_optimizations", False)


def test_an_attribute_that_is_missing_is_looked_for_here(client: Client) -> None:
    """What Python raises in the user's code may be ours; if not, it is raised here again."""

    def reading(x: Any) -> Any:
        return x * jax.no_such_attribute  # type: ignore[attr-defined]

    with falling_back(0), pytest.raises(AttributeError, match="no_such_attribute") as caught:
        local(client, reading)(1.0)
    assert "on the jaxd server" not in "".join(getattr(caught.value, "__notes__", ()))


def test_what_fails_here_too_is_asked_of_the_server_again(client: Client) -> None:
    """Nothing is remembered of it."""
    wrong = [True]

    def perhaps(x: Any) -> Any:
        return jnp.dot(x, jnp.ones(7 if wrong[0] else 3))

    function = local(client, perhaps)
    with falling_back(0):
        with pytest.raises(TypeError):
            function(jnp.ones(3))
        wrong[0] = False
        before = client.statistics().traces
        assert float(function(jnp.ones(3))) == 3.0
    assert client.statistics().traces == before + 1


@pytest.mark.slow
@pytest.mark.libraries("flax")
def test_flax_modules_are_changed_as_by_a_call(client: Client) -> None:
    """As `nnx.jit` does it."""
    from flax import nnx

    model, seen = nnx.BatchNorm(3, rngs=nnx.Rngs(0)), []

    def normalize(model: Any, x: Any) -> Any:
        seen.append(x.shape)
        return model(x)

    expected = nnx.BatchNorm(3, rngs=nnx.Rngs(0))
    nnx.jit(lambda model, x: model(x))(expected, jnp.arange(6.0).reshape(2, 3))
    with falling_back():
        local(client, normalize)(model, jnp.arange(6.0).reshape(2, 3))
    np.testing.assert_array_equal(model.mean[...], expected.mean[...])
    assert float(jnp.abs(model.mean[...]).sum()) > 0


_LIGHT = """
import sys, warnings, numpy as np
from jaxd import persistent_call, errors, FallbackWarning

class Unpackable:
    factor = 2.0
    def __reduce__(self):
        raise TypeError("stays here")

def scaled(x, by):
    return x * by.factor

options = dict(static_argnames="by")
try:
    persistent_call(scaled, **options)(np.ones(2, "f4"), by=Unpackable())
except errors.PackingError:
    print("error", "jax" in sys.modules)
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    found = persistent_call(scaled, fallback="local", **options)(np.ones(2, "f4"), by=Unpackable())
print(found, type(found).__module__.partition(".")[0], [each.category.__name__ for each in seen])
"""


@pytest.mark.slow
def test_in_a_process_without_jax(live: Any) -> None:
    """An error by default; where a run here was asked for, jax is imported for it."""
    ran = live.run(_LIGHT, JAXD_FALLBACK="")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["error False", "[2. 2.] jaxlib ['FallbackWarning']"]
