"""What a call is made inside of: settings and contexts of jax, set in whichever way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.errors import KeyReuseError
from jax.experimental.xla_metadata import set_xla_metadata
from jax.sharding import PartitionSpec

import jaxd
from jaxd import Client, connect
from jaxd_protocol.errors import ConfigurationError, PackingError
from tests.another_server import named_server
from tests.end_to_end.counting import BUILT, WARM, costs
from tests.ids import stable_id
from tests.live_server import LiveServer

X = np.linspace(0.5, 2.0, 6, dtype=np.float32)


@contextmanager
def updated(name: str, value: Any) -> Iterator[None]:
    """The setting for the whole process, as `jax.config.update` makes it."""
    before = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
        yield
    finally:
        jax.config.update(name, before)


def outcome(call: Callable[..., Any], *args: Any) -> Any:
    """Bits and types of a result, or the type of the error."""
    try:
        leaves = jax.tree.leaves(call(*args))
    except Exception as error:  # noqa: BLE001  whatever the setting makes of it
        return type(error)
    return [(str(leaf.dtype), leaf.shape, np.asarray(leaf).tobytes()) for leaf in leaves]


def anew(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """One that jax does not know yet: for one that it knows, it forgets some of the settings."""

    def fresh(x: Any) -> Any:
        return function(x)

    return fresh


def mixes(x: Any) -> Any:
    return jnp.ones(6, jnp.int32) + x * 3


def draws(x: Any) -> Any:
    return jax.random.gumbel(jax.random.key(5), (64,)) + x[0]


def seeded(x: Any) -> Any:
    return jax.random.PRNGKey(7), jax.random.bits(jax.random.key(7), (4,)), x[0]


def softens(x: Any) -> Any:
    return jax.grad(lambda y: jax.nn.softmax(y * 3)[2])(x)


def wide(x: Any) -> Any:
    return jnp.zeros(3, jnp.float64) + x[0]


def leaks(x: Any) -> Any:
    jax.vmap(lambda y: KEPT.append(y * 2))(x)
    return x * 2


KEPT: list[Any] = []

SETTINGS = [
    ("jax_numpy_dtype_promotion", "strict", mixes),
    ("jax_high_dynamic_range_gumbel", True, draws),
    ("jax_random_seed_offset", 3, seeded),
    ("jax_legacy_prng_key", "error", seeded),
    ("jax_enable_custom_prng", True, lambda x: jax.random.key_data(jax.random.key(3)) + 0 * x[0]),
    ("jax_softmax_custom_jvp", True, softens),
    ("jax_explicit_x64_dtypes", "error", wide),
    ("jax_explicit_x64_dtypes", "allow", wide),
    ("jax_default_prng_impl", "rbg", seeded),
    ("jax_enable_x64", True, wide),
    ("jax_numpy_rank_promotion", "raise", lambda x: jnp.ones((2, 6)) + x),
]


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
@pytest.mark.parametrize(("name", "value", "function"), SETTINGS, ids=stable_id)
def test_a_setting_counts(client: Client, name: str, value: Any, function: Any) -> None:
    """In a context of this thread."""
    if not hasattr(jax.config, name):
        pytest.skip(f"this jax has no {name}")
    state: Any = jax._src.config.config_states[name]
    with state(value):
        ours = outcome(client.persistent_call(function), X)
        assert ours == outcome(jax.jit(anew(function)), X)


@pytest.mark.parametrize("way", ["context", "update"])
@pytest.mark.parametrize(("name", "value", "function"), SETTINGS[-2:], ids=stable_id)
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
def test_a_setting_counts_however_late_it_is_set(
    client: Client, name: str, value: Any, function: Any, way: str
) -> None:
    """Also after a first call without it; and it is gone again afterwards."""
    state: Any = jax._src.config.config_states[name]
    ours = client.persistent_call(function)
    plain = outcome(jax.jit(anew(function)), X)
    assert outcome(ours, X) == plain
    with state(value) if way == "context" else updated(name, value):
        assert outcome(ours, X) == outcome(jax.jit(anew(function)), X)
    assert outcome(ours, X) == plain


def test_a_setting_is_part_of_the_key_and_two_are_kept_beside_each_other(client: Client) -> None:
    """As jax.jit keeps them: the third call is warm."""
    ours = client.persistent_call(lambda x: jnp.exp(x) * 3, extra_key="two settings")
    with costs(client) as first:
        ours(X)
    with jax.numpy_dtype_promotion("strict"), costs(client) as second:
        ours(X)
    with costs(client) as third:
        ours(X)
    assert (first, third) == (BUILT, WARM)
    assert second == BUILT


def test_jit_is_disabled_in_the_process_that_calls(client: Client) -> None:
    """The function runs step by step, on values that Python sees, and nothing is sent."""
    seen: list[Any] = []

    def step(x: Any) -> Any:
        seen.append(float(x.sum()))
        return x * 2

    ours = client.persistent_call(step)
    with jax.disable_jit(), costs(client) as spent:
        made = ours(jnp.asarray(X))
        future = ours.submit(jnp.asarray(X))
        mapped = list(ours.map([jnp.asarray(X)]))
    assert spent == {}
    assert seen == [float(jnp.asarray(X).sum())] * 3
    np.testing.assert_array_equal(made, X * 2)
    np.testing.assert_array_equal(future.result(), X * 2)
    np.testing.assert_array_equal(mapped[0], X * 2)


def test_what_cannot_be_executed_here_is_not_executed_there(client: Client) -> None:
    """`jax.no_execution`, with the error of jax."""
    ours = client.persistent_call(lambda x: x * 2)
    with jax._src.config.no_execution(True):
        theirs = outcome(jax.jit(lambda x: x * 2), X)
        assert outcome(ours, X) == theirs
    assert theirs is RuntimeError


def test_which_keys_were_used_is_noted_in_the_process_that_calls(client: Client) -> None:
    """`jax.debug_key_reuse` sees those that a function takes or captures, as under `jax.jit`."""
    key, captured = jax.random.key(1), jax.random.key(2)
    takes = client.persistent_call(jax.random.uniform)
    captures = client.persistent_call(lambda: jax.random.uniform(captured))
    before = outcome(takes, key), outcome(captures)
    assert before == (outcome(takes, key), outcome(captures))
    with jax.debug_key_reuse(True), costs(client) as spent:
        assert (outcome(takes, key), outcome(captures)) == before
        assert (outcome(takes, key), outcome(captures)) == (KeyReuseError, KeyReuseError)
    assert spent == {}


QUIET: list[Callable[[], AbstractContextManager[Any]]] = [
    lambda: jax.default_device(jax.devices()[0]),
    lambda: jax.transfer_guard("disallow"),
    lambda: jax.named_scope("layer"),
    lambda: jax.numpy.printoptions(precision=2),
    lambda: jax.profiler.TraceAnnotation("call"),
]


@pytest.mark.parametrize("enter", QUIET, ids=range(len(QUIET)))
def test_contexts_that_change_no_program_change_no_key(
    client: Client, enter: Callable[[], AbstractContextManager[Any]]
) -> None:
    """They act on what jax does here; the call is warm, and its result is jax's."""
    ours = client.persistent_call(lambda x: x * 3 + 1, extra_key="quiet")
    plain = outcome(ours, X)
    with enter(), costs(client) as spent:
        array = ours(X)
    assert spent == WARM
    assert outcome(lambda: array) == plain


