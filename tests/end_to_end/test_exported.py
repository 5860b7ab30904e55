"""A server that takes no code: clients trace by themselves, and it opens nothing but data."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rpyc.utils.factory import unix_connect

import jaxd
from jaxd import Client, connect, errors
from jaxd.tracing import export as exporting
from jaxd.tracing.export import ExportedFunction
from jaxd_protocol.jit.options import Options
from jaxd_protocol.messages.calls import OK
from jaxd_protocol.pickling.unpack.unpickler import unpickling_gate
from jaxd_protocol.pytree import dump_literal
from tests.client.fake_server import FakeServer
from tests.exported_programs import rewritten
from tests.live_server import LiveServer, run_client, source_environment
from tests.server.in_process import InProcessServer
from tests.server.staging import until

pytest.importorskip("flatbuffers")

from jax import export

pytestmark = pytest.mark.own_server

X = np.arange(6, dtype=np.float32).reshape(2, 3)
SCALE = 3.0


class Point(NamedTuple):
    x: Any
    y: Any


@pytest.fixture(scope="module")
def strict() -> Iterator[InProcessServer]:
    """A server with `--accept exported`."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(unpickling_gate, "_is_shut", False)  # the server shuts that of its process
        server = InProcessServer(accept="exported")
        yield server
        server.close()


@pytest.fixture
def client(strict: InProcessServer) -> Iterator[Client]:
    """A client of it."""
    with connect(strict.unix) as client:
        yield client


@pytest.mark.slow
def test_calls_are_what_they_are_elsewhere(client: Client) -> None:
    """Trees, static arguments declared and not, keyword arguments, globals, weak types."""

    def f(p: Point, scale: float, *, n: int, mode: str = "mul") -> dict[str, Any]:
        total = (p.x @ p.y) * scale * SCALE if mode == "mul" else p.x.sum() + n
        return {"total": total, "n": [n * jnp.ones(()), None]}

    called = client.persistent_call(f, static_argnames="n")
    for n, mode in ((2, "mul"), (4, "mul"), (2, "add")):
        found = called(Point(X, X.T), 2.0, n=n, mode=mode)
        wanted = jax.jit(f, static_argnames=("n", "mode"))(Point(X, X.T), 2.0, n=n, mode=mode)
        structures: list[Any] = [jax.tree.structure(each) for each in (found, wanted)]
        assert structures[0] == structures[1]
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_array_equal(one, other)
            assert np.asarray(one).dtype == other.dtype


def test_a_program_is_made_once(client: Client) -> None:
    """And found again by another process, that is, by another client."""

    def double(x: Any) -> Any:
        return x * 2

    first = client.persistent_call(double)
    first(X)
    before = client.statistics()
    first(X)
    with connect(str(client.caller.session.address)) as other:
        np.testing.assert_array_equal(other.persistent_call(double)(X), X * 2)
    after = client.statistics()
    assert (after.compiles, after.traces) == (before.compiles, before.traces)
    assert after.executable_hits - before.executable_hits == 2


def test_a_training_loop_keeps_its_state_there(client: Client) -> None:
    """Values, donation and futures need no code."""

    @client.persistent_call(donate_argnums=0)
    def update(state: dict[str, Any], x: Any) -> Any:
        w = state["w"] + x
        return {"w": w}, w.sum()

    state: Any = {"w": np.zeros((200, 200), np.float32)}
    for _ in range(3):
        state, total = update(state, np.float32(1))
    assert isinstance(state["w"], jaxd.RemoteArray)
    assert float(total) == 120_000.0
    assert float(client.persistent_call(lambda x: x[0, 0]).submit(state["w"]).result()) == 3.0


@pytest.mark.slow
def test_derived_functions_are_exported_as_well(client: Client) -> None:
    """Derivatives, mapped functions, linear algebra and random keys."""
    cubed = client.persistent_call(lambda x: (x**3).sum())
    np.testing.assert_allclose(cubed.grad()(X), 3 * X**2)
    solve = client.persistent_call(lambda a: jnp.linalg.cholesky(a) + 0)
    np.testing.assert_allclose(solve(np.eye(3, dtype=np.float32)), np.eye(3))
    drawn = client.persistent_call(lambda key: jax.random.uniform(key, (2,)))(jax.random.key(1))
    np.testing.assert_array_equal(drawn, jax.random.uniform(jax.random.key(1), (2,)))


def _prints(x: Any) -> Any:
    jax.debug.print("{}", x)
    return x


def _calls_back(x: Any) -> Any:
    return jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct((), jnp.float32), x)


@pytest.mark.parametrize("function", [_prints, _calls_back])
def test_what_cannot_be_exported_is_said(client: Client, function: Any) -> None:
    """With a type of its own and what to do."""
    with pytest.raises(errors.NotPermitted, match=r"cannot be exported.*Leave that out"):
        client.persistent_call(function)(np.float32(1))


def test_what_the_function_raises_is_raised(client: Client) -> None:
    """It is traced here; a caller that jax traces is told what to use instead."""
    with pytest.raises(ZeroDivisionError):
        client.persistent_call(lambda x: 1 / 0)(1.0)
    square = client.persistent_call(lambda x: (x * x).sum())
    with pytest.raises(errors.NotPermitted, match=r"Use f.grad\(\)"):
        jax.grad(square)(X)


