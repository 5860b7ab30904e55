"""Calls that jax dispatches by itself after one look at the function: the short way of `here`.

Each test makes calls until they go that way, changes something, and compares the very next call
with what a fresh `jax.jit` returns: a look that was left out is a wrong result here.
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify
from jax.experimental.xla_metadata import set_xla_metadata

from jaxd import Client, connect
from jaxd.interop.local_programs import calls_here
from jaxd.interop.remote_array import RemoteArray
from jaxd.request.function_snapshot import package_changes
from jaxd.request.known_calls import LEARN_AFTER, KnownCalls
from jaxd.tracing import here
from jaxd.tracing.here import HereCaller
from tests.another_server import own_server_needed
from tests.end_to_end.counting import costs
from tests.end_to_end.test_here import EDITS, Edit, Mode, same, served, settled
from tests.live_server import LiveServer, run_client

X = np.arange(6, dtype="f4").reshape(2, 3)


@pytest.fixture(autouse=True)
def beside_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are taken at once, from a server elsewhere none, and no clock ends the short way."""
    own_server_needed()
    monkeypatch.setattr(here, "LOAD_S", 0.0)
    monkeypatch.setattr(package_changes, "next_poll_s", math.inf)


@pytest.fixture
def client(live: LiveServer) -> Iterator[Client]:
    """A client that runs programs here, of the common server."""
    with connect(live.unix, place="auto") as client:
        yield client


def learned(function: Any, *args: Any, **kwargs: Any) -> Any:
    """The result of such a call, once they go the short way."""
    for _ in range(2 * LEARN_AFTER + 2):
        function(*args, **kwargs)
        here.wait_for_programs()
    ways: list[str] = []
    long_way, short_way = HereCaller.run, KnownCalls.run

    def short(known: KnownCalls, *given: Any) -> Any:
        ways.append("short")
        return short_way(known, *given)

    def long(caller: HereCaller, *given: Any) -> Any:
        ways.append("long")
        return long_way(caller, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KnownCalls, "run", short)
        patch.setattr(HereCaller, "run", long)
        result = function(*args, **kwargs)
    assert ways == ["short"]
    return result


BOTH_WAYS: tuple[Callable[..., Any], ...] = settled, learned
"""What brings a function to where its calls run here: with a look at the function, and without."""

# what decides about a key ------------------------------------------------------------------------


@pytest.mark.parametrize("edit", EDITS, ids=[edit.name for edit in EDITS])
def test_an_edit_counts_at_the_very_next_call(client: Client, edit: Edit) -> None:
    """What runs here is what the function means now, either way, and after it is undone.

    Jitted anew for each comparison: jax itself would not see the change.
    """

    def expected() -> Any:
        return jax.jit(lambda x: edit.function(x) + 0)(X)

    edit.back()
    function, before = client.persistent_call(edit.function), expected()
    try:
        same(settled(function, X), before)
        assert served(client, lambda: function(X)) == 0
        first = function.fingerprint if edit.name not in ("x64", "precision") else ""
        edit.change()
        after = expected()
        assert served(client, lambda: same(function(X), after)) == 1
        same(settled(function, X), after)
        assert served(client, lambda: function(X)) == 0
        assert not first or function.fingerprint != first
        edit.back()
        same(function(X), before)
        same(learned(function, X), before)
        edit.change()
        same(function(X), after)
        same(learned(function, X), after)
    finally:
        edit.back()
    same(function(X), before)
    same(learned(function, X), before)


def _read_while_traced(x: Any) -> Any:
    names = ["JAXD_TEST_RATE"]
    return x * float(os.environ.get(names[0], "2"))


