"""Programs that answer calls are compared with what the client's own jax makes of the functions."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxd
from jaxd import Client, connect
from jaxd.errors import ConfigurationError, StaleProgramError
from jaxd.tracing import second_trace, verification
from tests.end_to_end.several_devices import EIGHT
from tests.ids import stable_id
from tests.live_server import LiveServer

X = np.arange(6, dtype="f4").reshape(2, 3)
FOUND = ("verified_programs", "stale_programs", "incomparable_programs")


@pytest.fixture
def verifying(live: LiveServer) -> Iterator[Client]:
    """A client that compares, of the common server."""
    with connect(live.unix, verify=True) as client:
        yield client


def found_by(client: Client, act: Callable[[], Any]) -> tuple[int, ...]:
    """How many programs are verified, stale and incomparable after `act`, more than before."""
    before, _, after = client.statistics(), act(), client.statistics()
    return tuple(getattr(after, name) - getattr(before, name) for name in FOUND)


# agreement ---------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A function, its options and some of its calls.

    Attributes:
        name: for people.
        function: what is called.
        calls: makes each call of the persistent function.
        options: of `persistent_call`.
        under: settings of jax.
        programs: how many are made.
    """

    name: str
    function: Callable[..., Any]
    calls: Callable[[Any], Any]
    options: dict[str, Any] = {}  # noqa: RUF012  never changed
    under: Callable[[], Any] = nullcontext
    programs: int = 1


@jax.jit
def _halved(x: Any) -> Any:
    return jnp.where(x > 0, x / 2, x)


def _affine(x: Any, w: Any = 2.0, *, b: Any = 0) -> Any:
    return {"y": (_halved(x) * w + b,), "n": x.size}


def _powers(x: Any, n: int, names: Any = ()) -> Any:
    return dict.fromkeys(names, x**n) or x**n


def _step(state: Any, batch: Any) -> Any:
    w, count = state["w"], state["count"]
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((batch @ w) ** 2))(w)
    return {"w": w - 0.1 * gradient, "count": count + 1}, loss


def _noise(key: Any, shape: Any) -> Any:
    return jax.random.normal(key, shape), jax.random.split(key)


def _scanned(x: Any) -> Any:
    def body(carry: Any, row: Any) -> Any:
        return jax.lax.cond(
            row.sum() > 3, lambda c: c + row, lambda c: c * _halved(row), carry
        ), row

    return jax.lax.scan(body, jnp.zeros(3), x)


def _large_constant(x: Any) -> Any:
    return x + np.arange(3000, dtype="f4").reshape(1000, 3)[:2] @ np.eye(3, dtype="f4")


def _solved(x: Any) -> Any:
    return jnp.linalg.solve(x @ x.T + 3 * jnp.eye(2), jnp.ones(2)), jnp.sort(x), jnp.fft.fft(x)


@jaxd.persistent_call
def _inner(x: Any, kind: str = "sin") -> Any:
    return getattr(jnp, kind)(x)


def _outer(x: Any) -> Any:
    return _inner(x) + _inner(x, kind="cos") + _inner(np.ones(3, "f4"))


class _Model:
    def __init__(self) -> None:
        self.scale = 3.0

    def __call__(self, x: Any) -> Any:
        return x * self.scale


def _sum_of_squares(x: Any) -> Any:
    return (x**2).sum()


def _recurrent(x: Any) -> Any:
    return jax.checkpoint(lambda v: jnp.tanh(v).sum())(x), jax.jvp(jnp.sin, (x,), (x,))


def _transformed(make: Callable[[Any], Any], *args: Any) -> Callable[[Any], Any]:
    return lambda f: make(f)(*args)


