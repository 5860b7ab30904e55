from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.random import prng
from jax.experimental.buffer_callback import buffer_callback

from jaxd_protocol.jax_objects.arrays import weak_array
from jaxd_protocol.jit.options import Options
from jaxd_server.jax_compat.lowered import (
    OutLeaf,
    device_ids,
    inputs_of_results,
    out_leaves,
    program_id,
    register_own_targets,
)

ONES = np.ones(3, np.float32)
SAME = jax.ShapeDtypeStruct((3,), np.float32)


@pytest.fixture(scope="module", autouse=True)
def _own_targets() -> None:
    register_own_targets()


def name_of(function: Callable[..., Any], *args: Any, **options: Any) -> bytes:
    """The program's name; it must have no obstacle."""
    name, obstacle = program_id(jax.jit(function, **options).lower(*args), Options())
    assert obstacle is None
    assert len(name) == 16
    return name


def obstacle_of(function: Callable[..., Any], *args: Any) -> str | None:
    """What keeps the program from being shared; its name must then be another each time."""
    lowered = jax.jit(function).lower(*args)
    (name, obstacle), (again, _) = program_id(lowered, Options()), program_id(lowered, Options())
    assert (name == again) is (obstacle is None)
    return obstacle


def test_the_same_program_has_the_same_name() -> None:
    """Whatever the function, its parameters and the keys of its result are called."""

    def first(x: Any, y: Any) -> Any:
        return {"loss": jnp.sin(x) + y, "norm": (x, [y])}

    def second(some: Any, others: Any) -> Any:
        # with a comment
        total = jnp.sin(some) + others
        return [total, some, others]

    assert name_of(first, ONES, 2.0) == name_of(second, ONES, 2.0)


@pytest.mark.slow
def test_another_process_gives_the_same_name() -> None:
    """What is on disk is found after a restart."""
    program = (
        "import jax, numpy as np\n"
        "from jaxd_protocol.jit.options import Options\n"
        "from jaxd_server.jax_compat.lowered import register_own_targets, program_id\n"
        "register_own_targets()\n"
        "ones = np.ones((3, 3), np.float32)\n"
        "f = lambda x, k: (jax.numpy.linalg.inv(x), jax.random.split(k))\n"
        "print(program_id(jax.jit(f).lower(ones, jax.random.key(0)), Options())[0].hex())\n"
    )
    found = [
        subprocess.run(
            [sys.executable, "-P", "-c", program],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert found[0] == found[1] != ""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((lambda x: x + 1, ONES), (lambda x: x + 2, ONES)),
        ((lambda x: x, ONES), (lambda x: x, np.ones(4, np.float32))),
        ((lambda x: x, ONES), (lambda x: x, np.ones(3, np.int32))),
        ((lambda x, y: (x, y), ONES, 2.0), (lambda x, y: (y, x), ONES, 2.0)),
        ((lambda x, y: x + 1, ONES, ONES), (lambda x, y: y + 1, ONES, ONES)),
        ((lambda x: x + 1, ONES), (lambda x, y: x + 1, ONES, ONES)),
        ((lambda x, y: x, ONES, ONES), (lambda x, y: x, ONES, np.int32(1))),
    ],
    ids=["constant", "shape", "dtype", "order", "which is used", "unused one", "its dtype"],
)
def test_another_program_has_another_name(one: Any, other: Any) -> None:
    """What is computed, from which leaves, and in which order it is returned."""
    assert name_of(*one) != name_of(*other)


@pytest.mark.parametrize("size", [3, 1000, 1_000_000])
@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
def test_closed_over_arrays_are_part_of_the_program(size: int, array: Any) -> None:
    """Every number of them, and in every process the same."""

    def with_constant(last: float) -> bytes:
        numbers = np.arange(size, dtype=np.float32)
        numbers[-1] = last
        constant = array(numbers)
        return name_of(lambda x: x[0] * constant, ONES)

    assert with_constant(1.5) == with_constant(1.5)
    assert with_constant(1.5) != with_constant(2.5)


