"""`place="here"`: this process traces its own misses, and no key leads to what only it has made."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd import Client, connect
from jaxd.dispatch.caller import Caller
from jaxd.errors import UnsharedWarning
from jaxd.tracing import here, own_misses
from tests.another_server import own_server_needed
from tests.end_to_end.counting import BUILT, costs
from tests.end_to_end.several_devices import EIGHT
from tests.end_to_end.test_here import EDITS, same, served
from tests.live_server import LiveServer, live_server, run_client

X = np.arange(6, dtype="f4").reshape(2, 3)
TRACED_HERE = "here: its program is loaded in this process"


@pytest.fixture(autouse=True)
def beside_the_server() -> None:
    """No program goes to a server elsewhere: then there is nothing to be tested."""
    own_server_needed()


@pytest.fixture
def client(live: LiveServer) -> Iterator[Client]:
    """A client that traces its misses, of the common server."""
    with connect(live.unix, place="here") as client:
        yield client


@pytest.fixture
def plain(live: LiveServer) -> Iterator[Client]:
    """A client of the same server, which answers its calls."""
    with connect(live.unix) as client:
        yield client


def settled(function: Any, *args: Any) -> Any:
    """The result of a first call, once the server has built the key, or could not."""
    result = function(*args)
    here.wait_for_programs()
    return result


# one build ---------------------------------------------------------------------------------------


def test_a_miss_is_traced_here_and_compiled_once(
    client: Client, plain: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """The call runs here; the server builds the key of the same program, and compiles nothing."""

    def told(x: Any) -> Any:
        print("traced")
        return {"y": (x * 31, x.sum())}

    function = client.persistent_call(told)
    with costs(client) as spent:
        assert served(client, lambda: same(function(X), jax.jit(told)(X))) == 0
        here.wait_for_programs()
    assert spent == BUILT | {"programs_shared": 1}
    assert capsys.readouterr().out.count("traced") == 2  # here, and by jax in the comparison
    assert served(client, lambda: [function(X) for _ in range(3)]) == 0
    assert function.why(X).place == TRACED_HERE
    with costs(client) as spent:
        same(jax.tree.map(jnp.asarray, plain.persistent_call(told)(X)), jax.jit(told)(X))
    assert not {"traces", "lowers", "compiles"} & spent.keys()


def test_a_later_process_finds_it_by_its_key(client: Client, live: LiveServer) -> None:
    """`why` says a hit, and nothing is traced there."""
    settled(client.persistent_call(lambda x: x * 32), X)
    with connect(live.unix, place="here") as other:
        later = other.persistent_call(lambda x: x * 32)
        assert later.why(X).verdict == "hit"
        with costs(other) as spent:
            assert served(other, lambda: later(X)) == 1
        assert "traces" not in spent
        assert later.why(X).place.startswith("server for now")


def test_clients_that_miss_at_once_have_it_compiled_once(live: LiveServer) -> None:
    """Each traces it; one program is compiled."""
    begin = threading.Barrier(4)

    def first_call(_: int) -> Any:
        with connect(live.unix, place="here") as client:
            function = client.persistent_call(lambda x: jnp.tanh(x) * 33)
            client.statistics()
            begin.wait(30)
            return settled(function, X)

    with connect(live.unix) as plain, costs(plain) as spent, ThreadPoolExecutor(4) as pool:
        for found in pool.map(first_call, range(4)):
            same(found, jax.jit(lambda x: jnp.tanh(x) * 33)(X))
    assert spent["compiles"] == 1


def test_threads_of_one_process(client: Client) -> None:
    """Each has the result of its own arguments, and none waits for ever."""
    function = client.persistent_call(lambda x, n: x * n + 34)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: (n, function(X, float(n))), range(100)))
    for n, result in found:
        np.testing.assert_array_equal(result, X * np.float32(n) + 34)


@pytest.mark.slow
def test_the_disk_has_it_for_a_later_server(live: LiveServer) -> None:
    """Of a process that ended right after its first call."""
    program = """
