"""The text of a program: equal for programs that do the same, and still that program."""

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

from jaxd_protocol.jit import program_text as reading
from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.program_identity import first_difference, program_digest, program_text
from jaxd_protocol.jit.program_text import canonical_lines

X = np.ones(3, "f4")


def lowered(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What jax makes of it."""
    return jax.jit(function, **options).lower(*args)


def text_of(function: Callable[..., Any], *args: Any, **options: Any) -> str:
    return program_text(lowered(function, *args, **options), Options())


def _named(name: str, body: Callable[..., Any]) -> Any:
    def inner(x: Any) -> Any:
        return body(x)

    inner.__name__ = inner.__qualname__ = name
    return jax.jit(inner)


def test_names_do_not_count() -> None:
    """Of the function, of what is in its result, and of functions that it calls."""
    one, other = (_named(name, lambda x: x + 1) for name in ("one", "other"))

    def first(x: Any) -> Any:
        return {"a": one(x)}

    def second(y: Any) -> Any:
        return [other(y)]

    assert text_of(first, X) == text_of(second, X)
    assert program_digest(lowered(first, X), Options()) != program_digest(
        lowered(second, X), Options()
    )


def test_a_function_that_is_there_twice_counts_once() -> None:
    """As jax lowers one twice where it has forgotten that it has traced it."""
    one, twin = (_named("helper", lambda x: jnp.where(x > 0, x, 2 * x)) for _ in range(2))
    twice = text_of(lambda x: one(x) + twin(x), X)
    assert twice == text_of(lambda x: one(x) + one(x), X)
    assert twice.count('sym_visibility = "private"') == 2  # the helper, and that of jnp.where


def _with_constants(one: Any, other: Any, third: Any) -> Callable[..., Any]:
    def function(x: Any) -> Any:
        return jnp.sin(x * one) / jnp.where(x[0] > 0, other, x) - jnp.cos(x * third)

    return function


def test_a_constant_that_is_there_twice_counts_once() -> None:
    """As jax writes one array once, and its twins again. Two values are two."""
    one, other, third = (np.arange(3, dtype="f4") for _ in range(3))
    twins, once = _with_constants(one, other, third), _with_constants(one, one, one)
    written = [lowered(each, X).as_text().count("[0.000000e+00, 1.0") for each in (twins, once)]
    assert written[0] > written[1]
    assert text_of(twins, X) == text_of(once, X)
    assert text_of(_with_constants(one, other, third + 1), X) != text_of(once, X)
    assert text_of(_with_constants(one, other + 1, third), X) != text_of(once, X)


def _unordered(names: str) -> Callable[..., Any]:
    def function(x: Any) -> Any:
        def body(carry: Any, row: Any) -> Any:
            found = {name: carry * ord(name) + row for name in names}
            return found["a"] - found["b"] * found["c"], row

        found = {name: x * ord(name) for name in names}
        return jax.lax.scan(body, found["a"], jnp.stack([found["b"], found["c"]]))

    return function


def test_the_order_of_what_does_not_depend_on_each_other_does_not_count() -> None:
    """As where Python goes through a set of text, whose order is another in each process."""
    assert lowered(_unordered("abc"), X).as_text() != lowered(_unordered("cab"), X).as_text()
    assert text_of(_unordered("abc"), X) == text_of(_unordered("cab"), X)


def _sum(names: str) -> Callable[..., Any]:
    def function(x: Any) -> Any:
        def total(x: Any) -> Any:
            terms = [jnp.sin(x * ord(name)).sum() for name in names]
            return sum(terms[1:], terms[0]) * terms[0 if names[0] == "a" else names.index("a")]

        return jax.value_and_grad(total)(x)

    return function


def test_the_order_of_a_sum_does_not_count() -> None:
    """Nor that of its derivative, and of how it is put together."""
    assert text_of(_sum("abcd"), X) == text_of(_sum("dbca"), X)
    assert text_of(_sum("abcd"), X) != text_of(_sum("abce"), X)
    assert text_of(_sum("abcd"), X) != text_of(_sum("abccd"), X)
    one, other = (lambda x: (x + x * 2) + (x * 3 + x * 4)), (lambda x: x + (x * 2 + x * 4) + x * 3)
    assert text_of(one, X) == text_of(other, X)

    def doubled(x: Any) -> Any:
        for _ in range(200):
            x = x + x
        return x

    assert len(text_of(doubled, X).splitlines()) < 300  # what is used twice is not taken apart


def test_the_order_of_a_sum_does_not_depend_on_names_of_functions() -> None:
    """Which jax makes up: the second `normal` of a program is `normal_1`."""
    sums = [
        lambda x: _named("a", lambda x: x + 2)(x) + _named("b", lambda x: x + 3)(x),
        lambda x: _named("b", lambda x: x + 2)(x) + _named("a", lambda x: x + 3)(x),
        lambda x: _named("a", lambda x: x + 3)(x) + _named("b", lambda x: x + 2)(x),
    ]
    assert len({text_of(each, X) for each in sums}) == 1
    assert text_of(lambda x: _named("a", lambda x: x + 2)(x) + (x + 4), X) != text_of(sums[0], X)


@pytest.mark.parametrize(
    "other",
    [
        lambda x: _named("a", lambda x: x + 2)(x) * _named("b", lambda x: x + 3)(x),
        lambda x: _named("a", lambda x: x + 3)(x) - _named("b", lambda x: x + 2)(x),
        lambda x: _named("a", lambda x: x + 2)(x) - _named("b", lambda x: x + 2)(x),
    ],
    ids=("main", "order", "which"),
)
def test_what_functions_do_counts(other: Callable[..., Any]) -> None:
    """And in which order they are called."""

    def function(x: Any) -> Any:
        return _named("a", lambda x: x + 2)(x) - _named("b", lambda x: x + 3)(x)

    assert text_of(function, X) == text_of(function, X)
    assert text_of(function, X) != text_of(other, X)


@pytest.mark.parametrize(
    "other",
    [
        lambda x: (x - 2.0 * x, jnp.sort(x)),
        lambda x: (x - x * 2.0, jnp.sort(x)),
        lambda x: (x * 2.0 - x, -jnp.sort(-x)),
        lambda x: (jnp.sort(x), x * 2.0 - x),
        lambda x: (x * 2.5 - x, jnp.sort(x)),
    ],
    ids=("operands", "both", "region", "results", "constant"),
)
def test_what_is_computed_counts(other: Callable[..., Any]) -> None:
    """Which operand comes first, what is in a region, which result is which, constants."""

    def function(x: Any) -> Any:
        return x * 2.0 - x, jnp.sort(x)

    assert text_of(function, X) != text_of(other, X)


def test_facts_beside_the_module_count() -> None:
    """Donation, weak types, arguments that are not used, options of the compiler."""

    def function(x: Any, y: Any) -> Any:
        return x + 1

    plain = text_of(function, X, 1.0)
    assert plain != text_of(function, X, 1.0, donate_argnums=0)
    assert plain != text_of(function, X, np.float32(1))
    assert plain != text_of(function, X, 1.0, keep_unused=True)
    assert plain != text_of(function, X, 1.0, compiler_options={"xla_cpu_enable_fast_math": True})


def test_every_byte_of_a_large_constant_counts() -> None:
    """Although its text is short."""
    ones = np.ones(1000, "f4")
    ones[17] = 2.0
    texts = {text_of(lambda x, c=c: x + c, np.float32(1)) for c in (np.ones(1000, "f4"), ones)}
    assert len(texts) == 2
    assert max(map(len, texts)) < 5000


def test_the_first_difference() -> None:
    """The line and both texts, also where one is longer."""
    assert first_difference("a\nb", "a\nb") is None
    assert first_difference("a\n  b\nc", "a\n  d\ne") == (2, "b", "d")
    assert first_difference("a", "a\nb") == (2, "(nothing)", "b")


GIVEN = {"a": jnp.float32(2), "b": jnp.float32(3), "n": jnp.int32(3), "m": jnp.ones(4)}
SCALAR = jnp.float32(1.3)


def module_of(function: Callable[..., Any], *args: Any) -> str:
    """What a function is lowered to, in MLIR's generic form."""
    module: Any = jax.jit(function).lower(*args).compiler_ir("stablehlo")
    return str(module.operation.get_asm(print_generic_op_form=True, enable_debug_info=False))


def lines_of(function: Callable[..., Any], *args: Any) -> str:
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
    texts = {
        lines_of(gone_through(order), GIVEN, SCALAR) for order in itertools.permutations("abnm")
    }
    assert len(texts) == 1


def test_what_is_done_with_them_counts() -> None:
    """Also where only two arguments of a function are exchanged."""
    usual = lines_of(gone_through("abnm"), GIVEN, SCALAR)
    assert lines_of(gone_through("abnm", swapped=True), GIVEN, SCALAR) != usual


def test_which_results_of_a_loop_are_added_counts() -> None:
    """They are told apart by their numbers."""

    def adding(one: int, other: int) -> Callable[..., Any]:
        def function(x: Any) -> Any:
            last = lax.fori_loop(0, 3, lambda _, c: (c[0] * 2, c[1] * 3, c[2] * 5), (x, x, x))
            return last[one] + last[other], last

        return function

    assert len({lines_of(adding(*each), SCALAR) for each in ((0, 1), (0, 2), (1, 2))}) == 3


def carries(count: int) -> str:
    """A loop in a loop that carry so many values, and do one thing with each."""

    def is_going_on(carried: list[Any]) -> Any:
        return carried[0] < 9

    def body(carried: list[Any]) -> list[Any]:
        return [value * (place + 2) for place, value in enumerate(carried)]

    def loop(carried: list[Any]) -> list[Any]:
        return lax.while_loop(is_going_on, body, carried)

    def f(*values: Any) -> Any:
        return lax.while_loop(is_going_on, loop, list(values))

    return module_of(f, *[jnp.float32(1)] * count)


def test_a_large_program_is_read_in_time_that_grows_as_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each line is looked at for the values in it, and not each line for each value."""
    looked_at: list[str] = []
    names = reading._names

    def noted(text: str) -> Iterator[str]:
        looked_at.append(text)
        return names(text)

    monkeypatch.setattr(reading, "_names", noted)
    counts = []
    for size in (8, 64):
        module = carries(size)
        looked_at.clear()
        canonical_lines(module)
        counts.append(len(looked_at) / len(module.splitlines()))
    assert counts[1] < 2 * counts[0]


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
    assert lines_of(make(2.0), SCALAR) == lines_of(make(2.0), SCALAR)
    assert lines_of(make(2.0), SCALAR) != lines_of(make(3.0), SCALAR)


def test_names_of_functions_may_be_anything() -> None:
    """jax writes them as they are."""

    def two(a: Any, b: Any) -> Any:
        return jnp.sin(a) - b * 3, b / a

    texts = []
    for name in ("two", "f : (a, b", "q) -> (z", 'a"#1 @main'):
        two.__name__ = name
        inner = jax.jit(two)
        texts.append(
            lines_of(lambda a, b, inner=inner: inner(a, b)[0] - inner(b, a)[1] * 2, SCALAR, SCALAR)
        )
    assert len(set(texts)) == 1


@pytest.mark.parametrize("order", ["abnm", "mnba", "nbam", "bman"])
def test_the_text_is_still_the_same_program(order: str) -> None:
    """Read back and run, it gives what the program gives."""
    module = module_of(gone_through(order), GIVEN, SCALAR)
    leaves = jax.tree.leaves((GIVEN, SCALAR))
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
