"""What is no data in a result: the client's own classes and functions, and tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.live_server import LiveServer
from tests.warm_clients import run_light, run_warm

pytestmark = pytest.mark.counts_builds
libraries = pytest.mark.libraries

START = """
import sys, json
import jax, jax.numpy as jnp, numpy as np
from jaxd import persistent_call, statistics, errors
from jaxd.results.local_objects import RemoteObject
x, y = np.ones((4, 3), np.float32), np.zeros((4, 1), np.float32)
facts, before = {}, statistics().traces
def finish():
    print(json.dumps({**facts, "traces": statistics().traces - before}))
"""


def run_program(server: LiveServer, program: str, **more: str) -> Any:
    """What a program tells of itself, run in a fresh process."""
    done = run_warm(server, START + program + "\nfinish()", **more)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


LINEN = """
import flax.linen as nn, flax.struct, optax
from flax.training.train_state import TrainState

class MLP(nn.Module):
    width: int = 8
    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(nn.relu(nn.Dense(self.width)(x)))

class State(TrainState):
    note: str = flax.struct.field(pytree_node=False, default="mine")

model, tx = MLP(), optax.adam(1e-2)

@persistent_call
def start(x):
    params = model.init(jax.random.key(0), x)["params"]
    return State.create(apply_fn=model.apply, params=params, tx=tx)

@persistent_call
def step(state, x, y):
    def loss(params):
        return jnp.mean((state.apply_fn({"params": params}, x) - y) ** 2)
    return state.apply_gradients(grads=jax.grad(loss)(state.params))
"""

TRAIN_STATE = (
    LINEN
    + """
first = state = start(x)
facts["made there"] = [type(state) is State, state.apply_fn == model.apply, state.tx == tx]
first = state = State.create(
    apply_fn=model.apply, params=state.params, tx=tx).replace(step=jnp.int32(0))
for _ in range(5):
    state = step(state, x, y)
facts["went there"] = [
    type(state) is State, state.apply_fn is first.apply_fn, state.tx.update is tx.update,
    jax.tree.structure(state) == jax.tree.structure(first), int(state.step) == 5]
facts["works here"] = state.apply_fn({"params": state.params}, x).shape == (4, 1)
"""
)


@pytest.mark.slow
@libraries("flax", "optax")
def test_a_train_state_comes_home_as_the_clients_own(live: LiveServer) -> None:
    """With its class, its functions and its optimizer; five steps are one trace.

    On a warm server too, in a process that the server has never seen.
    """
    for traces in (2, 0):
        assert run_program(live, TRAIN_STATE) == {
            "made there": [True] * 3,
            "went there": [True] * 5,
            "works here": True,
            "traces": traces,
        }


OPTAX = """
import optax
opt = optax.chain(optax.clip(1.0), optax.adam(1e-2))
params = {"w": jnp.ones((3, 1)), "b": jnp.zeros((1,))}

@persistent_call
def step(params, state, x, y):
    grads = jax.grad(lambda p: jnp.mean((x @ p["w"] + p["b"] - y) ** 2))(params)
    updates, state = opt.update(grads, state, params)
    return optax.apply_updates(params, updates), state

first = state = opt.init(params)
for _ in range(5):
    params, state = step(params, state, x, y)
facts["same"] = jax.tree.structure(state) == jax.tree.structure(first)
"""

EQUINOX = """
import equinox as eqx

class Net(eqx.Module):
    one: eqx.nn.Linear
    mlp: eqx.nn.MLP
    act: object = eqx.field(static=True)
    def __call__(self, x):
        return self.mlp(self.act(self.one(x)))

def own(x):
    return jnp.tanh(x) * 2

keys = jax.random.split(jax.random.key(0))
net = Net(eqx.nn.Linear(3, 4, key=keys[0]), eqx.nn.MLP(4, 1, 8, 2, key=keys[1]), own)
params, static = eqx.partition(net, eqx.is_array)

def step(params, static, x, y):
    def loss(params):
        return jnp.mean((jax.vmap(eqx.combine(params, static))(x) - y) ** 2)
    grads = jax.grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

step = persistent_call(step, static_argnums=1)
first = params
for _ in range(5):
    params = step(params, static, x, y)
facts["same"] = jax.tree.structure(params) == jax.tree.structure(first)
facts["own"] = [type(params) is Net, params.act is own, params.mlp.activation is None
                or type(params.mlp.activation) is type(first.mlp.activation)]
facts["works here"] = jax.vmap(eqx.combine(params, static))(x).shape == (4, 1)
"""

NNX = """
from flax import nnx

