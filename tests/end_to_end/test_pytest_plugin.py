"""`pytest --jaxd`: tests of others on a warm server, with the outcomes that they have without."""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from jaxd import Client
from tests.end_to_end.unchanged import comparable, counts_in, run
from tests.live_server import ROOT, LiveServer, live_server

Environment = dict[str, str]

SUITE = """
from functools import partial
import jax, jax.numpy as jnp, numpy as np, pytest

@jax.jit
def double(x):
    return 3 * x - x  # another program than that of other tests

@partial(jax.jit, static_argnums=1)
def power(x, n):
    return 1.0 * x ** n  # so is this

@jax.jit
def checked(x):
    assert x.shape == (7,), "seven are needed"
    return x

def test_passes():
    assert double(jnp.float32(2)) == 4

def test_fails_by_its_result():
    assert double(jnp.float32(2)) == 5

def test_fails_by_many_results():
    np.testing.assert_allclose(power(jnp.arange(3.0), 2), [0, 1, 5])

def test_fails_inside():
    checked(jnp.ones(3))

def test_expects_a_failure():
    with pytest.raises(AssertionError, match="seven are needed"):
        checked(jnp.ones(3))

def test_is_given_no_array():
    double("text")

@pytest.mark.parametrize("n", [2, 3])
def test_fails_while_it_is_traced(n):
    jax.jit(lambda a, b: a @ b)(jnp.ones(n), jnp.ones(4))
"""


@pytest.fixture
def environment(live: LiveServer, tmp_path: Path) -> Environment:
    """Of somebody who uses the live server, and has the plugin whatever is installed here."""
    return environment_of(live, tmp_path)


def environment_of(server: LiveServer, tmp_path: Path) -> Environment:
    """The same for any server."""
    installed = tmp_path / "installed"
    made = installed / "jaxd_plugin-1.dist-info"
    made.mkdir(parents=True, exist_ok=True)
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: jaxd-plugin\nVersion: 1\n")
    (made / "entry_points.txt").write_text(entry_points())
    paths = f"{server.environment['PYTHONPATH']}:{installed}"
    return server.environment | {
        "XDG_CACHE_HOME": str(tmp_path),
        "JAXD_FALLBACK": "local",
        "PYTHONPATH": paths,
    }


def entry_points() -> str:
    """Those of the wheel for pytest."""
    text = (ROOT / "pyproject.toml").read_text()
    table = text.split("[project.entry-points.pytest11]\n")[1].split("\n\n")[0]
    return f"[pytest11]\n{table.replace(chr(34), '')}\n"


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A folder with those tests."""
    made = tmp_path / "suite"
    made.mkdir()
    (made / "test_theirs.py").write_text(SUITE)
    return made


def run_pytest(
    environment: Environment, suite: Path, *words: str, tool: Sequence[str] = ()
) -> CompletedProcess[str]:
    """Runs pytest there."""
    command = (sys.executable, *tool, "-m", "pytest", "-p", "no:cacheprovider", *words)
    return run(command, environment, suite)


def without_the_line(output: str) -> list[str]:
    """What can be compared of the output of pytest."""
    lines = comparable(output).splitlines()
    return [line for line in lines if not line.startswith(("jaxd: ", "plugins: "))]


@pytest.mark.slow
@pytest.mark.counts_builds
def test_outcomes_are_those_without_it(
    environment: Environment, suite: Path, client: Client
) -> None:
    """The same texts and tracebacks, to the last line, cold and warm; a line says what was done."""
    plain = run_pytest(environment, suite)
    before = client.statistics()
    cold = run_pytest(environment, suite, "--jaxd")
    between = client.statistics()
    warm = run_pytest(environment, suite, "--jaxd")
    after = client.statistics()
    assert "6 failed, 2 passed" in plain.stdout
    assert without_the_line(cold.stdout) == without_the_line(plain.stdout)
    assert without_the_line(warm.stdout) == without_the_line(plain.stdout)
    assert (between.compiles - before.compiles, after.compiles - between.compiles) == (2, 0)
    counts = counts_in(warm.stdout)
    assert (counts["compiled"], counts["warm"]) == (0, counts["calls"])
    assert counts["fell back"] == 0
    assert counts_in(cold.stdout)["compiled"] == 2


OUTPUT_SUITE = """
import logging, warnings
import jax, jax.numpy as jnp, pytest

