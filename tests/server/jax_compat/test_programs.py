from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import serialize_executable

from jaxd_protocol.jax_objects.arrays import key_data, weak_array
from jaxd_server.jax_compat import programs as jax_programs
from jaxd_server.jax_compat.lowered import device_ids
from jaxd_server.jax_compat.programs import (
    Flat,
    Loaded,
    NotSerializable,
    compile_flat,
    device_bytes,
    direct,
    is_nan_error,
    is_out_of_memory,
    load,
    prepare,
    serialize,
    serialized,
)
from tests.server.builds import live_executables
from tests.xla_flags import devices

ONES = np.ones(3, np.float32)


@pytest.fixture(autouse=True)
def _undo_what_is_missing() -> Iterator[None]:
    yield
    jax_programs._missing.clear()


def lower(function: Callable[..., Any], *args: Any, named: Any = None, **options: Any) -> Any:
    """The function, lowered for these arguments."""
    return jax.jit(function, **options).lower(*args, **(named or {}))


def flat(*args: Any, **options: Any) -> Flat:
    """The function's program for these arguments."""
    return compile_flat(lower(*args, **options))


def loaded(*args: Any, **options: Any) -> Flat:
    """The same, but written and loaded again."""
    lowered = lower(*args, **options)
    outputs = len(jax.tree.leaves(lowered.out_info))
    inputs = len(jax.tree.leaves(lowered.args_info))
    return load(serialize(compile_flat(lowered)), inputs, outputs, device_ids(lowered))


def test_what_was_loaded_cannot_be_written() -> None:
    """jax would do it without an error, and what came of that would fail when it is called."""
    program = loaded(lambda x: x * 2, ONES)
    assert isinstance(program, Loaded)
    with pytest.raises(NotSerializable, match="was read from bytes"):
        serialize(program)
    with pytest.raises(NotSerializable, match="was read from bytes"):
        serialized(program, (0,))
    for write in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="was read from bytes"):
            write(program)
    with pytest.raises((AttributeError, TypeError, ValueError)):
        serialize_executable.serialize(program)  # type: ignore[arg-type]


def plain(*args: Any, **options: Any) -> Flat:
    """The same, as it is run where jax's private names have moved."""
    jax_programs._missing.add("flat")
    return flat(*args, **options)


every_way = pytest.mark.parametrize("make", [flat, loaded, plain])