class Net(nnx.Module):
    def __init__(self, rngs):
        self.a = nnx.Linear(3, 4, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.b = nnx.Linear(4, 1, rngs=rngs)
        self.act = nnx.relu
    def __call__(self, x):
        return self.b(self.act(self.a(x)))

@persistent_call
def step(graph, params, rest, x, y):
    def loss(params):
        return jnp.mean((nnx.merge(graph, params, rest)(x) - y) ** 2)
    grads = jax.grad(loss)(params)
    params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
    return nnx.split(nnx.merge(graph, params, rest), nnx.Param, ...)

first = graph, params, rest = nnx.split(Net(nnx.Rngs(0)), nnx.Param, ...)
for _ in range(5):
    graph, params, rest = step(graph, params, rest, x, y)
facts["same"] = [type(params) is nnx.State, graph == first[0],
                 jax.tree.structure(params) == jax.tree.structure(first[1])]
net = nnx.merge(graph, params, rest)
facts["works here"] = [type(net) is Net, net(x).shape == (4, 1)]
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(OPTAX, id="optax", marks=[libraries("optax"), pytest.mark.soak]),
        pytest.param(EQUINOX, id="equinox", marks=[libraries("equinox"), pytest.mark.soak]),
        pytest.param(NNX, id="nnx", marks=libraries("flax")),
    ],
)
def test_five_steps_are_one_trace(live: LiveServer, program: str) -> None:
    """And none in the next process; what comes home has the structure of what was sent."""
    for traces in (1, 0):
        facts = run_program(live, program)
        assert facts.pop("traces") == traces
        flat = [
            each for fact in facts.values() for each in (fact if type(fact) is list else [fact])
        ]
        assert flat == [True] * len(flat)


MADE_THERE = """
import equinox as eqx, optax
from dataclasses import dataclass
from typing import Any

@persistent_call
def make(key):
    net = eqx.nn.MLP(3, 1, 4, 2, key=key)
    params = eqx.filter(net, eqx.is_array)
    return params, optax.adam(1e-3).init(params)

net = eqx.nn.MLP(3, 1, 4, 2, key=jax.random.key(0))
params, state = make(jax.random.key(0))
facts["own"] = [type(params) is eqx.nn.MLP, type(state[0]) is optax.ScaleByAdamState,
                type(state[0].mu) is eqx.nn.MLP]
same = eqx.combine(params, eqx.filter(net, eqx.is_array, inverse=True))
facts["works here"] = bool(jnp.allclose(same(x[0]), net(x[0])))
"""


@pytest.mark.soak
@libraries("equinox", "optax")
def test_objects_of_libraries_that_are_made_there_come_home(live: LiveServer) -> None:
    """Although the client has not brought one of them."""
    for _ in range(2):
        facts = run_program(live, MADE_THERE)
        assert facts["own"] == [True] * 3
        assert facts["works here"]


NNX_MADE_THERE = """
from functools import partial
from flax import nnx
from flax.core import FrozenDict, freeze

class Net(nnx.Module):
    def __init__(self, rngs):
        self.pool = partial(nnx.avg_pool, window_shape=(2, 2), strides=(2, 2))
        self.general = nnx.LinearGeneral(1, (2, 2), rngs=rngs)
        self.last = nnx.Sequential(nnx.Linear(2, 4, rngs=rngs), nnx.relu, jnp.tanh)
    def __call__(self, x):
        return self.last(self.general(self.pool(x)))

@persistent_call(fallback="error")
def make():
    return Net(nnx.Rngs(0))

@persistent_call(fallback="error")
def frozen(x):
    return freeze({"a": {"b": x}, "c": x * 2})

net, found = make(), frozen(x)
facts["works here"] = jax.eval_shape(net, jnp.ones((2, 8, 8, 1))).shape == (2, 4, 4, 2, 4)
facts["own"] = [
    net.last.layers[1:] == [nnx.relu, jnp.tanh], net.pool.func is nnx.avg_pool,
    net.pool.keywords == Net(nnx.Rngs(0)).pool.keywords, type(net.general.batch_axis) is FrozenDict,
    type(found) is FrozenDict, type(found["a"]) is FrozenDict]
"""


@pytest.mark.soak
@libraries("flax")
def test_objects_of_nnx_that_are_made_there_work_here(live: LiveServer) -> None:
    """With the functions of jax and pools of flax that they call, and the mappings they hold."""
    first = run_program(live, NNX_MADE_THERE)
    assert first == {"works here": True, "own": [True] * 6, "traces": 2}
    assert run_program(live, NNX_MADE_THERE) == {**first, "traces": 0}


