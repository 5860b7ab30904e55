"""The hook that makes `jax.jit` persistent in programs that were written for plain jax."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from jaxd import Client, connect
from tests.end_to_end.several_devices import EIGHT
from tests.live_server import LiveServer
from tests.warm_clients import run_warm

Report = Callable[..., dict[str, Any]]

HOOK = """
import json, sys
from jaxd.api.launch.jit_hook import JitHook
hook = JitHook()
if "plain" not in sys.argv:
    hook.install()
"""

PROGRAM = """
import copy, functools
import jax
import jax.numpy as jnp
from jax import jit

@jax.jit
def double(x):
    return x * 2

@functools.partial(jax.jit, static_argnames="n")
def power(x, n):
    return jax.jit(lambda y: double(y) ** n)(x)

@jax.jit(donate_argnums=0)
def plus(x):
    return x + 1

class Model:
    @functools.partial(jit, static_argnums=0)
    def predict(self, x):
        return jit(double)(x) + 3

model, x = Model(), jnp.arange(3.0)
results = [double(x), power(x, n=3), plus(x + 0), model.predict(x), jit(jnp.sum)(x)]
results.append(jax.grad(lambda x: power(x, n=2).sum())(x))
results.append(copy.deepcopy(jit)(double)(x))
made = [double, power, plus]
"""

REPORT = """
import jaxd
print(json.dumps({
    "results": [result.tolist() for result in results],
    "persistent": [isinstance(function, jaxd.PersistentFunction) for function in made],
    "not_served": dict(hook.not_served),
}))
"""


@pytest.fixture
def report(live: LiveServer, client: Client, tmp_path: Path) -> Report:
    """Runs programs, with modules of their own, and gives what they report and what they cost."""

    def run(program: str, *arguments: str, warm: bool = False, **files: str) -> dict[str, Any]:
        for name, content in files.items():
            file = tmp_path / f"{name.replace('__', '/')}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
        folders = [str(tmp_path), str(tmp_path / "site-packages")]
        before = client.statistics()
        program = f"{HOOK}sys.path += {folders}\n{program}{REPORT}"
        start = partial(run_warm, live) if warm or "plain" in arguments else live.run
        done = start(program, *arguments)
        assert done.returncode == 0, done.stderr
        after = client.statistics()
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        costs = {"calls": after.calls - before.calls, "traces": after.traces - before.traces}
        return found | costs

    return run


@pytest.mark.slow
@pytest.mark.counts_builds
def test_all_forms_of_jit_become_persistent_and_give_the_same(report: Report) -> None:
    """As a decorator with and without options, on methods, inside of others, under `jax.grad`.

    A second process traces nothing: the key of code that reaches `jax.jit` is the same while the
    hook is in its place.
    """
    plain, first, second = report(PROGRAM, "plain"), report(PROGRAM), report(PROGRAM)
    assert first["results"] == second["results"] == plain["results"]
    assert (plain["persistent"], first["persistent"]) == ([False] * 3, [True] * 3)
    assert (plain["calls"], first["not_served"]) == (0, {})
    assert first["calls"] > len(first["results"]) - 1
    assert (first["traces"] > 0, second["traces"]) == (True, 0)


@pytest.mark.slow
def test_what_was_imported_before_is_hooked_and_given_back(report: Report) -> None:
    """`install` looks at modules that are there, and at what these have imported by name.

    `remove` puts their own functions back.
    """
    program = """
import jax
given = jax.jit
hook.remove()
own = jax.jit
made = [given(lambda x: x + 1), own(lambda x: x + 1)]
hook.install()
made.append(jax.jit(lambda x: x + 1))
made.append(own(lambda x: x + 1))
results = []
"""
    assert report(program)["persistent"] == [True, False, True, True]


LIBRARY = """
import jax
jitted = jax.jit(lambda x: x * 3)
"""
USES_LIBRARY = """
import jax, a_library, own_module
made = [a_library.jitted, own_module.jitted]
results = []
"""


@pytest.mark.slow
def test_what_libraries_jit_is_served(report: Report) -> None:
    """As is code of one's own."""
    files = {"site-packages__a_library": LIBRARY, "own_module": LIBRARY}
    assert report(USES_LIBRARY, **files)["persistent"] == [True, True]