def python_calls(function: Callable[[], Any]) -> int:
    """How many Python functions run in `function`, itself not counted."""
    count = -1

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def run(program: str, *arguments: str, **environment: str) -> str:
    """What the program prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_everything_works_with_this_jax() -> None:
    """Private names are where they are thought to be; of bytes on the device a CPU says 0."""
    assert prepare() == ()
    assert device_bytes(flat(lambda x: x, ONES)) == 0
    assert device_bytes(plain(lambda x: x, ONES)) == 0
    assert device_bytes(lambda x: [x]) == 0


@every_way
def test_a_flat_program_takes_leaves_and_returns_a_list(make: Any) -> None:
    """Those of positional and named arguments, without the static ones."""

    def function(tree: Any, n: int, *, scale: Any) -> Any:
        return {"b": tree["y"] + n, "a": (tree["x"] * scale, None)}

    tree = {"y": ONES, "x": 2 * ONES}
    program = make(function, tree, 3, named={"scale": np.float32(5)}, static_argnums=1)
    results = program(2 * ONES, ONES, np.float32(5))  # x, y, scale
    assert type(results) is list
    assert [result.tolist() for result in results] == [[10.0] * 3, [4.0] * 3]


@every_way
def test_no_arguments_and_no_results(make: Any) -> None:
    """Either, and both."""
    assert make(lambda: jnp.arange(3))()[0].tolist() == [0, 1, 2]
    assert make(lambda x: None, ONES)(ONES) == []
    assert make(lambda: ())() == []


@every_way
def test_unused_arguments_are_given_as_well(make: Any) -> None:
    """The caller does not know which these are."""
    program = make(lambda a, b, c: (c - b, c), ONES, 2 * ONES, np.int32(3))
    assert [result.tolist() for result in program(ONES, 2 * ONES, np.int32(3))] == [[1.0] * 3, 3]


@every_way
def test_donated_arguments_are_gone(make: Any) -> None:
    """Those that were donated and only those, at every call."""
    program = make(lambda a, b: (a + b, a - b), ONES, ONES, donate_argnums=1)
    for _ in range(3):
        a, b = jnp.ones(3), jnp.ones(3)
        assert program(a, b)[0].tolist() == [2.0] * 3
        assert (a.is_deleted(), b.is_deleted()) == (False, True)


@every_way
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_typed_keys_go_in_and_out(make: Any, impl: str) -> None:
    """With their implementation, at every call."""
    key = jax.random.key(7, impl=impl)

    def function(key: Any) -> Any:
        return jax.random.fold_in(key, 1), jax.random.uniform(key)

    program = make(function, key)
    expected = function(key)
    for _ in range(3):
        new, number = program(key)
        assert new.dtype == key.dtype
        np.testing.assert_array_equal(key_data(new), key_data(expected[0]))
        assert number == expected[1]


@every_way
def test_weak_types_are_kept(make: Any) -> None:
    """Of the results; and a strong argument does where a weak one was compiled."""
    program = make(lambda x, y: (x * 2, y * 2), 1.0, ONES)
    for argument in (1.0, weak_array(np.float32(1)), np.float32(1)):
        for _ in range(2):
            weak, strong = program(argument, ONES)
            assert (weak.weak_type, strong.weak_type) == (True, False)
            assert weak.dtype == np.float32


@every_way
def test_other_shapes_and_dtypes_are_refused(make: Any) -> None:
    """Before anything runs, also when it has been called before."""
    program = make(lambda x: x + 1, ONES)
    program(ONES)
    for wrong in (np.ones(4, np.float32), np.ones(3, np.int32)):
        with pytest.raises(TypeError):
            program(wrong)
    with pytest.raises((TypeError, ValueError)):
        program(ONES, ONES)


@pytest.mark.parametrize("make", [flat, loaded])
@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
def test_a_call_stays_on_the_fast_path(make: Any, array: Any) -> None:
    """No Python runs in it but the method that jax calls it through."""
    leaves = [array(np.full(3, n, np.float32)) for n in range(20)]
    program = make(lambda *leaves: [leaf + 1 for leaf in leaves[:-1]], *leaves)
    program(*leaves)
    run = direct(program)
    assert python_calls(lambda: run(*leaves)) <= 1


def test_a_function_with_callbacks_runs_flat_but_is_not_kept() -> None:
    """Its program holds a function of this process."""
    seen: list[float] = []

    def function(x: Any) -> Any:
        jax.debug.callback(lambda value: seen.append(float(value)), x[0])
        return x + 1

    program = flat(function, ONES)
    assert [program(ONES)[0].tolist() for _ in range(2)] == [[2.0] * 3] * 2
    jax.effects_barrier()
    assert seen == [1.0, 1.0]
    with pytest.raises(NotSerializable, match=r"\w+: .+"):
        serialize(program)


CONSTANTS = """
import jax, jax.numpy as jnp, numpy as np
from jaxd_protocol.jit.options import Options
from jaxd_server.jax_compat.lowered import program_id
from jaxd_server.jax_compat.programs import NotSerializable, compile_flat, prepare, serialize
assert prepare() == ()
constant, ones = jnp.arange(1000.0), np.ones(1000, np.float32)  # small ones are in the module
lowered = jax.jit(lambda x: x + constant).lower(ones)
print(program_id(lowered, Options())[1])
program = compile_flat(lowered)
for _ in range(3):
    print(program(ones)[0].tolist()[-2:])
try:
    serialize(program)
except NotSerializable as error:
    print(error)
"""


@pytest.mark.slow
def test_constants_that_are_passed_as_arguments_stay_with_the_program() -> None:
    """It runs, and is not kept. jax looks at this setting when it is imported."""
    lines = run(CONSTANTS, JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS="1").splitlines()
    assert lines[:4] == ["constants", *["[999.0, 1000.0]"] * 3]
    assert "const_args" in lines[4]


def test_mutable_references_that_are_closed_over_work() -> None:
    """The program changes them, and is not kept; nor is one that is run the public way."""
    ref = jax.new_ref(jnp.zeros(3))

    def function(x: Any) -> Any:
        ref[...] = ref[...] + x
        return ref[...]

    program = flat(function, ONES)
    assert [program(ONES)[0].tolist() for _ in range(3)] == [[1.0] * 3, [2.0] * 3, [3.0] * 3]
    with pytest.raises(NotSerializable, match="mutable"):
        serialize(program)
    with pytest.raises(NotSerializable, match="plain arrays"):
        serialize(plain(lambda x: x, ONES))


def test_a_dropped_program_is_freed() -> None:
    """Loaded or compiled, the executable goes with the last reference."""
    gc.collect()
    before = live_executables()
    programs = [flat(lambda x: x * 43, ONES), loaded(lambda x: x * 47, ONES)]
    for program in programs:
        program(ONES)
    assert live_executables() >= before + 2
    programs.clear()
    del program
    gc.collect()
    assert live_executables() == before


ON_TWO_DEVICES = """
import jax, numpy as np
from jaxd_protocol.jit.options import Options
from jaxd_server.jax_compat.lowered import device_ids, program_id
from jaxd_server.jax_compat.programs import compile_flat, load, prepare, serialize
assert prepare() == ()
ones, names = np.ones(4, np.float32), set()
for device in jax.devices():
    lowered = jax.jit(lambda x: x + 1).lower(jax.device_put(ones, device))
    names.add(program_id(lowered, Options())[0])
    again = load(serialize(compile_flat(lowered)), 1, 1, device_ids(lowered))
    for _ in range(3):
        result, = again(jax.device_put(ones, device))
        print(device_ids(lowered), [one.id for one in result.devices()], result.tolist())
mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
both = jax.device_put(ones, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x")))
lowered = jax.jit(lambda x: x.sum()).lower(both)
names.add(program_id(lowered, Options())[0])
again = load(serialize(compile_flat(lowered)), 1, 1, device_ids(lowered))
print(device_ids(lowered), again(both)[0].tolist())
for device in jax.devices():
    with jax.default_device(device):
        lowered = jax.jit(lambda x: x + 1).lower(ones)
    names.add(program_id(lowered, Options())[0])
    print(device_ids(lowered))
print(len(names))
"""


@pytest.mark.slow
def test_a_program_is_loaded_for_exactly_its_devices() -> None:
    """The first, the second, or both of them; and each has another name."""
    lines = run(ON_TWO_DEVICES, **devices(2)).splitlines()
    first, second = (f"({n},) [{n}] [2.0, 2.0, 2.0, 2.0]" for n in (0, 1))
    assert lines == [first] * 3 + [second] * 3 + ["(0, 1) 4.0", "(0,)", "(1,)", "5"]


def test_what_is_not_a_program_is_an_error() -> None:
    """Of any type, but an ordinary one; as for devices of another machine, or of other flags."""
    data = serialize(flat(lambda x: x, ONES))
    with pytest.raises(KeyError):
        load(data, 1, 1, [4711])
    data = serialize(flat(lambda x: x, ONES))
    for broken in (b"", data[: len(data) // 2]):
        with pytest.raises(Exception):  # noqa: B017, PT011 - jax's, pickle's, or Python's own
            load(broken, 1, 1, [0])


def test_a_jax_whose_names_have_moved_is_noticed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Programs still run; they are neither shared nor kept, and the log says so."""

    def moved(*_: Any, **__: Any) -> Any:
        raise AttributeError("moved")

    monkeypatch.setattr("jaxd_server.jax_compat.lowered.program_digest", moved)
    monkeypatch.setattr("jaxd_server.jax_compat.programs._flat", moved)
    assert prepare() == ("flat", "keep", "share")
    assert [record.getMessage() for record in caplog.records] == ["jax_programs_limited"]
    program = flat(lambda x: {"a": x + 1}, ONES)
    assert program(ONES)[0].tolist() == [2.0] * 3
    for refused in (lambda: serialize(program), lambda: load(b"", 1, 1, [0])):
        with pytest.raises(NotSerializable, match="in a way that jaxd knows"):
            refused()


def test_a_jax_that_cannot_write_programs_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest goes on as it is."""

    def moved(*_: Any, **__: Any) -> Any:
        raise TypeError("moved")

    monkeypatch.setattr("jax.experimental.serialize_executable.deserialize_and_load", moved)
    assert prepare() == ("keep",)
    assert isinstance(flat(lambda x: x, ONES), jax.stages.Compiled)


def test_a_nan_that_jax_was_told_to_find_is_recognised() -> None:
    """Also when the program has been on the fast path before; other errors are not taken for it."""
    program = flat(jnp.log, ONES)
    for _ in range(2):
        assert np.isnan(np.asarray(program(-ONES)[0])).all()
    for _ in range(2):
        with jax.debug_nans(True), pytest.raises(Exception) as caught:  # noqa: PT011
            program(-ONES)
        assert is_nan_error(caught.value)
    assert not is_nan_error(FloatingPointError("nan"))


def test_running_out_of_memory_is_recognised() -> None:
    """As the backend says it; an error that only quotes it is another."""
    program = flat(lambda: jnp.zeros((1 << 20, 1 << 30), jnp.int8))
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        program()[0].block_until_ready()
    assert is_out_of_memory(caught.value)
    assert not is_out_of_memory(RuntimeError("RESOURCE_EXHAUSTED: Out of memory"))
    assert not is_out_of_memory(jax.errors.JaxRuntimeError("INTERNAL: x\nRESOURCE_EXHAUSTED: y"))
