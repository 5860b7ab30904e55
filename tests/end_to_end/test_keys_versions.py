"""Whose version of a module counts, and which processes share what they built."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest

from tests.identity.projects import write
from tests.live_server import LiveServer
from tests.warm_clients import run_warm

pytestmark = pytest.mark.counts_builds

LAYERS = """
RATE = {rate}
class Layer:
    width = {rate}
    def run(self, x): return x * self.width + RATE
"""
MAIN = """
import json, sys
import layers
import pytest

from jaxd import persistent_call, statistics

@persistent_call
def {name}(x):
    import layers as lazily
    return layers.Layer().run(x) + lazily.RATE

for line in sys.stdin:
    before = statistics().traces
    value = float({name}(float(line)))
    print(json.dumps([value, statistics().traces - before]), flush=True)
"""


class Program:
    """A client process that answers one call for each line."""

    def __init__(self, folder: Path, server: LiveServer, name: str, rate: int) -> None:
        write(
            folder,
            f"--- layers.py\n{LAYERS.format(rate=rate)}\n--- run.py\n{MAIN.format(name=name)}",
        )
        self.process = subprocess.Popen(
            [sys.executable, "run.py"],
            cwd=folder,
            env=server.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        errors = self.process.communicate()[1]
        assert errors == ""

    def call(self, x: float) -> Any:
        """The result, and how often the server traced meanwhile."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{x}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@pytest.mark.slow
def test_two_versions_of_a_module_live_side_by_side(live: LiveServer, tmp_path: Path) -> None:
    """Each client gets its own version's answers, in turn and again."""
    with (
        Program(tmp_path / "one", live, "versions", 3) as one,
        Program(tmp_path / "other", live, "versions", 5) as other,
    ):
        answers = [program.call(2.0) for program in (one, other, one, other)]
    assert answers == [[12.0, 1], [20.0, 1], [12.0, 0], [20.0, 0]]


@pytest.mark.slow
def test_the_server_s_own_copy_of_a_module_is_not_used(
    start_live: Callable[..., LiveServer], tmp_path: Path, runtime: Path
) -> None:
    """It is on its path, stale, and has even been imported there."""
    mark = "from pathlib import Path; Path(__file__).with_name('imported').touch()"
    layers = f"--- layers.py\n{LAYERS.format(rate=100)}\n{mark}\n"
    stale = write(tmp_path / "stale", f"{layers}--- sitecustomize.py\nimport layers\n")
    path = os.pathsep.join([os.environ["PYTHONPATH"], str(stale)])
    server = start_live(PYTHONPATH=path)
    assert (stale / "imported").exists()
    with Program(tmp_path / "client", server, "stale", 3) as program:
        assert program.call(2.0) == [12.0, 1]


SHARING = """
import json, sys, warnings
{first}
from jaxd import persistent_call, statistics
@persistent_call(extra_key=sys.argv[1])
def sharing(x):
    import jax, jax.numpy as jnp
    from jax import Array
    assert isinstance(x, Array) and isinstance(x, jax.Array)
    return jnp.where(x > 1, jax.nn.relu(x) * 2, jnp.sin(x) * x.dtype.itemsize)
before = statistics()
value = float(sharing(1.5))
after = statistics()
made = [each.compiles + each.programs_shared for each in (before, after)]
built = [after.traces - before.traces, made[1] - made[0]]
print(json.dumps([value, sharing.fingerprint, *built, "jax" in sys.modules]))
"""


def share(live: LiveServer, key: str, first: str = "", **environment: str) -> list[Any]:
    """Value, fingerprint, traces, programs compiled or shared, and whether the process had jax."""
    start = partial(run_warm, live) if first and not environment else live.run
    done = start(SHARING.format(first=first), key, **environment)
    assert done.stderr == ""
    answer: list[Any] = json.loads(done.stdout)
    return answer


@pytest.mark.slow
def test_a_client_without_jax_and_one_with_it_share(live: LiveServer) -> None:
    """Whoever comes first; and `isinstance` knows an array on the server."""
    for key, imports in (("light first", ("", "import jax")), ("jax first", ("import jax", ""))):
        one, other = (share(live, key, first) for first in imports)
        assert one[:2] == other[:2]
        assert one[0] == 3.0
        assert [one[2:4], other[2:4]] == [[1, 1], [0, 0]]
        assert {one[4], other[4]} == {True, False}