def test_a_call_inside_of_compile_time_evaluation_is_a_call(client: Client) -> None:
    """Also where jax traces around it: the result is a value."""
    ours = client.persistent_call(lambda x: x * 3 + 1)

    def around(x: Any) -> Any:
        with jax.ensure_compile_time_eval():
            found = ours(X)
        assert not isinstance(found, jax.core.Tracer)
        return x + found

    np.testing.assert_array_equal(jax.jit(around)(X), X + (X * 3 + 1))


@pytest.mark.slow
def test_leaked_tracers_are_found(client: Client) -> None:
    """`jax.checking_leaks`, which is a setting, with the error of jax."""
    ours = client.persistent_call(leaks, ignore="KEPT")
    with jax.checking_leaks(), pytest.raises(Exception, match="Leaked trace"):
        ours(X)


def sharded(x: Any) -> Any:
    """Names a mesh that is only known where it is called."""
    spread = jax.lax.with_sharding_constraint(x, PartitionSpec("i"))
    return spread * 2, jnp.float32(jax.sharding.get_abstract_mesh().size)


def one_of(mesh: Any) -> list[Callable[[], AbstractContextManager[Any]]]:
    return [
        lambda: jax.set_mesh(mesh),
        lambda: jax.sharding.use_abstract_mesh(mesh.abstract_mesh),
        lambda: mesh,
    ]


@pytest.mark.parametrize("way", range(3), ids=["set_mesh", "use_abstract_mesh", "with mesh"])
@pytest.mark.filterwarnings("ignore:.with mesh:DeprecationWarning")
def test_a_mesh_travels(client: Client, way: int) -> None:
    """One call inside, one outside: what the function sees of it is what it sees here."""
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    ours = client.persistent_call(sharded)
    assert isinstance(outcome(ours, X), type)
    with one_of(mesh)[way]():
        assert outcome(ours, X) == outcome(jax.jit(anew(sharded)), X)
    assert isinstance(outcome(ours, X), type)