def made():
    @jax.jit
    def noisy(x):
        print("tracing", x.shape)
        warnings.warn("the rate is large")
        logging.getLogger("model").warning("seven parameters")
        return 5 * x - x
    return noisy

@pytest.mark.parametrize("n", [1, 2])
def test_a_warning_of_a_trace(n):
    with pytest.warns(UserWarning, match="the rate is large"):
        made()(jnp.ones(3))

def test_it_prints_and_logs_once_for_each_kind_of_call(capsys, caplog):
    with warnings.catch_warnings(action="ignore"):
        noisy = made()
        for n in (3, 3, 4):
            noisy(jnp.ones(n))
        assert noisy._cache_size() == 2
        jax.jit(noisy.__wrapped__)(jnp.ones(3))  # jax knows that trace
    assert capsys.readouterr().out == "tracing (3,)\\ntracing (4,)\\n"
    assert caplog.messages == ["seven parameters"] * 2

def test_what_changes_its_objects_is_traced_once(capsys):
    class Model:
        calls = 0
        def step(self, x):
            self.calls += 1
            print("tracing", x.shape)
            return x + 1
    model, step = Model(), jax.jit(Model.step, static_argnums=0)
    for n in (3, 3, 4, 3):
        step(model, jnp.ones(n))
    assert model.calls == step._cache_size() == 2
    assert capsys.readouterr().out == "tracing (3,)\\ntracing (4,)\\n"

def test_a_failed_trace_is_no_trace(capsys):
    @jax.jit
    def refused(x):
        print("tracing")
        raise ValueError("no")
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            refused(1.0)
    assert capsys.readouterr().out == "tracing\\n" * 2
"""


@pytest.mark.slow
@pytest.mark.own_server
def test_what_a_trace_puts_out_is_seen_by_each_process(tmp_path: Path) -> None:
    """As under `jax.jit`: also where nothing is traced, from memory and from disk."""
    suite = tmp_path / "suite"
    suite.mkdir()
    (suite / "test_output.py").write_text(OUTPUT_SUITE)
    for runs in (("plain", "cold", "warm"), ("from disk",)):
        with live_server(f"--cache-dir={tmp_path}/cache") as server:
            environment = environment_of(server, tmp_path)
            for one in runs:
                done = run_pytest(environment, suite, *["--jaxd"] * (one != "plain"))
                assert "5 passed" in done.stdout, (one, done.stdout)
                if one != "plain":
                    assert (counts_in(done.stdout)["compiled"] > 0) == (one == "cold")


DONATING_SUITE = """
import functools, jax, jax.numpy as jnp, numpy as np, pytest

jitted = functools.partial(jax.jit, donate_argnums=0)

def made(n=8):
    return jnp.arange(float(n)) + 1

def test_what_is_used_is_deleted():
    step = jitted(lambda x, y: x * y - 7)
    for n in (8, 8, 9):
        x, y = made(n), made(n)
        np.testing.assert_array_equal(step(x, y), (np.arange(n) + 1.0) ** 2 - 7)
        assert (x.is_deleted(), y.is_deleted()) == (True, False)
        with pytest.raises(RuntimeError, match="deleted"):
            np.asarray(x)

@pytest.mark.filterwarnings("ignore:Some donated buffers")
def test_what_no_result_can_use_is_not():
    total, other = jitted(lambda x: x.sum() - 7), jitted(lambda x, y: y - 7)
    for _ in range(2):
        x, y = made(), made()
        total(x), other(x, y)
        assert not x.is_deleted() and not y.is_deleted()

def test_of_a_tree_each_by_itself():
    x = {"used": made(), "not": made(9)}
    jitted(lambda x: x["used"] + x["not"].sum() - 7)(x)
    assert x["used"].is_deleted() and not x["not"].is_deleted()

def test_an_array_that_numpy_sees_stays():
    x = made()
    seen = np.asarray(x)
    jitted(lambda x: x - 8)(x)
    assert not x.is_deleted() and seen[7] == 8

def test_none_is_given_twice():
    x = made()
    with pytest.raises((RuntimeError, ValueError)):
        jax.jit(lambda x, y: (x - 9, y - 9), donate_argnums=(0, 1))(x, x)

