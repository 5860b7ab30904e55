"""`jaxd run`, `jaxd env` and `jaxd.install()`: programs of which no line is changed."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from jaxd import Client
from jaxd.api.launch import variables
from jaxd.connection.control_client import stop_and_wait
from jaxd_protocol.network.local_server import LocalServerFiles
from tests.another_server import own_server_needed
from tests.end_to_end.terminals import TerminalProcess
from tests.end_to_end.unchanged import JAXD_RUN, PYTHON, comparable, counts_in, run
from tests.live_server import LiveServer

Environment = dict[str, str]

PROGRAM = """
import functools, sys
import jax
import jax.numpy as jnp
from jax import jit
from lib import tripled

@jax.jit
def double(x):
    return x * 2

@functools.partial(jax.jit, static_argnums=1)
def power(x, n):
    return x ** n

@jit
def fails(x):
    def inner(y):
        raise ValueError("not with %s" % (y.shape,))
    return inner(x)

class Model:
    @functools.partial(jit, static_argnames="self")
    def __call__(self, x):
        return tripled(x) + 1

x = jnp.arange(3.0)
print(double(x), power(x, 2), Model()(x), repr(double), type(x))
print(sys.argv, __name__, __file__, sys.path[0], sys.stdin.read(), __spec__)
try:
    fails(x)
except ValueError as error:
    print(error, error.__notes__[:0])
fails(x)
"""

LIBRARY = """
from jax import jit

@jit
def tripled(x):
    return x * 3
"""


@pytest.fixture
def environment(live: LiveServer, tmp_path: Path) -> Environment:
    """Of a user of the live server, with a cache of their own."""
    return live.environment | {"XDG_CACHE_HOME": str(tmp_path), "JAXD_FALLBACK": "local"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Holds the program and its library."""
    made = tmp_path / "work"
    made.mkdir()
    (made / "program.py").write_text(PROGRAM)
    (made / "lib.py").write_text(LIBRARY)
    return made


@pytest.mark.slow
@pytest.mark.counts_builds
def test_a_program_is_as_with_python(
    environment: Environment, folder: Path, client: Client
) -> None:
    """Output, exit code, arguments, `__main__`, stdin, the traceback; but served.

    A second process traces nothing.
    """
    words = ("program.py", "--steps", "3")
    plain = run((*PYTHON, *words), environment, folder, "typed")
    assert "ValueError: not with (3,)" in plain.stderr
    before = client.statistics()
    served = run((*JAXD_RUN, *words), environment, folder, "typed")
    between = client.statistics()
    again = run((*JAXD_RUN, "--report", *words), environment, folder, "typed")
    after = client.statistics()
    for each in (served, again):
        assert (comparable(each.stdout), each.returncode) == (comparable(plain.stdout), 1)
    assert comparable(served.stderr) == comparable(plain.stderr)
    assert between.traces - before.traces >= 3
    assert after.executable_hits - between.executable_hits == 3
    assert after.compiles == between.compiles
    assert counts_in(again.stderr)["compiled"] == 0
    assert counts_in(again.stderr)["traces and compiles saved"] == 3


TWO = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}

LOOP = """
import os, sys
import jax
import jax.numpy as jnp

rate = 2.0

@jax.jit
def step(x):
    return x * rate

def show(says):
    print(says, step(x).tolist(), flush=True)

x = jnp.arange(4.0)
for _ in range(50):
    x = step(x) / 2
show("traced")
print("in a loop", jax.lax.scan(lambda x, _: (step(x) / 2, None), x, length=50)[0].tolist())
rate = 3.0
show("as traced")
print(jax.vmap(step)(x).tolist(), jax.jit(lambda x: step(x) + 1)(x).tolist())
with jax.disable_jit():
    show("step by step")
if "JAXD" in os.environ and os.fork() == 0:  # where plain jax might wait for ever
    x = __import__("numpy").arange(4.0, dtype="f4")
    sys.stdout.write("in a child " + repr(step(x).tolist()) + chr(10))
    sys.stdout.flush()
    os._exit(0)
if "JAXD" in os.environ:
    os.wait()
sys.settrace(lambda *_: None)
show("watched")
sys.settrace(None)
show("as before")
jax.clear_caches()
show("traced again")

@jax.jit
def early(x):
    return x * rate

for rate in (2.0, 3.0, 3.0, 4.0, 2.0, 5.0):
    print("early", float(early(1.0)))
for rate in (6.0, 7.0, 7.0):
    print("early", early(jnp.ones(1)).tolist())
jax.clear_caches()
print("early", float(early(1.0)))

@jax.jit
def log(x):
    return jnp.log(x)

for _ in range(3):
    log(-x)
with jax.debug_nans(True):
    try:
        log(-x)
    except FloatingPointError as error:
        print("nan:", str(error).splitlines()[0])
"""


