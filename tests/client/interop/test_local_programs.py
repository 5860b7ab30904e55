"""Programs that were loaded, and jax's own dispatch of them."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import config as private
from jax._src.core import extend_axis_env_nd
from jax.experimental import serialize_executable
from jax.experimental.pallas.tpu import force_tpu_interpret_mode
from jax.experimental.xla_metadata import set_xla_metadata

from jaxd.interop.jax_settings import DISPATCHED
from jaxd.interop.local_programs import UNKNOWN, FastCalls, JitCalls, LocalProgram
from jaxd_protocol.jax_objects.program_bytes import load_compiled
from jaxd_protocol.jit.static_args import StaticArgs
from jaxd_server.jax_compat import programs
from tests.end_to_end.several_devices import EIGHT
from tests.ids import row
from tests.live_server import run_client, source_environment

X = np.arange(3, dtype="f4")


def loaded(function: Any, *args: Any, **options: Any) -> tuple[LocalProgram, Any]:
    """A function as a server compiles and writes it, loaded, and the structure of its result."""
    lowered = jax.jit(function, **options).lower(*args)
    compiled: Any = programs.compile_flat(lowered)
    data = serialize_executable.serialize(compiled)[0]
    shape = len(jax.tree.leaves(args)), compiled.out_tree.num_leaves, (jax.devices()[0].id,)
    return LocalProgram(load_compiled(data, *shape), b"1"), lowered.out_tree


def scaled(x: Any, n: Any) -> Any:
    return {"b": x * n, "a": (x.sum(), n)}


def test_calls_of_one_kind_run_no_python() -> None:
    """After the first; all others are unknown, and stay so until they are added."""
    program, structure = loaded(scaled, X, 2)
    fast = FastCalls("scaled")
    assert fast.call(X, 2) is UNKNOWN
    result = fast.add(program, structure, [X, 2], (X, 2), {})
    expected = jax.jit(scaled)(X, 2)
    assert jax.tree.map(np.asarray, result)["b"].tolist() == expected["b"].tolist()
    program.compiled = None  # only Python would use it
    again = fast.call(X + 1, 3)
    np.testing.assert_array_equal(again["b"], (X + 1) * 3)
    assert again["a"][1].weak_type


def test_others_are_unknown() -> None:
    """Other types, shapes, places and structures, and what jax does not take."""
    rows: list[tuple[Any, Any]] = [
        ((X, 2.0), {}),
        ((X[:2], 2), {}),
        ((X.astype("i4"), 2), {}),
        ((jnp.asarray(X), 2), {}),
        ((X, jnp.asarray(2)), {}),
        ((X,), {"n": 2}),
        (({"x": X}, 2), {}),
        ((X, "2"), {}),
        ((X, object()), {}),
        ((X, None), {}),
    ]
    for args, kwargs in rows:
        with row((args, kwargs)):
            program, structure = loaded(scaled, X, 2)
            fast = FastCalls("scaled")
            fast.add(program, structure, [X, 2], (X, 2), {})
            assert fast.call(X, 2) is not UNKNOWN
            assert fast.call(*args, **kwargs) is UNKNOWN


def test_settings_of_the_thread_are_part_of_the_kind() -> None:
    """And so is whether jax traces the calling code."""
    program, structure = loaded(scaled, X, 2)
    fast = FastCalls("scaled")
    fast.add(program, structure, [X, 2], (X, 2), {})
    found: list[Any] = []
    with jax.enable_x64(True):
        found.append(fast.call(X, 2))
    with jax.default_matmul_precision("float32"):
        found.append(fast.call(X, 2))

    @jax.jit
    def traced(x: Any) -> Any:
        found.extend([fast.call(X, 2), fast.call(x, 2)])
        return x

    traced(X)
    assert found == [UNKNOWN] * 4
    assert fast.call(X, 2) is not UNKNOWN


def test_each_setting_that_is_not_watched_is_part_of_the_kind() -> None:
    """A jax that leaves one of them out would take a program for that of another key."""
    program, structure = loaded(scaled, X, 2)
    fast = FastCalls("scaled")
    fast.add(program, structure, [X, 2], (X, 2), {})
    holders: Any = jax.config._value_holders
    others: dict[type, Any] = {bool: lambda value: not value, int: lambda value: value + 1}
    not_told_apart = []
    for name in sorted(DISPATCHED & holders.keys()):
        value = holders[name].value
        before = holders[name].swap_local(others.get(type(value), lambda _: "other")(value))
        try:
            if fast.call(X, 2) is not UNKNOWN:
                not_told_apart.append(name)
        finally:
            holders[name].set_local(before)
        assert fast.call(X, 2) is not UNKNOWN
    assert not_told_apart == []


MESH = jax.make_mesh((1,), ("i",))
USERS = jax.make_user_context("unset")


@contextmanager
def swapped(holder: Any, value: Any) -> Iterator[None]:
    """Within it a context of jax has that value in this thread."""
    before = holder.swap_local(value)
    try:
        yield
    finally:
        holder.set_local(before)


@pytest.mark.filterwarnings("ignore:.*with mesh:")
@pytest.mark.parametrize(
    "context",
    [
        lambda: jax.set_mesh(MESH),
        lambda: MESH,
        lambda: jax.sharding.use_abstract_mesh(MESH.abstract_mesh),
        lambda: swapped(private.compute_on_context_manager, "device_host"),
        lambda: set_xla_metadata(a=1),
        lambda: USERS("set"),
        lambda: extend_axis_env_nd([("i", 2)]),
        force_tpu_interpret_mode,
    ],
    ids=["mesh", "with", "abstract", "compute_on", "metadata", "user", "axes", "pallas"],
)
def test_each_context_is_part_of_the_kind(context: Any) -> None:
    """As settings that are not watched."""
    program, structure = loaded(scaled, X, 2)
    fast = FastCalls("scaled")
    fast.add(program, structure, [X, 2], (X, 2), {})
    with context():
        assert fast.call(X, 2) is UNKNOWN
    assert fast.call(X, 2) is not UNKNOWN


def test_without_jit_a_call_is_unknown() -> None:
    """Its caller knows what to do."""
    program, structure = loaded(scaled, X, 2)
    fast = FastCalls("scaled")
    fast.add(program, structure, [X, 2], (X, 2), {})
    with jax.disable_jit():
        assert fast.call(X, 2) is UNKNOWN
    assert fast.call(X, 2) is not UNKNOWN


def test_functions_share_nothing() -> None:
    """Also where all that jax is told of them is equal."""
    one, two = FastCalls("f"), FastCalls("f")
    one.add(*loaded(lambda x: x + 1, X), [X], (X,), {})
    assert two.call(X) is UNKNOWN
    two.add(*loaded(lambda x: x + 2, X), [X], (X,), {})
    np.testing.assert_array_equal(one.call(X), X + 1)
    np.testing.assert_array_equal(two.call(X), X + 2)


def test_donated_arrays_are_gone() -> None:
    """In the first call, and in those that jax dispatches by itself."""
    program, structure = loaded(lambda x: x + 1, X, donate_argnums=0)
    fast = FastCalls("step")
    x = jnp.asarray(X) + 0
    x1 = fast.add(program, structure, [x], (x,), {})
    x2 = fast.call(x1)
    assert x.is_deleted()
    assert x1.is_deleted()
    np.testing.assert_array_equal(x2, X + 2)


def test_typed_keys_and_what_is_not_used() -> None:
    """A program takes all leaves, and drops what it does not use."""
    keys = jax.random.split(jax.random.key(1))
    program, structure = loaded(lambda unused, keys: (keys, jax.random.bits(keys[0])), X, keys)
    fast = FastCalls("keys")
    for result in (fast.add(program, structure, [X, keys], (X, keys), {}), fast.call(X, keys)):
        if result is UNKNOWN:
            continue  # jax does not dispatch it by itself
        assert (jax.random.key_data(result[0]) == jax.random.key_data(keys)).all()
        assert result[1] == jax.random.bits(keys[0])


def test_many_threads_at_once() -> None:
    """One adds a kind while others make calls of it."""
    program, structure = loaded(lambda x, n: x + n, X, 2)
    fast, results, barrier = FastCalls("f"), [], threading.Barrier(8)

    def call(n: int) -> None:
        barrier.wait()
        results.append((n, fast.add(program, structure, [X, n], (X, n), {})))

    threads = [threading.Thread(target=call, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    for n, result in results:
        np.testing.assert_array_equal(result, X + n)


def test_what_a_program_takes() -> None:
    """As many leaves, of their shapes and dtypes as jax sees them; numbers are not looked at."""
    program, _ = loaded(scaled, X, 2)
    assert program.fits([X, 2])
    assert program.fits([jnp.asarray(X), np.int64(2)])
    assert program.fits([X.astype("f8"), 2])  # which jax narrows
    assert not program.fits([X])
    assert not program.fits([X[:1], 2])
    assert not program.fits([X.astype("i4"), 2])
    with jax.enable_x64(True):
        wide = jnp.asarray(X.astype("f8"))
        assert not program.fits([X.astype("f8"), 2])
    assert not program.fits([wide, 2])


@pytest.mark.slow
def test_an_array_that_was_put_on_another_device_does_not_fit(tmp_path: Any) -> None:
    """It is computed with where it lies."""
    program = """