def test_by_name_beside_what_is_static():
    step = jax.jit(lambda x, over, n: n * x - over, donate_argnames="over", static_argnames="n")
    x, over = made(), made()
    np.testing.assert_array_equal(step(x, over=over, n=7), 6 * (np.arange(8) + 1.0))
    assert (x.is_deleted(), over.is_deleted()) == (False, True)

def test_of_what_no_server_can_answer():
    traces = []
    for _ in range(2):
        x = made(100_000)
        jitted(lambda x: traces.append(x.shape) or x - 7)(x)
        assert x.is_deleted()
    assert len(traces) == 2

def test_where_jax_looks_for_infinity():
    jax.config.update("jax_debug_infs", True)
    try:
        x = made()
        at = x.unsafe_buffer_pointer()
        assert jitted(lambda x: x)(x).unsafe_buffer_pointer() == at and x.is_deleted()
    finally:
        jax.config.update("jax_debug_infs", False)

def test_it_prints_once(capsys):
    @jitted
    def noisy(x):
        print("tracing")
        jax.debug.print("running {}", x[0])
        return x - 7
    noisy(made()).block_until_ready()
    jax.effects_barrier()
    assert capsys.readouterr().out == "tracing\\nrunning 1.0\\n"
"""


@pytest.mark.slow
def test_donated_arrays_are_deleted_as_without_it(environment: Environment, suite: Path) -> None:
    """Those that the program uses, and no others, whoever has answered first."""
    (suite / "test_theirs.py").write_text(DONATING_SUITE)
    for one in ((), ("--jaxd",), ("--jaxd",)):
        done = run_pytest(environment, suite, *one)
        assert done.returncode == 0, (one, done.stdout)
    assert counts_in(done.stdout)["compiled"] == 0


RAISING_SUITE = """
import jax, jax.experimental, pytest

def test_a_program_that_raises_was_traced(capsys):
    def refuse(x):
        raise ValueError("no")
    @jax.jit
    def refused(x):
        print("tracing")
        return jax.experimental.io_callback(refuse, jax.ShapeDtypeStruct((), "float32"), x)
    for _ in range(3):
        with pytest.raises(jax.errors.JaxRuntimeError, match="no"):
            refused(1.0).block_until_ready()
    assert capsys.readouterr().out == "tracing\\n"
"""


@pytest.mark.slow
def test_the_trace_of_a_program_that_raises_is_seen_once(
    environment: Environment, suite: Path
) -> None:
    """To `jax.jit` it is traced, whatever becomes of its calls."""
    (suite / "test_theirs.py").write_text(RAISING_SUITE)
    for one in ((), ("--jaxd",)):
        done = run_pytest(environment, suite, *one)
        assert done.returncode == 0, (one, done.stdout)


COUNTS_ITS_TRACES = """
import jax

traces = 0

@jax.jit
def counted(x):
    global traces
    traces += 1
    return x + 40

def test_it():
    assert counted(2) == 42
    assert traces == 1
"""


@pytest.mark.slow
def test_what_no_server_could_answer_is_not_sent_again(
    environment: Environment, suite: Path, client: Client
) -> None:
    """The next run has it run here at once, until the code is other code."""
    file = suite / "test_theirs.py"
    file.write_text(COUNTS_ITS_TRACES)
    failed, counts = [client.statistics().failed_calls], []
    for _ in range(2):
        done = run_pytest(environment, suite, "--jaxd", "-v")
        assert "LostUpdateError" in done.stdout
        counts.append(counts_in(done.stdout))
        failed.append(client.statistics().failed_calls)
    assert [each["fell back"] for each in counts] == [1, 1]
    assert failed[1] > failed[0]
    assert failed[2] == failed[1]
    file.write_text(COUNTS_ITS_TRACES.replace("    traces += 1\n", "").replace("== 1", "== 0"))
    changed = counts_in(run_pytest(environment, suite, "--jaxd").stdout)
    assert (changed["calls"], changed["fell back"]) == (1, 0)


JITS_IT_AGAIN = """
import jax
import pytest

traces = []

def counted(x):
    traces.append(x.shape)
    return x + 46

@pytest.mark.parametrize("again", range(3))
def test_it(again):
    assert jax.jit(counted)(2) == 48
    assert len(traces) == 1