AT_ONCE = """
import sys
if "jaxd" in sys.modules:  # the second call takes the program, however fast the server answers
    from jaxd.tracing import here
    here.LOAD_S = 0.0
"""


@pytest.mark.slow
def test_a_loop_runs_in_the_program_as_under_jit(
    environment: Environment, tmp_path: Path, client: Client
) -> None:
    """Each kind of call is dispatched by jax to the server's program, until jax forgets it."""
    own_server_needed()
    (tmp_path / "loop.py").write_text(AT_ONCE + LOOP)
    plain = run((*PYTHON, "loop.py"), environment, tmp_path)
    before = client.statistics().calls
    served = run((*JAXD_RUN, "--report", "loop.py"), environment, tmp_path)
    assert client.statistics().calls - before < 20
    counts = counts_in(served.stderr)
    assert counts["run here"] > 45
    assert counts["calls"] > 50
    assert "in a child [0.0, 2.0, 4.0, 6.0]\n" in served.stdout
    kept = ("traced", "as traced", "in a loop", "step by step", "as before", "early", "nan:")
    told = [
        [line for line in each.stdout.splitlines() if line.startswith(kept)]
        for each in (plain, served)
    ]
    assert len(told[0]) == 17
    assert told[1] == told[0]


CALLS_BACK = """
from functools import partial
import jax, jax.numpy as jnp
from jax.experimental import io_callback

@jax.jit
def loss(x, scale):
    jax.debug.print("loss {}", x * scale)
    return (x * scale).sum()

@partial(jax.jit, static_argnums=1)
def drawn(x, scale):
    return io_callback(lambda x: print("drawn", x) or x, x, x) * scale

for _ in range(2):
    print(jax.grad(loss)(1.5, 2.0), jax.value_and_grad(loss)(1.5, 2.0)[0])
print(jax.vmap(loss, (0, None))(jnp.arange(2.0), 3.0))
try:
    jax.grad(drawn)(jnp.ones(2), 3)
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.slow
def test_what_calls_back_is_differentiated_as_under_jit(
    environment: Environment, tmp_path: Path
) -> None:
    """Once, and not once more for the derivative; what jax refuses is refused before it runs."""
    own_server_needed()
    (tmp_path / "calls_back.py").write_text(CALLS_BACK)
    plain = run((*PYTHON, "calls_back.py"), environment, tmp_path)
    served = run((*JAXD_RUN, "calls_back.py"), environment, tmp_path)
    assert plain.stdout.count("loss 3.0") == 5
    assert "ValueError IO callbacks do not support JVP" in plain.stdout
    assert sorted(served.stdout.splitlines()) == sorted(plain.stdout.splitlines())


PURE_CALLBACKS = """
import os, pathlib, sys
from functools import partial
import jax, numpy as np, numpy.random as npr

state, table, rate, weights, log = {"k": 1.0}, [1.0], 1.0, np.ones(3), []

class Box:
    rate = 1.0

    def scaled(self, value):
        return value * self.rate

box = Box()

def helper(x):
    return np.float32(np.tanh(x) + 1)

def jitted(host):
    return jax.jit(lambda x: jax.pure_callback(lambda v: np.float32(host(v)), x, x))

def of_a_variable():
    scale = 1.0
    def change(value):
        nonlocal scale
        scale = value
    return (lambda v: v * scale), change

def of_the_trace(x):
    rank, kind = x.ndim, x.dtype
    return jax.pure_callback(lambda v: (np.sum(v) + rank).astype(kind), x, x)

def counting(x):
    count = x.ndim
    def host(value):
        nonlocal count
        count += 1
        return np.float32(value * count)
    return jax.pure_callback(host, x, x)

def given(x, host):
    return jax.pure_callback(lambda v: np.float32(host(v)), x, x)

def first_of(value, numbers=weights):
    return value * numbers[0]

inner = jitted(lambda v: v * rate)
outer = jax.jit(lambda x, y: inner(x) + y.sum())
padding = np.zeros(int(sys.argv[1]), np.float32)

