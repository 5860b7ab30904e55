"""The process that traces for a worker: what it hands over is what the worker would have made."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd_protocol.jax_objects.arrays import key_array, weak_array
from jaxd_protocol.jax_objects.lowered_bytes import pack_lowered
from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.static_args import dynamic
from jaxd_protocol.messages.failures import decode_failure
from jaxd_protocol.packages.distributions import changed_since_first_seen
from jaxd_server.codec.arguments import leaves_of, parse_arguments, read_leaves, structure_of
from jaxd_server.compilation.compiling.compiler import Compiler, LoweredFunction
from jaxd_server.compilation.disk_cache.records import call_name
from jaxd_server.compilation.functions.table import Functions
from jaxd_server.compilation.remote_build import builder_process
from jaxd_server.compilation.remote_build.build_job import build_order_of
from jaxd_server.compilation.remote_build.builder_process import BuilderProcess
from jaxd_server.compilation.remote_build.builder_start import new_interpreter
from jaxd_server.compilation.remote_build.messages import (
    BuildOrder,
    Built,
    CompileLowered,
    CompileOrder,
    Ended,
    Failed,
    HandOver,
    Lowered,
    Outdated,
    Packed,
    Refused,
    Reply,
)
from jaxd_server.jax_compat.config import configured
from jaxd_server.jax_compat.lowered import out_leaves
from jaxd_server.jax_compat.lowered_transfer import can_unpack, unpack_lowered
from jaxd_server.jax_compat.programs import compile_flat, load
from jaxd_server.runtime.counters import Counters
from jaxd_server.runtime.events import SILENT, Emit
from tests.fake_packages import FakeSite
from tests.server.in_process import Source, prepare_once, request_of

X = np.linspace(0, 1, 4, dtype=np.float32)


class Scaled:
    """Its aux data is an array: what is traced depends on what is in it."""

    def __init__(self, value: Any, factors: Any) -> None:
        self.value = value
        self.factors = factors


jax.tree_util.register_pytree_node(
    Scaled,
    lambda scaled: ((scaled.value,), tuple(scaled.factors.tolist())),
    lambda aux, children: Scaled(*children, np.asarray(aux)),
)


@dataclass(frozen=True)
class Plan:
    """A static argument."""

    steps: int


class Bench:
    """A builder, and a worker's inside to compare with."""

    def __init__(self) -> None:
        prepare_once()
        self.builder = BuilderProcess("text", can_unpack)
        self.counters = Counters()
        self.compiler = Compiler(self.counters, 1)
        assert self.builder.wait()

    def order(self, source: Source, *args: Any, **more: Any) -> BuildOrder:
        """A call as it is sent."""
        call = source.call(args, **more)
        function = Functions().obtain(source.key, source)
        layout = parse_arguments(call.skeleton)
        arguments = layout.build(read_leaves(layout.whole, call.blob, call.buffers))
        name = call_name(function, arguments)
        assert name is not None
        order = build_order_of(request_of(function, call, arguments, layout), name)
        assert order is not None
        return order._replace(code=bytes(source.code_))

    def ask(self, source: Source, *args: Any, emit: Emit = SILENT) -> Reply:
        """What the builder says."""
        return self.builder.ask(self.order(source, *args), emit)

    def handed_over(self) -> Any:
        """What was lowered last, for this process to compile."""
        reply = self.builder.ask(HandOver(0), SILENT)
        assert isinstance(reply, Packed), reply
        return unpack_lowered(reply.data)

    def compiled(self) -> Built:
        """What was lowered last, compiled there."""
        reply = self.builder.ask(CompileLowered(0, 0), SILENT)
        assert isinstance(reply, Built), reply
        return reply

    def here(self, source: Source, *args: Any) -> tuple[LoweredFunction, list[Any]]:
        """What this process makes of the same, and the leaves that the program takes."""
        call = source.call(args)
        function = Functions().obtain(source.key, source)
        layout = parse_arguments(call.skeleton)
        arguments = layout.build(read_leaves(layout.whole, call.blob, call.buffers))
        traced = dynamic(arguments, function.statics)
        lowered = self.compiler.lower(
            function.function,
            function.name,
            function.options,
            arguments,
            structure_of(traced),
            SILENT,
        )
        return lowered, leaves_of(traced)


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    """One builder for all tests that leave it alive."""
    with pytest.MonkeyPatch.context() as patch:
        folders = [path for path in sys.path if path]
        patch.setenv("PYTHONPATH", os.pathsep.join(folders))
        bench = Bench()
    yield bench
    bench.builder.close()
    bench.compiler.close()