def test_a_variable_whose_name_only_the_trace_knows(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has recorded that it was read."""
    monkeypatch.setenv("JAXD_TEST_RATE", "3")
    function = client.persistent_call(_read_while_traced)
    same(learned(function, X), jnp.asarray(X * 3))
    monkeypatch.setenv("JAXD_TEST_RATE", "5")
    same(function(X), jnp.asarray(X * 5))
    monkeypatch.delenv("JAXD_TEST_RATE")
    same(function(X), jnp.asarray(X * 2))


def _key_of_the_default_kind(x: Any) -> Any:
    return x + jax.random.normal(jax.random.key(0), x.shape)


def test_settings_that_jax_itself_does_not_tell_calls_apart_by(client: Client) -> None:
    """`jax.jit` would go on with the old kind of keys."""
    function = client.persistent_call(_key_of_the_default_kind)
    first = learned(function, X)
    with jax.default_prng_impl("rbg"):
        other = function(X)
        same(other, jax.jit(lambda x: _key_of_the_default_kind(x) + 0)(X))
        assert (np.asarray(other) != first).any()
    same(function(X), first)
    learned(function, X)
    jax.config.update("jax_default_prng_impl", "rbg")
    try:
        same(function(X), other)
        same(learned(function, X), other)
    finally:
        jax.config.update("jax_default_prng_impl", "threefry2x32")
    same(function(X), first)


@pytest.mark.parametrize("context", [jax.default_prng_impl("rbg"), jax.enable_x64(True)])
def test_a_context_of_another_thread_counts_there(
    client: Client, context: AbstractContextManager[Any]
) -> None:
    """And nowhere else, also while calls of this one go the short way."""

    def told(x: Any) -> Any:
        return _key_of_the_default_kind(x) + jnp.arange(3.0).sum()

    function = client.persistent_call(told)
    first = learned(function, X)
    inside, done = threading.Event(), threading.Event()
    found: list[Any] = []

    def elsewhere() -> None:
        with context:
            inside.set()
            assert done.wait(30)
            found.extend([function(X), jax.jit(lambda x: told(x) + 0)(X), function(X)])

    other = threading.Thread(target=elsewhere)
    other.start()
    assert inside.wait(30)
    for _ in range(3 * LEARN_AFTER):
        same(function(X), first)
    done.set()
    other.join()
    same(found[0], found[1])
    same(found[2], found[1])
    assert (found[0].dtype != first.dtype) or (np.asarray(found[0]) != first).any()
    same(learned(function, X), first)


def test_a_thread_that_looks_for_nans_has_them_found(client: Client) -> None:
    """By the server; without the setting, calls go on running here."""
    function = client.persistent_call(lambda x: x / x)
    zeros = np.zeros(2, "f4")
    for ready in BOTH_WAYS:
        ready(function, zeros)
        with jax.debug_nans(True):
            for _ in range(3):
                with pytest.raises(FloatingPointError):
                    function(zeros)
            assert served(client, lambda: [function(X + 1) for _ in range(3)]) == 3
            assert "jax_debug_nans" in function.why(X + 1).place
        assert served(client, lambda: function(zeros)) == 0


@pytest.mark.parametrize(
    "context",
    [
        lambda: jax.set_mesh(jax.make_mesh((1,), ("i",))),
        lambda: set_xla_metadata(a=1),
        lambda: jax.default_matmul_precision("highest"),
    ],
    ids=["mesh", "metadata", "precision"],
)
def test_contexts_are_other_programs(client: Client, context: Any) -> None:
    """Each is found at the call that is made inside of it."""
    function: Any = client.persistent_call(lambda x: jnp.dot(x, x.T) * 3)
    learned(function, X)
    first = keys_of(function)
    with context():
        np.testing.assert_array_equal(function(X), X @ X.T * 3)
    assert len(keys_of(function) - first) == 1


def keys_of(function: Any) -> set[bytes]:
    """Those of the function as it is now."""
    return {each.key for each in function._binding.snapshots._current.specs.values()}


def test_installed_packages_count(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that was found ends it, and so does what is to be looked at again."""
    function = client.persistent_call(lambda x: x * 151)
    learned(function, X)
    before = function._binding.snapshots._current
    monkeypatch.setattr(package_changes, "count", package_changes.count + 1)
    same(function(X), jnp.asarray(X * 151))
    assert function._binding.snapshots._current is not before
    learned(function, X)
    polled: list[int] = []
    monkeypatch.setattr(package_changes, "poll", lambda: polled.append(1))
    monkeypatch.setattr(package_changes, "next_poll_s", 0.0)
    function(X)
    assert polled == [1]


def test_clearing_ends_it(client: Client) -> None:
    """The next call builds it anew, on the server."""
    function = client.persistent_call(lambda x: x * 152)
    for ready in BOTH_WAYS:
        ready(function, X)
        function.clear()
        with costs(client) as spent:
            assert served(client, lambda: function(X)) == 1
        assert spent["compiles"] == 1


# which calls are of the same kind ----------------------------------------------------------------


def test_other_arguments(client: Client) -> None:
    """Other types, shapes, places in the arguments and structures, each as if it came first."""

    def told(x: Any, n: Any = 2) -> Any:
        x = x["x"] if isinstance(x, dict) else x
        return (x * 100 if isinstance(n, Mode) else x * n), n

    function = client.persistent_call(told)
    there = client.persistent_call(told, place="server")
    learned(function, X, 1)
    given: list[Any] = [
        *((X, each) for each in (Mode.FAST, True, 1.0, np.float32(1), np.int64(1), jnp.asarray(1))),
        *((each, 1) for each in (X[:1], X.astype("i4"), jnp.asarray(X), {"x": X}, 2.0)),
        (X,),
    ]
    for args in given:
        same(function(*args), there(*args))
        same(function(X, n=3), there(X, n=3))
        same(function(X, 3), there(X, 3))


def test_static_arguments(client: Client) -> None:
    """1 and True are others; an unknown value is one too."""

    def power(x: Any, n: Any) -> Any:
        return x * 7 if n is True else x * n

    function = client.persistent_call(power, static_argnames="n")
    same(learned(function, X, n=1), jnp.asarray(X))
    for n in (True, 1, 2, 1.0, True):
        same(function(X, n=n), jnp.asarray(power(X, n)))
    same(learned(function, X, 1), jnp.asarray(X))


def test_donated_arrays_are_gone(client: Client) -> None:
    """In each call."""
    function = client.persistent_call(lambda x, y: (x + y, y), donate_argnums=0)
    y = jnp.ones(3)
    for _ in range(2 * LEARN_AFTER + 2):
        function(jnp.zeros(3), y)
    x = jnp.zeros(3)
    found, _ = learned_again(function, x, y)
    assert x.is_deleted()
    assert not y.is_deleted()
    np.testing.assert_array_equal(found, 1)
    with pytest.raises((RuntimeError, ValueError), match=r"delete|donate"):
        function(x, y)


def learned_again(function: Any, *args: Any) -> Any:
    """One call of a kind that goes the short way already."""
    before = function._binding.snapshots.known
    assert before is not None
    result = function(*args)
    assert function._binding.snapshots.known is before
    return result


def test_weak_types_and_results(client: Client) -> None:
    """As those of `jax.jit`."""

    def told(x: Any, w: Any = 2.0) -> Any:
        return {"y": (x * w,), "n": [x.sum(), w]}

    function = client.persistent_call(told)
    same(learned(function, X, 3.0), jax.jit(told)(X, 3.0))
    same(learned(function, X, w=3.0), jax.jit(told)(X, w=3.0))


# it is jit ---------------------------------------------------------------------------------------


def test_without_jit_the_python_runs(client: Client) -> None:
    """Step by step, as under jax itself."""
    function = client.persistent_call(lambda x: x * (1 if isinstance(x, jax.core.Tracer) else 10))
    x = jnp.asarray(X)
    for ready in BOTH_WAYS:
        same(ready(function, x), x)
        with jax.disable_jit():
            same(function(x), x * 10)
    same(learned_again(function, x), x)


def test_a_call_that_jax_traces_is_in_its_program(client: Client) -> None:
    """With tracers, and with known values; before and after the program is loaded."""
    function = client.persistent_call(lambda x: (x**2).sum())
    x = jnp.asarray(X)
    for ready in (None, *BOTH_WAYS):
        if ready is not None:
            ready(function, x)
        np.testing.assert_array_equal(jax.grad(function)(x), 2 * x)
        np.testing.assert_array_equal(jax.jit(lambda v: function(v) + function(x))(x), 110)
        np.testing.assert_array_equal(jax.vmap(function)(x), (x**2).sum(1))
    assert "55" not in str(jax.make_jaxpr(lambda v: v + function(x))(x))


def test_checkify_sees_each_operation(client: Client) -> None:
    """Also in a call with known values."""
    function = client.persistent_call(lambda x: 1 / x, fallback="local")
    x = jnp.zeros(3)
    learned(function, x)
    checked = checkify.checkify(lambda y: y + function(x), errors=checkify.float_checks)
    error, _ = jax.jit(checked)(x)
    assert "division by zero" in str(error.get())


def test_results_that_are_asked_for_elsewhere(client: Client) -> None:
    """As a numpy array, by a future, or left on the server, where a call takes them."""
    function = client.persistent_call(lambda x: x * 153)
    for ready in BOTH_WAYS:
        ready(function, X)
        np.testing.assert_array_equal(function.submit(X).result(), X * 153)
        remote = function.remote(X)
        assert isinstance(remote, RemoteArray)
        np.testing.assert_array_equal(remote, X * 153)
        np.testing.assert_array_equal(function(remote), X * 153 * 153)


def test_calls_are_counted(client: Client) -> None:
    """As those of the long way."""
    function = client.persistent_call(lambda x: x * 154)
    learned(function, X)
    before = calls_here.count
    for _ in range(5):
        function(X)
    assert calls_here.count - before == 5


def test_many_threads(client: Client) -> None:
    """Each has the results of its own arguments while the function changes."""
    rate = 1.0

    def told(x: Any) -> Any:
        return x * rate

    function = client.persistent_call(told)
    learned(function, X)
    wrong: list[Any] = []
    stop = threading.Event()

    def call(n: int) -> None:
        x = np.full(2, n, "f4")
        while not stop.is_set():
            found = float(function(x)[0])
            if found not in (n, 2.0 * n):
                wrong.append((n, found))

    threads = [threading.Thread(target=call, args=(n,)) for n in range(1, 4)]
    for thread in threads:
        thread.start()
    for rate in [2.0, 1.0] * 3:
        for _ in range(20):
            np.testing.assert_array_equal(function(X), X * np.float32(rate))
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.slow
def test_a_forked_child_uses_the_server(live: LiveServer) -> None:
    """XLA's threads are not in it: what was loaded before would never return, either way."""
    program = """
import json, os, warnings, jax, jaxd
from jaxd.tracing import here
here.LOAD_S = 0
warnings.simplefilter("ignore")
f, g = (jaxd.persistent_call(lambda x, by=by: x * by, results="jax") for by in (17, 155))
for _ in range(3): f(2.0)
for _ in range(20): g(2.0)
known = [each._binding.snapshots.known is not None for each in (f, g)]
if not (child := os.fork()):
    before = jaxd.statistics().calls
    [each(2.0) for each in (f, f, g, g)]
    place = f.why(2.0).place
    os._exit(not (jaxd.statistics().calls - before == 4 and place.startswith("server: this")))
ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(json.dumps([*known, ended, float(f(2.0)), float(g(2.0)), f.why(2.0).place[:5]]))
"""
    done = run_client(program, environment=live.environment | {"JAXD_PLACE": "here"})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [False, True, 0, 34.0, 310.0, "here:"]


# what jax takes for the same ----------------------------------------------------------------------

FACTOR = {"by": 2.0}


class Pair(NamedTuple):
    """A node of jax whose method reads what can change."""

    x: Any

    def scaled(self) -> Any:
        return self.x * FACTOR["by"]


@jax.tree_util.register_pytree_node_class
class Node:
    """A node with anything static in it, whose class is read as well."""

    shift = 0.0

    def __init__(self, x: Any, static: Any = None) -> None:
        self.x, self.static = x, static

    def tree_flatten(self) -> Any:
        return (self.x,), (self.static,)

    @classmethod
    def tree_unflatten(cls, static: Any, children: Any) -> Node:
        return cls(children[0], *static)


def _scaled(tree: Any) -> Any:
    return (tree[0] if type(tree) is list else tree).scaled() + Node.shift


def _of_nodes(*nodes: Node) -> Any:
    return sum(
        node.x * (1000.0 if type(node.static) is bool else 1.0) + node.shift for node in nodes
    )


@pytest.mark.parametrize("is_inside", [False, True], ids=["argument", "inside"])
def test_a_change_of_what_a_class_in_arguments_reads(
    client: Client, monkeypatch: pytest.MonkeyPatch, *, is_inside: bool
) -> None:
    """A method of a node reads it, at the top of an argument and inside of one."""
    function = client.persistent_call(_scaled)
    pair = Pair(jnp.asarray(X))
    given: Any = [pair] if is_inside else pair
    same(learned(function, given), jax.jit(_scaled)(given))
    monkeypatch.setitem(FACTOR, "by", 5.0)
    same(function(given), pair.x * 5.0 + Node.shift)


def test_a_change_of_a_class_in_arguments(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attribute of it."""
    function = client.persistent_call(_of_nodes)
    node = Node(jnp.asarray(X))
    same(learned(function, node), node.x)
    monkeypatch.setattr(Node, "shift", 7.0)
    same(function(node), node.x + 7.0)


def test_static_values_that_are_equal_to_jax(client: Client) -> None:
    """Whatever came first: what has nothing static may be followed by 1 and by True."""
    function = client.persistent_call(_of_nodes)
    x = jnp.asarray(X)
    for static in (None, 1, True, 1, None, True):
        same(learned(function, Node(x, static)), x * (1000.0 if static is True else 1.0))


def test_two_arguments_of_one_class(client: Client) -> None:
    """Each with what is static in it."""
    function = client.persistent_call(_of_nodes)
    x = jnp.asarray(X)
    for one, other in ((1, True), (True, True), (True, 1), (1, 1)) * 3:
        expected = x * (1000.0 if one is True else 1.0) + x * (1000.0 if other is True else 1.0)
        same(function(Node(x, one), Node(x, other)), expected)
        here.wait_for_programs()


def test_arrays_of_numpy_that_jax_takes_for_others(client: Client) -> None:
    """With their bytes the other way round, or with a mask inside of a tree."""
    function = client.persistent_call(_doubled)
    array = X.ravel()
    same(learned(function, array), jnp.asarray(array * 2))
    same(function(array.astype(">f4")), jnp.asarray(array * 2))
    same(learned(function, {"x": jnp.asarray(array)}), jnp.asarray(array * 2))
    with pytest.raises(ValueError, match="masked"):
        function({"x": np.ma.masked_array(array, array > 2)})


def test_a_batch_of_numpy_goes_the_short_way(client: Client) -> None:
    """Each leaf of such a tree is looked at: jax takes all of these for the array or the number."""
    array, function = X.ravel(), client.persistent_call(_of_batch)
    same(learned(function, {"x": array, "scale": 2}), jnp.asarray(array * 2))
    same(learned(function, {"x": array + 1, "scale": 3}), jnp.asarray((array + 1) * 3))
    for other in ({"x": jnp.asarray(array), "scale": 2}, {"x": array.astype(">f4"), "scale": 2}):
        same(function(other), jnp.asarray(array * 2))
    same(learned(function, {"x": jnp.asarray(array), "scale": 2}), jnp.asarray(array * 2))
    with pytest.raises(ValueError, match="masked"):
        function({"x": np.ma.masked_array(array, array > 2), "scale": 2})


def _of_batch(batch: Any) -> Any:
    return batch["x"] * batch["scale"]


def _doubled(x: Any) -> Any:
    return (x["x"] if type(x) is dict else x) * 2