CONSTANTS = """
import equinox as eqx, lineax as lx

@persistent_call(fallback="error")
def solve(a, b):
    operator = lx.MatrixLinearOperator(a, lx.positive_semidefinite_tag)
    return eqx.error_if(lx.linear_solve(operator, b, solver=lx.CG(1e-5, 1e-5)).result, False, "")

facts["own"] = bool(solve(jnp.eye(2), jnp.ones(2)) == lx.RESULTS.successful)
"""


@pytest.mark.soak
@libraries("lineax")
def test_constants_of_equinox_come_home(live: LiveServer) -> None:
    """Those of a package that the function uses; its code need not name their class."""
    facts = run_program(live, CONSTANTS)
    assert facts["own"]


COUNTED = """
from typing import NamedTuple

class Point(NamedTuple):
    x: object
    def seen(self):
        Point.total = getattr(Point, "total", 0) + 1

@persistent_call
def f(x):
    return Point(x)

found = []
for size in (1, 2, 3):
    point = f(np.ones(size))
    point.seen()
    found.append(type(point) is Point)
facts["own"] = found
"""


@pytest.mark.soak
def test_a_class_that_keeps_count_of_itself_is_still_the_clients_own(live: LiveServer) -> None:
    """Although its content is another one after each call."""
    for _ in range(2):
        assert run_program(live, COUNTED)["own"] == [True] * 3


NAMES = """
from typing import NamedTuple
from dataclasses import dataclass

class Pair(NamedTuple):
    a: object
    b: object
    def swapped(self): return "first"
Before = Pair

@persistent_call
def one(x):
    return Pair(x, x + 1)

def two_after_an_edit():
    class Pair(NamedTuple):
        a: object
        b: object
        def swapped(self): return "second"
    Pair.__qualname__ = "Pair"
    return Pair
After = two_after_an_edit()

@persistent_call
def two(pair):
    return After(pair.a, pair), Before(1.0, 2.0)

pair = one(x)
later, again = two(pair)
facts["own"] = [type(pair) is Before, type(later) is After, type(later.b) is Before,
                type(again) is Before, later.swapped(), pair.swapped()]
"""


@pytest.mark.slow
def test_two_classes_of_one_name_are_told_apart(live: LiveServer) -> None:
    """By what they mean, on a warm server as on a cold one."""
    for traces in (2, 0):
        facts = run_program(live, NAMES)
        assert facts == {"own": [True] * 4 + ["second", "first"], "traces": traces}


HELD = """
import flax.struct
from typing import Any

class Box(flax.struct.PyTreeNode):
    data: Any
    how: Any = flax.struct.field(pytree_node=False)

@persistent_call
def make(x):
    return Box(x, lambda v: v * 3)

@persistent_call
def use(box):
    return box.how(box.data), box
"""


@pytest.mark.slow
@libraries("flax")
def test_what_only_the_server_has_is_a_token(live: LiveServer) -> None:
    """It says what it is, and works again where it is from; each loop with it is one trace."""
    facts = run_program(
        live,
        HELD
        + """
box = first = make(x)
for _ in range(3):
    result, box = use(box)
facts["token"] = [type(box.how) is RemoteObject, box.how == first.how, float(result[0, 0])]
facts["repr"] = repr(box.how)
""",
    )
    assert facts["token"] == [True, True, 3.0]
    assert "<lambda>" in facts["repr"]
    assert "from a result of" in facts["repr"]
    assert facts["traces"] == 2


@pytest.mark.soak
@libraries("flax")
def test_where_the_call_can_run_here_the_result_is_whole(live: LiveServer) -> None:
    """As under `jax.jit`: a program may call what is in it."""
    program = (
        HELD
        + """
box = make(x)
facts["calls it"] = float(box.how(box.data)[0, 0])
facts["uses it"] = float(use(box)[0][0, 0])
facts["here"] = statistics().fallback_functions - here
other = persistent_call(lambda x: Box(x, lambda v: v * 5)).remote(x)
facts["stays"] = type(other.how) is RemoteObject
"""
    )
    started = "here = statistics().fallback_functions\n"
    facts = run_program(live, started + program, JAXD_FALLBACK="local")
    del facts["traces"]
    assert facts == {"calls it": 3.0, "uses it": 3.0, "here": 1, "stays": True}


@pytest.mark.soak
@libraries("flax")
def test_a_token_of_a_server_that_is_gone(start_live: Callable[..., LiveServer]) -> None:
    """Is an error that says what to do."""
    facts = run_program(
        start_live(),
        HELD
        + """
box = make(x)
gone = box.replace(how=RemoteObject(b"?" * 16, "function g", "make"))
try:
    use(gone)
except errors.ArgumentError as error:
    facts["error"] = str(error)
facts["goes on"] = float(use(box)[0][0, 0])
""",
    )
    assert "RemoteObject that this server does not have" in facts["error"]
    assert "make the object in your own process" in facts["error"]
    assert facts["goes on"] == 3.0