import jax, numpy as np
from tests.client.interop.test_local_programs import loaded, X
program, _ = loaded(lambda x: x + 1, X)
there = jax.device_put(X, jax.devices()[1])
print(program.fits([X]), program.fits([jax.device_put(X, jax.devices()[0])]), program.fits([there]))
"""
    environment = source_environment(tmp_path) | EIGHT
    environment["PYTHONPATH"] += ":."
    done = run_client(program, environment=environment)
    assert done.stdout.split() == ["True", "True", "False"], done.stderr


# as jax.jit does it ------------------------------------------------------------------------------


def test_static_arguments_are_those_of_jit() -> None:
    """By position and by name; another value is another kind."""
    program, structure = loaded(lambda x: scaled(x, 2), X)
    calls = JitCalls(scaled, StaticArgs(frozenset({1}), frozenset({"n"})))
    assert calls.call(X, 2) is UNKNOWN
    fast = calls.fast_calls()
    assert fast is not None
    fast.add(program, structure, [X], (X, 2), {})
    np.testing.assert_array_equal(calls.call(X, 2)["b"], X * 2)
    assert calls.call(X, 3) is UNKNOWN
    assert calls.call(X, n=2) is UNKNOWN
    with pytest.raises(ValueError, match=r"[Nn]on-hashable static"):
        calls.call(X, [2])


@pytest.mark.parametrize(
    "forget", [JitCalls.clear, JitCalls.after_fork, lambda _: jax.clear_caches()]
)
def test_what_was_added_is_forgotten(forget: Any) -> None:
    """When it is cleared, in the child of a fork, and with all that jax has."""
    program, structure = loaded(scaled, X, 2)
    calls = JitCalls(scaled, StaticArgs())
    fast = calls.fast_calls()
    assert fast is not None
    fast.add(program, structure, [X, 2], (X, 2), {})
    assert calls.call(X, 2) is not UNKNOWN
    forget(calls)
    assert calls.call(X, 2) is UNKNOWN


def test_what_was_cleared_does_not_come_back() -> None:
    """When another kind of call is added."""
    program, structure = loaded(scaled, X, 2)
    calls = JitCalls(scaled, StaticArgs())
    for given in ([X, 2], [X, 3.0]):
        fast = calls.fast_calls()
        assert fast is not None
        added = (program, structure) if given[1] == 2 else loaded(scaled, *given)
        fast.add(*added, given, tuple(given), {})
        calls.clear() if given[1] == 2 else None
    assert calls.call(X, 3.0) is not UNKNOWN
    assert calls.call(X, 2) is UNKNOWN


def test_the_function_of_calls_that_nobody_makes_is_let_go_of() -> None:
    """At once, with what it captures."""

    def function(x: Any) -> Any:
        return x

    calls, seen = FastCalls("f", function=function), weakref.ref(function)
    assert calls.call(1) is UNKNOWN
    gc.disable()
    try:
        del function, calls
        assert seen() is None
    finally:
        gc.enable()


def test_nothing_is_compiled_under_disable_jit() -> None:
    """The Python runs."""
    program, structure = loaded(scaled, X, 2)
    calls = JitCalls(lambda x, n: ("Python", x, n), StaticArgs())
    fast = calls.fast_calls()
    assert fast is not None
    fast.add(program, structure, [X, 2], (X, 2), {})
    with jax.disable_jit():
        assert calls.call(X, 2)[0] == "Python"
    assert calls.call(X, 2)["a"][1] == 2