import jax, jaxd, numpy as np
f = jaxd.persistent_call(lambda x: jax.numpy.tanh(x) * 35, place="here")
x = np.ones(4, "f4")
print(f.why(x).verdict, float(f(x)[0]) > 26)
"""
    for verdict in ("compile", "hit"):
        done = run_client(program, environment=live.environment)
        assert done.stdout.split() == [verdict, "True"], done.stderr


# keys --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["global", "array in place", "environment"])
def test_an_edit_is_another_program(client: Client, plain: Client, name: str) -> None:
    """At the very next call, although the key is built in the background; also for others."""
    edit = next(edit for edit in EDITS if edit.name == name)  # test_here_known has all of them

    def expected() -> Any:
        return jax.jit(lambda x: edit.function(x) + 0)(X)

    edit.back()
    function = client.persistent_call(edit.function, extra_key="own misses")
    there = plain.persistent_call(edit.function, extra_key="own misses")
    try:
        same(function(X), expected())
        edit.change()
        same(function(X), expected())
        same(function(X), expected())
        same(jax.tree.map(jnp.asarray, there(X)), expected())
    finally:
        edit.back()
    same(function(X), expected())
    same(jax.tree.map(jnp.asarray, there(X)), expected())
    here.wait_for_programs()


def test_a_change_before_the_key_is_built_is_noticed(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then nothing guards what the trace has read: the second call waits for that."""
    may_build = threading.Event()
    build, settle = own_misses.OwnMisses._built, here.LocalCalls.settle

    def built_late(self: Any, miss: Any) -> str:
        assert may_build.wait(30)
        return build(self, miss)

    def settled_late(self: Any, skeleton: bytes) -> None:
        may_build.set()
        settle(self, skeleton)

    monkeypatch.setattr(own_misses.OwnMisses, "_built", built_late)
    monkeypatch.setattr(here.LocalCalls, "settle", settled_late)
    monkeypatch.setenv("JAXD_TEST_LATE", "2")
    function = client.persistent_call(lambda x: x * float(os.path.expandvars("$JAXD_TEST_LATE")))
    try:
        same(function(X), jnp.asarray(X * 2))
        monkeypatch.setenv("JAXD_TEST_LATE", "5")
        same(jnp.asarray(function(X)), jnp.asarray(X * 5))
    finally:
        may_build.set()


@pytest.mark.parametrize(
    "context",
    [lambda: jax.enable_x64(True), lambda: jax.default_prng_impl("rbg")],
    ids=["x64", "generator"],
)
def test_a_context_of_jax_is_in_the_key(
    client: Client, plain: Client, context: Callable[[], Any]
) -> None:
    """Inside of it and outside, in either order."""

    def told(x: Any) -> Any:
        keys = jax.random.key_data(jax.random.key(1))
        return jnp.dot(x, x.T) + jnp.arange(2), keys

    def expected() -> Any:
        return jax.jit(lambda x: (*told(x),))(X)  # else jax itself does not look at all of these

    for function in (client.persistent_call(told), plain.persistent_call(told)):
        for _ in range(2):
            with context():
                same(jax.tree.map(jnp.asarray, settled(function, X)), expected())
            same(jax.tree.map(jnp.asarray, settled(function, X)), expected())


# what a trace sees and no key counts -------------------------------------------------------------


class Patch(NamedTuple):
    """A change of a library that code of the user does not name.

    Attributes:
        name: for people.
        function: calls the library, whose own code reads what is changed.
        change: changes it, and is undone.
        shape: of an argument that jax has not traced it for.
    """

    name: str
    function: Callable[[Any], Any]
    change: Callable[[pytest.MonkeyPatch], None]
    shape: tuple[int, ...]