def test_a_weak_argument_makes_another_program() -> None:
    """Used or not: it is in the types that calls are checked against."""
    strong, weak = jnp.float32(1), weak_array(np.float32(1))
    for function in (lambda x: x.astype(np.float32), lambda x: jnp.ones(2)):
        assert name_of(function, strong) != name_of(function, weak)


def test_a_weak_result_makes_another_program() -> None:
    """The module is the same; what the result becomes in the next operation is not."""
    strong = jax.jit(lambda: jnp.full((3,), 2.0, jnp.float32)).lower()
    weak = jax.jit(lambda: jnp.full((3,), 2.0)).lower()
    assert strong.as_text().replace("None", "") == weak.as_text().replace("None", "")
    assert program_id(strong, Options())[0] != program_id(weak, Options())[0]


def test_the_implementation_of_keys_makes_another_program() -> None:
    """Two of them have numbers of the same shape."""
    one, other = (jax.random.key(0, impl=impl) for impl in ("rbg", "unsafe_rbg"))
    assert jax.random.key_data(one).shape == jax.random.key_data(other).shape
    assert name_of(lambda k: k, one) != name_of(lambda k: k, other)
    assert name_of(lambda k: 1, one) != name_of(lambda k: 1, other)


def test_the_options_make_another_program() -> None:
    """Donation: the caller's array is gone, or not; the compiler's options."""
    kept = name_of(lambda x, y: (x + y, x - y), ONES, ONES)
    first = name_of(lambda x, y: (x + y, x - y), ONES, ONES, donate_argnums=0)
    both = name_of(lambda x, y: (x + y, x - y), ONES, ONES, donate_argnums=(0, 1))
    assert len({kept, first, both}) == 3
    lowered = jax.jit(lambda x: x + 1).lower(ONES)
    optioned = jax.jit(lambda x: x + 1, compiler_options={"xla_cpu_enable_fast_math": True})
    names = {
        program_id(lowered, Options())[0],
        program_id(lowered, Options(compiler_options=(("xla_cpu_enable_fast_math", True),)))[0],
        program_id(optioned.lower(ONES), Options())[0],
    }
    assert len(names) == 3
    lowered = jax.jit(lambda x: x + 1).lower(ONES)
    other = program_id(lowered, Options(config=(("jax_debug_nans", True),)))
    assert program_id(lowered, Options())[0] != other[0]
    assert other[1] is None


def test_ordinary_programs_have_no_obstacle() -> None:
    """Loops, conditions, jaxlib's own native code, typed keys, and nested functions."""

    def everything(x: Any, key: Any) -> Any:
        total = jax.lax.fori_loop(0, 3, lambda i, s: s @ x, x)
        total = jax.lax.cond(total[0, 0] > 0, jnp.linalg.inv, jnp.linalg.cholesky, total)
        values, _ = jax.lax.top_k(jnp.sort(x), 2)
        return jax.jit(jnp.sin)(total), values, jnp.linalg.eigh(x), jax.random.split(key)

    key = jax.random.key(0)
    assert obstacle_of(everything, np.eye(3, dtype=np.float32), key) is None


def test_functions_and_code_of_this_process_are_an_obstacle() -> None:
    """Callbacks and debug prints, native code of a client; not what cuDNN does, which XLA plans."""

    def called(*_: Any) -> None:
        raise AssertionError("this is never run.")

    for function in (
        lambda x: jax.pure_callback(np.sin, SAME, x),
        lambda x: jax.debug.print("{}", x),
        lambda x: jax.debug.print("{}", x, ordered=True),
        buffer_callback(called, SAME),
    ):
        assert obstacle_of(function, ONES) == "callbacks"
    assert obstacle_of(jax.ffi.ffi_call("a_clients_own_code", SAME), ONES) == "targets"
    assert obstacle_of(jax.ffi.ffi_call("__cudnn$fmhaSoftmax", SAME), ONES) is None


