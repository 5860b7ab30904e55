"""Equal programs have equal text, others have not, and the text is still that program."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax._src import compiler
from jax._src.interpreters import mlir
from jaxlib import xla_client
from jaxlib.mlir import ir

from jaxd_protocol.jit.program_text import canonical_lines

GIVEN = {"a": jnp.float32(2), "b": jnp.float32(3), "n": jnp.int32(3), "m": jnp.ones(4)}
X = jnp.float32(1.3)


def module_of(function: Callable[..., Any], *args: Any) -> str:
    """What a function is lowered to, in MLIR's generic form."""
    module: Any = jax.jit(function).lower(*args).compiler_ir("stablehlo")
    return str(module.operation.get_asm(print_generic_op_form=True, enable_debug_info=False))


def text_of(function: Callable[..., Any], *args: Any) -> str:
    """Its text."""
    return "\n".join(canonical_lines(module_of(function, *args)))


def gone_through(order: Sequence[str], *, swapped: bool = False) -> Callable[..., Any]:
    """A function of loops, calls and a gradient, which takes its values in an order."""

    def function(given: dict[str, Any], x: Any) -> Any:
        values = {name: given[name] + 1 if name == "n" else jnp.sin(given[name]) for name in order}
        first, second = ("b", "a") if swapped else ("a", "b")

        @jax.jit
        def inner(*args: Any) -> Any:
            each, y = dict(zip(order, args[:-1], strict=True)), args[-1]
            return each["m"].mean() + each[first] * y - each[second] / y + each["n"]

        def step(carry: Any, _: Any) -> Any:
            twice = {name: values[name] * 2 for name in order}
            y = inner(*[twice[name] for name in order], carry[0]) - twice["b"]
            return (y + carry[1] * twice["b"], carry[1] + 1.0), (y, twice["a"])

        scanned = lax.scan(step, (x, 1.0), None, length=3)
        at = {name: place for place, name in enumerate(order)}
        means = [values[name].mean() for name in order]
        last = lax.while_loop(
            lambda carry: carry[0] < 5,
            lambda carry: (carry[0] + 1, [c * m for c, m in zip(carry[1], means, strict=True)]),
            (0, means),
        )[1]
        slope = jax.grad(
            lambda z: lax.scan(
                lambda c, _: (c * z + values["a"] * values["b"] * z, None), z, None, length=3
            )[0]
        )(x)
        return scanned, last[at["a"]] - last[at["b"]], slope

    return function


@pytest.mark.slow
def test_the_order_in_which_values_are_gone_through_does_not_count() -> None:
    """Of what loops carry, and of what functions take and return: all orders give one text."""
    texts = {text_of(gone_through(order), GIVEN, X) for order in itertools.permutations("abnm")}
    assert len(texts) == 1


def test_what_is_done_with_them_counts() -> None:
    """Also where only two arguments of a function are exchanged."""
    usual = text_of(gone_through("abnm"), GIVEN, X)
    assert text_of(gone_through("abnm", swapped=True), GIVEN, X) != usual


def test_which_results_of_a_loop_are_added_counts() -> None:
    """They are told apart by their numbers."""

    def adding(one: int, other: int) -> Callable[..., Any]:
        def function(x: Any) -> Any:
            last = lax.fori_loop(0, 3, lambda _, c: (c[0] * 2, c[1] * 3, c[2] * 5), (x, x, x))
            return last[one] + last[other], last

        return function

    assert len({text_of(adding(*each), X) for each in ((0, 1), (0, 2), (1, 2))}) == 3


def _loop(k: float) -> Callable[..., Any]:
    def step(i: Any, carry: Any) -> Any:
        jax.debug.callback(print, i + k)
        return carry

    return lambda x: (lax.fori_loop(0, 3, step, None), x * 2)[1]


def _branch(k: float) -> Callable[..., Any]:
    return lambda x: lax.cond(x > 0, _loop(k), lambda x: x, x)


def _called(k: float) -> Callable[..., Any]:
    inner = jax.jit(_loop(k))
    return lambda x: (inner(x), x + 1)[1]


@pytest.mark.parametrize("make", [_loop, _branch, _called])
def test_effects_count_where_no_result_is_used(make: Callable[[float], Callable[..., Any]]) -> None:
    """However deep inside of loops, branches and functions they are."""
    assert text_of(make(2.0), X) == text_of(make(2.0), X)
    assert text_of(make(2.0), X) != text_of(make(3.0), X)


def test_names_of_functions_may_be_anything() -> None:
    """jax writes them as they are."""

    def two(a: Any, b: Any) -> Any:
        return jnp.sin(a) - b * 3, b / a

    texts = []
    for name in ("two", "f : (a, b", "q) -> (z", 'a"#1 @main'):
        two.__name__ = name
        inner = jax.jit(two)
        texts.append(text_of(lambda a, b, inner=inner: inner(a, b)[0] - inner(b, a)[1] * 2, X, X))
    assert len(set(texts)) == 1


@pytest.mark.parametrize("order", ["abnm", "mnba", "nbam", "bman"])
def test_the_text_is_still_the_same_program(order: str) -> None:
    """Read back and run, it gives what the program gives."""
    module = module_of(gone_through(order), GIVEN, X)
    leaves = jax.tree.leaves((GIVEN, X))
    expected = _run(module, leaves)
    for one, other in zip(_run(_read_back(canonical_lines(module)), leaves), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def _run(module: str, args: Sequence[Any]) -> list[Any]:
    device = jax.devices()[0]
    with mlir.make_ir_context():
        parsed: Any = ir.Module.parse(module)
        parsed.operation.verify()
        run = compiler.backend_compile_and_load(
            device.client,
            parsed,
            xla_client.DeviceList((device,)),
            compiler.get_compile_options(1, 1),
            [],
        )
    return [np.asarray(each) for each in run.execute([jax.device_put(a, device) for a in args])]


def _read_back(lines: Sequence[str]) -> str:
    """The text as a module: names for parts, ends between regions, and sums of two."""
    named: list[str] = []
    parts = itertools.count()
    for line in lines:
        if re.search(r"\bsym_name\b(?! =)", line):
            number = next(parts)
            name = f"f{number}" if number else "main"
            line = re.sub(r"\bsym_name\b(?! =)", f'sym_name = "{name}"', line, count=1)  # noqa: PLW2901
        named += _sums_of_two(line)
    ended = []
    for line, following in itertools.pairwise([*named, "}"]):
        ended.append(line)
        if line.startswith('"stablehlo.return"') and not following.startswith("}"):
            ended.append("}, {")
    body = "\n".join(ended)
    return f'"builtin.module"() <{{sym_name = "program"}}> ({{\n{body}\n}}) : () -> ()'


def _sums_of_two(line: str) -> Iterator[str]:
    found = re.fullmatch(r'%(\d+) = ("stablehlo\.(?:add|multiply)")\(([^)]*)\)(.*)', line)
    if found is None:
        yield line
        return
    total, *others = found[3].split(", ")
    for number, other in enumerate(others, 1):
        name = f"%{found[1]}" if number == len(others) else f"%sum{found[1]}_{number}"
        yield f"{name} = {found[2]}({total}, {other}){found[4]}"
        total = name