"""


@pytest.mark.slow
def test_what_runs_here_is_traced_once_however_often_it_is_jitted(
    environment: Environment, suite: Path, client: Client
) -> None:
    """As in plain jax, which finds what it has traced of a function."""
    (suite / "test_theirs.py").write_text(JITS_IT_AGAIN)
    for one in ((), ("--jaxd",)):
        done = run_pytest(environment, suite, *one)
        assert done.returncode == 0, (one, done.stdout)


@pytest.mark.slow
def test_what_was_answered_once_is_sent_again(
    environment: Environment, suite: Path, client: Client
) -> None:
    """A function that is refused with some arguments is none that cannot be served."""
    (suite / "test_theirs.py").write_text(
        COUNTS_ITS_TRACES.replace("    traces += 1", "    if x.ndim:\n        traces += 1").replace(
            "assert counted(2) == 42",
            "assert counted(2) == 42 and counted(jax.numpy.ones(1)) == 41",
        )
    )
    counts = [counts_in(run_pytest(environment, suite, "--jaxd").stdout) for _ in range(2)]
    assert [(each["calls"], each["fell back"]) for each in counts] == [(1, 1), (1, 1)]


@pytest.mark.slow
def test_workers_of_xdist_share_the_server_and_the_line(
    environment: Environment, suite: Path, client: Client
) -> None:
    """The line has the sums."""
    before = client.statistics().calls
    done = run_pytest(environment, suite, "--jaxd", "-n", "2", "-k", "passes or by_its or by_many")
    assert "2 failed, 1 passed" in done.stdout
    answered = client.statistics().calls - before
    assert counts_in(done.stdout)["calls"] == answered == 3


@pytest.mark.slow
def test_marker_ini_option_and_fixtures(environment: Environment, suite: Path) -> None:
    """`jaxd = true` is as `--jaxd`; a test with `jaxd(False)` uses plain `jax.jit` all the way."""
    (suite / "pytest.ini").write_text("[pytest]\njaxd = true\naddopts = --strict-markers\n")
    (suite / "test_theirs.py").write_text(
        """
import jax, pytest

double = jax.jit(lambda x: x * 2)

@pytest.mark.jaxd(False)
def test_plain(jaxd_client):
    before = jaxd_client.statistics().calls
    assert type(jax.jit(len)).__name__ == "PjitFunction"
    assert double(2) == 4
    assert jaxd_client.statistics().calls == before

def test_served(jaxd_client, jaxd_server):
    before = jaxd_client.statistics().calls
    assert double(2) == 4
    assert jaxd_client.statistics().calls == before + 1
    assert jaxd_server == str(jaxd_client.caller.session.address)