def test_a_client_without_jax_gets_its_own_classes(live: LiveServer) -> None:
    """From a server that another process has made warm."""
    program = """
from jaxd import persistent_call
from typing import Any, NamedTuple
import sys
class Point(NamedTuple):
    x: Any
    y: Any
@persistent_call
def f(x):
    return Point(x, {"deep": Point(1.0, 2)})
found = f([1.0, 2.0])
assert type(found) is type(found.y["deep"]) is Point, found
assert "jax" not in sys.modules
"""
    for _ in range(2):
        done = run_light(live, program)
        assert done.returncode == 0, done.stderr


FAILS = """
class Refused(Exception):
    def __init__(self, text, code, shape):
        super().__init__(text, code)
        self.shape = shape

@persistent_call
def f(x):
    raise ExceptionGroup("both", [Refused("no", 3, x.shape), KeyError("k")])

try:
    f(x)
except ExceptionGroup as group:
    error, key = group.exceptions
    facts["own"] = [type(error) is Refused, error.args, error.shape == x.shape,
                    type(key) is KeyError]
"""


@pytest.mark.soak
def test_an_exception_of_the_users_own_comes_home_as_itself(live: LiveServer) -> None:
    """With its attributes, in a group of several; in each process, also one that is new."""
    for _ in range(2):
        assert run_program(live, FAILS)["own"] == [True, ["no", 3], True, True]


def test_an_exception_that_is_not_loaded_imports_nothing(live: LiveServer, tmp_path: Path) -> None:
    """It is a RemoteError that names it."""
    (tmp_path / "trap.py").write_text("class Trapped(Exception): pass\n")
    facts = run_program(
        live,
        """
sys.path.insert(0, sys.argv[1])

@persistent_call
def f(x):
    kind = type("Trapped", (Exception,), {"__module__": "trap"})
    raise kind("caught")

try:
    f(x)
except errors.RemoteError as error:
    facts["remote"] = [error.type_name, "caught" in str(error), "trap" in sys.modules]
""".replace("sys.argv[1]", repr(str(tmp_path))),
    )
    assert facts["remote"] == ["trap.Trapped", True, False]


OF_CHEX = """
import chex

@chex.dataclass(frozen=True)
class Output:
    value: chex.Array
    count: int = 2

@persistent_call
def make(x):
    return Output(value=x + 1)

made = make(jnp.ones(3))
facts["made"] = [type(made) is Output, np.asarray(made.value).tolist(), int(made.count)]
"""


@pytest.mark.soak
@libraries("chex")
def test_a_dataclass_of_chex_needs_no_instance_here(live: LiveServer) -> None:
    """chex registers one of the main program with jax when it first makes an instance."""
    assert run_program(live, OF_CHEX) == {"made": [True, [2.0] * 3, 2], "traces": 1}


DATA = """
import datetime, decimal, enum
from dataclasses import dataclass, field
from jax.sharding import PartitionSpec

class Flags(enum.Flag):
    A = 1
    B = 2

@jax.tree_util.register_dataclass
@dataclass
class Solution:
    value: object
    about: object = field(metadata={"static": True})

mesh = jax.make_mesh((1,), ("d",))

def about():
    return (
        jax.ShapeDtypeStruct((3,), jnp.float32), jax.eval_shape(lambda: jax.random.key(0)),
        PartitionSpec("d", None), jax.sharding.NamedSharding(mesh, PartitionSpec("d")),
        slice(1, None), range(3), ..., decimal.Decimal("1.5"), datetime.date(2020, 1, 2),
        Flags.A | Flags.B, frozenset({Flags.A}), jax.tree_util.DictKey("a"),
    )

@persistent_call(fallback="error")
def solve(x):
    return Solution(x * 2, about())

found = solve(x)
facts["data"] = [bool(one == other) for one, other in zip(found.about, about(), strict=True)]
facts["types"] = [type(one) is type(other) for one, other in zip(found.about, about())]
facts["back"] = float(persistent_call(lambda s: s.value.sum() + len(s.about))(found))
"""


@pytest.mark.slow
def test_values_that_are_nothing_but_data(live: LiveServer) -> None:
    """Come home as they are, from the cache on disk as well, and are arguments like others."""
    first = run_program(live, DATA)
    assert first == {"data": [True] * 12, "types": [True] * 12, "back": 36.0, "traces": 2}
    assert run_program(live, DATA) == {**first, "traces": 0}