of_variable, change = of_a_variable()
static, change_static = of_a_variable()
functions = [
    jax.jit(of_the_trace),
    jax.jit(counting),
    partial(jax.jit(given, static_argnames="host"), host=static),
    jitted(of_variable),
    jitted(lambda v: v * state["k"]),
    jitted(lambda v: v * table[0]),
    jitted(lambda v: v * box.rate),
    jitted(lambda v: v * rate),
    jitted(lambda v: v * weights[0]),
    jitted(lambda v: v * float(os.environ["SCALE"])),
    jitted(lambda v: v * float(open("scale.txt").read())),
    jitted(lambda v: v * np.random.rand()),
    jitted(lambda v: v * npr.rand()),
    jitted(box.scaled),
    jitted(first_of),
    jitted(partial(first_of, numbers=weights)),
    partial(outer, y=padding),
    jitted(lambda v: log.append(float(v)) or v),
    jitted(helper),
]
for value in (1.0, 5.0, 7.0):
    state["k"] = table[0] = box.rate = rate = weights[0] = value
    change(value)
    change_static(value)
    os.environ["SCALE"] = str(value)
    pathlib.Path("scale.txt").write_text(str(value))
    np.random.seed(int(value))
    print([float(f(np.float32(2))) for f in functions], len(log))
"""


@pytest.mark.slow
def test_what_a_pure_callback_reads_is_as_it_is_under_jit(
    environment: Environment, tmp_path: Path
) -> None:
    """At each call; what only calculates is served."""
    (tmp_path / "pure_callbacks.py").write_text(PURE_CALLBACKS)
    plain = run((*PYTHON, "pure_callbacks.py", "1"), environment, tmp_path)
    assert len(set(plain.stdout.splitlines())) == 3
    for size in "123":  # other arguments of a function whose parts jax has traced before
        served = run((*JAXD_RUN, "--report", "pure_callbacks.py", size), environment, tmp_path)
        assert served.stdout == plain.stdout
        counts = counts_in(served.stderr)
        assert (counts["calls"], counts["fell back"]) == (6, 51)


LIBRARY_CONTEXTS = """
import flax.linen as nn, jax, jax.numpy as jnp

model, x = nn.Dense(1, kernel_init=nn.initializers.ones), jnp.ones((1, 3))
weights = model.init(jax.random.key(0), x)

def apply(weights, x):
    return model.apply(weights, x)

def double(method, args, kwargs, context):
    return method(*args, **kwargs) * 2

with nn.intercept_methods(double):
    print(jax.jit(apply)(weights, x))
with nn.logical_axis_rules((("batch", None),)):
    print(jax.jit(lambda x: x * len(nn.get_logical_axis_rules()))(3.0))
print(jax.jit(lambda weights, x: apply(weights, x))(weights, x))
"""


LIBRARY_SETTINGS = """
import sys, flax, jax, jax.numpy as jnp
import equinox as eqx

@jax.jit
def at_least(x):
    return eqx.error_if(x, x < 0, "it is negative") * 2

@jax.jit
def settings(x):
    return x * (1 + flax.config.flax_fix_rng_separator)

if sys.argv[1:]:
    flax.config.update("flax_fix_rng_separator", True)
print(at_least(-1.0), settings(1.0))
"""


@pytest.mark.slow
@pytest.mark.libraries("flax", "equinox")
def test_settings_of_libraries_are_part_of_the_key(
    environment: Environment, tmp_path: Path, client: Client
) -> None:
    """Also those that a library has from the environment when it is imported.

    A process traces for itself under them, and compiles nothing that another one has compiled.
    """
    (tmp_path / "settings.py").write_text(LIBRARY_SETTINGS)
    found = []
    for place, on_error, *change in (
        *(("here", "off"), ("auto", "nan", "fixed"), ("auto", "off"), ("here", "nan", "fixed")),
        ("server", "nan"),
    ):
        own = environment | {"JAXD_PLACE": place, "EQX_ON_ERROR": on_error}
        before = client.statistics().compiles
        served = run((*JAXD_RUN, "--report", "settings.py", *change), own, tmp_path)
        compiles = client.statistics().compiles > before
        found.append((served.stdout, compiles, counts_in(served.stderr)["fell back"] > 0))
    assert found == [
        ("-2.0 1.0\n", True, False),
        ("nan 2.0\n", True, False),
        ("-2.0 1.0\n", False, False),
        ("nan 2.0\n", False, False),
        ("nan 1.0\n", False, True),
    ]


LIBRARY_HANDLERS = """
import jax, numpyro

