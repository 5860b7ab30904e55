from __future__ import annotations

import os
import subprocess
import sys
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd_protocol.errors import ArgumentError
from jaxd_protocol.jit.static_args import NO_STATIC_ARGS, StaticArgs
from jaxd_server.codec.signature import lasting_signature, signature_of
from tests.ids import row
from tests.server.codec.test_results import arrived

FIRST = StaticArgs(frozenset({0}), frozenset({"x"}))


@jax.tree_util.register_dataclass
@dataclass
class Layer:
    w: Any
    b: Any


class Pair(NamedTuple):
    w: Any
    b: Any


def of(*args: Any, **kwargs: Any) -> Any:
    """The signature of a call without static arguments."""
    return signature_of(args, kwargs, NO_STATIC_ARGS)


def static(value: Any) -> Any:
    """The signature of a call whose argument is static."""
    return signature_of((value,), {}, FIRST)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1.0, "b": 2}, {"b": 3, "a": 2.0}),
        (np.ones(3, np.float32), np.zeros(3, np.float32)),
        (np.ones(3, np.float32), jnp.ones(3, np.float32)),
        (np.float32(1), np.ones((), np.float32)),
        (jax.random.key(0), jax.random.key(1)),
        (1.0, float("nan")),
        ([None], [None]),
        (Layer(1.0, [2.0]), Layer(3.0, [4.0])),
    ],
    ids=["dict order", "values", "jax", "numpy scalar", "keys", "floats", "None", "class"],
)
def test_what_one_program_can_take_has_one_signature(one: Any, other: Any) -> None:
    """Only structure, shape, dtype and weak type count; of this process and on disk."""
    assert of(one) == of(other)
    assert hash(of(one)) == hash(of(other))
    assert lasting(one) == lasting(other)
    assert len(lasting(one)) == 16


DIFFERENT = [
    (1, 1.0),
    (1, True),
    (1.0, 1j),
    (1.0, np.float32(1)),
    (1, np.int32(1)),
    (np.ones(3, np.float32), np.ones(4, np.float32)),
    (np.ones(3, np.float32), np.ones((3, 1), np.float32)),
    (np.ones(3, np.float32), np.ones(3, np.float16)),
    (jnp.asarray(1.0), np.float32(1)),
    (jnp.asarray(1.0), jnp.asarray(1.0, jnp.float32)),
    (jnp.full(3, 1.0), jnp.full(3, 1.0, jnp.float32)),
    ((1, 2), [1, 2]),
    ({"a": 1}, {"b": 1}),
    ({"a": 1, "b": 2}, OrderedDict(a=1, b=2)),
    (OrderedDict(a=1, b=2), OrderedDict(b=2, a=1)),
    ({1: 1.0}, {True: 1.0}),
    ({1: 1.0}, {"1": 1.0}),
    (None, ()),
    (jax.random.key(0), jax.random.key_data(jax.random.key(0))),
    (jax.random.key(0), jax.random.key(0, impl="rbg")),
    (Layer(1.0, 2.0), Pair(1.0, 2.0)),
    (Layer(1.0, None), Layer(1.0, 2.0)),
    (Pair(1.0, 2.0), (1.0, 2.0)),
    ([[1.0], 2.0], [[1.0, 2.0]]),
    ([[], 1.0], [1.0, []]),
]


def test_what_compiles_differently_has_another_signature() -> None:
    """Else a caller would get the result of somebody else's program; here and on disk."""
    for one, other in DIFFERENT:
        with row((one, other)):
            assert of(one) != of(other)
            assert lasting(one) != lasting(other)


@jax.tree_util.register_dataclass
@dataclass
class Scaled:
    x: Any
    by: Any = field(metadata={"static": True})


@dataclass(frozen=True)
class Setting:
    width: int


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, True), (1, 1.0), ((0.0, "a"), (-0.0, "a")), ([1, [2]], [1, [2.0]]), ({1: 2}, {1: 2.0})],
)
def test_static_fields_count_by_type_and_value(one: Any, other: Any) -> None:
    """jax asks only whether they are equal."""
    assert of(Scaled(1.0, one)) != of(Scaled(1.0, other))
    assert of(Scaled(1.0, one)) == of(Scaled(2.0, one))


