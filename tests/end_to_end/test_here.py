"""`place="auto"` and `"here"`: programs of the server run in the client's process.

And never the wrong one. What `"here"` does with a miss stands in `test_own_misses`.
"""

from __future__ import annotations

import enum
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxd
from jaxd import Client, connect
from jaxd.dispatch.caller import Caller
from jaxd.errors import PlaceRefused
from jaxd.interop import local_programs
from jaxd.interop.remote_array import RemoteArray
from jaxd.request import array_specs
from jaxd.tracing import here
from jaxd_protocol.jax_objects import program_bytes
from tests.another_server import own_server_needed
from tests.end_to_end.counting import costs
from tests.end_to_end.several_devices import EIGHT
from tests.live_server import LiveServer, run_client

X = np.arange(6, dtype="f4").reshape(2, 3)


@pytest.fixture(autouse=True)
def beside_the_server() -> None:
    """No program is taken from a server elsewhere: then there is nothing to be tested."""
    own_server_needed()


@pytest.fixture(autouse=True)
def taken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call takes the program, however fast the server answers."""
    monkeypatch.setattr(here, "LOAD_S", 0.0)


@pytest.fixture
def client(live: LiveServer) -> Iterator[Client]:
    """A client that runs programs here, of the common server."""
    with connect(live.unix, place="auto") as client:
        yield client


def served(client: Client, act: Callable[[], Any]) -> int:
    """How many calls the server has answered during `act`."""
    before = client.statistics().calls
    act()
    return client.statistics().calls - before


def settled(function: Any, *args: Any, **kwargs: Any) -> Any:
    """The result once such calls run here: of the third, which jax dispatches by itself."""
    for _ in range(2):
        function(*args, **kwargs)
        here.wait_for_programs()
    return function(*args, **kwargs)


def same(found: Any, expected: Any) -> None:
    """Equal as trees, with dtypes and weak types, all of it jax's own arrays."""
    assert str(jax.tree.structure(found)) == str(jax.tree.structure(expected))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert type(one) is type(jnp.zeros(()))
        assert (one.dtype, one.weak_type) == (other.dtype, other.weak_type)
        np.testing.assert_array_equal(one, other)


# hits --------------------------------------------------------------------------------------------


def test_the_second_call_runs_here(client: Client) -> None:
    """One call and one build on the server, and results as those of `jax.jit`."""

    def affine(x: Any, w: Any = 2.0, *, b: Any = 0) -> Any:
        return {"y": (x * w + b,), "n": [x.sum(), w]}

    function = client.persistent_call(affine)
    with costs(client) as spent:
        assert served(client, lambda: [function(X, 3.0, b=1) for _ in range(5)]) == 1
    assert spent == {"traces": 1, "lowers": 1, "compiles": 1}
    same(function(X, 3.0, b=1), jax.jit(affine)(X, 3.0, b=1))
    assert function.why(X, 3.0, b=1).place == "here: its program is loaded in this process"