@jax.jit
def model(x):
    return numpyro.deterministic("doubled", x * 2)

with numpyro.handlers.trace() as trace:
    print(model(3.0), list(trace))
print(jax.jit(lambda x: model(x))(3.0))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "printed", "counted"),
    [
        pytest.param(
            LIBRARY_CONTEXTS,
            ["[[6.]]", "3.0", "[[3.]]"],
            (1, 2),
            marks=pytest.mark.libraries("flax"),
            id="of a thread",
        ),
        pytest.param(
            LIBRARY_HANDLERS,
            ["6.0 ['doubled']", "6.0"],
            (1, 1),
            marks=pytest.mark.libraries("numpyro"),
            id="in a global",
        ),
    ],
)
def test_a_context_of_a_library_holds_as_under_jit(
    environment: Environment,
    tmp_path: Path,
    text: str,
    printed: list[str],
    counted: tuple[int, int],
) -> None:
    """A server's thread is in none, and the server's global is empty, so such a call runs here."""
    (tmp_path / "contexts.py").write_text(text)
    plain = run((*PYTHON, "contexts.py"), environment, tmp_path)
    assert plain.stdout.splitlines() == printed
    for _ in range(2):
        served = run((*JAXD_RUN, "--report", "contexts.py"), environment, tmp_path)
        assert served.stdout == plain.stdout
        counts = counts_in(served.stderr)
        assert (counts["calls"], counts["fell back"]) == counted


TRACED_READS = """
import os, random, threading, time
import jax, numpy as np

np.random.seed(0)
random.seed(0)
before, pid = time.time(), os.getpid()
functions = [
    lambda x: x + np.random.rand(),
    lambda x: x + random.random(),
    lambda x: x + (time.time() >= before),
    lambda x: x + (os.getpid() == pid),
    lambda x: x + (threading.current_thread() is threading.main_thread()),
    lambda x: x + 1,
]
print([float(jax.jit(function)(np.float32(1))) for function in functions])
"""


@pytest.mark.slow
def test_what_each_process_has_another_one_of_is_its_own(
    environment: Environment, tmp_path: Path
) -> None:
    """Clocks, random states, the thread: read while a function is traced, as under `jax.jit`."""
    (tmp_path / "traced_reads.py").write_text(TRACED_READS)
    plain = run((*PYTHON, "traced_reads.py"), environment, tmp_path)
    for _ in range(2):
        served = run((*JAXD_RUN, "--report", "traced_reads.py"), environment, tmp_path)
        assert served.stdout == plain.stdout
        counts = counts_in(served.stderr)
        assert (counts["calls"], counts["fell back"]) == (1, 5)


DEVICES = """
import jax
import numpy as np

@jax.jit
def double(x):
    return x * 2

def where(x):
    return double(x).devices()

for _ in range(3):
    print(where(1.0))
with jax.default_device(jax.devices()[1]):
    for _ in range(3):
        print(where(1.0), where(np.ones(2)))
print(where(1.0))
jax.config.update("jax_default_device", jax.devices()[1])
print(where(1.0), where(np.ones(2)))
"""


@pytest.mark.slow
def test_the_default_device_of_the_program_counts(tmp_path: Path) -> None:
    """Also once the program of the first device has come."""
    (tmp_path / "devices.py").write_text(AT_ONCE + DEVICES)
    server = LiveServer(tmp_path, **TWO)
    try:
        environment = server.environment | TWO | {"JAXD_DEVICE": "0"}
        plain = run((*PYTHON, "devices.py"), environment, tmp_path)
        served = run((*JAXD_RUN, "--report", "devices.py"), environment, tmp_path)
    finally:
        server.close()
    assert plain.stdout.count("\n") == 8
    assert served.stdout == plain.stdout
    assert counts_in(served.stderr)["run here"] >= 2


@pytest.mark.slow
def test_the_place_that_is_asked_for_counts(
    environment: Environment, tmp_path: Path, client: Client
) -> None:
    """`JAXD_PLACE=server`: nothing runs in the program."""
    (tmp_path / "loop.py").write_text(AT_ONCE + LOOP)
    before = client.statistics().calls
    environment["JAXD_PLACE"] = "server"
    served = run((*JAXD_RUN, "--report", "loop.py"), environment, tmp_path)
    assert client.statistics().calls - before > 50
    assert "run here" not in counts_in(served.stderr)