def test_where_an_argument_stands_counts() -> None:
    """By position or by name, and by which name; not in which order the names come."""
    assert of(a=1, b=2.0) == of(b=2.0, a=1)
    assert of(a=1) != of(b=1)
    assert of(1) != of(a=1)
    found = [lasting(1.0, 2), lasting(2, 1.0), lasting(1.0, x=2), lasting(x=1.0, y=2), lasting()]
    assert len(set(found)) == 5
    assert lasting(x=1.0, y=2) == lasting(y=3, x=2.0)
    assert lasting([1.0, 2.0]) != lasting(1.0, 2.0)
    assert lasting(1.0) != lasting_static(1.0)

    def call(first: int, rest: float, x: str) -> Any:
        return signature_of((first, rest), {"x": x, "y": 1.0}, FIRST)

    assert call(1, 1.0, "a") == call(1, 2.0, "a")
    assert call(1, 1.0, "a") != call(2, 1.0, "a")
    assert call(1, 1.0, "a") != call(1, 1.0, "b")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (3, 4),
        (3, 3.0),
        (1, True),
        ("a", "b"),
        (0.0, -0.0),
        (("relu", 1), ("relu", True)),
        ((1, (2,)), (1, (2.0,))),
        ("1", b"1"),
        (None, False),
        (jnp.float32, jnp.bfloat16),
        (Setting(1), Setting(2)),
        (jnp.tanh, jnp.sin),
    ],
)
def test_static_values_are_told_apart_by_type_and_value(one: Any, other: Any) -> None:
    """Also where Python calls them equal, as 1 and True inside of a tuple; objects by content."""
    assert static(one) != static(other)
    assert lasting_static(one) != lasting_static(other)


@pytest.mark.parametrize(
    "make",
    [
        lambda: 3,
        lambda: "relu",
        lambda: (1, "a", None),
        lambda: float("nan"),
        lambda: jnp.tanh,
        lambda: Setting(1),
    ],
)
def test_equal_static_values_share_a_signature(make: Any) -> None:
    """Not a number, too, which is not equal to itself; never that of a traced one."""
    assert static(make()) == static(make())
    assert hash(static(make())) == hash(static(make()))
    assert lasting_static(make()) == lasting_static(make())
    assert static(3) != of(3)


@dataclass(frozen=True)
class Named:
    name: str
    rate: float = field(compare=False)


class Rule(NamedTuple):
    width: int


class OtherRule(NamedTuple):
    width: int


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Named("a", 1.0), Named("a", 2.0)),
        (Rule(1), OtherRule(1)),
        ((Rule(1), 2), (OtherRule(1), 2)),
    ],
)
def test_what_is_equal_only_by_its_own_idea_is_not(one: Any, other: Any) -> None:
    """A program reads the field that does not compare, and the methods of the class."""
    assert one == other
    assert static(one) != static(other)
    assert of(Scaled(1.0, one)) != of(Scaled(1.0, other))


def test_what_has_no_content_counts_by_its_own_idea_of_equality() -> None:
    """There is nothing else; it has no lasting signature, by which nothing would find it again."""
    one, other = ((each for each in [number]) for number in (1, 2))
    assert static(one) == static(one) != static(other)
    assert of(Scaled(1.0, one)) == of(Scaled(2.0, one)) != of(Scaled(1.0, other))
    assert of(Scaled(1.0, (one, 1))) != of(Scaled(1.0, (one, True)))
    with pytest.raises(ValueError, match="has no content"):
        lasting_static(Shut())
    with pytest.raises(ValueError, match="known only to one process"):
        lasting(Unknown(1.0))
    with pytest.raises(ArgumentError):
        lasting("text")


def test_a_static_value_that_cannot_be_hashed_is_refused() -> None:
    """With jax's own words, and what to do; so is what jax cannot trace."""
    with pytest.raises(ValueError, match=r"Non-hashable static arguments.*a tuple for a list"):
        static([1, 2])
    with pytest.raises(ArgumentError, match=r"type Setting.*static_argnames"):
        of({"deep": [Setting(1)]})
    with pytest.raises(ArgumentError, match="type str"):
        signature_of((1, "text"), {}, FIRST)


def lasting(*args: Any, **kwargs: Any) -> bytes:
    """The lasting signature of a call without static arguments, of classes that have arrived."""
    for cls in (Layer, Pair):
        arrived(cls)
    return lasting_signature(args, kwargs, NO_STATIC_ARGS)


def lasting_static(value: Any) -> bytes:
    """That of a call whose argument is static."""
    return lasting_signature((value,), {}, FIRST)


class Unknown(NamedTuple):
    w: Any


class Shut:
    """Hashable, and nothing tells what is in it."""

    def __reduce__(self) -> Any:
        raise TypeError("it is shut")


@pytest.mark.slow
def test_a_lasting_signature_is_the_same_in_every_process() -> None:
    """Whatever the seed of its hashes is."""
    program = (
        "import numpy as np, jax\n"
        "from jaxd_protocol.jit.static_args import StaticArgs\n"
        "from jaxd_server.codec.signature import lasting_signature\n"
        "tree = {'b': np.ones(3), 'a': [1.0, None, {'x': True}], 'k': jax.random.key(0)}\n"
        "statics = StaticArgs(frozenset({1}), frozenset({'s'}))\n"
        "kwargs = {'s': frozenset({'a', 'b', 'c'}), 'y': 1}\n"
        "print(lasting_signature((tree, ('relu', 3)), kwargs, statics).hex())\n"
    )
    path = os.pathsep.join(sys.path)
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