@pytest.mark.parametrize(
    ("name", "value", "obstacle"),
    [
        ("ordered_effects", [object()], "effects"),
        ("unordered_effects", [object()], "effects"),
        ("const_args", [ONES], "constants"),
        ("backend", object(), "unknown"),
        *((n, None, "unknown") for n in ("mut", "keepalive", "all_args_info", "in_shardings")),
    ],
)
def test_what_is_not_in_the_module_is_an_obstacle(name: str, value: Any, obstacle: str) -> None:
    """Effects, constants as arguments, another backend, and what a newer jax does not say."""
    lowered: Any = jax.jit(lambda x: x + 1).lower(ONES)
    facts = lowered._lowering.compile_args
    if name == "const_args":
        assert lowered._lowering.const_args == []
        lowered._lowering.const_args = value
    elif value is None:
        del facts[name]
    else:
        assert name == "backend" or facts[name] == []
        facts[name] = value
    assert program_id(lowered, Options())[1] == obstacle


def test_mutable_references_are_an_obstacle() -> None:
    """Closed over, or given as an argument; one that stays inside is none."""
    ref = jax.new_ref(jnp.ones(3))

    def closed_over(x: Any) -> None:
        ref[...] = x

    def given(given_ref: Any) -> Any:
        return given_ref[...] + 1

    def inside(x: Any) -> Any:
        own = jax.new_ref(x)
        own[...] = own[...] + 1
        return own[...]

    assert obstacle_of(closed_over, ONES) == "references"
    assert obstacle_of(given, ref) == "references"
    assert obstacle_of(inside, ONES) is None


def test_element_types_that_are_not_jaxs_own_are_an_obstacle() -> None:
    """Here keys of an implementation that a client has registered."""
    threefry = prng.prngs["threefry2x32"]
    if "jaxd_test_impl" not in prng.prngs:
        prng.register_prng(threefry._replace(name="jaxd_test_impl", tag="jaxd_test"))
    assert obstacle_of(lambda k: k, jax.random.key(0, impl="jaxd_test_impl")) == "types"


@pytest.mark.parametrize("impl", sorted(n for n in prng.prngs if not n.startswith("_")))
def test_keys_of_jaxs_own_are_no_obstacle(impl: str) -> None:
    """Whichever implementation it is, but for those that Pallas has for itself."""
    assert obstacle_of(lambda k: k, jax.random.key(0, impl=impl)) is None


def test_the_structure_of_the_arguments_is_that_of_calls() -> None:
    """Positional and named ones, without those that are static."""
    jitted = jax.jit(lambda a, n, *, b: a + b["x"] * n, static_argnums=1)
    lowered = jitted.lower(ONES, 3, b={"x": ONES})
    structure: Any = lowered.in_tree
    assert structure == jax.tree.structure(((0,), {"b": {"x": 0}}))


def test_the_leaves_of_the_result_are_told() -> None:
    """With shape, dtype, weak type and, for keys, the implementation."""

    def function(x: Any, key: Any) -> Any:
        return {"b": jnp.ones((2, 3), jnp.bfloat16), "a": x * 2, "k": jax.random.split(key)}

    key = jax.random.key(0, impl="rbg")
    leaves = out_leaves(jax.jit(function).lower(1.0, key))
    assert leaves == [
        OutLeaf((), jnp.dtype(np.float32), True, None),
        OutLeaf((2, 3), jnp.dtype(jnp.bfloat16), False, None),
        OutLeaf((2,), key.dtype, False, "rbg"),
    ]
    assert out_leaves(jax.jit(lambda: None).lower()) == []
    lowered = jax.jit(lambda x, k: (x * 2, k)).lower(ONES, key)
    moved: Any = SimpleNamespace(out_info=lowered.out_info)
    assert out_leaves(moved) == out_leaves(lowered)