def _update(params: Any, x: Any) -> Any:
    grads = jax.grad(lambda p: jnp.sum(jnp.tanh(x * p["w"]) + p["b"]))(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), {"loss": x.sum()}


def _take(x: Any, plan: Any) -> Any:
    for _ in range(plan.steps):
        x = x * 2
    return x


X64 = Options(config=(("jax_enable_x64", True),))
PARAMS = {"w": X, "b": np.float32(1)}
CASES: dict[str, tuple[Source, tuple[Any, ...]]] = {
    "trees": (Source(_update), (PARAMS, X)),
    "numbers": (Source(lambda a, b, c, d: (a * b, c, d + 1)), (1.5, 2, True, 1j)),
    "weak types": (Source(lambda a: (a, a * 2)), (weak_array(np.ones(3, np.float32)),)),
    "keys": (
        Source(lambda k: jax.random.split(k, 3)),
        (key_array("threefry2x32", jnp.asarray([1, 2], np.uint32)),),
    ),
    "statics": (Source(_take, Options(static_argnames=("plan",))), (X, Plan(3))),
    "static numbers": (
        Source(lambda x, n: x * n, Options(static_argnums=(1,))),
        (X, 7),
    ),
    "donated": (Source(lambda a, b: (a + b, b * 2), Options(donate_argnums=(0,))), (X, X * 2)),
    "64 bits": (Source(lambda a: a + 1, X64), (np.ones(2),)),
    "pickled": (Source(lambda s: s.value * s.factors), (Scaled(X, np.arange(4.0)),)),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_handed_over_is_what_the_worker_would_have_made(case: str, bench: Bench) -> None:
    """The same program under the same name, results that travel in the same way."""
    source, args = CASES[case]
    reply = bench.ask(source, *args)
    assert isinstance(reply, Lowered), reply
    here, leaves = bench.here(source, *args)
    assert reply.program == here.program
    assert (reply.skeleton, reply.order) == (here.form.skeleton, here.form.order)
    arrived = bench.handed_over()
    assert out_leaves(arrived) == out_leaves(here.lowered)
    built = bench.compiled()
    if case not in ("keys", "donated"):
        run = load(*built.compiled.program)
        with configured(source.options.config):
            found, expected = run(*leaves), compile_flat(here.lowered)(*leaves)
            also = compile_flat(arrived)(*leaves)
        assert [np.asarray(one).tolist() for one in also] == [
            np.asarray(one).tolist() for one in expected
        ]
        assert [np.asarray(one).tolist() for one in found] == [
            np.asarray(one).tolist() for one in expected
        ]


def test_what_the_worker_has_lowered_is_compiled_there(bench: Bench) -> None:
    """It counts as one compilation, and the stage is told."""
    events: list[tuple[str, Any]] = []
    source = Source(lambda x: jnp.linalg.cholesky(jnp.eye(3) + x.sum()))
    here, leaves = bench.here(source, X)
    packed = pack_lowered(here.lowered, here.obstacle)
    order = CompileOrder(0, packed, here.program, "it", source.options, 0)
    reply = bench.builder.ask(order, lambda *event: events.append(event))
    assert isinstance(reply, Built), reply
    assert reply.side.counts["compiles"] == 1
    assert reply.side.counts["compile_s"] == pytest.approx(reply.compiled.compile_s)
    about = {"function": "it", "builder": bench.builder.pid}
    assert ("stage", {"stage": "compile", **about}) in events
    found = load(*reply.compiled.program)(*leaves)
    expected = compile_flat(here.lowered)(*leaves)
    assert np.asarray(found[0]).tolist() == np.asarray(expected[0]).tolist()


def test_what_the_compiler_raises_comes_back(bench: Bench) -> None:
    """And what cannot be read is left to the worker."""
    source = Source(lambda x: x * 3, Options(compiler_options=(("no_such_option", True),)))
    assert isinstance(bench.ask(source, X), Lowered)
    reply = bench.builder.ask(CompileLowered(0, 0), SILENT)
    assert isinstance(reply, Failed), reply
    assert "no_such_option" in str(decode_failure(reply.failure))
    order = CompileOrder(0, b"nonsense", b"", "it", Options(), 0)
    assert isinstance(bench.builder.ask(order, SILENT), Refused)


def test_it_counts_one_trace_and_one_lowering(bench: Bench) -> None:
    """And how long that took; the stages are told as by a worker, and which builder it is."""
    events: list[tuple[str, Any]] = []
    reply = bench.ask(Source(lambda x: x * 3), X, emit=lambda *event: events.append(event))
    assert isinstance(reply, Lowered)
    counts = reply.side.counts
    assert (counts["traces"], counts["lowers"]) == (1, 1)
    assert counts["trace_s"] == pytest.approx(reply.trace_s)
    assert "compiles" not in counts
    about = {"function": "<lambda>", "builder": bench.builder.pid}
    assert [event for event in events if event[0] != "compiled"] == [
        ("stage", {"stage": "trace", **about}),
        ("stage", {"stage": "lower", **about}),
    ]


def test_it_says_what_it_has_imported_and_only_once(bench: Bench) -> None:
    """So that the worker knows what its programs were made with."""

    def parse(x: Any) -> Any:
        import hypothesis

        return x * (hypothesis.__version__ is not None)

    reply = bench.ask(Source(parse), X)
    assert isinstance(reply, Lowered)
    assert "hypothesis" in dict(reply.side.packages)
    again = bench.ask(Source(lambda x: x * 5), X)
    assert isinstance(again, Lowered)
    assert "hypothesis" not in dict(again.side.packages)


def _fails(x: Any) -> Any:
    raise KeyError("a message of the user's")


@pytest.mark.parametrize("how", [SystemExit(3), KeyboardInterrupt()])
def test_a_function_that_wants_to_stop_the_process_only_fails(
    how: BaseException, bench: Bench
) -> None:
    """The builder goes on."""

    def stop(x: Any) -> Any:
        raise how

    reply = bench.ask(Source(stop), X)
    assert isinstance(reply, Failed)
    assert reply.side.counts["traces"] == 1
    assert bench.builder.state == "ready"


def _prints(x: Any) -> Any:
    jax.debug.print("{}", x)
    return x


def _keeps(x: Any) -> Any:
    return {"x": x, "lock": jax.tree_util.Partial(threading.Lock().acquire)}


@pytest.mark.parametrize("function", [_prints, _keeps])
def test_what_has_to_be_in_the_worker_is_refused_for_good(
    function: Callable[..., Any], bench: Bench
) -> None:
    """Host callbacks, and results that hold objects of the process."""
    reply = bench.ask(Source(function), X)
    assert isinstance(reply, Refused)
    assert reply.always


def test_a_function_that_is_another_one_here_is_refused(bench: Bench) -> None:
    """The worker finds out by itself what is in doubt, and tells its client."""
    source = Source(lambda x: x * 11)
    order = bench.order(source, X)._replace(code=bytes(Source(lambda x: x * 12).code_))
    reply = bench.builder.ask(order, SILENT)
    assert isinstance(reply, Refused)
    assert not reply.always


def test_a_call_that_is_another_one_here_is_refused(bench: Bench) -> None:
    """Its arguments came out differently, so the program would be called wrongly."""
    order = bench.order(Source(lambda x: x * 13), X)._replace(call=b"?" * 16)
    reply = bench.builder.ask(order, SILENT)
    assert isinstance(reply, Refused)
    assert "a different one" in reply.reason


def test_code_that_is_neither_sent_nor_known_is_refused(bench: Bench) -> None:
    """Once it was sent, it is known."""
    source = Source(lambda x: x * 14)
    order = bench.order(source, X)
    assert isinstance(bench.builder.ask(order._replace(code=None), SILENT), Refused)
    assert isinstance(bench.builder.ask(order, SILENT), Lowered)
    assert isinstance(bench.builder.ask(order._replace(code=None), SILENT), Lowered)


def test_the_settings_of_a_function_end_with_it(bench: Bench) -> None:
    """Whatever it does to jax's: the next one has the defaults."""

    def meddles(x: Any) -> Any:
        jax.config.update("jax_enable_x64", True)
        return x

    assert isinstance(bench.ask(Source(meddles), X), Failed)
    reply = bench.ask(Source(lambda x: jnp.arange(3)), X)
    assert isinstance(reply, Lowered)
    assert str(out_leaves(bench.handed_over())[0].dtype) == "int32"


@pytest.mark.slow
def test_packages_that_changed_on_disk_make_it_useless(
    bench: Bench, site: FakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so before it traces anything."""
    site.install("tr-package", "1", {"tr_package.py": "RATE = 1.0"})
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))

    def uses(x: Any) -> Any:
        import tr_package  # type: ignore[import-not-found]

        return x * tr_package.RATE

    builder = BuilderProcess("text", can_unpack)
    try:
        assert builder.wait()
        order = bench.order(Source(uses), X)
        assert isinstance(builder.ask(order, SILENT), Lowered)
        site.install("tr-package", "2", {"tr_package.py": "RATE = 2.0"})
        reply = builder.ask(order, SILENT)
        assert isinstance(reply, Outdated)
        assert reply.changes == ["tr-package was changed from 1 to 2"]
    finally:
        builder.close()
        changed_since_first_seen()  # it is no news for the tests that follow


BROKEN = """
from jaxd_server.processes import builder
from jaxd_server.runtime.child_startup import read_argument

def broken(self, *args):
    if args and isinstance(args[0], builder.Ready):
        return self._connection.send(args[0])
    raise RuntimeError("broken")

builder.{name} = broken
builder.main(read_argument())
"""


def ask_a_broken_one(bench: Bench, name: str, source: Source) -> Reply:
    """What a builder says in which this method raises."""
    command = (sys.executable, "-P", "-c", BROKEN.format(name=name))
    builder = BuilderProcess("text", can_unpack, new_interpreter(command))
    try:
        assert builder.wait()
        return builder.ask(bench.order(source, X), SILENT)
    finally:
        builder.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ImportedPackages.changes", "Builder._take_side_effects"])
def test_whatever_goes_wrong_in_it_the_worker_is_told(name: str, bench: Bench) -> None:
    """And does it by itself; the next time it asks again."""
    reply = ask_a_broken_one(bench, name, Source(lambda x: x * 15))
    assert isinstance(reply, Refused), reply
    assert (reply.always, reply.reason) == (False, "RuntimeError: broken")


@pytest.mark.slow
def test_one_that_cannot_answer_ends(bench: Bench) -> None:
    """So that nobody waits for it for ever."""
    reply = ask_a_broken_one(bench, "Builder._send", Source(lambda x: x * 16))
    assert reply == Ended("exit code 1", "died")


@pytest.mark.slow
def test_an_exception_of_the_function_is_final_whatever_else_goes_wrong(bench: Bench) -> None:
    """It is not traced once more in the worker for that."""
    reply = ask_a_broken_one(bench, "Builder._take_side_effects", Source(_fails))
    assert isinstance(reply, Failed), reply
    assert isinstance(decode_failure(reply.failure), KeyError)
    assert reply.side.counts["traces"] == 1


def test_an_exception_that_cannot_be_described_is_final_as_well(bench: Bench) -> None:
    """Its type is told."""

    class Nasty(Exception):
        def __str__(self) -> str:
            raise SystemExit

    def fails(x: Any) -> Any:
        raise Nasty

    reply = bench.ask(Source(fails), X)
    assert isinstance(reply, Failed), reply
    assert "Nasty, which cannot be described: SystemExit" in str(decode_failure(reply.failure))


def endless(x: Any) -> Any:
    """Is traced for ever."""
    while True:
        x = x + 1


@pytest.mark.parametrize("when", ["while it is traced", "while its code is unpacked"])
def test_an_order_that_nobody_waits_for_is_interrupted(
    when: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is answered all the same, and the function may come again."""
    monkeypatch.setattr(builder_process, "INTERRUPT_S", 600)  # the process is not ended instead
    begun = threading.Event()
    if when != "while it is traced":
        begun.set()

    @contextmanager
    def telling(hook: Callable[[], None]) -> Iterator[None]:
        def forget() -> None:
            assert begun.wait(30)
            hook()

        thread = threading.Thread(target=forget)
        thread.start()
        yield
        thread.join()

    order = bench.order(Source(endless), X)
    reply = bench.builder.ask(order, lambda *_: begun.set(), cancel_hook=telling)
    assert isinstance(reply, Refused)
    assert (reply.reason, reply.always) == ("it was cancelled", False)
    assert reply.side.counts["traces"] == 1
    assert isinstance(bench.ask(Source(lambda x: x + 1), X), Lowered)
