"""Options of `jax.jit` are part of the key: another value is another program, the old one stays."""

from __future__ import annotations

import dataclasses
import enum
import warnings
from typing import Any

import jax
import numpy as np
import pytest

from jaxd import Client
from jaxd.errors import ArgumentError, CompileAdvice
from tests.end_to_end.counting import costs
from tests.live_server import LiveServer
from tests.warm_clients import run_light

X = np.arange(4, dtype=np.float32)


class Mode(enum.Enum):
    DOUBLE = 2.0
    TRIPLE = 3.0


@dataclasses.dataclass
class Config:
    """Cannot be hashed, and is not registered with jax."""

    by: float
    mode: Mode
    layers: list[int]


class Model:
    """One without any declaration; its call does not read what its other method reads."""

    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, x: Any) -> Any:
        return x

    def apply(self, x: Any) -> Any:
        return x * self.by


def _sharding() -> Any:
    mesh = jax.make_mesh((1,), ("i",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))


FLIPS: dict[str, Any] = {
    "static_argnums": 1,
    "static_argnames": "y",
    "donate_argnums": 0,
    "donate_argnames": "x",
    "keep_unused": True,
    "inline": True,
    "compiler_options": {"xla_embed_ir_in_executable": True},
    "in_shardings": (_sharding(), None),
    "out_shardings": _sharding(),
    "static": "jax",
}


@pytest.mark.parametrize("option", FLIPS)
def test_an_option_is_part_of_the_key(client: Client, option: str) -> None:
    """Flipped, the function is traced anew; set back, the old program answers."""
    flip = FLIPS[option]

    def scaled(x: Any, y: Any) -> Any:
        return x + len(option)

    def call(**options: Any) -> dict[str, int]:
        with costs(client) as spent, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = client.persistent_call(scaled, **options)(X, 2.0)
        assert np.asarray(found).tolist() == (X + len(option)).tolist()
        return spent

    assert call()["traces"] == 1
    assert call(**{option: flip})["traces"] == 1
    assert call() == call(**{option: flip}) == {"executable_hits": 1}


def test_what_jax_cannot_trace_is_static_without_being_declared(client: Client) -> None:
    """One program for each content; equal ones need not be the same object. Numbers are traced."""

    @client.persistent_call
    def scaled(x: Any, config: Any, *, how: Any) -> Any:
        assert len(config.layers) < 9
        return how["f"](x * config.by * config.mode.value) + how["n"]

    def times(by: float, mode: Mode, n: float) -> float:
        config = Config(by, mode, [1, 2])
        return float(scaled(np.float32(1), config, how={"f": abs, "n": n, "name": "ab" + "s"}))

    with costs(client) as spent:
        assert [times(2.0, Mode.DOUBLE, n) for n in (1.0, 2.0)] == [5.0, 6.0]
    assert (spent["traces"], spent["executable_hits"]) == (1, 1)
    with costs(client) as spent:
        assert times(2.0, Mode.TRIPLE, 0.0) == times(3.0, Mode.DOUBLE, 0.0) == 6.0
    assert spent["traces"] == 2
    strict = client.persistent_call(scaled.__wrapped__, static="jax")
    with pytest.raises(ArgumentError, match="static_argnames"):
        strict(X, Config(1.0, Mode.DOUBLE, []), how={})


def test_methods_need_no_declaration(client: Client) -> None:
    """The instance counts by what is in it."""
    apply = client.persistent_call(Model.apply)
    with costs(client) as spent:
        found = [float(apply(Model(by), 2.0)) for by in (2.0, 3.0, 2.0)]
    assert found == [4.0, 6.0, 4.0]
    assert (spent["traces"], spent["executable_hits"]) == (2, 1)


def product(w: Any, x: Any) -> Any:
    return w * x


@dataclasses.dataclass(frozen=True)
class Rule:
    name: str
    factor: float = dataclasses.field(compare=False)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Ruled:
    x: Any
    rule: Any = dataclasses.field(metadata={"static": True})