AGREEING = (
    Case("kwargs", _affine, lambda f: [f(X), f(X, b=1), f(X, w=X), f(x=X, w=1)], programs=4),
    Case(
        "dtypes", _affine, lambda f: [f(X.astype(t)) for t in ("f8", "i4", "?", "c8")], programs=4
    ),
    Case(
        "numbers",
        _affine,
        lambda f: [f(jnp.float32(1)), f(jnp.asarray(1.0)), f(np.float32(1))],
        programs=2,
    ),
    Case(
        "static",
        _powers,
        lambda f: [f(X, 2), f(X, n=3, names=("a", "b"))],
        {"static_argnames": "n"},
        programs=2,
    ),
    Case("static by content", _powers, lambda f: f(X, 2, names=["a", "b"])),
    Case("donated", _step, lambda f: f({"w": jnp.ones(3), "count": 0}, X), {"donate_argnums": 0}),
    Case(
        "values",
        _step,
        lambda f: jaxd.get(f.remote(f.remote({"w": np.ones(3, "f4"), "count": 0}, X)[0], X)),
        programs=2,
    ),
    Case(
        "keys",
        _noise,
        lambda f: [f(jax.random.key(0), (2,)), f(jax.random.PRNGKey(0), (2,))],
        {"static_argnums": 1},
        programs=2,
    ),
    Case("control flow", _scanned, lambda f: f(X)),
    Case("large constants", _large_constant, lambda f: f(X)),
    Case("native code", _solved, lambda f: f(X)),
    Case("other persistent functions", _outer, lambda f: f(X)),
    Case("an object that is called", _Model(), lambda f: f(X)),
    Case("partial", partial(_affine, b=3), lambda f: f(X)),
    Case("nested transformations", _recurrent, lambda f: f(X)),
    Case("f.grad", _sum_of_squares, lambda f: f.grad()(X)),
    Case(
        "f.vmap", _sum_of_squares, lambda f: [f.vmap()(X), f.grad().vmap(in_axes=1)(X)], programs=2
    ),
    Case("jax.grad", _sum_of_squares, _transformed(jax.grad, X), programs=2),
    Case("jax.jit", _sum_of_squares, _transformed(lambda f: jax.jit(lambda x: f(x) + 1), X)),
    Case(
        "x64",
        _affine,
        lambda f: [f(X.astype("f8")), f(1.0, 2)],
        {},
        partial(jax.enable_x64, True),
        2,
    ),
    Case("config", _affine, lambda f: f(X.astype("f8")), {"config": {"jax_enable_x64": True}}),
    Case(
        "precision",
        lambda x: x @ x.T,
        lambda f: f(X),
        {},
        partial(jax.default_matmul_precision, "highest"),
    ),
    Case(
        "options",
        _affine,
        lambda f: f(X),
        {"keep_unused": True, "compiler_options": {"xla_cpu_enable_fast_math": True}},
    ),
)


@pytest.mark.parametrize("case", AGREEING, ids=lambda case: stable_id(case.name))
def test_ordinary_functions_agree(verifying: Client, case: Case) -> None:
    """No false alarm, and nothing that could not be compared."""
    function = verifying.persistent_call(case.function, extra_key="verified", **case.options)
    with case.under():
        found = found_by(verifying, lambda: case.calls(function))
        assert found == (case.programs, 0, 0)
        assert found_by(verifying, lambda: case.calls(function)) == (0, 0, 0)  # once is enough


SPREAD = """
import jax, numpy as np, jaxd
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

X = np.arange(16, dtype="f4").reshape(8, 2)
mesh = Mesh(np.array(jax.devices()), ("i",))
rows, whole = NamedSharding(mesh, P("i")), NamedSharding(mesh, P())

@jaxd.persistent_call(in_shardings=rows, out_shardings=whole)
def given(x):
    return (x @ x.T).sum(0)

@jaxd.persistent_call
def constrained(x):
    return jax.lax.with_sharding_constraint(x * 2, rows).sum()

@jaxd.persistent_call
def mapped(x):
    summed = lambda x: jax.lax.psum(x, "i")
    return jax.shard_map(summed, mesh=mesh, in_specs=P("i"), out_specs=P())(x)

given(X), constrained(X), mapped(X), constrained.on(device=3)(X)
with jax.set_mesh(mesh):
    constrained(X + 1)
found = jaxd.statistics()
print(found.verified_programs, found.stale_programs, found.incomparable_programs)
"""


@pytest.mark.slow
@pytest.mark.own_server
def test_programs_for_several_devices_agree(eight: LiveServer) -> None:
    """Shardings of arguments and results, constraints, maps over shards, meshes."""
    done = eight.run(SPREAD, JAXD_VERIFY="1", **EIGHT)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"[4-9] 0 0\n", done.stdout)