def test_a_client_without_jax_is_told(strict: InProcessServer, tmp_path: Path) -> None:
    """What it would need."""
    (tmp_path / "jax.py").write_text("raise ImportError('there is none')")
    program = "import jaxd\ntry: jaxd.persistent_call(lambda x: x)(1.0)\n"
    program += "except jaxd.errors.NotPermitted as e: print(e)"
    environment = source_environment(tmp_path, JAXD_SERVER=strict.unix)
    environment["PYTHONPATH"] = f"{tmp_path}:{environment['PYTHONPATH']}"
    done = run_client(program, environment=environment)
    assert "this process has no jax" in done.stdout


class Bomb:
    """Leaves a folder behind when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def test_nothing_that_could_be_code_is_opened(
    client: Client, strict: InProcessServer, tmp_path: Path
) -> None:
    """Functions, objects among the arguments, classes by name, and what stock clients send."""
    client.statistics()
    client.caller.session.accepts = "code"  # as a client that does not ask what the server takes
    trap = tmp_path / "sprung"
    bomb = Bomb(str(trap))

    def holds(x: Any) -> Any:
        return x + (bomb is None)

    with pytest.raises(errors.NotPermitted, match="came as a function"):
        client.persistent_call(holds)(1.0)
    for argument in (bomb, {"a": bomb}, Point(1.0, 2.0), lambda x: x):
        with pytest.raises(errors.JaxdError):
            client.persistent_call(lambda x: 1.0)(argument)
    with pytest.raises(errors.JaxdError):
        client.put(Point(np.ones(3), bomb))
    for name in ("warm", "jaxpr"):
        with pytest.raises(errors.NotPermitted):
            getattr(client.persistent_call(holds), name)(1.0)
    with unix_connect(strict.unix.removeprefix("unix://")) as stock:
        packed = cloudpickle.dumps(bomb)
        with pytest.raises(Exception, match=r"exported|cannot be read|opens no"):
            stock.root.call(packed, packed, packed)
    assert not trap.exists()
    client.caller.session.accepts = "exported"
    assert float(client.persistent_call(lambda x: x + 1)(1.0)) == 2.0


def test_native_code_is_called_with_the_buffers_that_jax_gives_it(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program in which the buffer for the pivots is too small is refused; the worker lives."""
    matrix = np.eye(64, dtype=np.float32)
    made = export.export(jax.jit(lambda x: list(jax.lax.linalg.lu(x))[:1]))(matrix)
    code = rewritten(made, "tensor<64xi32>", "tensor<2xi32>")
    factors = client.persistent_call(lambda x: [jax.lax.linalg.lu(x)[0]])
    np.testing.assert_array_equal(factors(matrix)[0], matrix)
    structure = jax.tree.structure([0])
    hostile = ExportedFunction("hostile", code, structure, Options(static="jax"))
    monkeypatch.setattr(exporting, "_export", lambda *_: hostile)
    with pytest.raises(errors.NotPermitted, match=r"calls lapack_sgetrf_ffi\(.*tensor<2xi32>"):
        client.persistent_call(lambda x: [x * 2])(matrix)
    np.testing.assert_array_equal(factors(matrix)[0], matrix)


@pytest.mark.parametrize("name", ["xla_dump_to", "xla_gpu_kernel_cache_file"])
def test_no_option_of_xla_reaches_a_file(client: Client, tmp_path: Path, name: str) -> None:
    """As the server's user; options without paths are taken."""
    folder = tmp_path / "dump"
    dumping = client.persistent_call(lambda x: x + 1, compiler_options={name: str(folder)})
    with pytest.raises(errors.NotPermitted, match=f"{name} is not for clients to set"):
        dumping(np.float32(1))
    assert not folder.exists()
    fast = client.persistent_call(
        lambda x: x + 1, compiler_options={"xla_cpu_enable_fast_math": True}
    )
    assert float(fast(np.float32(1))) == 2.0


@pytest.mark.parametrize(
    "result",
    [
        ("O", ("fractions", "Fraction"), ()),
        ("R", ("os", "remove")),
        ("S", "x"),
        ("N",),
        ("D",),
    ],
    ids=lambda result: result[0],
)
def test_a_client_reads_lists_of_arrays_only(tmp_path: Path, result: tuple[Any, ...]) -> None:
    """Its tree is its own: a server can put no class, function, static value or dict into it."""
    tag, *literals = result
    inner = tag.encode() + b"".join(map(dump_literal, literals)) + bytes(4 * (tag == "D"))
    skeletons = [b"L" + struct.pack("!I", 1) + inner, inner]
    server = FakeServer(
        str(tmp_path / "s"), statistics={}, call=lambda asked: ((OK, skeletons.pop(), b""), ())
    )
    with connect(server.address) as client:
        client.caller.requires_export()
        client.caller.session.accepts = "exported"
        called = client.persistent_call(lambda x: {"a": x + 1}, results="numpy")
        for _ in range(2):
            with pytest.raises(errors.ProtocolError, match="list of arrays"):
                called(np.float32(1))
    server.close()
    assert skeletons == []


@pytest.mark.slow
def test_programs_are_kept_on_disk(start_live: Callable[..., LiveServer]) -> None:
    """The next worker traces and compiles nothing, and asks nobody."""
    server = start_live("--accept", "exported")
    with connect(server.unix) as client:
        triple = client.persistent_call(lambda x: x * 3)
        assert float(triple(np.float32(2))) == 6.0
        until(lambda: client.statistics().disk_files >= 4)  # call, function, code, program
        os.kill(server.worker_pid(), signal.SIGKILL)
        assert float(triple(np.float32(3))) == 9.0
        after = client.statistics()
        assert (after.traces, after.compiles, after.executable_loads) == (0, 0, 1)