def test_a_mesh_is_laid_over_the_devices_of_the_server(eight: LiveServer) -> None:
    """By their numbers; two orders are two programs."""
    described = {
        "there": (("i",), (8,), ("Auto",), tuple(range(8))),
        "back": (("i",), (8,), ("Auto",), tuple(reversed(range(8)))),
    }
    from jaxd_protocol.jit.settings import SET_MESH

    with connect(eight.unix) as client:
        for mesh in described.values():
            ours = client.persistent_call(sharded)
            binding = ours._binding
            call = binding.encode(
                client.caller, ((SET_MESH, mesh),), (np.arange(8, dtype="f4"),), {}
            )
            with costs(client) as spent:
                doubled, size = client.caller.call(call)
            np.testing.assert_array_equal(doubled, np.arange(8) * 2)
            assert float(size) == 8
            assert spent["traces"] == 1


def test_a_mesh_of_more_devices_than_the_server_has_is_an_error(client: Client) -> None:
    """That says how many there are."""
    from jaxd_protocol.jit.settings import SET_MESH

    mesh = (("i",), (64,), ("Auto",), tuple(range(64)))
    ours = client.persistent_call(sharded)
    call = ours._binding.encode(client.caller, ((SET_MESH, mesh),), (X,), {})
    with pytest.raises(ConfigurationError, match="mesh of 64 devices"):
        client.caller.call(call)


def test_metadata_for_xla_is_in_the_program(client: Client) -> None:
    """As frontend attributes; and in the key."""
    ours = client.persistent_call(lambda x: jnp.sin(x) * 5)
    with set_xla_metadata(stage="first"):
        assert 'stage = "first"' in ours.lower(X).as_text()
        with costs(client) as first:
            ours(X)
    assert "stage" not in ours.lower(X).as_text()
    with costs(client) as second:
        ours(X)
    assert (first["traces"], second["traces"]) == (1, 1)


def test_a_context_that_cannot_travel_is_refused(client: Client) -> None:
    """What it does would be missing from the result."""
    config: Any = jax._src.config
    ours = client.persistent_call(lambda x: x * 2)
    before = config.pallas_tpu_interpret_mode_context_manager.swap_local("params")
    try:
        with pytest.raises(PackingError, match="pallas_tpu_interpret_mode"):
            ours(X)
    finally:
        config.pallas_tpu_interpret_mode_context_manager.set_local(before)
    ours(X)


# threads -----------------------------------------------------------------------------------------


def typed(x: Any) -> Any:
    return x + jnp.arange(3) / 7


def calls(ours: Any, x: Any) -> dict[str, Any]:
    """The dtype of the result by each way of calling."""

    async def awaited() -> Any:
        return await ours.call_async(x)

    return {
        "call": ours(x).dtype,
        "remote": ours.remote(x).dtype,
        "submit": ours.submit(x).result().dtype,
        "map": next(iter(ours.map([x]))).dtype,
        "async": asyncio.run(awaited()).dtype,
    }


@pytest.mark.parametrize(
    ("kind", "wide_first", "pool"),
    [(np.float64, False, 2), (np.float64, True, 1), ("jax", True, 2)],
)
def test_threads_with_settings_of_their_own_have_results_of_their_own(
    client: Client, kind: Any, wide_first: bool, pool: int
) -> None:
    """x64 in one and not in the other, by every way of calling, whoever is first."""
    ours = client.persistent_call(typed, extra_key=f"{kind} {wide_first} {pool}")
    x: Any = jnp.ones(3) if kind == "jax" else np.ones(3, kind)

    def in_one(wide: bool) -> dict[str, Any]:
        with jax.enable_x64(wide):
            return calls(ours, x)

    order = [wide_first, not wide_first] * 2
    with ThreadPoolExecutor(pool) as threads:
        found = list(threads.map(in_one, order))
    for wide, dtypes in zip(order, found, strict=True):
        assert set(dtypes.values()) == {np.dtype("f8" if wide else "f4")}, (wide, dtypes)


def test_settings_count_where_the_call_is_made_and_not_where_it_is_awaited(client: Client) -> None:
    """A future that is asked elsewhere, and a coroutine that goes on in another context."""
    ours = client.persistent_call(typed, extra_key="awaited")
    x = np.ones(3)
    with jax.enable_x64(True):
        future = ours.submit(x)
    assert future.result().dtype == np.float64
    with jax.enable_x64(True):
        mapped = ours.map([x, x])
        first = next(mapped)
    assert first.dtype == np.float64

    async def both() -> Any:
        async def one() -> Any:
            with jax.enable_x64(True):
                pending = ours.submit(x)
            return await asyncio.wrap_future(pending)

        return list(await asyncio.gather(one(), ours.call_async(x), one()))

    assert [each.dtype for each in asyncio.run(both())] == [np.float64, np.float32, np.float64]


