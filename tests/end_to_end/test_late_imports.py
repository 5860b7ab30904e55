"""Modules that are imported while a function is traced find their client's process."""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxd import Client, errors
from tests.live_server import LiveServer

LATE = """
import os
from os import environ
import late_inner
AT_IMPORT = float(os.getenv("LATE_ONE", "1"))
os.environ.setdefault("LATE_SET", "5")
{arguments}

def scale(x):
    read = float(environ.get("LATE_TWO", "1")) * float(os.environ["LATE_SET"])
    return x * AT_IMPORT * late_inner.INNER * ARGUMENTS * read
"""
INNER = """
import os
INNER = float(os.environ["LATE_THREE"]) if "LATE_THREE" in os.environ else 1.0
"""
COUNTED = "import sys; ARGUMENTS = len(sys.argv)"
PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv.pop(1))
import jaxd

def step(x):
    import late
    return late.scale(x)

function = jaxd.persistent_call(step, ship=sys.argv.pop(1))
before = jaxd.statistics().traces
print(json.dumps([float(function(1.0)), jaxd.statistics().traces - before]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("ship", ["value", "source"])
def test_what_a_module_reads_of_its_process_is_its_clients(
    start_live: Callable[..., LiveServer], tmp_path: Path, ship: str
) -> None:
    """At its import and later, also in a module that it imports; nothing else builds."""
    (tmp_path / "late.py").write_text(LATE.replace("{arguments}", COUNTED))
    (tmp_path / "late_inner.py").write_text(INNER)
    server = start_live()

    def run(*arguments: str, **variables: str) -> Any:
        variables = {"LATE_SET": "2", **variables}
        done = server.run(PROGRAM, str(tmp_path), ship, *arguments, **variables)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    assert run() == [2.0, 1]
    assert run(LATE_OTHER="3") == [2.0, 0]
    assert run(LATE_ONE="3") == [6.0, 1]
    assert run(LATE_TWO="5") == [10.0, 1]
    assert run(LATE_THREE="7") == [14.0, 1]
    assert run("more") == [4.0, 1]
    assert run() == [2.0, 0]


ANNOTATED = """
import threading
import jax.numpy as jnp
import numpy as np
import optax
LOCK = threading.Lock()
def go(x: jnp.ndarray): return optax.safe_norm(jnp.atleast_1d(x * np.abs(-1.0)), 0.0)
"""
IMPORTS = """
import importlib, json, sys
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    importlib.import_module(name)
import jaxd

def step(x):
    import late_annotated
    return late_annotated.go(x)

before = jaxd.statistics().traces
value = float(jaxd.persistent_call(step)(1.0))
print(json.dumps([value, jaxd.statistics().traces - before]))
"""


@pytest.mark.slow
def test_which_libraries_a_process_has_imported_does_not_count(
    live: LiveServer, tmp_path: Path
) -> None:
    """What a late module reads of them is what was installed."""
    (tmp_path / "late_annotated.py").write_text(ANNOTATED)

    def run(*libraries: str) -> Any:
        done = live.run(IMPORTS, str(tmp_path), *libraries)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    assert run() == [1.0, 1]
    assert run("numpy") == [1.0, 0]
    assert run("jax.numpy", "optax") == [1.0, 0]


JAX_LATER = """
import json
import numpy as np
import jaxd

def step(x, steps):
    import jax
    import jax.numpy as jnp
    from jax.nn import swish

    def body(_, y: jnp.ndarray) -> jnp.ndarray:
        assert isinstance(y, jnp.ndarray) and jax.dtypes.issubdtype(y.dtype, jnp.floating)
        return swish(y) + jnp.finfo(jnp.float32).eps + y.astype(jnp.bool_)

    return jax.lax.fori_loop(0, steps, body, x)

function = jaxd.persistent_call(step, static_argnames="steps")
x = np.ones((4, 3), "f4")

def traces_of(call):
    before = jaxd.statistics().traces
    call()
    return jaxd.statistics().traces - before

found = [traces_of(lambda: function(x, steps=3)) for _ in range(2)]
light = function.fingerprint
import jax
import jax.numpy
found.append(traces_of(lambda: function(x, steps=3)))
found.append(traces_of(lambda: function(jax.numpy.asarray(x), steps=3)))
found.append(light == function.fingerprint)
jax.config.update("jax_default_matmul_precision", "highest")
found.append(traces_of(lambda: function(x, steps=3)))
jax.nn.swish = jax.nn.relu
found.append(traces_of(lambda: function(x, steps=3)))

@jaxd.persistent_call
def saving(x):
    return jax.checkpoint(jax.numpy.sin, policy=jax.checkpoint_policies.dots_saveable)(x)

found.append(traces_of(lambda: saving(x)))
jax.checkpoint_policies.dots_saveable = jax.checkpoint_policies.nothing_saveable
found.append(traces_of(lambda: saving(x)))
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.counts_builds
def test_a_process_that_imports_jax_after_its_first_calls_traces_nothing_anew(
    live: LiveServer,
) -> None:
    """A setting that the user changes then, and what is put into jax, count as ever."""
    done = live.run(JAX_LATER)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [1, 0, 0, 0, True, 1, 1, 1, 1]


EVERY_NAME = """
import json, sys, types
from jaxd_protocol.fingerprint import walk

def digests(names):
    space = {"__name__": "__main__"}
    found = {}
    for module, name in names:
        exec(f"def f(x):\\n import {module}\\n return {module}.{name}(x)", space)
        found[f"{module}.{name}"] = walk(space["f"], "f").fingerprint.digest.hex()
    return found

names = json.loads(sys.argv[1])
light = digests(names)
assert "jax" not in sys.modules
import importlib
for module, _ in names:
    importlib.import_module(module)
now = digests(names)
print(json.dumps([name for name in now if now[name] != light[name]]))
"""

_MODULES = """
jax jax.debug jax.dtypes jax.errors jax.experimental jax.flatten_util jax.image jax.lax jax.nn
jax.nn.initializers jax.numpy jax.numpy.fft jax.numpy.linalg jax.ops jax.random jax.scipy.linalg
jax.scipy.ndimage jax.scipy.optimize jax.scipy.signal jax.scipy.sparse.linalg jax.scipy.special
jax.scipy.stats jax.sharding jax.tree jax.tree_util jax.typing
"""

_STILL_COUNTED = {"jax.ad"}
"""What jax assigns twice while it is imported, so that nothing shows which one it is."""


@pytest.mark.slow
def test_no_other_name_of_jax_counts_more_where_jax_is_imported(live: LiveServer) -> None:
    """Of its public modules."""
    names = [
        (module, name)
        for module in _MODULES.split()
        for name in dir(importlib.import_module(module))
        if not name.startswith("_")
    ]
    done = live.run(EVERY_NAME, json.dumps(names))
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)) <= _STILL_COUNTED


CAPTURED = """
import json
import numpy as np
import jaxd
from jaxd import persistent_call

kept = jaxd.put(np.arange(32.0, dtype="f4"))

@persistent_call(results="remote")
def many_keys():
    import jax
    return jax.random.split(jax.random.key(3), 4)

keys = many_keys()
half = jaxd.put(np.arange(8.0, dtype="f2"))

@persistent_call
def step(x):
    import jax
    numbers = jax.random.uniform(keys[1], (2,)).sum()
    return kept.at[0].set(x) + numbers, half * 2

def traces_of(call):
    before = jaxd.statistics().traces
    result = call()
    return jaxd.statistics().traces - before, [np.asarray(each).tolist() for each in result]

first = traces_of(lambda: step(2.0))
light = step.fingerprint
import jax
import jax.numpy
again = traces_of(lambda: step(2.0))

@persistent_call
def step(x):
    import jax
    numbers = jax.random.uniform(keys[1], (2,)).sum()
    return kept.at[0].set(x) + numbers, half * 2

anew = traces_of(lambda: step(2.0))
print(json.dumps([first, again, anew, light == step.fingerprint]))
"""


@pytest.mark.slow
@pytest.mark.counts_builds
def test_an_array_on_the_server_that_is_captured_counts_alike_with_and_without_jax(
    live: LiveServer,
) -> None:
    """It is an array of jax to the function, as are typed keys."""
    done = live.run(CAPTURED)
    assert done.returncode == 0, done.stderr
    first, again, anew, same = json.loads(done.stdout)
    assert (first[0], again[0], anew[0], same) == (1, 0, 0, True)
    assert first[1] == again[1] == anew[1]


def late_module(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    """A module that can be imported, and has not been."""
    (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, name, raising=False)


def test_a_variable_that_is_set_between_calls_counts(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As does one that goes."""
    text = "import os\ndef rate(): return float(os.environ.get('LATE_RATE', '1'))"
    late_module(tmp_path, monkeypatch, "late_rate", text)

    @client.persistent_call
    def step(x: Any) -> Any:
        import late_rate  # type: ignore[import-not-found]

        return x * late_rate.rate()

    found = [float(step(2.0))]
    monkeypatch.setenv("LATE_RATE", "4")
    found.append(float(step(2.0)))
    monkeypatch.delenv("LATE_RATE")
    found.append(float(step(2.0)))
    assert found == [2.0, 8.0, 2.0]


SWALLOWED = """
import os
try:
    K = os.listdir(".")
except Exception:
    K = "here"
"""


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("import os; K = os.environ['LATE' + '_'.join(['', 'X'])]", "the variable 'LATE_X'"),
        ("import os; K = os.environ.get('late_name'.upper())", "the variable 'LATE_NAME'"),
        ("import os; K = dict(os.environ)", "the whole environment"),
        ("import os; K = os.environb.get(b'shell'.upper())", "the variable 'SHELL'"),
        ("import os; K = os.environ.copy()", "the whole environment"),
        ("import os; K = os.environ | {'LATE_NEW': '1'}", "the whole environment"),
        ("import os; os.environ['LATE_NEW'] = '1'", "and sets the variable 'LATE_NEW'"),
        ("import os; K = os.listdir('.')", "the folder or file '.'"),
        ("import glob; K = glob.glob('*.py')", "the folder or file"),
        ("import subprocess; K = subprocess.run(['true'])", "its environment, folder and files"),
        ("import os; K = os.system('true')", "its environment, folder and files"),
        ("import os\nwith open('/'.join(['', 'bin', 'true'])): K = 1", "the file '/bin/true'"),
        ("import sys; K = len(sys.orig_argv)", "sys.orig_argv"),
        (SWALLOWED, "the folder or file '.'"),
    ],
)
def test_what_it_does_not_name_is_refused(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, what: str
) -> None:
    """No process of a server shows its own; where calls may run here, this one runs here."""
    late_module(tmp_path, monkeypatch, "late_refused", text)

    def step(x: Any) -> Any:
        try:
            import late_refused  # type: ignore[import-not-found]  # noqa: F401
        except Exception:  # noqa: BLE001  as code does that goes on without
            return x * 3
        return x * 2

    with pytest.raises(errors.PackingError, match=f"reads {what}") as caught:
        client.persistent_call(step)(1.0)
    assert "import the module at the top of the file" in str(caught.value)
    monkeypatch.setenv("LATE_X", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.FallbackWarning)  # it is the same code each time
        assert float(client.persistent_call(step, fallback="local")(1.0)) == 2.0