@pytest.mark.soak
@pytest.mark.counts_builds
def test_a_jitted_function_of_a_library_is_the_servers_own(report: Report) -> None:
    """An object around it, as equinox makes, counts by its name: there nothing is hooked."""
    pytest.importorskip("lineax")
    program = """
import jax, jax.numpy as jnp
from lineax import RESULTS, DiagonalLinearOperator, linear_solve

@jax.jit
def solved(x):
    return linear_solve(DiagonalLinearOperator(x), x * x)

made, solution = [solved, vars(linear_solve)["_cached"]], solved(jnp.arange(1.0, 4.0))
assert solution.result == RESULTS.successful
results = [solution.value]
"""
    first, second = report(program), report(program)
    assert first["results"] == second["results"] == [[1.0, 2.0, 3.0]]
    assert first["persistent"] == [True, True]
    assert (first["traces"], second["traces"]) == (1, 0)


@pytest.mark.soak
@pytest.mark.counts_builds
def test_constants_of_a_library_come_home_in_the_structure_of_a_result(report: Report) -> None:
    """Of a class that only a function of another library has: each solver of lineax is one."""
    pytest.importorskip("lineax")
    program = """
import jax.numpy as jnp, lineax

solution = lineax.linear_solve(lineax.MatrixLinearOperator(jnp.eye(3) * 2), jnp.ones(3))
assert type(solution.state[0]) is type(lineax._solve._lu_token), solution.state
made, results = [vars(lineax.linear_solve)["_cached"]], [solution.value]
"""
    first, second = report(program), report(program)
    assert first["results"] == second["results"] == [[0.5, 0.5, 0.5]]
    assert (first["calls"], first["traces"], second["traces"]) == (1, 1, 0)


@pytest.mark.soak
def test_jax_itself_uses_its_own_jit(report: Report) -> None:
    """Functions of jax that are jitted with `jax.jit` are not served."""
    program = """
import jax, jax.numpy as jnp, jax.scipy.optimize
from jax.experimental import sparse
results = [sparse.BCOO.fromdense(jnp.eye(3)).sum_duplicates().todense()]
made = [vars(jax.numpy)["cumsum"]]
"""
    found = report(program)
    assert (found["persistent"], found["calls"]) == ([False], 0)


def test_options_that_place_a_function_are_left_to_jax_and_counted(report: Report) -> None:
    """`backend=` names devices of this process."""
    program = """
import jax, warnings
warnings.simplefilter("ignore")
made = [jax.jit(lambda x: x + 1, backend="cpu"), jax.jit(lambda x: x + 1, backend=None)]
results = [f(1.0) for f in made]
"""
    found = report(program, warm=True)
    assert (found["persistent"], found["results"]) == ([False, True], [2.0, 2.0])
    assert found["not_served"] == {"the option backend": 1}


def test_what_jax_refuses_is_refused_in_jaxs_words(report: Report) -> None:
    """A wrong option raises what `jax.jit` raises, where it is decorated."""
    program = """
import jax
made, results, said = [], [], []
for options in ({"static_argnames": "no"}, {"static_argnums": 7}, {"no_option": 1}):
    try:
        jax.jit(lambda x: x, **options)
    except Exception as error:
        said.append(f"{type(error).__name__}: {error}")
class Said(str):
    def tolist(self): return str(self)
results = [Said(text) for text in said]
"""
    assert report(program, warm=True)["results"] == report(program, "plain")["results"]


@pytest.mark.slow
@pytest.mark.libraries("flax")
def test_nnx_jit_changes_the_objects_of_the_program(report: Report) -> None:
    """Modules and optimizers are the program's own, as under `nnx.jit`."""
    program = """
from flax import nnx
import jax, jax.numpy as jnp
@nnx.jit
def step(count, x):
    count[...] += x.sum()
    return count[...] * 2
count = nnx.Variable(jnp.zeros(()))
results, made = [step(count, jnp.ones(3)), step(count, jnp.ones(3)), count[...]], [step]
"""
    plain, hooked = report(program, "plain"), report(program, warm=True)
    assert hooked["results"] == plain["results"] == [6.0, 12.0, 6.0]
    assert (hooked["persistent"], hooked["calls"]) == ([True], 2)


@pytest.mark.slow
@pytest.mark.libraries("equinox")
def test_errors_of_equinox_are_its_own(report: Report) -> None:
    """`eqx.filter_jit` makes them of what a callback has noted, and that runs on the server."""
    program = """
import equinox as eqx, jax.numpy as jnp
@eqx.filter_jit
def positive(x):
    return eqx.error_if(x, x < 0, "it is\\nnegative")
def said(x):
    try:
        return positive(x)
    except eqx.EquinoxRuntimeError as error:
        return jnp.asarray("it is\\nnegative" in str(error))
results, made = [said(jnp.float32(x)) for x in (1, -1, 2, -2)], []
"""
    plain, hooked = report(program, "plain"), report(program, warm=True)
    assert hooked["results"] == plain["results"] == [1.0, True, 2.0, True]
    assert hooked["calls"] == 4