def test_a_setting_for_the_process_reaches_all_threads_but_those_that_have_their_own(
    client: Client,
) -> None:
    """As in jax: `jax.config.update` in one thread, a context in the other."""
    ours = client.persistent_call(typed, extra_key="process")
    x = np.ones(3)
    with ThreadPoolExecutor(1) as other, updated("jax_enable_x64", True):
        assert other.submit(lambda: ours(x).dtype).result() == np.float64
        with jax.enable_x64(False):
            assert ours(x).dtype == np.float32
            assert other.submit(lambda: ours(x).dtype).result() == np.float64


# what jax narrows --------------------------------------------------------------------------------

PAIRS = [("f4", "f8"), ("u8", "u4")]


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=stable_id)
def test_arrays_that_jax_narrows_are_not_traced_again(
    client: Client, first: str, second: str
) -> None:
    """Without x64 a numpy array of 64 bits is one of 32; with it, it is not."""

    def thirds(x: Any) -> Any:
        return x * 3

    ours = client.persistent_call(thirds, extra_key=f"{first} {second}")
    one, other = np.arange(5).astype(first), np.arange(5).astype(second)
    with costs(client) as built:
        assert outcome(ours, one) == outcome(jax.jit(anew(thirds)), one)
    with costs(client) as warm:
        assert outcome(ours, other) == outcome(jax.jit(anew(thirds)), other)
    assert (built["traces"], warm) == (1, WARM)
    with jax.enable_x64(True), costs(client) as wide:
        for x in (one, other):
            assert outcome(ours, x) == outcome(jax.jit(anew(thirds)), x)
    assert wide["traces"] == 2


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
def test_an_array_of_64_bits_on_the_server_is_not_narrowed(client: Client) -> None:
    """As one of jax's own is not; whichever kind the function was called with first."""

    def negative(x: Any) -> Any:
        return jax.lax.neg(x)

    ours = client.persistent_call(negative, extra_key="values of 64 bits")
    there = ours.remote(np.ones(3))
    with jax.enable_x64(True):
        wide, here = client.put(np.ones(3)), jnp.ones(3)
    theirs = jax.jit(negative)(here).dtype.name
    dtypes = [ours(x).dtype.name for x in (np.ones(3), wide, np.ones(3), there, wide)]
    assert dtypes == ["float32", theirs, "float32", "float32", theirs]
    assert theirs == "float64"


OF_64_BITS = {
    "small": np.arange(3) + (1 << 40),
    "large": np.arange(1 << 10) + (1 << 40),
    "float64": np.arange(3) + 2.0**-40,
    "complex128": np.arange(3) + 2.0**-40 * 1j,
}


def test_arrays_of_jax_of_64_bits_are_not_narrowed(client: Client) -> None:
    """Those that were made within `enable_x64` and are used outside of it, beside numpy's."""
    of_numpy = OF_64_BITS
    with jax.enable_x64(True):
        of_jax = jax.tree.map(jnp.asarray, of_numpy)

    def both(tree: Any) -> Any:
        return tree

    ours = client.persistent_call(both, extra_key="jax's own")
    ways: dict[str, Callable[[Any], Any]] = {
        "call": ours,
        "submit": lambda tree: ours.submit(tree).result(),
        "map": lambda tree: next(iter(ours.map([tree]))),
        "remote": lambda tree: jaxd.get(ours.remote(tree)),
        "put": lambda tree: jaxd.get(client.put(tree)),
        "put, call": lambda tree: ours(client.put(tree)),
        "here": client.persistent_call(both, place="here"),
    }
    if named_server() is not None:
        del ways["here"]  # no program is taken from one that is not this very user's
    for tree in ({"x": of_numpy, "y": 1.0}, {"x": of_jax, "y": 1.0}, {"x": of_numpy, "y": of_jax}):
        expected = outcome(jax.jit(anew(both)), tree)
        found = {way: outcome(call, tree) for way, call in ways.items()}
        assert found == dict.fromkeys(ways, expected)
    assert (
        outcome(jax.jit(ours), of_jax["small"]) is jax.errors.JaxRuntimeError
    )  # as of `pure_callback`


def test_whether_an_array_may_be_written_to_does_not_matter(client: Client) -> None:
    """Neither for its signature nor, where a function reads it, for the key."""
    ours = client.persistent_call(lambda x: x + TABLE, extra_key="read-only")
    x = np.ones(3, "f4")
    ours(x)
    x.flags.writeable = TABLE.flags.writeable = False
    try:
        assert "hit" in str(ours.why(x))
        with costs(client) as spent:
            ours(x)
            ours(x.copy())
    finally:
        TABLE.flags.writeable = True
    assert spent == {"executable_hits": 2}


TABLE = np.arange(3, dtype="f4")