def test_a_program_that_is_called_a_few_times_is_not_loaded(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before calls have waited for the server as long as it takes to load one."""
    function = client.persistent_call(lambda x: x * 5)
    monkeypatch.setattr(here, "LOAD_S", 1e9)
    assert served(client, lambda: [function(X) for _ in range(30)]) == 30
    assert "as long as loading a program takes" in str(function.why(X).place)
    monkeypatch.setattr(here, "LOAD_S", 1e-9)
    assert served(client, lambda: [function(X) for _ in range(30)]) == 1


@pytest.mark.slow
def test_another_signature_is_another_program(client: Client) -> None:
    """Shapes, dtypes and weak types that differ are never answered by what is loaded."""
    function, plain = (make(lambda x, y: x * 2 + y) for make in (client.persistent_call, jax.jit))
    given = [
        (X, 1),
        (X, True),
        (X, 1.0),
        (X, np.float32(1)),
        (jnp.asarray(X), 1),
        (X.astype("i4"), 1),
        (X.astype("i4"), 1.0),
        (X[:1], 1),
        (jnp.asarray(X), jnp.asarray(1)),
        (X.astype("f8"), 1),
    ]
    for _ in range(3):
        for args in given:
            function(*args)
    assert served(client, lambda: [function(*args) for args in given]) == 0
    for args in given:
        same(function(*args), plain(*args))


@pytest.mark.parametrize(
    "value",
    [
        {"a": X, "b": (X, None)},
        [jnp.asarray(X)],
        {"a": {"text": "kept"}, "x": X},
        jax.random.key(3),
        np.float32(2),
    ],
    ids=["nested", "list", "text", "keys", "scalar"],
)
def test_trees_and_what_is_static_in_them(client: Client, value: Any) -> None:
    """All that jaxd takes, whichever way it is dispatched."""

    def doubled(tree: Any) -> Any:
        leaves = [leaf for leaf in jax.tree.leaves(tree) if not isinstance(leaf, str)]
        if jnp.issubdtype(leaves[0].dtype, jax.dtypes.prng_key):
            return jax.random.normal(leaves[0], (2,))
        return {"b": [leaf * 2 for leaf in leaves], "a": jnp.asarray(leaves[0])}

    function = client.persistent_call(doubled)
    found = settled(function, value)
    assert served(client, lambda: function(value)) == 0
    same(found, jax.tree.map(jnp.asarray, doubled(value)))


def test_static_arguments(client: Client) -> None:
    """By position and by name; 1 and True are others."""

    def power(x: Any, n: Any, kind: str = "plus") -> Any:
        assert kind in ("plus", "minus")
        return x**2 if n is True else x + n if kind == "plus" else x - n

    function = client.persistent_call(power, static_argnums=1, static_argnames="kind")
    given: list[tuple[Any, str]] = [(1, "plus"), (True, "plus"), (1, "minus"), (3, "plus")]
    for n, kind in given:
        same(settled(function, X, n, kind=kind), jnp.asarray(power(X, n, kind)))
    assert served(client, lambda: [function(X, n, kind=kind) for n, kind in given]) == 0
    for n, kind in given:
        same(function(X, n, kind=kind), jnp.asarray(power(X, n, kind)))


def test_donated_arrays_are_gone(client: Client) -> None:
    """The state of a loop moves here once, and is given up in each step, wherever it was."""

    def step(state: Any, batch: Any) -> Any:
        return {name: value + batch for name, value in state.items()}, batch.sum()

    function = client.persistent_call(step, donate_argnums=0)
    state: Any = {f"w{i}": jnp.full((64, 64), i, "f4") for i in range(6)}
    kinds = []
    for _ in range(6):
        before = state
        state, _ = function(state, np.float32(1))
        here.wait_for_programs()
        kinds.append(isinstance(before["w0"], RemoteArray))
        if len(kinds) > 1:
            assert all(value.is_deleted() for value in before.values())
    assert kinds[1:3] == [True, False] or kinds[1:4] == [True, True, False]
    same(state, {f"w{i}": jnp.full((64, 64), i + 6, "f4") for i in range(6)})
    assert served(client, lambda: function(state, np.float32(1))) == 0


def test_a_large_program_loads_in_a_thread(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server answers until it is there; no call waits."""
    monkeypatch.setattr(here, "SMALL_BYTES", 0)
    may_load, loads = threading.Event(), program_bytes.load_compiled

    def load(*args: Any) -> Any:
        assert may_load.wait(30)
        assert threading.current_thread().name == "jaxd-load"
        return loads(*args)

    monkeypatch.setattr(local_programs, "load_compiled", load)
    function = client.persistent_call(lambda x: x * 5)
    assert served(client, lambda: [function(X) for _ in range(3)]) == 3
    may_load.set()
    here.wait_for_programs()
    assert served(client, lambda: function(X)) == 0
    same(function(X), jnp.asarray(X * 5))


def test_warming_loads_it(client: Client) -> None:
    """The first call runs here then."""
    function = client.persistent_call(lambda x: x * 6)
    function.warm(X)
    assert served(client, lambda: function(X)) == 0


def test_functions_with_one_program_load_it_once(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they share it on the server."""
    loaded: list[Any] = []

    def load(*args: Any) -> Any:
        loaded.append(0)
        return program_bytes.load_compiled(*args)

    monkeypatch.setattr(local_programs, "load_compiled", load)
    first, second = (client.persistent_call(lambda x: x * 7, extra_key=n) for n in (1, 2))
    settled(first, X)
    settled(second, X)
    assert loaded == [0]


def test_many_threads(client: Client) -> None:
    """Each has the result of its own arguments."""
    function = client.persistent_call(lambda x, n: x * n)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: (n, function(X, float(n))), range(200)))
    for n, result in found:
        np.testing.assert_array_equal(result, X * np.float32(n))


# keys --------------------------------------------------------------------------------------------

FACTOR = 2.0
TABLE = {"rate": 3.0}
ITEMS = [1.0, 2.0]
WEIGHT = np.ones(3, "f4")
SPACE = SimpleNamespace(rate=5.0)


class Model:
    """What a function reads of a class and of an object."""

    rate = 2.0

    def __init__(self) -> None:
        self.bias = 1.0


MODEL = Model()


def helper(x: Any, by: float = 2.0) -> Any:
    return x * by


def other_helper(x: Any, by: float = 3.0) -> Any:
    return x - by


def closed_over(rate: float) -> tuple[Any, Callable[[float], None]]:
    def change(value: float) -> None:
        nonlocal rate
        rate = value

    return (lambda x: x * rate), change


_closed, _change_closed = closed_over(2.0)


class Edit(NamedTuple):
    """Something that a function reads, and a change of it.

    Attributes:
        name: for people.
        function: reads it.
        change: makes it another one.
        back: makes it what it was.
    """

    name: str
    function: Callable[[Any], Any]
    change: Callable[[], Any]
    back: Callable[[], Any]


def _set(name: str, value: Any) -> Callable[[], None]:
    return lambda: globals().__setitem__(name, value)


def _attribute(holder: Any, name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(holder, name, value)


def _variable(value: str) -> Callable[[], None]:
    return lambda: os.environ.__setitem__("JAXD_TEST_RATE", value)


def _of_environment(x: Any) -> Any:
    return x * float(os.environ.get("JAXD_TEST_RATE", "2"))


def _written_anew(x: Any) -> Any:
    return x + 1


_CODE, _OTHER_CODE = _written_anew.__code__, (lambda x: x - 1).__code__

EDITS = [
    Edit("global", lambda x: x * FACTOR, _set("FACTOR", 4.0), _set("FACTOR", 2.0)),
    Edit(
        "item of a dict",
        lambda x: x * TABLE["rate"],
        lambda: TABLE.update(rate=6.0),
        lambda: TABLE.update(rate=3.0),
    ),
    Edit(
        "list",
        lambda x: x * sum(ITEMS),
        lambda: ITEMS.append(9.0),
        lambda: ITEMS.__delitem__(slice(2, None)),
    ),
    Edit(
        "array in place",
        lambda x: x @ WEIGHT,
        lambda: WEIGHT.__setitem__(0, 7),
        lambda: WEIGHT.__setitem__(0, 1),
    ),
    Edit(
        "attribute",
        lambda x: x * SPACE.rate,
        _attribute(SPACE, "rate", 6.0),
        _attribute(SPACE, "rate", 5.0),
    ),
    Edit(
        "of an object",
        lambda x: x + MODEL.bias,
        _attribute(MODEL, "bias", 6.0),
        _attribute(MODEL, "bias", 1.0),
    ),
    Edit(
        "of a class",
        lambda x: x * MODEL.rate,
        _attribute(Model, "rate", 6.0),
        _attribute(Model, "rate", 2.0),
    ),
    Edit("helper", lambda x: helper(x) + 0, _set("helper", other_helper), _set("helper", helper)),
    Edit(
        "defaults",
        lambda x: other_helper(x) + 0,
        _attribute(other_helper, "__defaults__", (9.0,)),
        _attribute(other_helper, "__defaults__", (3.0,)),
    ),
    Edit(
        "code",
        _written_anew,
        _attribute(_written_anew, "__code__", _OTHER_CODE),
        _attribute(_written_anew, "__code__", _CODE),
    ),
    Edit("closure", _closed, lambda: _change_closed(7.0), lambda: _change_closed(2.0)),
    Edit("environment", _of_environment, _variable("5"), _variable("2")),
    Edit(
        "x64",
        lambda x: x + jnp.arange(3).sum(),
        lambda: jax.config.update("jax_enable_x64", True),
        lambda: jax.config.update("jax_enable_x64", False),
    ),
    Edit(
        "precision",
        lambda x: jnp.dot(x, x.T),
        lambda: jax.config.update("jax_default_matmul_precision", "highest"),
        lambda: jax.config.update("jax_default_matmul_precision", None),
    ),
]


class Mode(enum.IntEnum):
    """To jax, members are integers; to jaxd they are static."""

    FAST = 1
    SLOW = 2


class Whole(int):
    """An integer of another type."""


@pytest.mark.parametrize("other", [Mode.FAST, Mode.SLOW, Whole(1), np.int32(1), True])
def test_a_number_of_another_type_is_not_taken_for_one(client: Client, other: Any) -> None:
    """Nor is it dispatched with the program of a plain one."""

    def told(x: Any, n: Any) -> Any:
        return (x * 100 if isinstance(n, Mode) else x + n), n

    function = client.persistent_call(told)
    there = client.persistent_call(told, place="server")
    settled(function, X, 1)
    for n in (other, 1, other, 1):
        same(settled(function, X, n), there(X, n))


def test_what_is_static_in_a_tree_counts_by_its_type(client: Client) -> None:
    """jax takes a node with 1 in it for one with True."""

    @jax.tree_util.register_pytree_node_class
    class Node:
        def __init__(self, x: Any, n: Any) -> None:
            self.x, self.n = x, n

        def tree_flatten(self) -> Any:
            return (self.x,), self.n

        @classmethod
        def tree_unflatten(cls, n: Any, children: Any) -> Node:
            return cls(children[0], n)

    def told(node: Any) -> Any:
        return node.x * 100 if node.n is True else node.x + node.n

    function = client.persistent_call(told)
    x = jnp.asarray(X)
    for n in (1, True, 1, True):
        same(settled(function, Node(x, n)), x * 100 if n is True else x + 1)


@jax.tree_util.register_pytree_node_class
class State:
    """A node at the top of an argument, with functions in it as those of flax and optax."""

    def __init__(self, x: Any, rule: Any) -> None:
        self.x, self.rule = x, rule

    def tree_flatten(self) -> Any:
        return (self.x,), (self.rule,)

    @classmethod
    def tree_unflatten(cls, rule: Any, children: Any) -> State:
        return cls(children[0], *rule)


class Rule(NamedTuple):
    """A function, as the rule of an optimizer is one."""

    apply: Any


RATES = {"rate": 2.0}


def rated(x: Any) -> Any:
    return x * RATES["rate"]


def test_objects_with_functions_in_them(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dispatched by jax itself as long as these are the very same and as they were."""

    def step(state: State) -> State:
        return State(state.rule.apply(state.x) + 1.0, state.rule)

    described: list[Any] = []
    describes = array_specs.describe_call

    def describe(*args: Any) -> Any:
        described.append(args)
        return describes(*args)

    monkeypatch.setattr(here, "describe_call", describe)
    function = client.persistent_call(step)
    x, rule, other = jnp.ones(3), Rule(rated), Rule(jnp.negative)
    state = State(x, rule)
    for _ in range(4):
        state = function(state)  # from the second on with the rule that results have
    described.clear()
    np.testing.assert_array_equal(function(function(state)).x, 127)
    assert described == []
    for _ in range(3):
        np.testing.assert_array_equal(function(State(x, other)).x, 0)
        np.testing.assert_array_equal(function(State(x, rule)).x, 3)
    try:
        RATES["rate"] = 5.0
        for _ in range(4):
            np.testing.assert_array_equal(function(State(x, rule)).x, 6)
    finally:
        RATES["rate"] = 2.0
    for _ in range(4):
        np.testing.assert_array_equal(function(State(x, rule)).x, 3)


# what stays with the server ----------------------------------------------------------------------


def _printed(x: Any) -> Any:
    jax.debug.print("{x}", x=x)
    return x


@pytest.mark.parametrize(
    ("function", "options", "reason"),
    [
        (_printed, {}, "calls back into Python"),
        (lambda x: x + 1, {"results": "numpy"}, "results='numpy'"),
        (lambda x: x + 1, {"timeout_s": 50}, "timeout_s"),
        (lambda x: x + 2, {"config": {"jax_debug_nans": True}}, "settings of jax of its own"),
    ],
    ids=["callback", "numpy", "timeout", "NaNs"],
)
def test_what_cannot_run_here_stays(
    client: Client, function: Any, options: Any, reason: str
) -> None:
    """`why` says the reason."""
    persistent = client.persistent_call(function, **options)
    assert served(client, lambda: [persistent(X) for _ in range(4)]) == 4
    found = persistent.why(X).place
    assert found.startswith("server: ")
    assert reason in found


def test_an_own_setting_of_the_function_counts(client: Client) -> None:
    """It is in the key, and so is none of the caller's."""
    function = client.persistent_call(lambda x: x + 1, config={"jax_enable_x64": True})
    wide = np.ones(3)
    assert settled(function, wide).dtype == np.float64
    assert function(np.ones(3, "f4")).dtype == np.float32
    assert settled(function, wide).dtype == np.float64


@pytest.mark.slow
def test_arrays_that_were_put_elsewhere(live: LiveServer) -> None:
    """An array on another device of this process is not taken for one of the first."""
    program = f"""
import jax, jaxd, numpy as np
from jaxd.tracing import here
here.LOAD_S = 0
with jaxd.connect({live.unix!r}, place="here") as client:
    f = client.persistent_call(lambda x: x * 3)
    for device in jax.devices()[:2] * 3:
        x = jax.device_put(np.ones(4, "f4"), device)
        assert (np.asarray(f(x)) == 3).all()
    print(f.why(np.ones(4, "f4")).place)
"""
    done = run_client(program, environment=live.environment | EIGHT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("here: its program is loaded")


# it is jit ---------------------------------------------------------------------------------------


RETRACING = """
import jax, jaxd, os
calls = []
@jaxd.persistent_call
def f(x):
    if os.environ["JAXD_PLACE"] != "server":
        calls.append(type(x).__name__)
    return x * 2
print(f(1.0), f(1.0), calls)
"""


@pytest.mark.slow
@pytest.mark.parametrize("place", ["here", "auto", "server"])
def test_retracing_runs_the_python_here(live: LiveServer, place: str) -> None:
    """Once for each kind of call, for a debugger; where all runs on the server it means nothing."""
    environment = live.environment | {"JAXD_PLACE": place, "JAXD_RETRACE": "1"}
    done = run_client(RETRACING, environment=environment)
    expected = "[]" if place == "server" else "['DynamicJaxprTracer']"
    assert done.stdout.strip() == f"2.0 2.0 {expected}", done.stderr


# places and rules --------------------------------------------------------------------------------


def test_by_default_everything_runs_on_the_server(live: LiveServer) -> None:
    """No program is asked for."""
    with connect(live.unix) as client:
        function = client.persistent_call(lambda x: x * 11)
        assert served(client, lambda: [function(X) for _ in range(4)]) == 4
        assert function.why(X).place == "server"
        assert "runs" not in str(function.why(X)).splitlines()[-1]


@pytest.mark.parametrize("kind", ["tcp", "tls"])
def test_over_a_network_nothing_is_taken(live: LiveServer, kind: str) -> None:
    """`here` is an error, `auto` is the server."""
    address = getattr(live, kind)
    with connect(address, token="a-token-for-tests-only", place="here") as client:
        with pytest.raises(PlaceRefused, match="only over a Unix socket"):
            client.persistent_call(lambda x: x * 12)(X)
        auto = client.persistent_call(lambda x: x * 12, place="auto")
        assert served(client, lambda: [auto(X) for _ in range(4)]) == 4
        assert auto.why(X).place.startswith("server: the server is reached at tcp") or kind == "tls"


AUTO = """
import sys, jaxd, numpy as np
from jaxd.tracing import here
here.LOAD_S = 0
f = jaxd.persistent_call(lambda x: x * 13, place="auto")
for _ in range(3): f(np.ones(3, "f4"))
print("jax" in sys.modules, f.why(np.ones(3, "f4")).place)
import jax
for _ in range(3): f(np.ones(3, "f4"))
print(f.why(np.ones(3, "f4")).place)
"""


@pytest.mark.slow
def test_auto_imports_nothing(live: LiveServer) -> None:
    """Here from when jax is imported, before that on the server."""
    done = run_client(AUTO, environment=live.environment)
    assert done.stdout.splitlines() == [
        "False server: this process has not imported jax",
        "here: its program is loaded in this process",
    ], done.stderr


def test_the_option_of_a_function_comes_first(live: LiveServer) -> None:
    """Before that of its client."""
    with connect(live.unix, place="here") as client:
        function = client.persistent_call(lambda x: x * 14, place="server")
        assert served(client, lambda: [function(X) for _ in range(3)]) == 3
    with connect(live.unix) as client:
        function = client.persistent_call(lambda x: x * 15, place="auto")
        assert served(client, lambda: [function(X) for _ in range(3)]) == 1
        function = client.persistent_call(lambda x: x * 15.5, place="here")
        assert served(client, lambda: [function(X) for _ in range(3)]) == 0


def test_verified_programs_are_those_of_the_server(live: LiveServer) -> None:
    """What is compared has to be what answers."""
    with connect(live.unix, place="here", verify=True) as client:
        function = client.persistent_call(lambda x: x * 16)
        assert served(client, lambda: [function(X) for _ in range(3)]) == 3
        assert "verify" in function.why(X).place


OTHERS = """
import jax, jaxd, sys
from jaxd.tracing import here
if sys.argv[1] == "version": here.versions = lambda: {"jax": "0.1"}
if sys.argv[1] == "platform": here.default_platform = lambda servers: "gpu"
if sys.argv[1] == "machine": here.machine_id = lambda: "another"
try: jaxd.persistent_call(lambda x: x)(1.0)
except jaxd.errors.PlaceRefused as error: print(error)
f = jaxd.persistent_call(lambda x: x + 1, place="auto")
print([float(f(1.0)) for _ in range(3)], f.why(1.0).place)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("version", "the server has jax "),
        ("platform", "the server computes on cpu, and jax of this process on gpu"),
        ("machine", "the server runs on another machine"),
    ],
)
def test_another_jax_takes_nothing(live: LiveServer, what: str, text: str) -> None:
    """Nor does one on another kind of device, or beyond a forwarded socket."""
    done = run_client(OTHERS, what, environment=live.environment | {"JAXD_PLACE": "here"})
    first, second = done.stdout.splitlines()
    assert text in first, done.stderr
    assert "[2.0, 2.0, 2.0] server: " in second
    assert text in second


def test_a_process_without_jax_is_told(live: LiveServer) -> None:
    """With `here`, at the first call."""
    program = """
import sys, jaxd
sys.modules["jax"] = None
try: jaxd.persistent_call(lambda x: x, place="here")(1.0)
except jaxd.errors.PlaceRefused as error: print(error)
"""
    done = run_client(program, environment=live.environment)
    assert "needs jax in this process" in done.stdout, done.stderr


@pytest.mark.slow
def test_a_process_that_ends_while_a_program_loads(live: LiveServer) -> None:
    """It ends as any other."""
    program = f"""
import jax, jaxd, numpy as np
from jaxd.tracing import here
here.SMALL_BYTES = here.LOAD_S = 0
with jaxd.connect({live.unix!r}, place="auto") as client:
    f = client.persistent_call(lambda x: jax.numpy.linalg.svd(x @ x.T))
    for _ in range(2): f(np.eye(8, dtype="f4"))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=live.environment,
        capture_output=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.slow
def test_a_program_comes_from_disk_without_being_written_again(
    live: LiveServer, client: Client
) -> None:
    """The bytes are those of the process that compiled it: they load in a third process."""
    function = client.persistent_call(lambda x: jnp.tanh(x) * 19)
    settled(function, X)
    client.caller.session.ask("forget", b"0" * 16)  # the disk is up to date
    program = f"""
import jax, jaxd, numpy as np
from jaxd.tracing import here
here.LOAD_S = 0
with jaxd.connect({live.unix!r}, place="here") as client:
    f = client.persistent_call(lambda x: jax.numpy.tanh(x) * 19)
    for _ in range(3): f(np.arange(6, dtype="f4").reshape(2, 3))
    print(f.why(np.arange(6, dtype="f4").reshape(2, 3)).place)
"""
    for _ in range(2):
        done = run_client(program, environment=live.environment)
        assert done.stdout.startswith("here: its program is loaded"), done.stderr


def test_it_may_be_in_the_environment(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """`JAXD_PLACE`, of a function without the option."""
    monkeypatch.setenv("JAXD_PLACE", "here")
    monkeypatch.setenv("JAXD_SERVER", live.unix)
    function = jaxd.persistent_call(lambda x: x * 20)
    settled(function, X)
    assert function.why(X).place == "here: its program is loaded in this process"


def test_threads_that_call_one_function_all_come_here(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that is on its way while another thread has the program come says nothing about it."""
    function = client.persistent_call(lambda x: x * 23)
    monkeypatch.setattr(here, "LOAD_S", 1e9)
    function(X)
    sent, taken = threading.Event(), threading.Event()
    send = Caller.call

    def late(caller: Any, call: Any) -> Any:
        sent.set()
        assert taken.wait(30)
        return send(caller, call)

    monkeypatch.setattr(Caller, "call", late)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(function, X)
        assert sent.wait(30)
        monkeypatch.setattr(Caller, "call", send)
        monkeypatch.setattr(here, "LOAD_S", 0.0)
        settled(function, X)
        taken.set()
        same(slow.result(30), jnp.asarray(X * 23))
    assert served(client, lambda: function(X)) == 0
    assert function.why(X).place == "here: its program is loaded in this process"