def _code_of_the_library(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("jax._src.nn.functions.sigmoid", jnp.tanh)


def _constant(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(np, "pi", 3.0)


def _submodule(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("jax._src.nn.functions.lax.logistic", jnp.cos)


PATCHES = [
    Patch("swapped functions", lambda x: jax.nn.silu(x) * 1, _code_of_the_library, (1, 5, 1)),
    Patch("constant", lambda x: jax.nn.gelu(x) * 1, _constant, (1, 7, 1)),
    Patch("submodule", lambda x: jax.nn.sigmoid(x) * 1, _submodule, (1, 11, 1)),
]


@pytest.mark.parametrize("patch", PATCHES, ids=[patch.name for patch in PATCHES])
def test_a_patched_library_is_for_this_process_alone(
    live: LiveServer, client: Client, plain: Client, patch: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It computes as `jax.jit` would here, is warned, and nobody else has that program."""
    x = np.linspace(-2, 2, int(np.prod(patch.shape)), dtype="f4").reshape(patch.shape)
    function = client.persistent_call(patch.function)
    with monkeypatch.context() as patched:
        patch.change(patched)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            found = settled(function, x)
        expected = jax.jit(lambda x: patch.function(x) + 0)(x)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert [each.category for each in warned] == [UnsharedWarning]
    assert "another program in this process" in str(warned[0].message)
    assert "for this process alone" in function.why(x).place
    jax.clear_caches()
    right = jax.jit(lambda x: patch.function(x) + 0)(x)
    assert not np.allclose(found, right)
    np.testing.assert_allclose(plain.persistent_call(patch.function)(x), right, rtol=1e-6)
    with connect(live.unix, place="here") as other:
        np.testing.assert_allclose(other.persistent_call(patch.function)(x), right, rtol=1e-6)


def test_what_a_key_counts_may_be_patched(
    client: Client, plain: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function of a library that the code names is another key: shared, without a warning."""

    def told(x: Any) -> Any:
        return jax.nn.relu(x) + 36

    with monkeypatch.context() as patched:
        patched.setattr(jax.nn, "relu", lambda x: x * 100)
        with warnings.catch_warnings():
            warnings.simplefilter("error", UnsharedWarning)
            same(settled(client.persistent_call(told), X), jnp.asarray(X * 100 + 36))
        same(jnp.asarray(plain.persistent_call(told)(X)), jnp.asarray(X * 100 + 36))
    same(settled(client.persistent_call(told), X), jnp.asarray(X + 36))
    same(jnp.asarray(plain.persistent_call(told)(X)), jnp.asarray(X + 36))


def test_state_of_the_process_that_nothing_counts(client: Client, plain: Client) -> None:
    """Such as its number, which a server does not tell from its own."""

    def told(x: Any) -> Any:
        return x * os.getpid()

    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        found = settled(client.persistent_call(told), X)
        there = np.asarray(plain.persistent_call(told)(X))
    np.testing.assert_array_equal(found, X * np.float32(os.getpid()))
    assert not np.array_equal(there, X * np.float32(os.getpid()))


def test_no_client_can_say_what_a_key_stands_for(client: Client, plain: Client) -> None:
    """What it lowers is kept under its content: another key is traced by the server."""
    with costs(client) as spent:
        client.persistent_call(lambda x: x * 37)(X)
        here.wait_for_programs()
    assert spent["traces"] == 1
    with costs(client) as spent:
        same(jnp.asarray(plain.persistent_call(lambda x: x * 38)(X)), jnp.asarray(X * 38))
    assert spent == BUILT


class Pair:
    """Registered by hand, in the tests' own process."""

    def __init__(self, x: Any, n: Any) -> None:
        self.x, self.n = x, n


jax.tree_util.register_pytree_node(
    Pair, lambda pair: ((pair.x,), pair.n), lambda n, children: Pair(children[0], n)
)


def test_a_pytree_that_was_registered_by_hand(client: Client, plain: Client) -> None:
    """What is static in it counts."""

    def told(pair: Pair) -> Any:
        return Pair(pair.x * pair.n, pair.n)

    function, there = client.persistent_call(told), plain.persistent_call(told)
    for n in (2, 3, 2):
        found = settled(function, Pair(X, n))
        assert type(found) is Pair
        assert found.n == n
        np.testing.assert_array_equal(found.x, X * n)
        np.testing.assert_array_equal(there(Pair(X, n)).x, X * n)


# what cannot travel ------------------------------------------------------------------------------


def _locked() -> Callable[[Any], Any]:
    lock = threading.Lock()

    def told(x: Any) -> Any:
        with lock:
            return x * 39

    return told


def _counting() -> Callable[[Any], Any]:
    made = (n for n in (40.0,))

    def told(x: Any) -> Any:
        return x * next(made)

    return told


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("make", "factor"), [(_locked, 39), (_counting, 40)])
def test_what_cannot_be_packed_runs_here(
    client: Client, make: Callable[[], Callable[[Any], Any]], factor: int
) -> None:
    """Traced once, and compiled for this process."""
    function = client.persistent_call(make())
    for _ in range(3):
        same(settled(function, X), jnp.asarray(X * factor))


def test_arrays_that_are_closed_over(client: Client, plain: Client) -> None:
    """Of jax and of numpy: constants of the program, at either end."""
    of_jax, of_numpy = jnp.full((2, 3), 52.0, "f4"), np.full((2, 3), 0.5, "f4")

    def told(x: Any) -> Any:
        return jax.jit(lambda y: y * of_jax)(x) + of_jax[0] * of_numpy

    for function in (client.persistent_call(told), plain.persistent_call(told)):
        for _ in range(3):
            same(jnp.asarray(settled(function, X)), jnp.asarray(X * 52 + 26))


def test_an_error_of_the_function_is_its_own(client: Client) -> None:
    """It is raised as under `jax.jit`, and the next call traces again."""
    calls: list[int] = []

    def told(x: Any) -> Any:
        if not os.environ.get("JAXD_TEST_GOES"):
            raise KeyError("mine")
        return x * 41

    del calls
    function = client.persistent_call(told)
    with pytest.raises(KeyError, match="mine"):
        function(X)
    os.environ["JAXD_TEST_GOES"] = "1"
    try:
        same(settled(function, X), jnp.asarray(X * 41))
    finally:
        del os.environ["JAXD_TEST_GOES"]


# it is jit ---------------------------------------------------------------------------------------


def _prints(x: Any) -> Any:
    jax.debug.print("seen {}", x.sum())
    return x * 42


def _calls_back(x: Any) -> Any:
    pids = jax.pure_callback(lambda: np.int32(os.getpid()), jax.ShapeDtypeStruct((), "i4"))
    return x * 0 + pids


def _in_order(x: Any) -> Any:
    jax.debug.print("seen {}", x.sum(), ordered=True)
    return x * 42


@pytest.mark.parametrize("told", [_prints, _in_order])
def test_prints_appear_in_this_process(
    client: Client, told: Callable[[Any], Any], capfd: pytest.CaptureFixture[str]
) -> None:
    """Once for each call."""
    function = client.persistent_call(told)
    with costs(client) as spent:
        for _ in range(3):
            same(function(X), jnp.asarray(X * 42))
        jax.effects_barrier()
    assert capfd.readouterr().out.count("seen 15.0") == 3
    assert spent == {}
    assert function.why(X).place.startswith("here: jax of this process has compiled it")


def test_callbacks_run_in_this_process(client: Client) -> None:
    """As those of `jax.jit`."""
    function = client.persistent_call(_calls_back)
    for _ in range(2):
        np.testing.assert_array_equal(function(X), np.full_like(X, os.getpid()))


def test_donated_arrays_are_gone_from_the_first_call_on(client: Client) -> None:
    """As under `jax.jit`."""
    function = client.persistent_call(lambda x, y: (x + y, y), donate_argnums=0)
    x = jnp.ones((32, 32))
    for step in range(4):
        before = x
        x, _ = function(x, jnp.ones(()))
        assert before.is_deleted(), step
    same(x, jnp.full((32, 32), 5.0, "f4"))


def test_results_share_their_memory(client: Client) -> None:
    """By dlpack, without a copy, as those of `jax.jit`: they lie in this process."""
    function = client.persistent_call(lambda x: x * 43)
    found = settled(function, jnp.ones((64, 64)))
    seen = np.from_dlpack(found)
    assert seen.ctypes.data == found.unsafe_buffer_pointer()
    np.testing.assert_array_equal(function(jax.dlpack.from_dlpack(found)), seen * 43)


def test_tensors_of_torch_by_dlpack(client: Client) -> None:
    """Both ways, on this process's memory."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    function = client.persistent_call(lambda x: x * 44)
    given = torch.ones(8, 8)
    found = settled(function, jax.dlpack.from_dlpack(given))
    back = torch.from_dlpack(found)
    assert back.data_ptr() == found.unsafe_buffer_pointer()
    assert bool((back == 44).all())


def test_without_jit_nothing_is_traced(client: Client) -> None:
    """The Python runs at each call; the server is not asked."""
    function = client.persistent_call(lambda x: x * (1 if isinstance(x, jax.core.Tracer) else 45))
    with jax.disable_jit(), costs(client) as spent:
        same(function(jnp.asarray(X)), jnp.asarray(X * 45))
    assert spent == {}
    same(settled(function, X), jnp.asarray(X))


def test_a_persistent_function_inside_is_a_part_of_it(client: Client) -> None:
    """As a jitted one inside of another; and inside of jax's own transformations."""
    inner = client.persistent_call(lambda x: x * 46)
    outer = client.persistent_call(lambda x: inner(x).sum() + inner(x * 2).sum())
    with costs(client) as spent:
        same(settled(outer, X), jnp.asarray(np.float32(X.sum() * 46 * 3)))
    assert spent == BUILT | {"programs_shared": 1}
    np.testing.assert_array_equal(jax.grad(outer)(jnp.asarray(X)), np.full_like(X, 138))


def test_derivatives_of_a_function_are_traced_here(client: Client) -> None:
    """`f.grad` and `f.vmap` have keys of their own."""
    function = client.persistent_call(lambda x: (x**2).sum() * 47)
    same(settled(function.grad(), jnp.asarray(X)), jnp.asarray(X * 94))
    same(settled(function.vmap(), X), jnp.asarray((X**2).sum(1) * 47))


SHARDED = """
import jax, jaxd, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxd.tracing import here
mesh = Mesh(np.array(jax.devices()), "a")
whole = NamedSharding(mesh, PartitionSpec("a"))
f = jaxd.persistent_call(lambda x: x * 48, place="here")
for x in (jax.device_put(np.ones(8, "f4"), whole), np.ones(8, "f4")) * 2:
    y = f(x)
    here.wait_for_programs()
    assert y.sharding.device_set == jax.jit(lambda x: x * 48)(x).sharding.device_set, y.sharding
    assert (np.asarray(y) == 48).all()
x = jax.device_put(np.ones(4, "f4"), jax.devices()[3])
assert f(x).devices() == x.devices(), f(x).devices()
print("right")
"""


@pytest.mark.slow
def test_arrays_that_lie_on_several_devices(live: LiveServer) -> None:
    """They stay where they are, in either order, as under `jax.jit`."""
    done = run_client(SHARDED, environment=live.environment | EIGHT)
    assert done.stdout.strip() == "right", done.stderr


def test_the_server_sends_no_events_of_its_own_trace(
    client: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They would be read in vain: what there is to see was seen when this process traced it."""

    def told(x: Any) -> Any:
        print("traced")
        return x * 52.5

    kinds: list[str] = []
    handles = Caller.event

    def event(caller: Caller, connection: Any, number: int, kind: str, content: Any) -> None:
        if isinstance(connection.about(number), own_misses.SilentCall):
            kinds.append(kind)
        handles(caller, connection, number, kind, content)

    monkeypatch.setattr(Caller, "event", event)
    with costs(client) as spent:
        settled(client.persistent_call(told), X)
    assert spent["traces"] == 1
    assert kinds == []
    assert capsys.readouterr().out == "traced\n"


# where nothing is traced here --------------------------------------------------------------------


def test_auto_leaves_misses_to_the_server(live: LiveServer) -> None:
    """As `place="server"`."""
    with connect(live.unix, place="auto") as client:
        function = client.persistent_call(lambda x: x * 49)
        with costs(client) as spent:
            assert served(client, lambda: function(X)) == 1
        assert spent == BUILT


@pytest.mark.slow
@pytest.mark.parametrize("place", ["here", "auto"])
def test_a_server_that_takes_programs_only(place: Any) -> None:
    """It answers the calls: it is given no program of another form, and gives none."""
    pytest.importorskip("flatbuffers", reason="jaxd[exported] is not installed")
    with (
        live_server("--accept", "exported") as server,
        connect(server.unix, place=place) as client,
    ):
        function = client.persistent_call(lambda x: x * 50)
        for _ in range(3):
            np.testing.assert_array_equal(function(X), X * 50)
        assert "exported" in function.why(X).place


def test_a_lost_server_is_as_under_jit(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever keeps the server from compiling it, jax does."""

    def refuse(*_: Any) -> Any:
        raise OSError("no room")

    monkeypatch.setattr(own_misses, "pack_lowered", refuse)
    function = client.persistent_call(lambda x: x * 51)
    for _ in range(2):
        same(settled(function, X), jnp.asarray(X * 51))
    assert "OSError: no room" in function.why(X).place