@pytest.mark.slow
@pytest.mark.own_server
def test_a_client_with_fewer_devices_compares_what_it_can(eight: LiveServer) -> None:
    """What needs more devices than it has is not comparable, and is no alarm."""
    program = SPREAD.replace("Mesh(np.array(jax.devices())", "Mesh(np.array(jax.devices()[:1])")
    done = eight.run(program.replace("with jax.set_mesh(mesh):", "if 1:"), JAXD_VERIFY="1")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.libraries("flax", "optax")
def test_training_steps_of_libraries_agree(verifying: Client) -> None:
    """A module of flax linen, one of nnx, and optimizers of optax."""
    from flax import linen, nnx

    optax: Any = importlib.import_module("optax")

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            return linen.Dense(1)(nnx.relu(linen.Dense(4)(x)))

    net: Any = Net()
    tx = optax.adamw(0.1)
    params = net.init(jax.random.key(0), X)

    def step(params: Any, state: Any, x: Any) -> Any:
        gradient = jax.grad(lambda p: (net.apply(p, x) ** 2).mean())(params)
        updates, state = tx.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))

    def nnx_step(model: Any, x: Any) -> Any:
        loss, gradient = nnx.value_and_grad(lambda m: (m(x) ** 2).mean())(model)
        nnx.update(model, jax.tree.map(lambda p, g: p - g, nnx.state(model), gradient))
        return loss

    made = verifying.persistent_call(step), verifying.persistent_call(nnx_step)
    found = found_by(verifying, lambda: (made[0](params, tx.init(params), X), made[1](model, X)))
    assert found == (2, 0, 0)


def test_a_helper_of_another_name_is_no_other_program(verifying: Client) -> None:
    """What differs in names alone is compared by its text, where the digests differ."""

    def helper(x: Any) -> Any:
        return x + 1

    def other(x: Any) -> Any:
        return x + 1

    made = {"here": helper}

    def f(x: Any) -> Any:
        return jax.jit(made["here"])(x)

    function = verifying.persistent_call(f, ignore="made['here']")
    function(X)
    made["here"] = other
    assert found_by(verifying, lambda: function(X[0])) == (1, 0, 0)


def test_calls_of_a_running_program_agree(verifying: Client) -> None:
    """Also of what jax calls weakly typed."""
    function = verifying.persistent_call(lambda x, n: x * n)
    program = jax.jit(lambda n: function(jnp.ones(2, "float16"), n) + 1)
    found: list[Any] = []
    assert found_by(verifying, lambda: found.append(program(2.0))) == (1, 0, 0)
    assert (found[0].dtype, found[0].tolist()) == ("float16", [3.0, 3.0])


# disagreement ------------------------------------------------------------------------------------

PATCHED = """
import sys, numpy as np, jaxd
if "patched" in sys.argv:
    import optax._src.transform as inside
    plain = inside.scale
    inside.scale = lambda factor: plain(2 * factor)
import optax

@jaxd.persistent_call(extra_key="patched inside")
def step(p):
    tx = optax.sgd(0.5)
    return optax.apply_updates(p, tx.update(p, tx.init(p))[0])

print(step(np.ones(2, "f4")).tolist())
"""


@pytest.mark.slow
@pytest.mark.libraries("optax")
def test_a_library_that_is_patched_inside_is_found(live: LiveServer) -> None:
    """What no key sees: the answer of before, and with `JAXD_VERIFY=1` an error."""
    stale = {"JAXD_VERIFY": "1"}
    assert live.run(PATCHED, **stale).stdout == "[0.5, 0.5]\n"
    assert live.run(PATCHED, "patched").stdout == "[0.5, 0.5]\n"
    with connect(live.unix) as client:
        before = client.statistics()
        done = live.run(PATCHED, "patched", **stale)
        after = client.statistics()
    assert done.stdout == ""
    assert "StaleProgramError: step was answered by another program" in done.stderr
    assert re.search(r"server: .*-5\.0+e-01.*\n +here: .*-1\.0+e\+00", done.stderr)
    assert "package optax" in done.stderr
    assert after.stale_programs == before.stale_programs + 1
    assert live.run(PATCHED, **stale).stdout == "[0.5, 0.5]\n"  # it was dropped, and built anew
    with connect(live.unix) as client:
        assert client.statistics().traces == after.traces + 1