"""
    )
    done = run_pytest(environment, suite)
    assert "2 passed" in done.stdout, done.stdout
    assert counts_in(done.stdout)["calls"] == 1


def test_without_the_option_nothing_is_loaded(environment: Environment, suite: Path) -> None:
    """Neither jax nor rpyc nor numpy, and no server is looked for."""
    (suite / "test_theirs.py").write_text(
        "import sys\n\ndef test_nothing(pytestconfig):\n"
        "    assert pytestconfig.pluginmanager.hasplugin('jaxd')\n"
        "    assert not {'jax', 'rpyc', 'numpy', 'jaxd.api.launch.process'} & set(sys.modules)\n"
    )
    bare = environment | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = run_pytest(bare, suite, "-p", "jaxd")
    assert "1 passed" in done.stdout, done.stdout
    assert "jaxd: " not in done.stdout


@pytest.mark.slow
def test_a_server_that_is_not_there_is_an_error_of_usage(
    environment: Environment, suite: Path
) -> None:
    """Before any test, in a line."""
    done = run_pytest(environment, suite, "--jaxd", "--jaxd-server", "unix:///nowhere/s.sock")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: --jaxd: " in done.stderr + done.stdout
    assert "unix:///nowhere/s.sock" in done.stderr + done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--jaxd-verify"], ["--jaxd-server", "unix:///s.sock"]])
def test_an_option_of_a_served_run_needs_one(
    environment: Environment, suite: Path, options: list[str]
) -> None:
    """Else a run would look verified that was not."""
    done = run_pytest(environment, suite, *options)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "need --jaxd" in done.stderr + done.stdout


@pytest.mark.slow
def test_coverage_sees_what_is_jitted(environment: Environment, suite: Path) -> None:
    """What a tool looks at runs here, and is counted."""
    pytest.importorskip("coverage")
    (suite / "theirs.py").write_text("def f(x):\n    y = x + 1\n    return y\n")
    (suite / "test_theirs.py").write_text(
        "import jax, theirs\n\ndef test_it():\n    assert jax.jit(theirs.f)(1) == 2\n"
    )
    words = ("-m", "coverage", "run", "--include=theirs.py")
    done = run_pytest(environment, suite, "--jaxd", tool=words)
    assert counts_in(done.stdout)["under a debugger or coverage"] == 1
    told = run((sys.executable, "-m", "coverage", "report"), environment, suite).stdout
    assert "100%" in told


@pytest.mark.slow
def test_verification_is_an_option(environment: Environment, suite: Path) -> None:
    """Each program is compared with what the process makes itself."""
    done = run_pytest(environment, suite, "--jaxd", "--jaxd-verify", "-k", "passes or by_many")
    assert "1 failed, 1 passed" in done.stdout
    assert "jaxd: 2 verified, 0 mismatches, 0 not comparable" in done.stdout
    (suite / "test_theirs.py").write_text("def test_it():\n    assert True\n")
    done = run_pytest(environment, suite, "--jaxd", "--jaxd-verify", "test_theirs.py")
    assert "nothing was compared: a server answered no function of these tests\n" in done.stdout


PROGRAMS = int(os.environ.get("SUITE_PROGRAMS", "2000"))
EVERY = PROGRAMS // 16
MANY = f"""
PROGRAMS = {PROGRAMS}
import jax, jax.numpy as jnp, pytest

@pytest.mark.parametrize("n", range(PROGRAMS))
def test_one(n):
    made = jax.jit(lambda x: x * (n + 2) - n)
    assert made(jnp.float32(1)) == 2
"""
TELLS = f"""
import json, os
from pathlib import Path

done = 0

def levels(pid):
    lines = Path(f"/proc/{{pid}}/status").read_text().splitlines()
    words = dict(line.split(":") for line in lines)
    return [int(words[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM")]

def pytest_runtest_teardown():
    global done
    done += 1
    if done % {EVERY} == 0:
        found = [*levels("self"), *levels(os.environ["WORKER"])]
        with open(f"levels-{{os.getpid()}}", "a") as file:
            file.write(json.dumps(found) + "\\n")
"""


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_hardly_grows_over_many_programs(
    start_live: Callable[..., LiveServer],
    tmp_path: Path,
    suite: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """That of the processes of xdist and of the worker: by less than a program for each."""
    server = start_live("--max-executables", str(PROGRAMS // 5))
    (suite / "test_theirs.py").write_text(MANY)
    (suite / "conftest.py").write_text(TELLS)
    given = environment_of(server, tmp_path) | {"WORKER": str(server.worker_pid())}
    done = run_pytest(given, suite, "--jaxd", "-n", "2", "-q")
    counts = counts_in(done.stdout)
    assert (counts["compiled"], counts["fell back"]) == (PROGRAMS, 0), done.stdout
    files = [file.read_text().splitlines() for file in suite.glob("levels-*")]
    samples = [[json.loads(line) for line in lines] for lines in files]
    with capsys.disabled():
        print("\nMiB of a process of xdist and of the worker, now and at most:")
        for number, found in enumerate(samples):
            for count, each in enumerate(found, 1):
                print(f"  {number} {count * EVERY:>5} " + " ".join(f"{one:>7.1f}" for one in each))
    assert len(samples) == 2
    for found in samples:
        own, most_own, worker, most_worker = growth_kib(found)
        assert max(own, most_own) < 48
        assert max(worker, most_worker) < 2 * 48  # it has the programs of both


def growth_kib(samples: Sequence[Sequence[float]]) -> list[float]:
    """By how much each column has grown with each program, from the second sample to the last."""
    early, late = samples[1:4], samples[-3:]
    programs = EVERY * (len(samples) - 4)
    columns = zip(*early, strict=True), zip(*late, strict=True)
    before, after = ([statistics.median(each) for each in some] for some in columns)
    return [(b - a) * 1024 / programs for a, b in zip(before, after, strict=True)]