@pytest.mark.parametrize(
    "words",
    [
        ("-m", "package.module", "-x", "--server", "y"),
        ("-c", "import sys; print(sys.argv, sys.path[0], __name__)", "-m"),
        ("-", "--report"),
        ("-u", "-X", "dev", "-W", "error", "seen.py", "--help"),
        ("-m", "cProfile", "-s", "name", "seen.py"),
    ],
)
def test_every_way_to_start_python_is_there(
    runtime: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """With Python's own options; nothing of jaxd is loaded where there is no jax."""
    (tmp_path / "package").mkdir()
    code = (
        "import sys; print(sys.argv, sys.path, __name__, __spec__ and __spec__.name, "
        "sys.flags.dev_mode, [m for m in sys.modules if m.startswith('jaxd')], "
        "sys.stdout.write_through)"
    )
    (tmp_path / "package" / "module.py").write_text(code)
    (tmp_path / "seen.py").write_text(code)
    said = [run((*how, *words), os.environ, tmp_path, code) for how in (PYTHON, JAXD_RUN)]
    lines = [[line for line in each.stdout.splitlines() if "seconds" not in line] for each in said]
    assert lines[0][0] == lines[1][0]
    assert len(lines[0]) == len(lines[1])
    assert [(each.returncode, each.stderr) for each in said] == [(0, "")] * 2


@pytest.mark.parametrize(
    ("code", "returned"),
    [
        ("import sys; sys.exit(7)", 7),
        ("import os; os._exit(8)", 8),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT),
    ],
)
def test_the_end_is_that_of_the_program(runtime: Path, code: str, returned: int) -> None:
    """By itself or by a signal, which reaches it: it is the process that was started."""
    done = [run((*how, "-c", code), os.environ, runtime) for how in (PYTHON, JAXD_RUN)]
    assert [each.returncode for each in done] == [returned] * 2
    assert done[0].stderr == done[1].stderr


def test_a_sitecustomize_of_the_users_own_runs(runtime: Path, tmp_path: Path) -> None:
    """Before the program, with and without `JAXD=1`; what it raises is shown as without jaxd."""
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.mine = __file__")
    path = os.pathsep.join([os.environ["PYTHONPATH"], str(tmp_path)])
    code = "import sitecustomize, sys; print(mine, sitecustomize.__file__, sys.path)"
    environment = os.environ | {"PYTHONPATH": path}
    said = [run((*how, "-c", code), environment, tmp_path).stdout for how in (PYTHON, JAXD_RUN)]
    assert said[0] == said[1] != ""
    (tmp_path / "sitecustomize.py").write_text("raise KeyError('mine')")
    hooked = environment | variables(environment)
    said = [run((*PYTHON, "-c", ""), each, tmp_path).stderr for each in (environment, hooked)]
    assert said[0] == said[1]
    assert "mine" in said[0]


@pytest.mark.slow
def test_children_of_multiprocessing_are_served(environment: Environment, tmp_path: Path) -> None:
    """Spawned and forked; the report counts each call in them, and each before the fork, once."""
    (tmp_path / "program.py").write_text(
        """
import multiprocessing
import jax

numbers = (x for x in (1.0, 2.0))

@jax.jit
def refused(x):
    return x + next(numbers)

def work(number):
    return float(jax.jit(lambda x: x * number)(2.0))

if __name__ == "__main__":
    refused(1.0)
    for method in ("fork", "spawn"):
        pool = multiprocessing.get_context(method).Pool(1)
        print(pool.map(work, [1, 2]))
        pool.close()
        pool.join()
"""
    )
    done = run((*JAXD_RUN, "--report", "program.py"), environment, tmp_path)
    assert (done.returncode, done.stdout) == (0, "[2.0, 4.0]\n" * 2)
    counts = counts_in(done.stderr)
    assert (counts["calls"], counts["fell back"]) == (4, 1)