def test_static_values_that_only_compare_equal_are_not_one(client: Client) -> None:
    """As in two processes with `jax.jit`: the second one gets what its own value says."""
    by_argument = client.persistent_call(lambda x, rule: x * rule.factor, static_argnums=1)
    by_field = client.persistent_call(lambda tree: tree.x * tree.rule.factor)
    for rule in (Rule("a", 2.0), Rule("a", 5.0)):
        assert float(by_argument(np.float32(1), rule)) == rule.factor
        assert float(by_field(Ruled(np.float32(1), rule))) == rule.factor
    with costs(client) as cost:
        by_argument(np.float32(1), Rule("a", 2.0))
        by_field(Ruled(np.float32(1), Rule("a", 5.0)))
    assert "traces" not in cost


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    w: Any
    apply: Any = dataclasses.field(metadata={"static": True})


def test_a_persistent_function_in_an_argument_comes_home_as_itself(client: Client) -> None:
    """Warm calls stay warm, and one that the function reaches comes home as well."""
    apply = client.persistent_call(product)
    other = client.persistent_call(lambda x: x + 1)

    @client.persistent_call
    def step(state: State, x: Any) -> Any:
        return State(state.apply(state.w, x), state.apply), State(other(x), other)

    state = State(np.float32(3), apply)
    with costs(client) as spent:
        for _ in range(3):
            state, found = step(state, 2.0)
            assert state.apply is apply
            assert found.apply is other
    assert (float(state.w), float(found.w)) == (24.0, 3.0)
    assert (spent["traces"], spent["executable_hits"]) == (1, 2)


def test_a_function_that_calls_itself_has_a_key_like_any_other(client: Client) -> None:
    """The server comes to the same one: nothing is in doubt, which would be a warning."""

    @client.persistent_call(static_argnames="n")
    def power(x: Any, n: int) -> Any:
        return x if n == 0 else x * power(x, n - 1)

    with costs(client) as spent:
        assert float(power(2.0, 3)) == float(power(2.0, n=3)) == 16.0
    assert spent["traces"] == 2
    assert power.why(2.0, 3).verdict == "hit"


def test_a_value_that_is_new_in_each_call_is_told_once(client: Client) -> None:
    """With the place where it stands."""

    @client.persistent_call
    def noted(x: Any, notes: Any) -> Any:
        return x + len(notes["text"])

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for n in range(10):
            noted(1.0, {"text": str(n)})
    (advice,) = said
    assert advice.category is CompileAdvice
    assert "8 values of argument notes['text'] ('0', '1', …)" in str(advice.message)


def test_a_client_without_jax_has_the_same_rules(live: LiveServer) -> None:
    """And finds the program that another process has made for the same content."""
    program = """
import collections, enum, fractions, sys
from jaxd import persistent_call, statistics

class Mode(enum.Enum):
    UP, DOWN = 1, -1

Point = collections.namedtuple("Point", "x")

class Config:
    def __init__(self, by):
        self.by = by

@persistent_call
def signed(x, mode, config):
    return x.x * mode[0].value * config.by * len(mode[1]) * int(config.part)

def call(sign, x, by=3.0):
    config = Config(by)
    config.part = fractions.Fraction(1)
    return float(signed(Point(x), (sign, "text", collections.deque([1])), config))

before = statistics()
print(call(Mode.UP, 2.0), call(Mode.DOWN, 2.0), call(Mode.DOWN, 4.0))
print(statistics().traces - before.traces)
try:
    persistent_call(signed.__wrapped__, static_argnames="sign")
except ValueError as error:
    print(error)
assert "jax" not in sys.modules
"""
    wrong = (
        "Jitted function has invalid argnames {'sign'} in static_argnames. Function does not take "
        "these args."
    )
    for traces in (2, 0):
        ended = run_light(live, program)
        assert ended.stdout.splitlines() == ["24.0 -24.0 -48.0", str(traces), wrong], ended.stderr