SPREAD = """
import jax, jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((2, 4), ("d", "m"), axis_types=(AxisType.Auto,) * 2)
spread = NamedSharding(mesh, P("d", "m"))
plain = jax.jit(lambda x: x + 1)
made = [
    jax.jit(lambda x: x * 2, out_shardings=spread),
    jax.jit(lambda x: jax.lax.with_sharding_constraint(x * 3, spread)),
    jax.jit(jax.shard_map(lambda x: x * 4, mesh=mesh, in_specs=P("d"), out_specs=P("d"))),
]
x, results = jnp.ones((8, 8)), []
for function in made * 3:
    result = function(x)
    results += [result.sum(), jnp.asarray(len({str(each.index) for each in result.global_shards}))]
results.append(plain(x).sum())
made.append(plain)
"""


@pytest.mark.slow
@pytest.mark.own_server
def test_results_lie_on_the_devices_that_plain_jax_puts_them_on(eight: LiveServer) -> None:
    """Of a program on several devices, which are a process's own; others are served as ever."""
    with connect(eight.unix) as client:
        before = client.statistics()
        start = partial(eight.run, HOOK + SPREAD + REPORT, **EIGHT, JAXD_FALLBACK="local")
        runs = [start(*words) for words in (("plain",), (), ())]
        after = client.statistics()
    assert not any(done.returncode for done in runs), runs[-1].stderr
    plain, *hooked = (json.loads(done.stdout.splitlines()[-1]) for done in runs)
    assert plain["results"] == [128.0, 8, 192.0, 8, 256.0, 2] * 3 + [128.0]
    for each in hooked:
        assert (each["results"], each["persistent"]) == (plain["results"], [True] * 4)
    assert after.fallback_calls - before.fallback_calls == 2 * 9
    answered = [each.calls - each.failed_calls for each in (before, after)]
    assert answered[1] - answered[0] == 2


@pytest.mark.slow
@pytest.mark.libraries("flax")
def test_to_jax_jit_objects_of_nnx_are_trees(report: Report) -> None:
    """The program's own stay as they are, and one that is there twice is two: a wrong result."""
    program = """
from flax import nnx
import jax, jax.numpy as jnp
class Counts(nnx.Module):
    def __init__(self):
        self.one = self.other = nnx.Variable(jnp.zeros(()))
        self.calls = 0
@jax.jit
def step(counts, x):
    counts.one[...] += x
    counts.calls += 1
    return counts
@jax.jit
def outer(counts, x):
    return step(counts, x).one[...] + 10 * counts.one[...]
given, made = Counts(), [step, outer]
first = step(given, 2.0)
second = step(first, 3.0)
results = [first is given, first.one is first.other, given.calls, second.calls, outer(second, 1.0)]
results += [each[...] for each in (given.one, first.one, first.other, second.one, second.other)]
results = [jnp.asarray(each) for each in results]
"""
    plain, hooked = report(program, "plain"), report(program, warm=True)
    expected = [False, False, 0, 2, 56.0, 0.0, 2.0, 0.0, 5.0, 0.0]
    assert hooked["results"] == plain["results"] == expected
    assert (hooked["persistent"], hooked["calls"]) == ([True, True], 3)


@pytest.mark.soak
@pytest.mark.libraries("flax")
def test_nnx_jit_in_the_mode_that_it_has_anyway_is_served(report: Report) -> None:
    """In another mode changes of attributes do not come home, and nnx itself does it."""
    program = """
import contextlib
from flax import nnx
import jax.numpy as jnp
class Box(nnx.Module):
    def __init__(self):
        self.count, self.mode = nnx.Variable(jnp.zeros(())), 0
def step(box, x):
    box.count[...] += x
    box.mode = box.mode + 1
made, results = [], []
def use(**options):
    made.append(nnx.jit(step, **options))
    box = Box()
    made[-1](box, 2.0)
    results.append(box.count[...] + 10 * box.mode)
for graph in (None, True, False):
    for updates in (None, True, False):
        use(graph=graph, graph_updates=updates)
for mode in (nnx.set_graph_mode, nnx.set_graph_updates):
    with mode(False):
        use()
"""
    plain, hooked = report(program, "plain"), report(program, warm=True)
    assert hooked["results"] == plain["results"]
    expected = [True, True, False] * 2 + [False] * 5
    assert hooked["persistent"] == expected
    assert hooked["not_served"] == {"the option graph": 4, "the option graph_updates": 3}