@pytest.mark.slow
def test_what_a_server_cannot_run_runs_in_the_program_and_is_reported(
    environment: Environment, tmp_path: Path
) -> None:
    """Without a warning, which the program could have made an error; a line says how often."""
    (tmp_path / "program.py").write_text(
        """
import jax, warnings
warnings.simplefilter("error")
warnings.filterwarnings("ignore", "backend and device")
numbers = (x for x in (1.0, 2.0))

@jax.jit
def refused(x):
    return x + next(numbers)

print(refused(1.0), refused(2.0), jax.jit(lambda x: x + 1, backend="cpu")(1.0))
"""
    )
    done = run((*JAXD_RUN, "--report", "program.py"), environment, tmp_path)
    assert (done.stdout, done.returncode) == ("2.0 3.0 2.0\n", 0)
    counts = counts_in(done.stderr)
    assert (counts["calls"], counts["fell back"]) == (0, 2)
    assert counts["functions left to jax.jit"] == 1
    assert "  2 x refused: " in done.stderr
    assert "  1 x left to jax.jit: the option backend" in done.stderr
    assert run((*JAXD_RUN, "program.py"), environment, tmp_path).stderr == ""


@pytest.mark.slow
def test_on_a_terminal_one_line_says_what_was_saved(environment: Environment) -> None:
    """At the very end, behind what the program itself says when it exits."""
    program = "import atexit, jax; atexit.register(print, 'bye', file=__import__('sys').stderr); "
    program += "print(jax.jit(lambda x: x + 1)(1))"
    launcher = f"import os; os.execv({sys.executable!r}, {[*JAXD_RUN, '-c', program]!r})"
    with TerminalProcess(launcher, (), environment) as started:
        code, said = started.end()
        assert (code, said) == (0, "2\n")
        lines = started.said.split()
        assert started.said.replace("\r", "").startswith("bye\njaxd: 1 calls, ")
        assert lines[-1] == "saved"


@pytest.mark.slow
def test_a_debugger_sees_what_is_jitted(environment: Environment, tmp_path: Path) -> None:
    """Functions run in the program while it looks, and the report says so."""
    program = "import jax\n\n@jax.jit\ndef f(x):\n    y = x + 1\n    return y\n\nprint(f(1.0))\n"
    (tmp_path / "program.py").write_text(program)
    typed = "break 6\ncontinue\nprint('here', type(y).__name__)\nclear 1\ncontinue\nquit\n"
    words = ("-m", "pdb", "program.py")
    plain = run((*PYTHON, *words), environment, tmp_path, typed)
    served = run((*JAXD_RUN, "--report", *words), environment, tmp_path, typed)
    assert "here" in plain.stdout
    assert comparable(served.stdout) == comparable(plain.stdout)
    assert counts_in(served.stderr)["under a debugger or coverage"] == 1


@pytest.mark.slow
def test_a_function_that_cannot_be_packed_is_compiled_by_one_process(
    environment: Environment, tmp_path: Path
) -> None:
    """The next one traces it, and finds its program in jax's own cache."""
    program = """
import jax, jax.monitoring
from collections import Counter
events = Counter()
jax.monitoring.register_event_listener(lambda event, **_: events.update([event]))
steps = (n for n in range(3))

@jax.jit
def f(x):
    steps.gi_running
    return jax.numpy.tanh(x @ x.T).sum() + 41.5

x = jax.block_until_ready(jax.numpy.ones((8, 8)))
events.clear()
f(x).block_until_ready()
print([events[f"/jax/compilation_cache/cache_{what}"] for what in ("hits", "misses")])
"""
    (tmp_path / "program.py").write_text(program)
    found = [run((*JAXD_RUN, "program.py"), environment, tmp_path).stdout for _ in range(2)]
    assert found == ["[0, 1]\n", "[1, 0]\n"]


@pytest.mark.slow
def test_a_compiled_function_can_be_written_in_each_run(
    environment: Environment, tmp_path: Path
) -> None:
    """Which XLA cannot do with what comes out of jax's own cache."""
    program = """
import jax
from jax.experimental.serialize_executable import deserialize_and_load, serialize

x = jax.numpy.arange(3.0)
compiled = jax.jit(lambda x: jax.numpy.sin(x) * 2.5).lower(x).compile()
print(deserialize_and_load(*serialize(compiled))(x))
"""
    (tmp_path / "program.py").write_text(program)
    plain = run((*PYTHON, "program.py"), environment, tmp_path).stdout
    found = [run((*JAXD_RUN, "program.py"), environment, tmp_path) for _ in range(2)]
    assert [each.stdout for each in found] == [plain, plain], found[1].stderr