def test_the_devices_are_told() -> None:
    """Also when jax does not say them; what is no lowered program has none."""
    lowered = jax.jit(lambda x: x).lower(ONES)
    assert device_ids(lowered) == (jax.devices()[0].id,)
    moved: Any = SimpleNamespace(_lowering=SimpleNamespace())
    assert device_ids(moved) == (jax.devices()[0].id,)
    packed: Any = b"what another process has packed"
    with pytest.raises(AttributeError):
        device_ids(packed)


def _looped(x: Any, y: Any, z: Any) -> Any:
    """A value goes from one part of the state to the next in each round."""

    def body(state: Any) -> Any:
        i, a, _, c = state
        return i + 1, y, a, c

    return jax.lax.while_loop(lambda state: state[0] < x, body, (0, 0.0, 0.0, z))


@jax.custom_jvp
def _own_rule(x: Any, y: Any) -> Any:
    return x * 2, jnp.zeros_like(y)


_own_rule.defjvp(lambda primals, tangents: (_own_rule(*primals), tangents))

FLOWS: dict[str, Callable[..., Any]] = {
    "operations": lambda x, y, z: (x + y, y, 1, jnp.zeros_like(x), x + 0 * z),
    "calls": lambda x, y, z: jax.checkpoint(jax.jit(lambda a, b: (a, b, a * b)))(x, z),
    "a call twice": lambda x, y, z: [f(x, y) for f in [jax.jit(lambda a, b: (b, 1))] * 2],
    "a choice": lambda x, y, z: jax.lax.cond(x > 0, lambda: (y, 1.0), lambda: (z, 2.0)),
    "a choice that is the same": lambda x, y, z: jax.lax.cond(
        z > 0, lambda a: (a, 1.0), lambda a: (y, 2.0), x
    ),
    "a loop": _looped,
    "a scan": lambda x, y, z: jax.lax.scan(
        lambda c, r: ((c[1], c[2], y, c[3]), (c[0], r, c[3])), (0.0, 0.0, x, z), jnp.ones(3)
    ),
    "a rule of its own": lambda x, y, z: _own_rule(x, y),
    "a reduction": lambda x, y, z: jax.lax.top_k(jnp.stack([x, y, x]), 2),
}


@pytest.mark.parametrize("name", FLOWS)
def test_results_are_computed_from_the_arguments_that_jax_maps_them_for(name: str) -> None:
    """For each argument alone: those that are mapped with it, by jax's own rules."""
    function = FLOWS[name]
    found = inputs_of_results(jax.jit(function).trace(1.0, 2.0, 3.0))
    assert found is not None

    def is_mapped(number: int, argument: int) -> bool:
        def one(*args: Any) -> Any:
            return jax.tree.leaves(jax.jit(function)(*args))[number]

        axes = [0 if i == argument else None for i in range(3)]
        args = [jnp.ones(2) if i == argument else jnp.float32(1) for i in range(3)]
        try:
            jax.vmap(one, axes, None)(*args)
        except ValueError:
            return True
        return False

    expected = [sum(is_mapped(i, k) << k for k in range(3)) for i in range(len(found))]
    assert found == expected


def test_what_has_effects_or_another_form_is_not_followed() -> None:
    """Such as references, by which a value may come from anywhere."""

    def through_a_reference(x: Any, y: Any) -> Any:
        held = jax.new_ref(x)
        held[...] = y
        return held[...]

    for function in (through_a_reference, jax.jit(through_a_reference)):
        assert inputs_of_results(jax.jit(function).trace(1.0, 2.0)) is None
    traced = jax.jit(lambda x: x).trace(1.0)
    assert inputs_of_results(traced) == [1]
    other = SimpleNamespace(jaxpr=traced.jaxpr, in_avals=(), out_info=traced.out_info)
    assert inputs_of_results(other) is None