SCALE = 2.0


def _scaled(x: Any) -> Any:
    return x * SCALE


@pytest.fixture
def stale(verifying: Client, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function whose programs for new arguments have a number of before, which no key holds."""
    function = verifying.persistent_call(_scaled, ignore="SCALE", extra_key=str(object()))
    assert function(X).tolist() == (X * 2).tolist()
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    return function


def test_the_error_says_what_differs(verifying: Client, stale: Any) -> None:
    """The first difference of the two programs, and what the key holds."""
    with pytest.raises(StaleProgramError) as caught:
        stale(X[0])
    text = str(caught.value)
    assert "dense<2.0" in caught.value.difference
    assert "dense<3.0" in caught.value.difference
    assert "function _scaled" in caught.value.parts
    assert caught.value.difference in text
    assert "docs/the-key.md" in text


def test_what_was_verified_is_not_compared_again(verifying: Client, stale: Any) -> None:
    """Once for each key and signature: a later change is not looked for."""
    assert stale(X).tolist() == (X * 2).tolist()
    for _ in range(2):  # but what was stale is, each time
        with pytest.raises(StaleProgramError):
            stale(X[0])


def test_the_row_is_dropped(verifying: Client, stale: Any) -> None:
    """As by `f.clear()`: nothing is left of the key."""
    with pytest.raises(StaleProgramError):
        stale(X[0])
    assert stale.why(X[0]).verdict == "compile"


@pytest.mark.slow
def test_each_way_to_call_raises_it(verifying: Client, stale: Any) -> None:
    """Where the caller waits for the result."""

    async def awaited() -> None:
        await stale.call_async(X[0])

    ways: dict[str, Callable[[], Any]] = {
        "submit": lambda: stale.submit(X[0]).result(),
        "map": lambda: list(stale.map([X[0]] * 3)),
        "call_async": lambda: asyncio.run(awaited()),
        "remote": lambda: stale.remote(X[0]),
        "grad": lambda: stale.vmap()(X[0]),
        "jax.vmap": lambda: jax.vmap(stale)(X[0]),
    }
    missed = []
    for name, way in ways.items():
        try:
            way()
        except StaleProgramError:
            continue
        missed.append(name)
    assert missed == []


def test_a_call_that_does_not_verify_is_answered(verifying: Client, stale: Any) -> None:
    """The option of the function wins over that of its client, both ways."""
    plain = verifying.persistent_call(_scaled, ignore="SCALE", verify=False, extra_key="off")
    assert found_by(verifying, lambda: plain(X)) == (0, 0, 0)


def test_one_function_of_a_client_verifies(client: Client) -> None:
    """With the session of the client, which goes on without."""
    compared = client.persistent_call(_affine, verify=True, extra_key="one of them")
    plain = client.persistent_call(_affine, extra_key="the other")
    assert found_by(client, lambda: (compared(X), plain(X))) == (1, 0, 0)


@pytest.mark.parametrize("wrong", ["yes", 1, "0"])
def test_another_value_is_an_error(live: LiveServer, wrong: Any) -> None:
    """At once, and not at the first call."""
    with pytest.raises(ConfigurationError, match="verify="):
        jaxd.persistent_call(_affine, verify=wrong)
    with pytest.raises(ConfigurationError, match="verify="):
        connect(live.unix, verify=wrong)


# nothing is seen of it ---------------------------------------------------------------------------


def _talkative(x: Any) -> Any:
    print("printed")
    sys.stderr.write("written\n")
    warnings.warn("warned of", stacklevel=1)
    logging.getLogger("somebody").error("logged")
    return x + 1


def test_its_output_comes_once(
    verifying: Client, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """What the function prints while it is traced a second time is dropped."""
    function = verifying.persistent_call(_talkative, extra_key="talks")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert found_by(verifying, lambda: function(X)) == (1, 0, 0)
        assert found_by(verifying, lambda: function.submit(X[0]).result()) == (1, 0, 0)
    said = capsys.readouterr()
    assert (said.out.count("printed"), said.err.count("written")) == (2, 2)
    assert [str(each.message) for each in warned].count("warned of") == 2
    assert [record.message for record in caplog.records].count("logged") == 2


HERE: list[threading.Event] = []


def _slow(x: Any) -> Any:
    if HERE:  # as in this process, once it is filled, and not on the server
        HERE[0].set()
        assert HERE[1].wait(30)
    return x * 5


def test_other_threads_go_on_printing(
    verifying: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """While a function is traced a second time, only its own output is dropped."""
    function = verifying.persistent_call(_slow, ignore="HERE")
    function(X)
    HERE[:] = is_here, go_on = threading.Event(), threading.Event()
    future = function.submit(X[0])
    try:
        assert is_here.wait(30)
        print("meanwhile")
    finally:
        go_on.set()
    assert future.result(30).tolist() == (X[0] * 5).tolist()
    assert "meanwhile" in capsys.readouterr().out


def test_settings_of_the_thread_are_as_before(verifying: Client) -> None:
    """Of jax, of warnings, and the streams."""
    before = sys.stdout, sys.stderr, list(warnings.filters)
    with jax.enable_x64(True):
        verifying.persistent_call(_affine, extra_key="settings")(X)
        assert jax.config.values["jax_enable_x64"]
    assert (sys.stdout, sys.stderr, list(warnings.filters)) == before


# what cannot be compared -------------------------------------------------------------------------


def _calls_back(x: Any) -> Any:
    jax.debug.callback(lambda y: None, x)
    return x


def test_a_program_that_calls_back_is_counted(verifying: Client) -> None:
    """Its callbacks are those of one process."""
    function = verifying.persistent_call(_calls_back)
    assert found_by(verifying, lambda: function(X)) == (0, 0, 1)


FAILS_HERE = [False]
RATE = [1.0]


def _fails_here(x: Any) -> Any:
    assert not FAILS_HERE[0]
    return x


def test_a_function_that_fails_here_is_counted(verifying: Client) -> None:
    """What it raises here is no answer of the server's."""
    function = verifying.persistent_call(_fails_here, ignore="FAILS_HERE")
    function(X)
    FAILS_HERE[0] = True
    assert found_by(verifying, lambda: function(X[0])) == (0, 0, 1)


def test_another_jax_is_counted(verifying: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its programs may differ without any fault."""
    monkeypatch.setattr(verification, "_jaxlib_version", lambda: "0.0.1")
    function = verifying.persistent_call(_affine, extra_key="another jax")
    assert found_by(verifying, lambda: function(X)) == (0, 0, 1)


def _at_a_rate(x: Any) -> Any:
    return x * RATE[0]


def test_what_changes_meanwhile_is_counted(
    verifying: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A global that is set after the call was sent is no fault of the program."""
    again = second_trace.lower_again

    def late(*args: Any) -> Any:
        monkeypatch.setitem(globals(), "RATE", [5.0])
        return again(*args)

    monkeypatch.setattr(verification, "lower_again", late)
    function = verifying.persistent_call(_at_a_rate)
    assert found_by(verifying, lambda: function(X)) == (0, 0, 1)


# many at a time ----------------------------------------------------------------------------------


def _busy(x: Any, n: int) -> Any:
    return jnp.sin(x) ** n


@pytest.mark.slow
def test_threads_futures_and_maps_together(verifying: Client) -> None:
    """Each program is compared once, whoever calls first, and every result is right."""
    function = verifying.persistent_call(_busy, static_argnames="n", extra_key="many")
    arrays = [np.full(2, i, "f4") for i in range(12)]

    def expected(n: int) -> Any:
        return [np.sin(x) ** n for x in arrays]

    async def all_of(n: int) -> Any:
        return await asyncio.gather(*(function.call_async(x, n=n) for x in arrays))

    def run() -> None:
        with ThreadPoolExecutor(6) as pool:
            called = [pool.submit(function, x, n=n) for n in (1, 2, 3) for x in arrays]
            futures = [function.submit(x, n=4) for x in arrays]
            mapped = list(function.map(arrays, [5] * len(arrays)))
            awaited = asyncio.run(all_of(6))
            found = [future.result() for future in called + futures] + mapped + awaited
        wanted = [x for n in range(1, 7) for x in expected(n)]
        np.testing.assert_allclose(found, wanted, rtol=1e-5)

    assert found_by(verifying, run) == (6, 0, 0)


def test_a_submitted_call_can_be_cancelled(verifying: Client) -> None:
    """As any: its future is cancelled, and nothing is compared for it."""
    function = verifying.persistent_call(_affine, extra_key="cancelled")
    future = function.submit(X)
    future.cancel()
    assert future.cancelled() or future.result()["n"] == 6


def test_a_call_that_fails_is_not_compared(verifying: Client) -> None:
    """Its error is what the caller gets, from a future as well."""

    def fails(x: Any) -> Any:
        raise ValueError("no")

    function = verifying.persistent_call(fails)

    def run() -> None:
        with pytest.raises(ValueError, match="no"):
            function(X)
        with pytest.raises(ValueError, match="no"):
            function.submit(X).result()

    assert found_by(verifying, run) == (0, 0, 0)


# the command -------------------------------------------------------------------------------------


def command(live: LiveServer, folder: Path, *words: str, **more: str) -> Any:
    """What `jaxd verify` does in a folder."""
    return subprocess.run(
        [sys.executable, "-m", "jaxd.cli", "verify", *words],
        env=live.environment | more,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


AGREES = """
import sys, numpy as np, jaxd

@jaxd.persistent_call
def doubled(x):
    return x * 2

print(doubled(np.ones(2, "f4")).tolist())
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
"""


@pytest.mark.slow
def test_the_command_runs_scripts_and_modules(live: LiveServer, tmp_path: Path) -> None:
    """Its exit code is that of the program, and the last line says what was compared."""
    (tmp_path / "agrees.py").write_text(AGREES)
    for words in (("agrees.py",), ("-m", "agrees")):
        done = command(live, tmp_path, "--", sys.executable, *words, "5")
        assert (done.stdout, done.returncode) == ("[2.0, 2.0]\n", 5)
        assert done.stderr.endswith("jaxd: 1 verified, 0 mismatches, 0 not comparable\n")
    done = command(live, tmp_path, "--json", "--", sys.executable, "-c", "")
    assert json.loads(done.stdout)["verified"] == 0
    done = command(live, tmp_path, "--", sys.executable, "-c", "")
    assert "nothing was compared" in done.stderr


@pytest.mark.slow
@pytest.mark.libraries("optax")
def test_the_command_ends_with_3_after_a_mismatch(live: LiveServer, tmp_path: Path) -> None:
    """Also where the program has caught it."""
    (tmp_path / "patched.py").write_text(f"try:\n    exec({PATCHED!r})\nexcept Exception: pass")
    assert live.run(PATCHED).returncode == 0
    done = command(live, tmp_path, "--", sys.executable, "patched.py", "patched")
    assert done.returncode == 3
    assert "jaxd: 0 verified, 1 mismatches, 0 not comparable\n  step: line" in done.stderr


@pytest.mark.slow
def test_the_command_says_that_there_is_no_jax(live: LiveServer, tmp_path: Path) -> None:
    """And what to install."""
    program = f"import sys; sys.modules['jax'] = None\n{AGREES}"
    (tmp_path / "without.py").write_text(program)
    done = command(live, tmp_path, "--", sys.executable, "without.py")
    assert (done.stdout, done.returncode) == ("[2.0, 2.0]\n", 0)
    assert "0 verified, 0 mismatches, 1 not comparable" in done.stderr
    assert "this process has no jax. Run: pip install 'jaxd[server]'" in done.stderr


@pytest.mark.parametrize(
    ("words", "variables", "said"),
    [
        ((), {}, "there is no program to run"),
        (("--", "/none/such"), {}, "cannot run /none/such"),
        (("--", sys.executable), {"JAXD_INLINE": "1"}, "Unset JAXD_INLINE"),
    ],
    ids=("no program", "no such program", "inline"),
)
def test_mistakes_in_the_command(
    live: LiveServer, tmp_path: Path, words: tuple[str, ...], variables: dict[str, str], said: str
) -> None:
    """Are errors that say what to do."""
    done = command(live, tmp_path, *words, **variables)
    assert done.returncode == 1
    assert said in done.stderr