@pytest.mark.slow
def test_operations_between_calls_are_kept_by_jaxs_own_cache(
    environment: Environment, tmp_path: Path
) -> None:
    """Below jaxd's folder; a folder that the user has chosen, before or later, is the only one."""
    code = "import sys, jax; jax.numpy.ones(3) + 4; {}jax.numpy.arange(5) * 2"
    eager = tmp_path / "jaxd" / "eager"

    def kept(more: str = "", **variables: str) -> int:
        done = run((*JAXD_RUN, "-c", code.format(more)), environment | variables, tmp_path)
        assert done.returncode == 0, done.stderr
        return len(list(eager.glob("*-cache")))

    first = kept()
    assert first > 1
    assert (eager.stat().st_mode & 0o777, kept()) == (0o700, first)
    mine, later = tmp_path / "mine", tmp_path / "later"
    for file in eager.iterdir():
        file.unlink()
    assert kept(JAX_COMPILATION_CACHE_DIR=str(mine)) == 0
    assert kept(JAXD_EAGER_CACHE="0") == 0
    assert kept(JAXD_CACHE_DIR="none") == 0
    chosen = f"jax.config.update('jax_compilation_cache_dir', {str(later)!r}); "
    chosen += "jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0); "
    assert 0 < kept(chosen) < first
    assert len(list(later.glob("*-cache"))) > 0


@pytest.mark.slow
def test_a_started_server_is_not_hooked_and_its_programs_are_kept(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It inherits the variables of the program that starts it; after its end they are loaded."""
    code = "import jax; print(jax.jit(lambda x: jax.jit(jax.numpy.sin)(x) + 1)(0.0))"
    files = LocalServerFiles.of_this_environment()
    found = []
    for _ in range(2):
        done = run((*JAXD_RUN, "--report", "-c", code), os.environ, runtime)
        assert (done.stdout, done.returncode) == ("1.0\n", 0), done.stderr
        found.append(counts_in(done.stderr))
        assert stop_and_wait(files.control)
    assert [each["calls"] for each in found] == [1, 1]
    assert [each["compiled"] for each in found] == [1, 0]
    assert [each["traces and compiles saved"] for each in found] == [0, 1]


@pytest.mark.slow
def test_env_does_the_same_for_programs_that_others_start(
    environment: Environment, folder: Path
) -> None:
    """In a POSIX shell, until it is taken back; other folders on PYTHONPATH stay."""
    jaxd = f"{sys.executable} -m jaxd.cli"
    show = (
        f"{sys.executable} -c 'import jax, json, os; "
        'print(json.dumps([type(jax.jit(len)).__name__, os.environ["PYTHONPATH"]]))\''
    )
    script = f'{show}; eval "$({jaxd} env)"; {show}; eval "$({jaxd} env --off)"; {show}'
    done = run(("sh", "-c", script), environment, folder)
    assert done.stderr == ""
    before, during, after = map(json.loads, done.stdout.splitlines())
    assert [before[0], during[0], after[0]] == ["PjitFunction", "HookedFunction", "PjitFunction"]
    assert before[1] == after[1]
    assert during[1].endswith(before[1])


@pytest.mark.slow
def test_install_reaches_what_was_imported_by_name(
    environment: Environment, folder: Path, live: LiveServer
) -> None:
    """Where `JAXD=1`; else it does nothing."""
    code = """
import jax
from jax import jit
import jaxd
jaxd.install()
import lib
print(type(jit(len)).__name__, type(jax.jit(len)).__name__, type(lib.tripled).__name__)
"""
    said = [
        run((*PYTHON, "-c", code), environment | more, folder).stdout.split()
        for more in ({}, {"JAXD": "1"})
    ]
    assert said == [["PjitFunction"] * 3, ["HookedFunction"] * 3]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "there is no program to run"),
        (("no.py",), 2, "there is no file 'no.py'"),
        (("-I", "no.py"), 2, "with -I Python does not look at PYTHONPATH"),
        (("--server", "unix:///nowhere/s.sock", "-c", ""), 1, "unix:///nowhere/s.sock"),
        (("--server", "nonsense://x", "-c", ""), 1, "nonsense://x"),
    ],
)
def test_what_cannot_begin_says_so_in_a_line(
    runtime: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    """Before the program has run a line."""
    done = run((*JAXD_RUN, *words), os.environ, runtime)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("jaxd: ")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