@pytest.mark.slow
def test_the_same_settings_are_one_key_with_jax_and_without(live: LiveServer) -> None:
    """Set by the environment or in the program; other settings are another program."""
    light, variable, called = (
        share(live, "x64", JAX_ENABLE_X64="1"),
        share(live, "x64", "import jax", JAX_ENABLE_X64="1"),
        share(live, "x64", "import jax; jax.config.update('jax_enable_x64', True)"),
    )
    assert light[:2] == variable[:2] == called[:2]
    assert [each[2:4] for each in (light, variable, called)] == [[1, 1], [0, 0], [0, 0]]
    plain = share(live, "x64")
    assert plain[2:4] == [1, 1]
    assert plain[1] == light[1], "settings are not what the function means"


ARRAYS = """
import json
import jax, jax.numpy as jnp
from jax import Array
from jaxd import persistent_call, statistics
WEIGHT = jnp.arange(3.0)
class Holder:
    def __init__(self, inner: Array) -> None: self.inner = inner
holder = Holder(jnp.ones(3))
@persistent_call
def annotated(x: Array, y: "jax.Array | None" = None) -> Array:
    checks = isinstance(x, Array), isinstance(WEIGHT, jax.Array), isinstance(holder.inner, Array)
    return x * WEIGHT * holder.inner * sum(checks)
before = statistics()
value = annotated(jnp.full(3, 2.0))
after = statistics()
print(json.dumps([value.tolist(), isinstance(value, Array), after.traces - before.traces]))
"""


@pytest.mark.slow
def test_arrays_are_arrays_on_both_sides(live: LiveServer) -> None:
    """In annotations, checks, globals and attributes; in every process alike."""
    runs = [run_warm(live, ARRAYS) for _ in range(2)]
    assert [run.stderr for run in runs] == ["", ""]
    first, second = (json.loads(run.stdout) for run in runs)
    assert first == [[0.0, 6.0, 12.0], True, 1]
    assert second == [[0.0, 6.0, 12.0], True, 0]


SESSION = """
import json
from jaxd import persistent_call, statistics
HELPER = "def helper(x): return x * {}"
STEP = '''
@persistent_call
def in_a_session(x):
    return helper(x) + CONFIG["rate"] + {}
'''
CLASS = '''
class Model:
    def __init__(self, rate): self.rate = rate
    def run(self, x): return x * self.rate + {}
model = Model(2)
run = persistent_call(model.run)
'''
CONFIG = {"rate": 1}
session = globals()
told = []
def tell(function):
    before = statistics()
    value = float(function(3.0))
    after = statistics()
    built = [after.traces - before.traces, after.compiles - before.compiles]
    told.append([value, *built, function.fingerprint])
def enter(text): exec(compile(text, f"<stdin>-{len(told)}", "exec"), session)
enter(HELPER.format(10)); enter(STEP.format(100)); tell(in_a_session)
enter(HELPER.format(20)); tell(in_a_session)
enter(HELPER.format(10)); tell(in_a_session)
enter(STEP.format(200)); tell(in_a_session)
enter(STEP.format(100)); tell(in_a_session)
CONFIG["rate"] = 2; tell(in_a_session)
CONFIG["rate"] = 1; tell(in_a_session)
enter(CLASS.format(1000)); tell(run)
Model.run = lambda self, x: x * self.rate + 2000
tell(persistent_call(model.run))
model.rate = 4; tell(run)
model.rate = 2; tell(run)
enter(CLASS.format(3000)); tell(run)
enter(CLASS.format(1000)); tell(run)
print(json.dumps(told))
"""


@pytest.mark.slow
def test_a_definition_that_is_entered_again_counts_at_once(live: LiveServer) -> None:
    """In one process: the new answer each time, and the old one again where it is restored."""
    done = live.run("import warnings; warnings.simplefilter('ignore', UserWarning)\n" + SESSION)
    assert done.stderr == ""
    told = json.loads(done.stdout)
    values = [131.0, 161.0, 131.0, 231.0, 131.0, 132.0, 131.0]
    values += [1006.0, 2006.0, 1012.0, 1006.0, 3006.0, 1006.0]
    assert [value for value, *_ in told] == values
    news = [1, 1, 0, 1, 0, 1, 0, 1, 1, 1, 0, 1, 0]
    assert [(traces, compiles) for _, traces, compiles, _ in told] == [(n, n) for n in news]
    keys = [key for *_, key in told]
    assert keys[0] == keys[2] == keys[4] == keys[6]
    assert keys[7] == keys[10] == keys[12]
    assert len(set(keys)) == sum(news)
